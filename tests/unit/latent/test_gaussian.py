import naive
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from emflow.latent.gaussian import Gaussian, NotPositiveDefiniteError, inflate, stable_cholesky
from emflow.latent.online_em import Statistics

SOUND = naive.random_gaussian(4).cov
ONES, PRESENT = torch.ones(4, 4).double(), torch.tensor([1.0, 1, 0, 1])
UNSOUND = {
    "singular": ONES,
    "zero": 0 * ONES,
    "nearly singular": inflate(ONES, 1e-12),
    "a constant column": SOUND * torch.outer(PRESENT, PRESENT),
    "slightly indefinite": inflate(ONES, -1e-9),
    "large numbers": 1e200 * ONES,
    "small numbers": 1e-200 * ONES,
}


# --- stable_cholesky


def test_sound_matrix_is_factorised_as_it_is():
    factor, retries = stable_cholesky(SOUND)
    assert retries == 0
    assert torch.equal(factor, torch.linalg.cholesky(SOUND))


@pytest.mark.parametrize("a", UNSOUND.values(), ids=UNSOUND)
def test_unsound_matrix_gets_a_larger_diagonal(a):
    factor, retries = stable_cholesky(a)
    assert retries > 0
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal() > 0).all()
    assert_close(factor @ factor.mT, a, rtol=1e-5, atol=1e-14 * (a.max().item() or 1))


@pytest.mark.parametrize("seed", range(5))
def test_the_covariance_of_equal_rows_can_be_factorised(seed):
    z = torch.randn(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).repeat(250, 1)
    factor, _ = stable_cholesky(Statistics.of(z).maximiser().cov)
    assert torch.isfinite(factor).all()


def test_single_precision_has_its_own_thresholds():
    a = inflate(ONES.float(), 1e-5)  # sound in double precision
    assert stable_cholesky(a.double())[1] == 0
    factor, retries = stable_cholesky(a)
    assert retries > 0
    assert_close(factor @ factor.mT, a, rtol=1e-2, atol=0)


def test_only_the_unsound_of_a_batch_is_changed():
    a = torch.stack([SOUND, ONES, 2 * SOUND])
    factor, retries = stable_cholesky(a)
    assert retries == stable_cholesky(a[1])[1] > 0
    for i in range(3):
        assert_close(factor[i], stable_cholesky(a[i])[0], rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("entry", "message"), [(np.nan, "not finite"), (np.inf, "not finite"), (1e6, "could not be factorised")]
)
def test_hopeless_matrix_raises(entry, message):
    a = SOUND.clone()
    a[0, 1] = a[1, 0] = entry
    with pytest.raises(NotPositiveDefiniteError, match=message):
        stable_cholesky(a)


# --- Gaussian


def test_precision_is_the_inverse():
    assert_close(Gaussian(torch.zeros(4).double(), SOUND).precision @ SOUND, torch.eye(4).double())


@pytest.mark.parametrize("p", [1, 4, 30])
def test_log_prob_is_scipys(p):
    gaussian, z = naive.random_gaussian(p), naive.random(10, p)
    expected = multivariate_normal(gaussian.mean, gaussian.cov).logpdf(z)
    assert_close(gaussian.log_prob(z).numpy(), expected)


def test_slope_is_the_gradient_of_log_prob():
    gaussian, z = naive.random_gaussian(4), naive.random(10, 4).requires_grad_()
    expected = torch.autograd.grad(MultivariateNormal(gaussian.mean, gaussian.cov).log_prob(z).sum(), z)[0]
    assert_close(gaussian.log_prob_and_slope(z.detach())[1], expected)


def test_log_prob_in_single_precision_is_computed_in_double():
    gaussian, z = naive.random_gaussian(4), naive.random(10, 4).float()
    assert torch.equal(gaussian.log_prob(z), gaussian.log_prob(z.double()).float())


def test_sample_has_mean_and_covariance():
    n, gaussian = 50_000, naive.random_gaussian(4)
    z = gaussian.sample(n, torch.Generator().manual_seed(0))
    scale = gaussian.cov.diagonal().sqrt()
    error = 4 / n**0.5  # four standard errors of a mean; those of a covariance are at most sqrt(2) as large
    assert ((z.mean(0) - gaussian.mean).abs() < error * scale).all()
    assert ((z.mT.cov() - gaussian.cov).abs() < 2**0.5 * error * torch.outer(scale, scale)).all()


def test_sample_depends_on_the_generator_alone():
    gaussian = naive.random_gaussian(4)
    first, second, other = (gaussian.sample(3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_deviation_is_that_given_the_coordinates_before():
    gaussian, order = naive.random_gaussian(4), torch.tensor([2, 0, 3, 1])
    found = gaussian.deviation(order)
    for place, at in enumerate(order.tolist()):
        known = torch.isin(torch.arange(4), order[:place])
        assert_close(found[at].square(), naive.condition(gaussian, ~known)[1][at, at])


def test_inflated_enlarges_the_diagonal_in_proportion():
    gaussian = naive.random_gaussian(4)
    found = gaussian.inflated(0.1)
    assert torch.equal(found.mean, gaussian.mean)
    assert_close(found.cov - gaussian.cov, 0.1 * gaussian.cov.diagonal().diag())
    assert gaussian.inflated(0.0) is gaussian


def test_inflate_takes_batches():
    covs = torch.stack([SOUND, 2 * SOUND])
    assert_close(inflate(covs, 0.1), torch.stack([inflate(SOUND, 0.1), inflate(2 * SOUND, 0.1)]))


def test_retries_are_those_of_the_covariance():
    mean = torch.zeros(4).double()
    assert Gaussian(mean, SOUND).retries == 0
    assert Gaussian(mean, ONES).retries > 0
