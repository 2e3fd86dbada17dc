"""MisGAN: its operators against closed forms, whom each loss moves, images of several sizes, and what it learns."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close

from emflow import DataError
from emflow.baselines import MisGANImputer, misgan_networks
from emflow.baselines.misgan import (
    PENALTY,
    TEMPERATURE,
    _Training,
    critic_loss,
    generator_losses,
    gradient_penalty,
    masked,
    per_pixel,
    stretched_sigmoid,
    to_images,
)
from emflow.baselines.misgan_networks import Networks

SHORT = {"n_steps": 2, "n_critic_steps": 2, "batch_size": 8, "width": 4, "random_state": 0}
GENERATORS = ["data_generator", "observed_generator", "imputer"]
CRITICS = ["data_critic", "observed_critic", "imputer_critic"]


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def images(*shape, seed=0):
    """Images in [0, 255] and holes in three tenths of their values."""
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=shape, dtype=np.uint8), rng.random(shape) < 0.3


# --- operators and losses


def test_holes_are_set_to_the_fill():
    x, observed = torch.tensor([0.3, 0.6, 0.9]), torch.tensor([1.0, 0.0, 0.25])
    assert_close(masked(x, observed), torch.tensor([0.3, 0.0, 0.225]))
    assert_close(masked(x, observed, torch.tensor([9.0, 0.5, 0.1])), torch.tensor([0.3, 0.5, 0.25 * 0.9 + 0.75 * 0.1]))


def test_one_pattern_hides_all_channels_of_a_pixel():
    x, observed = torch.rand(2, 3, 4, 4, generator=draws()), torch.zeros(2, 1, 4, 4)
    observed[:, :, 1] = 1
    hidden = masked(x, observed)
    assert torch.equal(hidden[:, :, 1], x[:, :, 1])
    assert hidden.sum() == x[:, :, 1].sum()


def test_stretched_sigmoid_reaches_both_ends_and_its_closed_form_between():
    assert_close(stretched_sigmoid(torch.tensor([-9.0, 0.0, 9.0])), torch.tensor([0.0, 0.5, 1.0]), rtol=0, atol=0)
    logits = torch.linspace(-1, 1, 9, dtype=torch.float64)
    assert_close(stretched_sigmoid(logits), 1.2 / (1 + torch.exp(-logits / 0.66)) - 0.1)
    end = TEMPERATURE * np.log(11)  # where 1.2 s - 0.1 = 1, thus s = 11 / 12
    inside, outside = stretched_sigmoid(torch.tensor([end - 1e-3, end + 1e-3], dtype=torch.float64))
    assert inside < 1 == outside


class LinearCritic(nn.Module):
    """D(x) = w . x + 7."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (self.weight * x).flatten(1).sum(1) + 7


def test_the_slope_of_a_linear_critic_is_its_weight():
    weight = torch.randn(2, 3, 3, generator=draws(), dtype=torch.float64)
    critic, x = LinearCritic(weight), torch.rand(5, 2, 3, 3, generator=draws(1), dtype=torch.float64)
    penalty = gradient_penalty(critic, x)
    assert_close(penalty, (weight.norm() - 1) ** 2)
    (by_weight,) = torch.autograd.grad(penalty, critic.weight)
    assert_close(by_weight, 2 * (weight.norm() - 1) * weight / weight.norm())


def test_the_penalty_is_the_mean_over_images():
    x = torch.tensor([[[[3.0]]], [[[1.0]]]], dtype=torch.float64)
    square = LinearCritic(torch.ones(1))
    square.forward = lambda x: x.square().flatten(1).sum(1)  # slope 2 x
    assert_close(gradient_penalty(square, x), torch.tensor(((6 - 1) ** 2 + (2 - 1) ** 2) / 2, dtype=torch.float64))


def test_loss_of_a_critic():
    genuine, fake = torch.rand(2, 6, 1, 2, 2, generator=draws(), dtype=torch.float64)
    share = torch.rand(6, 1, 1, 1, generator=draws(1), dtype=torch.float64)
    seen = []

    def critic(x):
        seen.append(x.detach())
        return x.pow(3).flatten(1).sum(1)  # slope 3 x^2

    between = share * genuine + (1 - share) * fake
    steepness = (3 * between**2).flatten(1).norm(dim=1)
    distance = genuine.pow(3).flatten(1).sum(1).mean() - fake.pow(3).flatten(1).sum(1).mean()
    assert_close(critic_loss(critic, genuine, fake, share), -distance + 10 * (steepness - 1).square().mean())
    assert any(x.shape == between.shape and torch.allclose(x, between) for x in seen)
    assert PENALTY == 10


