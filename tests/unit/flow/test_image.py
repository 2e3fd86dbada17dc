import copy
import json
import pickle

import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.flow.image import ImageFlow, make_flow
from emflow.flow.realnvp import Pass, RealNVP

X = naive.random(3, 4 * 4 * 3).float()


def make(seed=0, image_shape=(4, 4, 3), **shape):
    return ImageFlow(image_shape, **shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def encode(flow, x=X):
    return flow.encode(x.to(flow.weights.dtype))[0]


def layers(flow):
    return [layer for network in flow._cut(flow.weights.detach()) for layer in network]


def test_generator_decides_the_weights():
    assert torch.equal(make(seed=0).weights, make(seed=0).weights)
    assert not torch.equal(make(seed=0).weights, make(seed=1).weights)


def test_size_does_not_depend_on_the_sides():
    sizes = {len(make(image_shape=(side, side, 3)).weights) for side in (4, 7, 32)}
    assert len(sizes) == 1


def test_grey_image_may_name_its_channel():
    grey, named = make(image_shape=(4, 4)), make(image_shape=(4, 4, 1))
    assert torch.equal(encode(grey, X[:, :16]), encode(named, X[:, :16]))


@pytest.mark.parametrize("image_shape", [(4,), (4, 4, 3, 1)])
def test_other_than_images_are_refused(image_shape):
    with pytest.raises(ValueError, match="unpack"):
        make(image_shape=image_shape)


def test_weights_are_uniform_by_fan_in_and_small_in_the_last_layer():
    flow = make(width=100, depth=2)
    for n, (kernel, bias) in enumerate(layers(flow)):
        bound = (0.1 if n % 3 == 2 else 1) * (kernel.shape[1] * 9) ** -0.5
        values = torch.cat([kernel.flatten(), bias])
        assert 0.99 * bound < values.abs().max() <= bound
        assert values.mean().abs() < 4 * bound / (3 * len(values)) ** 0.5


def test_starts_near_the_identity():
    difference = encode(make()) - X
    assert 0 < difference.square().mean().sqrt() < 0.3


def test_every_weight_belongs_to_one_layer():
    flow = make(width=4, depth=3, n_couplings=2)
    assert [len(network) for network in flow._cut(flow.weights)] == [4, 4]
    parts = flow._cut(torch.arange(len(flow.weights)))
    numbers = torch.cat([part.flatten() for network in parts for layer in network for part in layer])
    assert torch.equal(numbers.sort().values, torch.arange(len(flow.weights)))


def test_all_weights_are_one_parameter_and_the_whole_state():
    flow = make()
    assert len(list(flow.parameters())) == 1
    assert list(flow.state_dict()) == ["weights"]


def test_change_of_type_is_seen():
    flow = make()
    single = encode(flow)
    double = encode(flow.double())
    assert double.dtype == torch.float64
    assert_close(double.float(), single)


def test_step_of_the_optimiser_raises_the_likelihood():
    flow = make()
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        with torch.no_grad():  # as in training
            taken = flow.walk(X)
            losses.append((taken.result.square().sum(1) / 2 - taken.log_det).mean())
            flow.weights.grad = taken.pull_back(taken.result / len(X), torch.full((len(X),), -1 / len(X)))[1]
        optimiser.step()
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda flow: pickle.loads(pickle.dumps(flow))])
def test_copy_is_independent(duplicate):
    flow = make()
    before = encode(flow)
    other = duplicate(flow)
    assert torch.equal(encode(other), before)
    other.weights.data.zero_()
    assert torch.equal(encode(flow), before)
    assert torch.equal(encode(other), X)


# --- both flows, in the same way


FLOWS = {
    "table": RealNVP(48, n_couplings=3, width=7, depth=1, generator=torch.Generator().manual_seed(3)),
    "colour": make(seed=3, n_couplings=3, width=7, depth=1),
    "grey": make(seed=3, image_shape=(6, 8)),
}


@pytest.mark.parametrize("name", FLOWS)
def test_flow_is_rebuilt_from_its_shape_and_state(name):
    flow = FLOWS[name].double()
    other = make_flow(json.loads(json.dumps(flow.shape)), torch.Generator()).double()
    assert type(other) is type(flow)
    assert other.shape == flow.shape
    assert not torch.equal(encode(other), encode(flow))
    other.load_state_dict(flow.state_dict())
    assert torch.equal(encode(other), encode(flow))


def test_walk_of_a_table_is_its_pass():
    flow = FLOWS["table"].double()
    for decode in (False, True):
        taken, expected = flow.walk(X.double(), decode), Pass(flow, X.double(), decode)
        assert torch.equal(taken.result, expected.result)
        gradients = X.double(), torch.ones(len(X)).double()
        assert_close(taken.pull_back(*gradients), expected.pull_back(*gradients))
