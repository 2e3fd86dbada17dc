"""The E-step kernel against a loop over rows with scipy."""

import naive
import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from emflow.latent import condition, patterns
from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian, stable_cholesky
from emflow.latent.online_em import Statistics
from emflow.latent.patterns import Patterns

WORDS = torch.zeros(40, 130, dtype=torch.bool)  # patterns that differ only beyond column 62, and beyond column 124
WORDS[:20, 62:70] = naive.random_missing(20, 8, 0.5)
WORDS[20:, 124:] = naive.random_missing(20, 6, 0.5)

MISSING = {
    "nothing missing": torch.zeros(20, 5, dtype=torch.bool),
    "everything missing": torch.ones(20, 5, dtype=torch.bool),
    "one column": naive.random_missing(20, 1, 0.5),
    "one row": naive.random_missing(1, 6, 0.5),
    "several words": WORDS,
    "few patterns": naive.random_missing(5, 7, 0.4).repeat(30, 1),
    "both sides": torch.cat([naive.random_missing(20, 9, 0.1), naive.random_missing(20, 9, 0.9)]),
    **{f"rate {rate}": naive.random_missing(60, 12, rate) for rate in (0.05, 0.2, 0.5, 0.8)},
}
BATCHES = {
    "in order": torch.arange,
    "half, shuffled": lambda n: torch.randperm(n, generator=torch.Generator().manual_seed(0))[: (n + 1) // 2],
    "with replacement": lambda n: torch.randint(n, (n,), generator=torch.Generator().manual_seed(0)),
}
MIXED = naive.random_missing(60, 12, 0.5)


def conditional(gaussian, missing, rows=None, seed=None):
    rows = torch.arange(len(missing)) if rows is None else rows
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return Conditional(gaussian, Patterns(missing).layout(rows), generator)


def assert_naive(gaussian, z, missing, found, **tolerance):
    """Compare mean and statistics with the loop over rows."""
    z_hat = found.mean(z)
    assert torch.equal(z_hat[~missing], z[~missing])
    assert_close(z_hat, naive.conditional_moments(gaussian, z, missing)[0], **tolerance)
    assert_close(vars(found.statistics(z_hat)), vars(naive.statistics(gaussian, z, missing)), **tolerance)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MISSING)
def test_mean_and_statistics(name, batch):
    missing = MISSING[name]
    gaussian, rows = naive.random_gaussian(missing.shape[1]), BATCHES[batch](len(missing))
    z = naive.random(*missing.shape)[rows]
    found = conditional(gaussian, missing, rows)
    assert_naive(gaussian, z, missing[rows], found)
    assert found.retries == 0


@pytest.mark.parametrize("small", [1, 2**14])
@pytest.mark.parametrize("large", [1, 200, 2**23])
def test_grouping_does_not_change_the_answer(small, large, monkeypatch):
    monkeypatch.setattr(patterns, "SMALL_BATCH", 0)
    monkeypatch.setattr(patterns, "SMALL_GROUP", small)
    monkeypatch.setattr(patterns, "LARGE_GROUP", large)
    gaussian = naive.random_gaussian(12)
    found = conditional(gaussian, MIXED)
    assert (len(found.layout.by_missing) > 1) == (small == 1 or large < 2**23)
    assert_naive(gaussian, naive.random(60, 12), MIXED, found)


def test_values_of_missing_cells_do_not_matter():
    gaussian, z = naive.random_gaussian(12), naive.random(60, 12)
    kernel = conditional(gaussian, MIXED)
    assert torch.equal(kernel.mean(z), kernel.mean(z.masked_fill(MIXED, 1e6)))


def assert_gradient(gaussian, missing, **tolerance):
    """Pull a gradient back through the mean, and through the naive one by autograd."""
    slope, z = naive.random(*missing.shape, seed=1), naive.random(*missing.shape).requires_grad_()
    (expected,) = torch.autograd.grad(naive.conditional_moments(gaussian, z, missing)[0], z, slope)
    assert_close(conditional(gaussian, missing).pull_back(slope), expected, **tolerance)


class MeanByPullBack(torch.autograd.Function):
    """The mean as a node of autograd's graph whose gradient is `pull_back`, so that gradcheck can look at it."""

    @staticmethod
    def forward(ctx, z, kernel):
        ctx.kernel = kernel
        return kernel.mean(z)

    @staticmethod
    def backward(ctx, grad):
        return ctx.kernel.pull_back(grad), None