def test_losses_of_generators_and_imputer():
    networks = Networks(8, 8, 1, 1, 2, draws()).double()
    data, pattern, imputed = torch.rand(3, 5, 1, 8, 8, generator=draws(), dtype=torch.float64)
    losses = generator_losses(networks, data, pattern, imputed, 0.3, 0.7)
    d = sum(networks.data_critic(data * pattern)) / 5
    e = sum(networks.observed_critic(pattern)) / 5
    f_data, f_imputed = (sum(networks.imputer_critic(x)) / 5 for x in (data, imputed))
    expected = {"observed_generator": -e - 0.3 * d, "data_generator": -d + 0.7 * f_data, "imputer": -f_imputed}
    assert_close(losses, expected)


# --- one step of training


@pytest.fixture
def training():
    x = torch.rand(40, 1, 8, 8, generator=draws(1))
    observed = (torch.rand(40, 1, 8, 8, generator=draws(2)) < 0.7).float()
    return _Training(MisGANImputer(width=4, batch_size=8, n_critic_steps=3), x * observed, observed, draws())


def moved(training, act):
    """Names of the networks that an act changes, after a look that it changes all of their weights."""
    before = {name: p.detach().clone() for name, p in training.networks.named_parameters() if p.dim() > 1}
    act()
    after = training.networks.state_dict()
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    networks = {name.split(".")[0] for name in changed}
    assert changed == {name for name in before if name.split(".")[0] in networks}
    return networks


def test_each_step_moves_its_own_networks_alone(training):
    x, observed = training.x[:8], training.observed[:8]
    assert moved(training, lambda: training.improve_critics(x, observed)) == set(CRITICS)
    assert moved(training, lambda: training.improve_generators(x, observed)) == set(GENERATORS)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_loss_moves_the_network_it_belongs_to(training, name):
    losses = generator_losses(training.networks, *training.generate(training.x[:8], training.observed[:8]), 0.1, 0.1)
    assert moved(training, lambda: training._descend({name: losses[name]})) == {name}


@pytest.mark.parametrize(
    ("name", "alpha", "beta"), [("observed_generator", 1.0, 0.0), ("data_generator", 0.0, 1.0)], ids=["alpha", "beta"]
)
def test_the_weighted_term_reaches_its_generator(training, name, alpha, beta):
    made = training.generate(training.x[:8], training.observed[:8])
    with_term, without = (generator_losses(training.networks, *made, *w)[name] for w in ((alpha, beta), (0, 0)))
    parameters = list(training.networks.get_submodule(name).parameters())
    gradients = torch.autograd.grad(with_term - without, parameters, retain_graph=True)
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_critics_step_more_often_and_the_imputer_at_its_own_rate(training):
    training.step()
    steps = {name: optimiser.state_dict()["state"][0]["step"].item() for name, optimiser in training.optimisers.items()}
    assert steps == dict.fromkeys(CRITICS, 3) | dict.fromkeys(GENERATORS, 1)
    rates = {name: optimiser.param_groups[0]["lr"] for name, optimiser in training.optimisers.items()}
    assert {optimiser.param_groups[0]["betas"] for optimiser in training.optimisers.values()} == {(0.5, 0.9)}
    fast = ["imputer", "imputer_critic"]
    assert rates == dict.fromkeys([*CRITICS, *GENERATORS], 1e-4) | dict.fromkeys(fast, 2e-4)


def test_a_critic_that_descends_tells_genuine_from_fake(training):
    networks, x = training.networks, training.x
    pattern = training.generate(x, training.observed)[1].detach()
    share = torch.rand(len(x), 1, 1, 1, generator=draws())
    before = critic_loss(networks.observed_critic, training.observed, pattern, share).item()
    for _ in range(5):
        training._descend({"observed_critic": critic_loss(networks.observed_critic, training.observed, pattern, share)})
    assert critic_loss(networks.observed_critic, training.observed, pattern, share) < before


def test_what_is_generated_and_imputed(training):
    x, observed = training.x, training.observed
    data, pattern, imputed = training.generate(x, observed)
    assert data.shape == pattern.shape == imputed.shape == x.shape
    for made in (data, pattern, imputed):
        assert ((made >= 0) & (made <= 1)).all()
    assert torch.equal(imputed[observed == 1], x[observed == 1])
    assert not torch.equal(data, training.generate(x, observed)[0])


