"""Where EM starts: a Gaussian from what is observed, without any E-step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emflow.latent.gaussian import Gaussian

CHUNK_CELLS = 2**24  # of the rows that are read together
REACH = 5.0  # pixels: standard deviation of the bell by which correlations fade with the distance


def pairwise_start(x: Tensor, missing: Tensor, weight: Tensor | None = None) -> Gaussian:
    """Return mean and covariance over the rows in which both columns are observed, made positive semi-definite.

    A few passes nearer to the fixed point than the covariance of filled rows, for the price of two products. Rows
    count by `weight` (n,), if there is one.
    """
    mean, cov, _ = _pairwise(x, missing, weight)
    return Gaussian(mean, semi_definite(cov))


def stationary_start(x: Tensor, missing: Tensor, image_shape: Sequence[int], weight: Tensor | None = None) -> Gaussian:
    """Return a Gaussian of images (n, p) in which the correlation of two pixels depends on their offset alone.

    Mean and variance of every pixel are its own. The correlation at an offset, of one channel with another, is fitted
    to the pairwise covariances of all pairs of pixels at this offset by least squares, weighted by how often both were
    observed. Thousands of pairs share what noise a single one has: with 10,000 images of CIFAR-10 and half of their
    pixels missing the error of the conditional mean is less than half of that after `pairwise_start`. Pairs far apart
    say little and are few, so their correlations fade. Images count by `weight` (n,), if there is one.
    """
    h, w, c = (*image_shape, 1)[:3]
    mean, cov, counts = _pairwise(x, missing, weight)
    pixel = torch.arange(h * w, device=x.device)
    down, right = (place[:, None] - place for place in (pixel // w, pixel % w))
    offset = ((down + h - 1) * (2 * w - 1) + right + w - 1).flatten()

    def total(matrix: Tensor) -> Tensor:
        """Sum a (p, p) matrix over the pairs of pixels at the same offset, for each pair of channels."""
        pairs = matrix.double().view(h * w, c, h * w, c).transpose(1, 2).reshape(-1, c, c)
        return pairs.new_zeros((2 * h - 1) * (2 * w - 1), c, c).index_add_(0, offset, pairs)

    scale = cov.diagonal().sqrt()
    scales = scale * scale[:, None]
    weights = counts * scales
    correlation = total(weights * cov) / total(weights * scales).clamp_min(torch.finfo(torch.float64).tiny)
    fading = torch.exp((down.square() + right.square()).double() / (-2 * REACH**2)).view(-1, 1, 1)
    pairs = correlation.index_select(0, offset) * fading
    smooth = pairs.view(h * w, h * w, c, c).transpose(1, 2).reshape(cov.shape).to(cov)
    return Gaussian(mean, semi_definite(smooth * scales))


def _pairwise(x: Tensor, missing: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (p,), covariance (p, p) and count (p, p) over the rows in which both columns are observed."""
    n, p = x.shape
    rows = max(1, CHUNK_CELLS // p)
    weights = x.new_ones(n, 1) if weight is None else weight[:, None].to(x)
    parts = list(zip(x.split(rows), missing.split(rows), weights.split(rows), strict=True))
    total, seen = x.new_zeros(p), x.new_zeros(p)
    for part, holes, w in parts:
        total += (part * w).masked_fill_(holes, 0).sum(0)
        seen += ((~holes) * w).sum(0)
    least = 1.0 if weight is None else torch.finfo(x.dtype).tiny
    mean = total / seen.clamp_min(least)
    products, counts = x.new_zeros(p, p), x.new_zeros(p, p)
    for part, holes, w in parts:
        centred, observed = (part - mean).masked_fill_(holes, 0), (~holes).to(x)
        products.addmm_((centred * w).mT, centred)
        counts.addmm_((observed * w).mT, observed)
    counts.clamp_min_(least)
    return mean, products / counts, counts


def semi_definite(cov: Tensor) -> Tensor:
    """Return the positive semi-definite matrix nearest to a symmetric one."""
    values, vectors = torch.linalg.eigh(cov)
    return torch.matmul(vectors * values.clamp_min(0), vectors.mT)