@pytest.mark.parametrize("name", ["both sides", "few patterns", "everything missing"])
def test_gradient_of_the_mean(name):
    missing = MISSING[name]
    gaussian = naive.random_gaussian(missing.shape[1])
    assert_gradient(gaussian, missing)
    kernel, z = conditional(gaussian, missing), naive.random(*missing.shape).requires_grad_()
    assert gradcheck(lambda x: MeanByPullBack.apply(x, kernel), z, fast_mode=True)


def test_mean_in_single_precision_is_computed_in_double():
    kernel, z = conditional(naive.random_gaussian(12), MIXED), naive.random(60, 12).float()
    assert torch.equal(kernel.mean(z), kernel.mean(z.double()).float())
    assert torch.equal(kernel.pull_back(z), kernel.pull_back(z.double()).float())


# --- singular covariances


TWINS = {
    "twin missing": [5],
    "both missing": [0, 5],
    "twin and most others missing": [1, 2, 3, 5],
    "both observed, most others missing": [1, 2, 3, 4],
}


@pytest.mark.parametrize("columns", TWINS.values(), ids=TWINS)
def test_duplicated_column_changes_nothing(columns):
    x = naive.random(50, 6)
    x[:, 5] = x[:, 0]
    missing = torch.zeros_like(x, dtype=torch.bool)
    missing[:, columns] = True
    kernel = conditional(Statistics.of(x).maximiser(), missing)
    z_hat = kernel.mean(x)
    without, _ = naive.conditional_moments(Statistics.of(x[:, :5]).maximiser(), x[:, :5], missing[:, :5])
    assert_close(z_hat, torch.cat([without, without[:, :1]], 1), atol=1e-4, rtol=0)
    assert kernel.statistics(z_hat).outer.isfinite().all()
    assert kernel.retries > 0


def test_retries_of_the_covariance_and_of_the_blocks_add():
    missing = torch.tensor([[False, False, True, True, True]])
    twins = torch.eye(5, dtype=torch.float64)
    twins[0, 1] = twins[1, 0] = 1
    kernel = conditional(Gaussian(torch.zeros(5, dtype=torch.float64), twins), missing)
    assert kernel.gaussian.retries == stable_cholesky(twins[:2, :2])[1] == 1
    assert kernel.retries == 2


@pytest.mark.parametrize("rate", [0.2, 0.8])
def test_constant_column(rate):
    x = naive.random(50, 6)
    x[:, 2] = 0.3
    missing = naive.random_missing(50, 6, rate)
    kernel = conditional(Statistics.of(x).maximiser(), missing)
    z_hat = kernel.mean(x)
    assert_close(z_hat[:, 2], x[:, 2], atol=1e-6, rtol=0)
    assert z_hat.isfinite().all()
    assert kernel.statistics(z_hat).outer.isfinite().all()


# --- wide data: conjugate gradients


@pytest.fixture
def wide(monkeypatch):
    """Take every table for a wide one, and every block for a large one."""
    monkeypatch.setattr(patterns, "WIDE", 1)
    monkeypatch.setattr(patterns, "LARGE_BLOCK", 0)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("large", [0, 2, 99])
@pytest.mark.parametrize("name", MISSING)
def test_wide_mean(name, large, monkeypatch):
    monkeypatch.setattr(patterns, "LARGE_BLOCK", large)
    missing = MISSING[name]
    gaussian, z = naive.random_gaussian(missing.shape[1]), naive.random(*missing.shape)
    kernel = conditional(gaussian, missing)
    assert_close(kernel.mean(z), naive.conditional_moments(gaussian, z, missing)[0], atol=1e-6, rtol=0)
    assert kernel.retries == 0


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("large", [0, 2, 99])
def test_wide_gradient(large, monkeypatch):
    monkeypatch.setattr(patterns, "LARGE_BLOCK", large)
    assert_gradient(naive.random_gaussian(12), MIXED, atol=1e-6, rtol=0)


def test_wide_statistics_of_small_blocks_are_exact(monkeypatch):
    monkeypatch.setattr(patterns, "WIDE", 1)
    gaussian, z = naive.random_gaussian(12), naive.random(60, 12)
    kernel = conditional(gaussian, MIXED)
    assert_close(kernel.statistics(kernel.mean(z)).outer, naive.statistics(gaussian, z, MIXED).outer)


