"""EM by its theorem, and the online EM of the paper by its equations."""

from functools import partial

import naive
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian, inflate
from emflow.latent.online_em import OnlineEM, Statistics
from emflow.latent.patterns import Patterns
from emflow.latent.start import pairwise_start
from emflow.learn import em
from emflow.learn.em import fit_gaussian
from emflow.learn.train import training_step

START = Gaussian(torch.zeros(5).double(), torch.eye(5).double())


def table(n=80, p=5, rate=0.3):
    """Return correlated rows and their missing cells."""
    x = naive.random_gaussian(p).sample(n, torch.Generator().manual_seed(0))
    return x, naive.random_missing(n, p, rate)


def e_step(gaussian, x, missing):
    kernel = Conditional(gaussian, Patterns(missing).layout(torch.arange(len(x))))
    return kernel.statistics(kernel.mean(x))


def plain_em(x, missing, n_iterations, start=START):
    """Return the estimates of plain EM: the start and that of each iteration."""
    em = OnlineEM(1.0, 0.0)
    em.estimate = start
    return [start, *(em.update(e_step(em.estimate, x, missing)) for _ in range(n_iterations))]


def fit(x, missing, n_iterations, tol=0.0, beta=0.0):
    return fit_gaussian(x, Patterns(missing), torch.Generator(), n_iterations, tol, beta)


def assert_same(found, expected, **tolerance):
    assert_close([found.mean, found.cov], [expected.mean, expected.cov], **tolerance)


# --- plain EM


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
def test_observed_likelihood_never_falls(rate):
    x, missing = table(rate=rate)
    likelihoods = [naive.log_likelihood(gaussian, x, missing) for gaussian in plain_em(x, missing, 25)]
    rises = np.diff(likelihoods)
    assert (rises >= -1e-9).all()
    assert rises[0] > 1


def test_likelihood_of_the_fitted_gaussian_never_falls():
    x, missing = table()
    likelihoods = [naive.log_likelihood(fit(x, missing, n)[0], x, missing) for n in range(1, 10)]
    assert (np.diff(likelihoods) > 0).all()


def test_one_step_is_classic_em():
    x, missing = table()
    start = naive.random_gaussian(5, seed=7)
    assert_same(plain_em(x, missing, 1, start)[-1], naive.em_step(start, x, missing))


def test_fitted_gaussian_is_plain_em_from_the_pairwise_start():
    x, missing = table()
    assert_same(fit(x, missing, 3)[0], plain_em(x, missing, 3, pairwise_start(x, missing))[-1])


def test_relaxation_goes_beyond_the_m_step():
    x, missing = table()
    for n, start in ((80, pairwise_start(x, missing)), (6, Gaussian(x.mean(0), 20 * torch.eye(5).double()))):
        once = plain_em(x[:n], missing[:n], 1, start)[-1]
        found, _ = fit_gaussian(
            x[:n], Patterns(missing[:n]), torch.Generator(), 1, beta=0.0, start=start, relaxation=1.9
        )
        values, vectors = torch.linalg.eigh(start.cov + 1.9 * (once.cov - start.cov))
        assert (values.min() > 0) == (n == 80)
        assert_close(found.mean, start.mean + 1.9 * (once.mean - start.mean))
        assert_close(found.cov, vectors * values.clamp_min(0) @ vectors.mT, atol=1e-9, rtol=0)


def test_relaxation_gets_further_where_much_is_missing():
    x, missing = table(n=400, rate=0.7)
    found = [
        fit_gaussian(x, Patterns(missing), torch.Generator(), 5, beta=0.0, start=START, relaxation=by)[0]
        for by in (1.0, 2 / 1.3)
    ]
    slow, fast = (naive.log_likelihood(gaussian, x, missing) for gaussian in found)
    assert fast > slow + 1


def test_iterations_go_on_where_others_stopped():
    x, missing = table()
    halfway = plain_em(x, missing, 4)[-1]
    assert_same(plain_em(x, missing, 4, halfway)[-1], plain_em(x, missing, 8)[-1])


def test_nothing_missing_gives_sample_moments_in_one_step():
    x, missing = table(rate=0)
    sample = Gaussian(x.mean(0), x.mT.cov(correction=0))
    assert_same(plain_em(x, missing, 1)[-1], sample)
    assert_same(pairwise_start(x, missing), sample)


def test_stops_when_the_estimate_no_longer_moves():
    x, missing = table()
    found, history = fit(x, missing, 500, tol=1e-6)
    changes = [record["change"] for record in history]
    assert len(changes) < 500
    assert changes[-1] <= 1e-6 < min(changes[:-1])
    assert_same(naive.em_step(found, x, missing), found, atol=1e-5, rtol=0)


def test_recovers_a_known_gaussian():
    n, truth = 20_000, naive.random_gaussian(4)
    x = truth.sample(n, torch.Generator().manual_seed(0))
    found, _ = fit(x, naive.random_missing(n, 4, 0.3), 200, tol=1e-5)
    scale = truth.cov.diagonal().sqrt()
    error = 4 / (0.5 * n) ** 0.5  # four standard errors; half the rows, 0.7^2, have a given pair of cells observed
    assert ((found.mean - truth.mean).abs() < error * scale).all()
    assert ((found.cov - truth.cov).abs() < 2**0.5 * error * torch.outer(scale, scale)).all()


