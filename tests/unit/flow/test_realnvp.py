import copy
import pickle

import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.flow.realnvp import RealNVP

X = naive.random(6, 5)


def make(seed=0, **shape):
    return RealNVP(5, **shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def encode(flow, x=X):
    return flow.encode(x.to(flow.weights.dtype))[0]


def test_generator_decides_halves_and_weights():
    assert torch.equal(encode(make(seed=0)), encode(make(seed=0)))
    assert not torch.equal(make(seed=0).weights, make(seed=1).weights)
    assert not torch.equal(make(seed=0).orders, make(seed=1).orders)


def test_default_width_is_the_number_of_features():
    assert torch.equal(encode(make()), encode(make(width=5)))
    assert len(make(width=3).weights) < len(make().weights)


def test_weights_are_uniform_by_fan_in():
    flow = make(n_couplings=2, width=400)
    for _, _, layers in naive.couplings(flow, flow.weights.detach()):
        for weight, bias in layers:
            bound = weight.shape[2] ** -0.5
            values = torch.cat([weight.flatten(), bias.flatten()])
            assert 0.99 * bound < values.abs().max() <= bound
            assert values.mean().abs() < 4 * bound / (3 * len(values)) ** 0.5


def test_every_weight_belongs_to_one_layer():
    flow = make()
    parts = naive.couplings(flow, torch.arange(len(flow.weights)))
    numbers = torch.cat([part.flatten() for *_, layers in parts for layer in layers for part in layer])
    assert torch.equal(numbers.sort().values, torch.arange(len(flow.weights)))


def test_all_weights_are_one_parameter():
    assert len(list(make().parameters())) == 1


# --- the views of the weights follow them wherever they go


def test_step_of_the_optimiser_is_seen():
    flow = make()
    before = encode(flow)
    optimiser = torch.optim.Adam(flow.parameters(), lr=0.1)
    flow.encode(X.float())[0].square().sum().backward()
    optimiser.step()
    assert not torch.isclose(encode(flow), before).all()
    assert_close(encode(flow), naive.encode(flow, flow.weights.detach(), X.float())[0])


def test_change_of_type_is_seen():
    flow = make()
    single = encode(flow)
    double = encode(flow.double())
    assert double.dtype == torch.float64
    assert_close(double.float(), single)
    assert torch.equal(encode(flow.float()), single)


def test_loaded_weights_are_seen():
    flow, other = make(seed=0), make(seed=1)
    encode(flow)
    flow.load_state_dict(other.state_dict())
    assert torch.equal(encode(flow), encode(other))


def test_pickle_leaves_the_views_out():
    flow = make()
    size = len(pickle.dumps(flow))
    encode(flow)
    assert len(pickle.dumps(flow)) == size


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda flow: pickle.loads(pickle.dumps(flow))])
def test_copy_is_independent(duplicate):
    flow = make()
    before = encode(flow)
    other = duplicate(flow)
    assert torch.equal(encode(other), before)
    other.weights.data.zero_()
    assert torch.equal(encode(flow), before)
    assert torch.equal(encode(other), X.float())
