"""
Tutorial: a table with holes
============================

A table as it comes in life: numbers, whole numbers, categories, dates and a column of
identifiers, with holes everywhere. This page makes one, looks at its holes, asks whether an
imputer is any good on it, fills it, says how sure that is, and keeps the model for the rows
of tomorrow.
"""

# %%
# A messy file
# ------------
# Visits to a clinic, as if typed in by hand. Values depend on each other, and not by
# straight lines: blood pressure rises late in life, the region is known by its altitude,
# and dose and next visit go by steps of the risk.

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n = 900
sex = rng.choice(["f", "m"], n)
region = rng.choice(["coast", "hills", "plain", "town"], n, p=[0.25, 0.2, 0.3, 0.25])
where = [region == name for name in ("coast", "hills", "plain", "town")]
altitude = np.select(where, [5, 420, 90, 190]) + np.select(
    where, [3, 90, 25, 20]
) * rng.normal(size=n)
age = rng.integers(18, 90, n)
smoker = rng.random(n) < np.select(where, [0.2, 0.1, 0.3, 0.6])
weight = (
    np.where(sex == "m", 78, 63)
    + 0.5 * (age - 18)
    - 0.006 * (age - 18) ** 2
    + 5 * rng.normal(size=n)
)
systolic = (
    108
    + 0.012 * (age - 18) ** 2
    + 0.3 * (weight - 70)
    + 10 * smoker
    + 4 * rng.normal(size=n)
)
risk = np.select([systolic < 122, systolic < 142], ["low", "middle"], "high")
dose = np.select([risk == "low", risk == "middle"], [0, np.where(weight > 75, 10, 5)], 20)
visit = np.datetime64("2024-01-01") + rng.integers(0, 365, n)
next_visit = (
    visit
    + np.select([risk == "low", risk == "middle"], [180, 90], 30)
    + rng.integers(-7, 8, n)
)

visits = pd.DataFrame(
    {
        "patient": [f"P{i:04d}" for i in range(n)],
        "visit": visit,
        "sex": sex,
        "region": region,
        "altitude": altitude.round(),
        "age": age,
        "smoker": np.where(smoker, "yes", "no"),
        "weight": weight.round(1),
        "systolic": systolic.round(),
        "risk": risk,
        "dose": dose,
        "next_visit": next_visit,
    }
)

# %%
# Cells go missing in three ways: here and there, all that the nurse measures at once, and
# questions about smoking that the old answer less often than the young.

holes = pd.DataFrame(rng.random(visits.shape) < 0.08, columns=visits.columns)
holes[["weight", "systolic"]] |= (rng.random(n) < 0.1)[:, None]
holes["smoker"] |= rng.random(n) < age / 300
holes[["patient", "visit"]] = False

path = Path(mkdtemp()) / "visits.csv"
visits.mask(holes).to_csv(path, index=False, na_rep="?")
print("\n".join(path.read_text().splitlines()[:6]))

# %%
# Read it
# -------
# Only the reading of the file needs care: which marks stand for "missing", which columns
# are dates, and which types hold whole numbers that may be missing. The imputer takes the
# kinds of columns from their types.

whole = dict.fromkeys(["altitude", "age", "systolic", "dose"], "Int64")
table = pd.read_csv(path, na_values="?", parse_dates=["visit", "next_visit"], dtype=whole)
table.head()

# %%
# The types cannot say that risks have an order. ``kinds`` can, and ``bounds`` says what no
# weight can be. Columns that count the rows, like the patients, are left alone; there would
# be a warning that names them, had we not said so.

settings = {
    "kinds": {"risk": ["low", "middle", "high"], "patient": "pass"},
    "bounds": {"weight": (30, None)},
    "random_state": 0,
}

# %%
# Look at the holes
# -----------------
# How much of each column is missing, and which columns are missing together:

import matplotlib.pyplot as plt

share = table.isna().mean()
patterns = table.isna().value_counts().head(12)

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.4), layout="constrained", sharey=True
)
left.barh(share.index, share, color="tab:orange")
left.set(xlabel="share that is missing", xlim=(0, 0.5))
right.imshow(np.array(patterns.index.to_list()).T, cmap="Oranges", aspect="auto", vmax=1.5)
right.set(
    xticks=range(len(patterns)),
    xticklabels=patterns,
    xlabel="rows with this pattern, the most frequent ones",
)

