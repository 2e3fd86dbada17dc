"""
Multiple imputation
===================

A table that has been filled looks complete, and an analysis of it takes what was filled in
for what was measured: its standard errors are too small. Multiple imputation fills it
several times, by draws from what each hole could have held, analyses every copy, and pools
the answers by Rubin's rules. How much the copies differ is what the holes cost.
"""

# %%
# A regression with holes
# -----------------------
# Blood pressure on age, weight and smoking. We make the table, so that we know the
# coefficients.

import numpy as np
import pandas as pd

TRUTH = pd.Series({"const": 60.0, "age": 0.5, "weight": 0.5, "smoker": 8.0})


def simulate(n, rng):
    age = rng.uniform(20, 80, n)
    weight = 55 + 0.3 * age + 8 * rng.normal(size=n)
    smoker = (rng.random(n) < 1 / (1 + np.exp((age - 50) / 10))).astype(float)
    table = pd.DataFrame({"const": 1.0, "age": age, "weight": weight, "smoker": smoker})
    table["pressure"] = table @ TRUTH + 8 * rng.normal(size=n)
    return table.drop(columns="const")


complete = simulate(800, np.random.default_rng(1))

# %%
# Weight and smoking are not known of two people in five, the more often, the higher their
# pressure: missing at random, as pressure itself is always there.

from emflow import missingness


def lose(table, rng):
    holed = [table.columns.get_loc(name) for name in ("weight", "smoker")]
    weights = [0.0, 2.0]  # of age and pressure, the others
    missing = missingness.mar(table, 0.45, columns=holed, weights=weights, random_state=rng)
    return table.mask(missing)


table = lose(complete, np.random.default_rng(2))
table.isna().mean()

# %%
# Draw, analyse, pool
# -------------------
# Ten completed tables, a regression by statsmodels on each, one result.

import statsmodels.api as sm

from emflow import EMFlowImputer, pool


def regress(frame):
    predictors = frame[["age", "weight", "smoker"]].astype(float)
    return sm.OLS(frame["pressure"], sm.add_constant(predictors)).fit()


imputer = EMFlowImputer(kinds={"smoker": "binary"}, random_state=0).fit(table)
draws = imputer.sample_imputations(table, n_draws=10)
pooled = pool([regress(draw) for draw in draws])
print(pooled)

# %%
# ``fmi`` is the fraction of missing information: how much of what the complete table would
# tell about a coefficient is lost in the holes.
#
# What it would be otherwise
# --------------------------
# *Complete cases* are the rows without holes, which is what regressions make of a table
# like this by default. *Filled once* is ``transform``, the best guess for each cell. The
# first row is what we lost.

results = {
    "before the holes": regress(complete),
    "complete cases": regress(table.dropna()),
    "filled once": regress(imputer.transform(table)),
}
estimates = pd.DataFrame({name: result.params for name, result in results.items()}).T
errors = pd.DataFrame({name: result.bse for name, result in results.items()}).T
estimates.loc["pooled"], errors.loc["pooled"] = pooled.estimate, pooled.standard_error
estimates.loc["truth"] = TRUTH
estimates.round(3)

# %%
# Their standard errors:

errors.round(3)

# %%
# Complete cases are honest about having few rows, but they are no random part of them:
# those with a high pressure are gone, and with them some of the slope. Filled once, the
# standard errors are about those of a table without holes, though two fifths of two columns
# were never seen; and as best guesses lie closer to the line than data do, the coefficients
# of these two columns are too large. Pooled draws come close to the truth, and say how
# close.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained", sharey=True)
for axis, name in zip(axes, ["age", "weight", "smoker"], strict=True):
    for y, way in enumerate(errors.index):
        error = 1.96 * errors.loc[way, name]
        axis.errorbar(estimates.loc[way, name], y, xerr=error, fmt="o", capsize=3)
    axis.axvline(TRUTH[name], color="black", linewidth=0.8, linestyle=":")
    axis.set(title=name, yticks=range(len(errors)), yticklabels=errors.index)
axes[0].invert_yaxis()

# %%
# Does the interval keep its word?
# --------------------------------
# One table proves nothing. So a hundred of them, each smaller, with holes of their own,
# filled by a Gaussian, which is quick: how often does the 95 % interval hold the true
# coefficient?
#
# All draws of one model share its parameters, as if these were known for certain.
# ``bootstrap=True`` fits a copy for each draw, to a sample of the rows, so that draws
# differ by that uncertainty, too.

from emflow import GaussianImputer

N_TABLES, N_DRAWS = 100, 5


def filled_once(table):
    return regress(GaussianImputer().fit_transform(table)).conf_int().to_numpy().T


def pooled_draws(table, bootstrap=False):
    imputer = GaussianImputer(clip=False, random_state=0).fit(table)
    draws = imputer.sample_imputations(table, n_draws=N_DRAWS, bootstrap=bootstrap)
    return pool([regress(draw) for draw in draws]).interval()


ways = {
    "complete cases": lambda table: regress(table.dropna()).conf_int().to_numpy().T,
    "filled once": filled_once,
    "pooled": pooled_draws,
    "pooled, bootstrap": lambda table: pooled_draws(table, bootstrap=True),
}
covers = {name: [] for name in ways}
for seed in range(N_TABLES):
    rng = np.random.default_rng([3, seed])
    holed = lose(simulate(250, rng), rng)
    for name, way in ways.items():
        low, high = way(holed)
        covers[name].append((low <= TRUTH) & (high >= TRUTH))

pd.DataFrame(
    {name: np.mean(covered, 0) for name, covered in covers.items()}, index=TRUTH.index
).T

# %%
# Of a hundred intervals that keep their word, 95 hold the truth, give or take four. Draws
# of one model do far better than the rest, and a model for each draw does better still:
# worth its time where much is missing and rows are few.
