"""The flow of images against its inverse, autograd, and a checkerboard written plainly."""

from itertools import pairwise

import naive
import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.functional import jacobian
from torch.nn.functional import conv2d, leaky_relu
from torch.testing import assert_close

from emflow.flow.image import ImageFlow

FLOWS = {
    "identity": {"image_shape": (4, 4), "n_couplings": 0},
    "one coupling": {"image_shape": (4, 4), "n_couplings": 1},
    "grey": {"image_shape": (4, 6)},
    "grey, with its channel": {"image_shape": (4, 6, 1)},
    "colour": {"image_shape": (4, 2, 3)},
    "colour, half a pair at the end": {"image_shape": (2, 4, 3), "n_couplings": 3},
    "two channels": {"image_shape": (4, 2, 2), "n_couplings": 4},
    "odd height": {"image_shape": (3, 4, 3)},
    "odd width": {"image_shape": (4, 3, 3)},
    "odd sides": {"image_shape": (5, 3), "n_couplings": 3},
    "one pixel": {"image_shape": (1, 1, 3), "n_couplings": 4},
    "one row": {"image_shape": (1, 5), "n_couplings": 4},
    "digits": {"image_shape": (8, 8)},
    "deep": {"image_shape": (4, 4), "n_couplings": 2, "depth": 3},
}


def make(seed=0, width=5, **shape):
    flow = ImageFlow(width=width, **shape, generator=torch.Generator().manual_seed(seed)).double()
    flow.weights.data.mul_(2)  # farther from the identity than it starts
    return flow


def images(n, flow, seed=0):
    return naive.random(n, torch.Size(flow.image_shape).numel(), seed=seed)


@pytest.fixture(params=FLOWS)
def flow(request):
    return make(**FLOWS[request.param])


@pytest.fixture
def x(flow):
    return images(2, flow)


@pytest.fixture(params=["encode", "decode"])
def direction(request):
    return request.param


@torch.no_grad()
def test_decode_undoes_encode(flow, x):
    z, log_det = flow.encode(x)
    back, log_det_back = flow.decode(z)
    assert_close(back, x, rtol=0, atol=1e-10)
    assert_close(log_det_back, -log_det, rtol=0, atol=1e-10)


@torch.no_grad()
def test_encode_undoes_decode(flow, x):
    data, log_det = flow.decode(x)
    back, log_det_back = flow.encode(data)
    assert_close(back, x, rtol=0, atol=1e-10)
    assert_close(log_det_back, -log_det, rtol=0, atol=1e-10)


def test_log_det_is_that_of_the_jacobian(flow, x, direction):
    transform = getattr(flow, direction)
    expected = [jacobian(lambda row: transform(row[None])[0][0], row).slogdet().logabsdet for row in x]
    assert_close(transform(x)[1].detach(), torch.stack(expected))