# %%
# Is it any good on this table?
# -----------------------------
# There is no truth to compare with, but there are observed cells. :func:`emflow.evaluate`
# hides some of them, where other rows have holes, and looks how well they come back.

from emflow import EMFlowImputer, evaluate

print(evaluate(table, EMFlowImputer(**settings)))

# %%
# Numbers are off by so much, in the units of the table, dates in days, and of categories a
# share is right. The last line says where something simpler would have done.
#
# Fill it
# -------

imputer = EMFlowImputer(**settings).fit(table)
filled = imputer.transform(table)
filled.head()

# %%
# The frame that comes back is the frame that went in: same index, same order, same types.
# Observed cells are untouched, and no hole is left.

assert filled.dtypes.equals(table.dtypes)
assert not filled.isna().any(axis=None)
assert filled.where(table.notna()).equals(table)

# %%
# Here we know what was hidden. How often is the filled category right, and how far off are
# the numbers?

for name in ["region", "smoker", "sex", "risk"]:
    hit = (filled[name] == visits[name])[holes[name]].mean()
    frequent = (visits[name] == table[name].mode()[0])[holes[name]].mean()
    print(f"{name:10} {hit:4.0%} right, {frequent:4.0%} with the most frequent one")
for name in ["altitude", "age", "weight", "systolic", "dose"]:
    gaps = [visits[name] - guess for guess in (filled[name], table[name].mean())]
    error, spread = (np.sqrt((gap[holes[name]].astype(float) ** 2).mean()) for gap in gaps)
    print(f"{name:10} off by {error:4.1f}, the mean by {spread:5.1f}")

# %%
# How sure is it?
# ---------------
# ``intervals`` has two ends for each missing cell, between which the value lies with the
# probability asked for. Observed cells have their own value at both.

lower, upper = imputer.intervals(table, coverage=0.9)

rows = np.flatnonzero(holes["systolic"])[:25]
frames = lower, filled, upper, visits
low, middle, high, truth = (frame["systolic"].iloc[rows].astype(float) for frame in frames)
figure, axis = plt.subplots(figsize=(9, 3), layout="constrained")
ends = [middle - low, high - middle]
axis.errorbar(range(25), middle, ends, fmt="o", capsize=3, label="filled, 90 % interval")
axis.plot(range(25), truth, "x", color="tab:orange", label="what was hidden")
axis.set(xticks=range(25), xticklabels=rows, xlabel="row", ylabel="systolic")
axis.tick_params("x", rotation=90)
axis.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)

inside = ((lower <= visits) & (visits <= upper))["systolic"][holes["systolic"]]
print(f"{inside.mean():.0%} of the hidden pressures are within their intervals")

# %%
# Categories without an order have no interval, but probabilities, in the order of
# ``categories_``.

probabilities = imputer.probabilities(table)["region"]
unknown = np.flatnonzero(holes["region"])[:5]
pd.DataFrame(
    probabilities[unknown], columns=imputer.categories_["region"], index=unknown
).round(2)

# %%
# Whole tables that could have been, for analyses that shall know what is not known, come
# from ``sample_imputations``: :doc:`multiple_imputation` goes on from there.
#
# Keep it
# -------
# One file, without pickle. The fitted model fills rows that it has never seen, and the
# answer for a row depends on that row alone.

model = path.with_name("visits.safetensors")
imputer.save(model)

new = table.sample(3, random_state=1).assign(systolic=pd.NA).astype(table.dtypes)
EMFlowImputer.load(model).transform(new)

# %%
# The file holds the training rows, up to 16,000 of them, which new rows are compared with.
# ``store_rows=False`` keeps them out, at some cost in accuracy.
#
# From the command line
# ---------------------
# The same without a line of Python. Files may be CSV, TSV, Parquet, Feather, JSON lines or
# Excel, by their ending.
#
# .. code-block:: sh
#
#     emflow report visits.csv -o report.html      # all there is to see, on one page
#     emflow evaluate visits.csv                   # is it any good on this table?
#     emflow impute visits.csv -o filled.csv       # fit and fill
#
#     emflow fit visits.csv -o visits.safetensors  # or in two steps
#     emflow info visits.safetensors               # what the model knows of its columns
#     emflow transform visits.safetensors new.csv -o new_filled.csv
#     emflow draw visits.safetensors visits.csv -o draw.csv --draws 5
