"""The flow against its inverse, autograd, and a stack of couplings written plainly."""

from functools import partial

import naive
import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.functional import jacobian
from torch.testing import assert_close

from emflow.flow.realnvp import Pass, RealNVP

FLOWS = {
    "identity": {"n_features": 5, "n_couplings": 0},
    "one feature, identity": {"n_features": 1, "n_couplings": 0},
    "one feature": {"n_features": 1, "n_couplings": 2},
    "one coupling": {"n_features": 5, "n_couplings": 1},
    "two features": {"n_features": 2, "n_couplings": 2},
    "half a pair at the end": {"n_features": 5, "n_couplings": 3},
    "the paper's": {"n_features": 16, "n_couplings": 6},
    "narrow networks": {"n_features": 5, "n_couplings": 6, "width": 2},
    "wide networks": {"n_features": 5, "n_couplings": 2, "width": 32},
    "one hidden layer": {"n_features": 4, "n_couplings": 2, "depth": 1},
}


def make(seed=0, **shape):
    return RealNVP(**shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture(params=FLOWS)
def flow(request):
    return make(**FLOWS[request.param])


@pytest.fixture
def x(flow):
    return naive.random(6, flow.shape["n_features"])


@pytest.fixture(params=["encode", "decode"])
def direction(request):
    return request.param


@torch.no_grad()
def test_decode_undoes_encode(flow, x):
    z, log_det = flow.encode(x)
    back, log_det_back = flow.decode(z)
    assert_close(back, x)
    assert_close(log_det_back, -log_det)


@torch.no_grad()
def test_encode_undoes_decode(flow, x):
    data, log_det = flow.decode(x)
    back, log_det_back = flow.encode(data)
    assert_close(back, x)
    assert_close(log_det_back, -log_det)


def test_log_det_is_that_of_the_jacobian(flow, x, direction):
    transform = getattr(flow, direction)
    expected = [jacobian(lambda row: transform(row[None])[0][0], row).slogdet().logabsdet for row in x]
    assert_close(transform(x)[1].detach(), torch.stack(expected))


def test_gradient_by_x(flow, x, direction):
    assert gradcheck(getattr(flow, direction), x.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("name", [name for name, shape in FLOWS.items() if shape["n_couplings"]])
def test_gradient_by_weights(name, direction):
    flow = make(**FLOWS[name])
    x = naive.random(3, flow.shape["n_features"])
    # gradcheck perturbs the parameter in place, and the flow sees it there
    assert gradcheck(lambda _: getattr(flow, direction)(x), flow.weights, fast_mode=True)


@pytest.mark.parametrize("plain_direction", [naive.encode, naive.decode], ids=["encode", "decode"])
def test_agrees_with_plain_couplings(flow, x, plain_direction):
    result = getattr(flow, plain_direction.__name__)(x)
    assert_close(result, plain_direction(flow, flow.weights, x))


def test_gradients_of_several_passes_in_one_graph(flow, x):
    """The passes share one buffer for the gradient of the weights; each must still count once."""

    def gradients(encode, decode, weights):
        data = x.clone().requires_grad_()
        z, log_det = encode(data)
        x_rec, log_det_back = decode(z.sin())
        again, _ = encode(x_rec.square())
        loss = (z.cos().sum(1) * log_det + again.sum(1) * log_det_back.exp() + x_rec.pow(3).sum(1)).sum()
        return torch.autograd.grad(loss, [data, weights], materialize_grads=True)

    weights = flow.weights.detach().clone().requires_grad_()
    plain = gradients(partial(naive.encode, flow, weights), partial(naive.decode, flow, weights), weights)
    assert_close(gradients(flow.encode, flow.decode, flow.weights), plain)


def test_gradient_by_x_alone_is_the_same(flow, x, direction):
    taken = Pass(flow, x, decode=direction == "decode")
    gradients = naive.random(*x.shape, seed=1), naive.random(len(x), seed=2)
    assert torch.equal(taken.pull_back_to_x(*gradients), taken.pull_back(*gradients)[0])


def test_gradients_of_several_losses_accumulate(flow, x):
    losses = [lambda: flow.encode(x)[0].square().sum(), lambda: flow.decode(x)[1].exp().sum()]
    expected = sum(torch.autograd.grad(loss(), flow.weights)[0] for loss in losses)
    for loss in losses:
        loss().backward()
    assert_close(flow.weights.grad, expected)


@pytest.mark.parametrize("p", [1, 2, 5, 16])
def test_couplings_of_a_pair_pass_complementary_halves(p):
    """A coupling keeps one half, and scales every feature of the other one by itself: both show in its Jacobian."""
    first, both = (make(n_features=p, n_couplings=n) for n in (1, 2))  # same seed, so the first coupling is the same
    point, unit = naive.random(p), torch.eye(p).double()
    kept = []
    for coupling in (first.encode, lambda x: both.encode(first.decode(x)[0])):
        J = jacobian(lambda v, coupling=coupling: coupling(v[None])[0][0], point)
        passes = (J - unit).abs().amax(1) < 1e-12
        changed = J[~passes][:, ~passes]
        assert_close(changed, changed.diagonal().diag())
        kept.append(passes)
    assert kept[0].sum() == p // 2
    assert torch.equal(kept[0], ~kept[1])