# --- statistics


def test_statistics_add():
    x, missing = table()
    gaussian = naive.random_gaussian(5, seed=7)
    parts = [e_step(gaussian, x[rows], missing[rows]) for rows in torch.arange(len(x)).split(17)]
    total = sum(parts, Statistics.none(x))
    assert_close(vars(total), vars(e_step(gaussian, x, missing)))


def test_maximiser_gives_numpys_moments():
    x, _ = table()
    found = Statistics.of(x).maximiser()
    assert_close(found.mean.numpy(), x.numpy().mean(0))
    assert_close(found.cov.numpy(), np.cov(x.numpy().T, ddof=0))


# --- online EM


@pytest.mark.parametrize(("scale", "exponent"), [(1.0, 0.0), (0.99, 0.8), (0.5, 1.0)])
def test_step_sizes(scale, exponent):
    em = OnlineEM(scale, exponent)
    assert [em.step_size(t) for t in (1, 2, 10)] == pytest.approx([scale * t**-exponent for t in (1, 2, 10)])


def test_update_is_a_weighted_average():
    """Equation 8: the estimate moves by rho_t towards the maximiser of the batch."""
    batches = naive.random(3, 20, 5)
    em = OnlineEM(0.9, 0.6)
    estimate = em.start(naive.random(20, 5, seed=1))
    mean, cov = estimate.mean, estimate.cov
    for t, z in enumerate(batches, start=1):
        rho = 0.9 * t**-0.6
        mean = rho * z.mean(0) + (1 - rho) * mean
        cov = rho * z.mT.cov(correction=0) + (1 - rho) * cov
        assert_same(em.update(Statistics.of(z)), Gaussian(mean, cov))


def test_start_takes_the_moments_of_the_first_rows():
    z = naive.random(20, 5).float()
    assert_same(OnlineEM(1.0, 0.0).start(z), Gaussian(z.double().mean(0), z.double().mT.cov(correction=0)))


@pytest.mark.parametrize(("limit", "kept"), [(0, 1), (1, 1), (24, 1), (25, 2), (49, 3), (50, 4), (1000, 6)])
def test_super_batch_holds_the_latest_rows(limit, kept):
    """Batches have 15 and 10 rows in turns; the last one, of 10, counts whatever the limit."""
    batches = [naive.random(15 - 5 * (n % 2), 3, seed=n) for n in range(6)]
    em = OnlineEM(1.0, 0.0, super_batch_size=limit)
    em.start(batches[0])
    for z in batches:
        estimate = em.update(Statistics.of(z))
    rows = torch.cat(batches[-kept:])
    assert_same(estimate, Gaussian(rows.mean(0), rows.mT.cov(correction=0)))


# --- in training


@pytest.fixture
def run_without_couplings(new_run):
    """Return a function that makes runs whose flow is the identity and whose updates are whole M-steps."""
    return partial(new_run, n_couplings=0, step_scale=1.0, step_exponent=0.0, super_batch_size=0)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_training_with_the_identity_flow_is_classic_em(run_without_couplings, beta):
    x, missing = table()
    run = run_without_couplings(x, missing, covariance_inflation=(beta,))
    expected = Statistics.of(x).maximiser()
    for _ in range(3):
        training_step(run, torch.arange(len(x)))
        expected = naive.em_step(Gaussian(expected.mean, inflate(expected.cov, beta)), x, missing)
        assert_same(run.em.estimate, expected)


def test_inflation_does_not_compound(run_without_couplings):
    x, missing = table(rate=0)
    cov = x.mT.cov(correction=0)
    run = run_without_couplings(x, missing, covariance_inflation=(0.1,))
    for _ in range(3):
        training_step(run, torch.arange(len(x)))
    inflated = Gaussian(x.mean(0), cov + 0.1 * cov.diagonal().diag())
    assert_same(run.snapshot().gaussian, inflated)
    assert_same(fit(x, missing, 3, beta=0.1)[0], inflated)


def test_layouts_that_are_not_kept_give_the_same(monkeypatch):
    x, missing = naive.random(80, 5), naive.random_missing(80, 5, 0.3)
    kept = fit(x, missing, 3)[0]
    monkeypatch.setattr(em, "KEPT_CELLS", 0)
    assert_same(fit(x, missing, 3)[0], kept)


def test_time_ends_the_passes():
    x, missing = naive.random(80, 5), naive.random_missing(80, 5, 0.3)
    _, history = fit_gaussian(x, Patterns(missing), torch.Generator(), max_time=0.0)
    assert len(history) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_iterations", [1, 5])
def test_a_constant_column_does_not_disturb_the_others(dtype, n_iterations):
    x, missing = naive.random(200, 6).to(dtype), naive.random_missing(200, 6, 0.3)
    x[:, 2] = 0.5
    others = torch.arange(6) != 2
    found, history = fit_gaussian(x, Patterns(missing), torch.Generator(), n_iterations)
    alone, _ = fit_gaussian(x[:, others].double(), Patterns(missing[:, others]), torch.Generator(), n_iterations)
    assert found.cov.dtype == dtype
    assert all(record["retries"] == 0 for record in history)
    assert_close(found.cov[others][:, others].double(), alone.cov, atol=1e-5, rtol=0)
