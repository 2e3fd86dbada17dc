"""The start of EM: moments of pairs, and for images correlations by offset."""

import itertools
import math

import naive
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from emflow.latent import start
from emflow.latent.gaussian import Gaussian
from emflow.latent.start import REACH, pairwise_start, stationary_start


def places(h, w, c):
    """Return row, column and channel of every value of a flat image."""
    return list(itertools.product(range(h), range(w), range(c)))


def stationary_gaussian(h, w, c, decay=0.5):
    """Return one whose correlations fall off exponentially with the distance, with another variance for each pixel."""
    corr = [[decay ** math.dist(a[:2], b[:2]) * (1 if a[2] == b[2] else 0.5) for b in places(h, w, c)]
            for a in places(h, w, c)]  # fmt: skip
    scale = torch.linspace(0.5, 2, h * w * c, dtype=torch.float64)
    return Gaussian(scale.flip(0), torch.tensor(corr, dtype=torch.float64) * scale * scale[:, None])


def plain_stationary(x, missing, shape):
    """Fit the correlation of each offset by least squares, pair by pair."""
    masked = np.ma.array(x, mask=missing)
    mean, observed = masked.mean(0), (~missing).numpy().astype(float)
    centred = (masked - mean).filled(0)
    counts = observed.T @ observed
    cov = centred.T @ centred / counts
    scale = np.sqrt(np.diag(cov))
    groups = {}
    for (i, a), (j, b) in itertools.product(enumerate(places(*shape)), repeat=2):
        groups.setdefault((b[0] - a[0], b[1] - a[1], a[2], b[2]), []).append((i, j))
    result = np.empty_like(cov)
    for (down, right, *_), pairs in groups.items():
        i, j = np.array(pairs).T
        weight = np.sqrt(counts[i, j])[:, None]
        rho = np.linalg.lstsq(weight * (scale[i] * scale[j])[:, None], weight[:, 0] * cov[i, j])[0][0]
        result[i, j] = rho * np.exp(-(down**2 + right**2) / (2 * REACH**2)) * scale[i] * scale[j]
    return mean.data, result


@pytest.mark.parametrize(("n", "definite"), [(80, True), (12, False)])
def test_pairwise_start(n, definite):
    """It is numpy's covariance of masked arrays, without the directions of negative variance."""
    x = naive.random_gaussian(5).sample(n, torch.Generator().manual_seed(0))
    missing = naive.random_missing(n, 5, 0.5)
    masked = np.ma.array(x, mask=missing)
    values, vectors = np.linalg.eigh(np.ma.cov(masked, rowvar=False, bias=True).data)
    assert (values.min() > 0) == definite
    start = pairwise_start(x, missing)
    assert_close(start.mean.numpy(), masked.mean(0).data)
    assert_close(start.cov.numpy(), vectors * values.clip(0) @ vectors.T)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3, 1), (3, 3, 2)])
@pytest.mark.parametrize("cells", [None, 60])
def test_correlations_are_least_squares_by_offset(shape, cells, monkeypatch):
    if cells:  # the rows are read in parts
        monkeypatch.setattr(start, "CHUNK_CELLS", cells)
    h, w, c = (*shape, 1)[:3]
    x = stationary_gaussian(h, w, c).sample(400, torch.Generator().manual_seed(0))
    missing = naive.random_missing(400, h * w * c, 0.3)
    found = stationary_start(x, missing, shape)
    mean, cov = plain_stationary(x, missing, (h, w, c))
    assert np.linalg.eigvalsh(cov).min() > 0  # so that nothing had to be made positive semi-definite
    assert_close(found.mean.numpy(), mean)
    assert_close(found.cov.numpy(), cov)


def test_variances_are_those_of_the_pixels():
    x = stationary_gaussian(4, 4, 1).sample(300, torch.Generator().manual_seed(0))
    missing = naive.random_missing(300, 16, 0.3)
    pairs = pairwise_start(x, missing).cov.diagonal()
    assert_close(stationary_start(x, missing, (4, 4)).cov.diagonal(), pairs)


def test_closer_to_the_truth_than_single_pairs():
    truth = stationary_gaussian(6, 6, 1)
    x, missing = truth.sample(200, torch.Generator().manual_seed(0)), naive.random_missing(200, 36, 0.5)
    errors = [
        (found.cov - truth.cov).norm()
        for found in (stationary_start(x, missing, (6, 6)), pairwise_start(x, missing))
    ]  # fmt: skip
    assert errors[0] < 0.7 * errors[1]


def test_what_stationarity_does_not_fit_is_made_positive_semi_definite():
    x = torch.zeros(40, 4, dtype=torch.float64)  # a row of four pixels: the outer two are alike, the inner two opposite
    x[:, 0] = torch.randn(40, generator=torch.Generator().manual_seed(0))
    x[:, 1], x[:, 2], x[:, 3] = x[:, 0], -x[:, 0], x[:, 0]
    found = stationary_start(x, torch.zeros(40, 4, dtype=torch.bool), (1, 4))
    assert torch.linalg.eigvalsh(found.cov).min() > -1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_black_pixels_and_offsets_never_seen_stay_finite(dtype):
    x = stationary_gaussian(3, 3, 1).sample(400, torch.Generator().manual_seed(0)).to(dtype)
    x[:, 4] = 0
    missing = torch.zeros(400, 9, dtype=torch.bool)
    missing[::2, 0] = missing[1::2, 8] = True  # the only two pixels at this offset are never seen together
    found = stationary_start(x, missing, (3, 3))
    assert found.cov.isfinite().all()
    assert_close(found.cov[4], torch.zeros(9, dtype=dtype), atol=1e-6, rtol=0)
    assert abs(found.cov[0, 8]) < 1e-5 * found.cov[0, 0]  # single precision, on some processors 1.5e-6