@pytest.mark.parametrize("name", MISSING)
def test_factors_are_enough_for_the_mean(name):
    missing = MISSING[name]
    gaussian, z = naive.random_gaussian(missing.shape[1]), naive.random(*missing.shape)
    kernel = Conditional(gaussian, Patterns(missing).layout(torch.arange(len(z))), mean_only=True)
    assert_close(kernel.mean(z), naive.conditional_moments(gaussian, z, missing)[0])


def test_factors_are_not_enough_for_statistics():
    kernel = Conditional(naive.random_gaussian(12), Patterns(MIXED).layout(torch.arange(60)), mean_only=True)
    with pytest.raises(ValueError, match="mean only"):
        kernel.statistics(naive.random(60, 12))


@pytest.mark.usefixtures("wide")
def test_wide_statistics_are_unbiased():
    gaussian, z, n_seeds = naive.random_gaussian(12), naive.random(60, 12), 100
    found = [conditional(gaussian, MIXED, seed=seed) for seed in range(n_seeds)]
    z_hat = found[0].mean(z)
    outer = torch.stack([kernel.statistics(z_hat).outer for kernel in found])
    _, spreads = naive.conditional_moments(gaussian, z, MIXED)
    # the product of two coordinates of a Gaussian draw has variance C_ii C_jj + C_ij^2
    variances = spreads.diagonal(dim1=1, dim2=2)
    error = (variances[:, :, None] * variances[:, None, :] + spreads.square()).sum(0).sqrt()
    deviation = (outer.mean(0) - naive.statistics(gaussian, z, MIXED).outer).abs()
    assert (deviation < 4 * error / n_seeds**0.5).all()
    assert (outer.std(0) > 0.5 * error).all()


@pytest.mark.usefixtures("wide")
def test_wide_statistics_need_a_generator():
    kernel = conditional(naive.random_gaussian(12), MIXED)
    with pytest.raises(ValueError, match="generator"):
        kernel.statistics(naive.random(60, 12))


@pytest.mark.usefixtures("wide")
def test_wide_counts_rows_that_do_not_converge(monkeypatch):
    monkeypatch.setattr(condition, "CG_STEPS", 1)
    kernel = conditional(naive.random_gaussian(12), MIXED)
    kernel.mean(naive.random(60, 12))
    assert kernel.retries > 0


@pytest.mark.usefixtures("wide")
def test_wide_answer_of_a_row_does_not_depend_on_its_neighbours():
    gaussian, z = naive.random_gaussian(12), naive.random(60, 12)
    together = conditional(gaussian, MIXED).mean(z)
    alone = [conditional(gaussian, MIXED[i : i + 1]).mean(z[i : i + 1]) for i in range(60)]
    assert_close(together, torch.cat(alone), atol=1e-12, rtol=0)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MISSING)
def test_deviation(name, batch):
    missing = MISSING[name]
    gaussian, rows = naive.random_gaussian(missing.shape[1]), BATCHES[batch](len(missing))
    z = naive.random(*missing.shape)[rows]
    spread = naive.conditional_moments(gaussian, z, missing[rows])[1].diagonal(dim1=1, dim2=2)
    assert_close(conditional(gaussian, missing, rows).deviation().square(), spread)


def test_draws_have_the_conditional_mean_and_covariance():
    missing = naive.random_missing(3, 6, 0.5)
    gaussian, z, n = naive.random_gaussian(6), naive.random(3, 6), 40_000
    found = conditional(gaussian, missing.repeat(n, 1))
    apart = found.residual(naive.random(3 * n, 6))
    draws = (found.mean(z.repeat(n, 1)) + apart).view(n, 3, 6)
    assert torch.equal(draws[0][~missing], z[~missing])
    mean, cov = naive.conditional_moments(gaussian, z, missing)
    apart = draws - draws.mean(0)
    scale = gaussian.cov.diagonal().max().item()
    assert_close(draws.mean(0), mean, atol=0.02 * scale, rtol=0)
    assert_close(torch.einsum("nri,nrj->rij", apart, apart) / n, cov, atol=0.03 * scale, rtol=0)
