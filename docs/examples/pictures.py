"""
The method in pictures
======================

What happens between ``fit`` and ``transform``, on a table of two columns, which can be
drawn. :doc:`/method` has the learned part of it in words and formulas, `the paper
<https://arxiv.org/abs/2106.04804>`_ the rest.
"""

# %%
# A bent cloud
# ------------
# The second column depends on the first by a curve. A fifth of the cells is missing: rows
# that lack the first column are lines along which the row could lie, and so are those that
# lack the second.

import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(0)
t = rng.normal(0.15, 0.9, 1000).clip(-2, 2)
truth = np.column_stack([t, 0.7 * t**2]) + 0.15 * rng.normal(size=(1000, 2))
missing = rng.random(truth.shape) < 0.2
X = np.where(missing, np.nan, truth)

BLUE, ORANGE, GREY = "tab:blue", "tab:orange", "0.75"
NAMES = {"xlabel": "first column", "ylabel": "second column"}


def cloud(axis, title):
    """Draw the rows without holes, and name the axes."""
    axis.scatter(*truth[~missing.any(1)].T, s=3, color=GREY)
    axis.set(title=title, xlim=(-2.6, 2.6), ylim=(-0.7, 3.4), **NAMES)


figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
cloud(axis, "rows, and holes of fourteen of them")
axis.vlines(X[missing[:, 1] & ~missing[:, 0], 0][:7], -0.7, 3.4, color=ORANGE, linewidth=1)
axis.hlines(X[missing[:, 0] & ~missing[:, 1], 1][:7], -2.6, 2.6, color=BLUE, linewidth=1)

# %%
# One Gaussian
# ------------
# EM of one Gaussian fills each hole by its conditional mean, given what is observed of the
# row. That mean is a straight line, whatever the cloud looks like.

from emflow import GaussianImputer

gaussian = GaussianImputer(random_state=0).fit(X)


def fills(axis, filled, title):
    """Draw the cloud and fills: orange in the second column, blue in the first."""
    cloud(axis, title)
    for column, colour in ((1, ORANGE), (0, BLUE)):
        axis.scatter(
            *filled[missing[:, column] & ~missing[:, 1 - column]].T, s=6, color=colour
        )


figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
fills(axis, gaussian.transform(X), "filled by one Gaussian")

# %%
# A flow straightens the cloud
# ----------------------------
# EMFlow looks for a space in which a Gaussian does fit. A flow is an invertible network:
# ``encode`` carries rows x to latent rows z, ``decode`` carries them back without loss. It
# is trained to make the latent cloud a Gaussian one, whose mean and covariance online EM
# learns meanwhile. ``stages_`` are the pairs of flow and Gaussian that were learnt.

import torch

from emflow import EMFlowImputer

imputer = EMFlowImputer(
    n_iterations=3, n_epochs=120, hidden_width=32, initial_fill="median", refine="off",
    validation_fraction=0, random_state=0,
).fit(X)  # fmt: skip


def encode(stage, x):
    with torch.no_grad():
        return stage.flow.encode(torch.from_numpy(imputer.schema_.scale(x)))[0].numpy()


def decode(stage, z):
    with torch.no_grad():
        return imputer.schema_.unscale(stage.flow.decode(torch.from_numpy(z))[0].numpy())


# %%
# On the left the rows and on the right where the flow puts them, each in its colour. The
# rings on the right are those of the Gaussian, which hold 50 and 90 % of it; decoded they
# are the contours on the left.

angle = np.linspace(0, 2 * np.pi, 300)
circle = np.column_stack([np.cos(angle), np.sin(angle)])


def ring(gaussian, share):
    """Return the ellipse that holds this share of a Gaussian."""
    return (
        gaussian.mean.numpy()
        + np.sqrt(-2 * np.log(1 - share))
        * circle
        @ np.linalg.cholesky(gaussian.cov.numpy()).T
    )


last = imputer.stages_[-1].to(torch.float64)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.scatter(*truth.T, s=4, c=truth[:, 0], cmap="viridis")
right.scatter(*encode(last, truth).T, s=4, c=truth[:, 0], cmap="viridis")
for share in (0.5, 0.9):
    right.plot(*ring(last.gaussian, share).T, color="black", linewidth=1)
    left.plot(*decode(last, ring(last.gaussian, share)).T, color="black", linewidth=1)
left.set(title="data x", **NAMES)
right.set(title="latent z", xlabel="first coordinate", ylabel="second coordinate")

# %%
# The E-step in latent space
# --------------------------
# A row whose second column is missing starts with a guess there (1). It is encoded (2), its
# second latent coordinate is replaced by the conditional mean under the Gaussian, given the
# first (3), and it is decoded (4). Only the missing cell is taken over: what was observed
# is kept (5). This is the first of the stages, which has learnt from the guesses.