def test_the_imputer_sees_uniform_noise_in_the_holes(training):
    seen = []
    training.networks.imputer.register_forward_hook(lambda net, inputs, output: seen.extend(inputs))
    training.generate(training.x, training.observed)
    assert torch.equal(seen[0][training.observed == 1], training.x[training.observed == 1])
    noise = seen[0][training.observed == 0]
    shares = np.histogram(noise, bins=4, range=(0, 1))[0] / len(noise)
    assert (abs(shares - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(noise))).all()


# --- networks and images


@pytest.mark.parametrize("shape", [(28, 28, 1, 1), (32, 32, 3, 1), (8, 8, 1, 1), (5, 9, 2, 2), (1, 1, 3, 3)])
def test_networks_fit_images_of_any_size(shape):
    h, w, channels, observed_channels = shape
    networks = Networks(*shape, 2, draws())
    latent, x = torch.randn(3, 128, generator=draws()), torch.rand(3, channels, h, w, generator=draws())
    assert networks.data_generator(latent).shape == networks.imputer(x).shape == x.shape
    pattern = networks.observed_generator(latent)
    assert pattern.shape == (3, observed_channels, h, w)
    assert networks.data_critic(x).shape == networks.imputer_critic(x).shape == (3,)
    assert networks.observed_critic(pattern).shape == (3,)


def test_networks_for_28_pixels_have_the_published_sizes():
    networks = Networks(28, 28, 1, 1, 64, draws())
    sizes = {name: [tuple(p.shape) for p in net.parameters() if p.dim() > 1] for name, net in networks.named_children()}
    assert sizes["imputer"] == 4 * [(784, 784)]
    assert sizes["data_critic"] == [(64, 1, 5, 5), (128, 64, 5, 5), (256, 128, 5, 5), (1, 4096)]
    assert sizes["data_generator"] == [(4096, 128), (256, 128, 5, 5), (128, 64, 5, 5), (64, 1, 5, 5)]


def test_a_gate_is_relu_up_to_second_derivatives():
    x = torch.tensor([-2.0, -0.5, 0.5, 2.0], requires_grad=True)
    for gate in (misgan_networks.Gate(), nn.ReLU()):
        (slope,) = torch.autograd.grad((gate(x) ** 3).sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x)
        assert_close(gate(x), torch.tensor([0.0, 0.0, 0.5, 2.0]))
        assert_close(slope, torch.tensor([0.0, 0.0, 0.75, 12.0]))
        assert_close(curvature, torch.tensor([0.0, 0.0, 3.0, 12.0]))