def test_gradient_by_x(flow, x, direction):
    assert gradcheck(getattr(flow, direction), x.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("name", [name for name, shape in FLOWS.items() if shape.get("n_couplings", 6)])
def test_gradient_by_weights(name, direction):
    flow = make(**FLOWS[name])
    x = images(2, flow)
    assert gradcheck(lambda _: getattr(flow, direction)(x), flow.weights, fast_mode=True)


@torch.no_grad()
def test_rows_do_not_see_each_other(flow, x, direction):
    transform = getattr(flow, direction)
    alone = [torch.cat(parts) for parts in zip(*(transform(row[None]) for row in x), strict=True)]
    assert_close(alone, list(transform(x)))


# --- a walk is the pass of automatic differentiation


def test_walk_gives_what_encode_and_decode_give(flow, x, direction):
    taken = flow.walk(x, decode=direction == "decode")
    assert_close((taken.result, taken.log_det), getattr(flow, direction)(x))
    assert not taken.result.requires_grad
    assert not taken.log_det.requires_grad


def test_walk_pulls_back_where_gradients_are_off(flow, x, direction):
    grad, grad_log_det = images(2, flow, seed=1), naive.random(2, seed=2)
    with torch.no_grad():
        taken = flow.walk(x, decode=direction == "decode")
        pulled, to_x = taken.pull_back(grad, grad_log_det), taken.pull_back_to_x(grad, grad_log_det)
    result, log_det = getattr(flow, direction)(x.requires_grad_())
    loss = (result * grad).sum() + (log_det * grad_log_det).sum()
    assert_close(pulled, torch.autograd.grad(loss, [x, flow.weights], materialize_grads=True))
    assert torch.equal(to_x, pulled[0])
    assert flow.weights.grad is None


# --- which pixels a coupling keeps


def kept_by_first_and_second_pair(flow_shape):
    """Return which values each of the first four couplings passes through: [n] (p,), read off its Jacobian."""
    stacks = [make(image_shape=flow_shape, n_couplings=n) for n in range(5)]
    for stack in stacks:
        stack.weights.data.copy_(stacks[-1].weights.data[: len(stack.weights)])
    point = images(1, stacks[0])[0]
    kept = []
    for before, after in pairwise(stacks):
        J = jacobian(lambda v, b=before, a=after: a.encode(b.decode(v[None])[0])[0][0], point)
        passes = (J - torch.eye(len(J)).double()).abs().amax(1) < 1e-10
        changed = J[~passes][:, ~passes]
        assert_close(changed, changed.diagonal().diag())
        kept.append(passes)
    return kept


@pytest.mark.parametrize("sides", [(4, 4), (3, 5), (2, 4, 2), (2, 4, 3), (3, 2, 3), (3, 3, 3)])
def test_couplings_alternate_checkerboards(sides):
    """A first pair splits the pixels, a second one the channels of each pixel as well."""
    row, column, channel = torch.meshgrid(*map(torch.arange, (*sides, 1)[:3]), indexing="ij")
    pixels = ((row + column) % 2 == 0).flatten()
    channels = ((row + column + channel) % 2 == 0).flatten()
    for kept, expected in zip(
        kept_by_first_and_second_pair(sides), [pixels, ~pixels, channels, ~channels], strict=True
    ):
        assert torch.equal(kept, expected)


def plain_coupling(flow, x):
    """Encode images (n, h, w, c) of even sides with the first coupling, pixel by pixel."""
    channels = x.shape[3]
    z, log_det = x.clone(), x.new_zeros(len(x))
    diagonals = [[(0, 0), (1, 1)], [(0, 1), (1, 0)]]
    kept, changed = ([x[:, i::2, j::2, k] for i, j in diagonal for k in range(channels)] for diagonal in diagonals)
    units = torch.stack(kept, 1)
    for m, layer in enumerate(flow._cut(flow.weights.detach())[0]):
        units = conv2d(leaky_relu(units, 0.01) if m else units, layer.kernel, layer.bias, padding=1)
    for m, (i, j) in enumerate(diagonals[1]):
        for k in range(channels):
            scale, shift = units[:, m * channels + k].tanh(), units[:, (m + 2) * channels + k]
            z[:, i::2, j::2, k] = changed[m * channels + k] * scale.exp() + shift
            log_det += scale.sum((1, 2))
    return z, log_det


@pytest.mark.parametrize("sides", [(4, 6, 1), (6, 4, 3)])
@torch.no_grad()
def test_coupling_agrees_with_a_plain_one(sides):
    flow = make(image_shape=sides, n_couplings=1)
    x = images(2, flow)
    z, log_det = plain_coupling(flow, x.view(2, *sides))
    assert_close(flow.encode(x), (z.flatten(1), log_det))


@pytest.mark.parametrize("sides", [(14, 14), (13, 13)])
def test_a_pixel_reaches_its_neighbours_only(sides):
    """One coupling of three convolutions reaches three blocks of two pixels; nothing wraps around the border."""
    flow = make(image_shape=sides, n_couplings=1, depth=2)
    J = jacobian(lambda v: flow.encode(v[None])[0][0], images(1, flow)[0]).view(*sides, *sides)
    row, column = (J[:, :, 0, 0] != 0).nonzero().T
    assert row.max() == column.max() == 7
    row, column = (J[:, :, 12, 12] != 0).nonzero().T
    assert row.min() == column.min() == 6
