"""
Images
======

Images are filled as they are: arrays of shape (n, h, w), or (n, h, w, c) with colours, of
bytes or floats.
"""

# %%
# Digits with holes
# -----------------
# 1797 handwritten digits of scikit-learn, eight by eight pixels with values from 0 to 16.
# Every other image lacks two fifths of its pixels, here and there; the images between lack
# a block of four by four.

import numpy as np
from sklearn.datasets import load_digits

images = load_digits().images.astype(np.uint8)
rng = np.random.default_rng(0)

missing = rng.random(images.shape) < 0.4
for n in range(1, len(images), 2):
    i, j = rng.integers(1, 4, 2)
    missing[n] = False
    missing[n, i : i + 4, j : j + 4] = True

complete = (~missing.any((1, 2))).sum()
print(f"{missing.mean():.0%} of the pixels are missing, and {complete} images are complete")

# %%
# Fill them
# ---------
# Bytes have no NaN, so ``missing`` says which pixels are holes. What stands there is not
# read.
#
# A Gaussian whose correlations depend on the offset of two pixels fills them first. A
# convolutional network then learns to correct it, by hiding further observed pixels, so
# that no complete image is needed; it is kept only if it helps on pixels that it was not
# shown. 500 steps are the default, a page like this one makes do with 100.

from emflow import EMFlowImputer

holed = np.where(missing, 0, images)
by_image = EMFlowImputer(refine_steps=100, random_state=0).fit(holed, missing=missing)
filled = by_image.transform(holed, missing=missing)

assert filled.dtype == np.uint8
assert (filled == images)[~missing].all()
print("network kept:", by_image.refinement_ is not None)

# %%
# Images this small can also be given as rows of a table, one column for each pixel. Then
# the E-step looks for images that are most alike (:doc:`pictures` shows how), which pays
# where images are few and much the same. Columns that are the same in all rows, as the
# corners are, do no harm.

rows = np.where(missing, np.nan, images).reshape(len(images), -1)
by_row = EMFlowImputer(refine_steps=200, random_state=0).fit(rows)
as_rows = by_row.transform(rows).reshape(images.shape)

mean = np.broadcast_to(np.nanmean(rows, 0).reshape(8, 8), images.shape)
for name, answer in {
    "mean of the pixel": mean,
    "as images": filled,
    "as rows": as_rows,
}.items():
    error = np.sqrt((((answer - images.astype(float)) / 16)[missing] ** 2).mean())
    print(f"{name:18} RMSE {error:.4f}")

# %%
# Truth, holes in orange, and what was filled in:

import matplotlib.pyplot as plt

greys = plt.colormaps["gray_r"].with_extremes(bad="tab:orange")


def show(lines, size):
    """Draw the first twelve images of each line."""
    _, axes = plt.subplots(len(lines), 12, figsize=size, layout="constrained")
    for line, (label, shown) in zip(axes, lines.items(), strict=True):
        for image, axis in zip(shown, line, strict=False):
            axis.imshow(image, cmap="magma" if "width" in label else greys, vmin=0, vmax=16)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")


holes = rows.reshape(images.shape)
show({"truth": images, "holes": holes, "as images": filled, "as rows": as_rows}, (9, 3.1))

# %%
# How sure is it?
# ---------------
# As for any table there are intervals for each pixel, and draws of all of them together.
# Where an interval is wide, bright here, the image could as well be another one; the draws
# show which.

lower, upper = by_row.intervals(rows[:12], coverage=0.9)
draws = by_row.sample_imputations(rows[:12], n_draws=3)

lines = {"filled": as_rows, "width of 90 %": upper - lower}
lines |= {f"draw {k + 1}": draw for k, draw in enumerate(draws)}
show({label: shown.reshape(-1, 8, 8) for label, shown in lines.items()}, (9, 3.9))

# %%
# New images need no training: ``transform`` fills any that have this size. Colours go along
# in a last axis, and a ``missing`` of shape (n, h, w) then hides whole pixels.
# :doc:`/paper` has MNIST and CIFAR-10, with up to nine tenths of their pixels missing.