def test_initial_weights_come_from_the_generator_alone():
    first, again, other = (Networks(8, 8, 3, 1, 2, draws(seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    weights = [name for name, p in Networks(8, 8, 3, 1, 2, draws()).named_parameters() if p.dim() > 1]
    assert all(not torch.equal(first[name], other[name]) for name in weights)
    assert first["data_critic.0.weight"].abs().max() <= 1 / np.sqrt(3 * 25)


def test_rows_become_images_channel_by_channel():
    array = torch.arange(2 * 3 * 4 * 2).view(2, 3, 4, 2)
    made = to_images(array.flatten(1), (3, 4, 2))
    assert torch.equal(made[1, 1], array[1, :, :, 1])
    assert torch.equal(to_images(array[..., 0].flatten(1), (3, 4))[1, 0], array[1, :, :, 0])


def test_a_pattern_has_one_channel_if_all_are_alike():
    observed = (torch.rand(4, 1, 5, 5, generator=draws()) < 0.5).expand(4, 3, 5, 5).clone()
    assert torch.equal(per_pixel(observed), observed[:, :1])
    observed[2, 1, 3, 3] ^= True
    assert torch.equal(per_pixel(observed), observed)


# --- the estimator


@pytest.mark.parametrize("shape", [(20, 28, 28), (10, 32, 32, 3), (20, 8, 8), (20, 8, 8, 1)], ids=str)
def test_images_come_back_filled_in_their_shape_and_type(shape):
    X, missing = images(*shape)
    filled = MisGANImputer(**SHORT).fit_transform(X, missing=missing)
    assert filled.shape == X.shape
    assert filled.dtype == X.dtype
    np.testing.assert_array_equal(filled[~missing], X[~missing])
    assert (filled[missing] != X[missing]).any()


def test_whole_pixels_of_colour_images_are_hidden_by_patterns_of_one_channel():
    X, missing = images(10, 8, 8, 3)
    by_pixel = MisGANImputer(**SHORT).fit(X, missing=missing[..., 0])
    by_value = MisGANImputer(**SHORT).fit(X, missing=missing)
    channels = [fitted.networks_.observed_critic[0].in_channels for fitted in (by_pixel, by_value)]
    assert channels == [1, 3]


def test_a_value_is_filled_from_its_own_place_in_the_network():
    X, missing = images(10, 4, 6, 3)
    X = X / 255
    fitted = MisGANImputer(**SHORT).fit(X, missing=missing)
    logits = torch.randn(3, 4, 6, generator=draws(), dtype=torch.float64)
    fitted.networks_.imputer.forward = lambda x: logits.expand_as(x)
    low, high = X[~missing].min(), X[~missing].max()
    expected = low + (high - low) * np.broadcast_to(logits.sigmoid().permute(1, 2, 0).numpy(), X.shape)
    np.testing.assert_allclose(fitted.transform(X, missing=missing)[missing], expected[missing])


def test_observed_pixels_of_floats_come_back_bit_for_bit():
    X = np.random.default_rng(0).normal(size=(20, 8, 8))
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.3, np.nan, X)
    filled = MisGANImputer(**SHORT).fit_transform(holes)
    np.testing.assert_array_equal(filled[~np.isnan(holes)], X[~np.isnan(holes)])
    assert np.isfinite(filled).all()


def test_the_seed_decides_and_torch_is_left_alone():
    X, missing = images(20, 8, 8, 3)
    before = torch.get_rng_state()
    first, again, other = (
        MisGANImputer(**SHORT | {"random_state": seed}).fit_transform(X, missing=missing) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(20, 8, 8), (20, 8, 8, 3)], ids=["linear", "u-shaped"])
def test_an_image_does_not_depend_on_the_images_beside_it(shape):
    X, missing = images(*shape)
    X = X / 255
    fitted = MisGANImputer(**SHORT).fit(X, missing=missing)
    whole, rows = fitted.transform(X, missing=missing), [7, 3, 3, 19]
    np.testing.assert_allclose(fitted.transform(X[rows], missing=missing[rows]), whole[rows], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fitted.transform(X[[5]], missing=missing[[5]]), whole[[5]], rtol=1e-10, atol=1e-10)


def test_transform_learns_nothing():
    X, missing = images(20, 8, 8, 3)
    fitted = MisGANImputer(**SHORT).fit(X, missing=missing)
    before = {name: value.clone() for name, value in fitted.networks_.state_dict().items()}
    np.testing.assert_array_equal(fitted.transform(X, missing=missing), fitted.transform(X, missing=missing))
    assert all(torch.equal(value, before[name]) for name, value in fitted.networks_.state_dict().items())


def test_a_table_is_refused():
    with pytest.raises(DataError, match=r"takes images.*but X is a table"):
        MisGANImputer(**SHORT).fit(np.random.default_rng(0).random((20, 4)))


def test_history_and_time():
    X, missing = images(10, 8, 8)
    fitted = MisGANImputer(**SHORT).fit(X, missing=missing)
    assert not fitted.timed_out_
    (record,) = fitted.history_
    assert record["step"] == 2
    assert set(record) == {"step", "seconds", *(f"{name}_loss" for name in CRITICS)}
    late = MisGANImputer(**SHORT, max_time=1e-9).fit(X, missing=missing)
    assert late.timed_out_
    assert [record["step"] for record in late.history_] == [1]


def dense(*sizes, last):
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1], last)


def test_it_learns_what_digits_look_like(monkeypatch):
    """With generators and critics of linear layers, which are fast on small images, in place of convolutions."""
    monkeypatch.setattr(
        misgan_networks, "generator", lambda h, w, c, n: dense(128, n, n, h * w * c, last=nn.Unflatten(1, (c, h, w)))
    )
    monkeypatch.setattr(misgan_networks, "critic", lambda h, w, c, n: dense(h * w * c, n, n, 1, last=nn.Flatten(0)))
    X = load_digits().images
    rng = np.random.default_rng(0)
    missing, noise = rng.random(X.shape) < 0.3, 16 * rng.random(X.shape)

    def error(filled):
        return np.sqrt(((filled - X)[missing] ** 2).mean())

    settings = {"batch_size": 32, "learning_rate": 2e-3, "imputer_learning_rate": 1e-3, "random_state": 0}
    untrained, trained = (MisGANImputer(n_steps=n, **settings).fit(X, missing=missing) for n in (1, 100))
    before, after = (error(fitted.transform(X, missing=missing)) for fitted in (untrained, trained))
    assert before < error(noise)
    assert after < 0.8 * before
    assert len(trained.history_) == 1