first = imputer.stages_[0].to(torch.float64)
start = np.array([[-1.4, np.nanmedian(X[:, 1])]])
z = encode(first, start)
mean, cov = first.gaussian.mean.numpy(), first.gaussian.cov.numpy()
z_hat = np.array([[z[0, 0], mean[1] + cov[1, 0] / cov[0, 0] * (z[0, 0] - mean[0])]])
x_rec = decode(first, z_hat)
end = np.array([[start[0, 0], x_rec[0, 1]]])

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
cloud(left, "data x")
left.axvline(start[0, 0], color=ORANGE, linewidth=1)
right.scatter(*encode(first, truth[~missing.any(1)]).T, s=3, color=GREY)
right.plot(*ring(first.gaussian, 0.9).T, color="black", linewidth=1)
right.axline(mean, slope=cov[1, 0] / cov[0, 0], color="black", linewidth=1, linestyle=":")
right.annotate("", z_hat[0], z[0], arrowprops={"arrowstyle": "->", "color": "tab:red"})
for axis, number, point, beside in (
    (left, 1, start, (-14, -4)), (right, 2, z, (7, -4)), (right, 3, z_hat, (7, -4)),
    (left, 4, x_rec, (7, 2)), (left, 5, end, (-14, 2)),
):  # fmt: skip
    axis.plot(*point[0], "o", color="tab:red")
    axis.annotate(
        str(number),
        point[0],
        beside,
        textcoords="offset points",
        color="tab:red",
        weight="bold",
    )
right.set(
    title="latent z, and the conditional mean (dotted)",
    xlabel="first coordinate",
    ylabel="second coordinate",
)

# %%
# The outer loop
# --------------
# The flow learns from completed rows, and rows are completed by the flow: so they take
# turns. Training starts from a crude fill, here the median; each outer iteration trains
# flow and Gaussian on the completion of the last one, and then fills the holes anew.
# ``transform`` replays these stages on any row.

from emflow.latent.patterns import Patterns
from emflow.learn.reimpute import reimpute

patterns = Patterns(torch.from_numpy(missing))
x_hat = torch.from_numpy(imputer.schema_.scale(np.where(missing, np.nanmedian(X, 0), X)))
completions = {"start: the median": imputer.schema_.unscale(x_hat.numpy())}
for k, stage in enumerate(imputer.stages_):
    x_hat = reimpute(stage, x_hat, patterns, clip=True)
    completions[f"after outer iteration {k + 1}"] = imputer.schema_.unscale(x_hat.numpy())
assert np.allclose(completions["after outer iteration 3"], imputer.transform(X))

figure, axes = plt.subplots(
    2, 2, figsize=(9, 6.6), layout="constrained", sharex=True, sharey=True
)
for axis, (title, filled) in zip(axes.flat, completions.items(), strict=True):
    fills(axis, filled, title)

# %%
# Orange holes now follow the curve. Blue ones cannot: given the second column, the first
# may be on either arm. A single number is a poor answer there, on which arm ever it lies.
#
# The learned E-step
# ------------------
# On tables of 700 rows and more the E-step is therefore learnt, and gives a distribution
# for every missing cell. It is the product of three factors: the Gaussian conditional, a
# histogram of the training rows most alike, and a tilt by a network. It learns by hiding
# further observed cells.
#
# One row, whose second column is 1.5, and what each part makes of the first one, in bars:
# how often values are drawn.

sizes = {"n_bins": 32, "n_pieces": 24}  # for two columns; the defaults are made for more
settings = {"refine_steps": 600, "validation_fraction": 0, "random_state": 0}
learned = EMFlowImputer(refine=sizes, **settings).fit(X)
parts = {
    "Gaussian conditional": gaussian,
    "and the rows most alike": EMFlowImputer(refine=sizes | {"width": 0}, **settings).fit(
        X
    ),
    "and the tilt": learned,
}
row = np.array([[np.nan, 1.5]])
alike = truth[np.abs(truth[:, 1] - 1.5) < 0.1, 0]

figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", sharey=True)
for axis, (title, model) in zip(axes, parts.items(), strict=True):
    draws = model.sample_imputations(row, n_draws=4000)[:, 0, 0]
    axis.hist(
        draws, np.linspace(-2.6, 2.6, 53), weights=np.full(4000, 1 / 4000), color=BLUE
    )
    axis.plot(alike, np.full(len(alike), -0.01), "|", color="black", clip_on=False)
    axis.axvline(model.transform(row)[0, 0], color=ORANGE)
    axis.set(title=title, xlabel="first column")
axes[0].set_ylabel("probability")

# %%
# Black ticks are the rows of the complete table that have about this value in their second
# column; the orange line is what ``transform`` fills in, the mean. Only the distribution
# knows that there are two arms, and which of them is the likelier one.
#
# Draws and intervals
# -------------------
# ``intervals`` reads quantiles off these distributions, ``sample_imputations`` draws from
# them, all missing cells of a row together. On the left 90 % intervals of the second
# column, over the first; on the right one draw for every hole of the table: unlike
# conditional means, draws look like data.

grid = np.column_stack([np.linspace(-2, 2, 81), np.full(81, np.nan)])
lower, upper = learned.intervals(grid, coverage=0.9)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
cloud(left, "mean and 90 % interval")
left.fill_between(
    grid[:, 0], lower[:, 1], upper[:, 1], color=ORANGE, alpha=0.3, linewidth=0
)
left.plot(*learned.transform(grid).T, color=ORANGE)
fills(right, learned.sample_imputations(X, n_draws=1)[0], "one draw")

# %%
# Do intervals hold what they say? Here the truth is known:

lower, upper = learned.intervals(X, coverage=0.9)
inside = ((lower <= truth) & (truth <= upper))[missing]
print(f"{inside.mean():.0%} of {len(inside)} hidden cells lie within their 90 % intervals")
