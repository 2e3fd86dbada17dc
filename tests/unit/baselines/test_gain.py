"""GAIN: its losses written as sums over cells, its noise, and what it learns."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from emflow.baselines import GAINImputer
from emflow.baselines.gain import NOISE, _Training, discriminator_loss, generator_loss, network, row_noise
from emflow.baselines.steps import RECORD

GENERATOR = torch.Generator().manual_seed(0)
LOGITS, FILLED, X = torch.randn(3, 6, 4, generator=GENERATOR, dtype=torch.float64)
OBSERVED = (torch.rand(6, 4, generator=GENERATOR) < 0.6).double()


def cells():
    return [(i, j) for i in range(6) for j in range(4)]


def test_loss_of_the_discriminator_is_the_cross_entropy_of_the_indicator():
    probability = LOGITS.sigmoid()
    terms = [torch.log(probability[c] if OBSERVED[c] else 1 - probability[c]) for c in cells()]
    assert_close(discriminator_loss(LOGITS, OBSERVED), -torch.stack(terms).mean())


def test_loss_of_the_generator():
    holes = [c for c in cells() if not OBSERVED[c]]
    seen = [c for c in cells() if OBSERVED[c]]
    deception = -sum(torch.log(LOGITS.sigmoid()[c]) for c in holes) / 24
    squared = sum((FILLED[c] - X[c]) ** 2 for c in seen) / len(seen)
    assert_close(generator_loss(LOGITS, FILLED, X, OBSERVED, 100.0), deception + 100 * squared)


def test_networks_have_two_hidden_layers_of_width_p():
    shapes = [tuple(p.shape) for p in network(5, torch.Generator()).parameters() if p.dim() == 2]
    assert shapes == [(5, 10), (5, 5), (5, 5)]


class Spy(torch.nn.Module):
    """A network that keeps what it is given."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.inputs = inner, []

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return self.inner(x)


@pytest.mark.parametrize("hint_rate", [0.0, 0.9, 1.0])
def test_what_the_networks_see(hint_rate):
    x = torch.rand(4000, 3, generator=torch.Generator().manual_seed(1)) + 1
    missing = torch.rand(4000, 3, generator=torch.Generator().manual_seed(2)) < 0.3
    training = _Training(
        GAINImputer(batch_size=4000, hint_rate=hint_rate), x.masked_fill(missing, 0), missing, torch.Generator()
    )
    training.generator, training.discriminator = Spy(training.generator), Spy(training.discriminator)
    training.step()
    (seen,) = training.generator.inputs
    rows = seen[:, :3].where(seen[:, 3:] == 1, 0).sum(1)
    assert_close(rows.sort().values, x.masked_fill(missing, 0).sum(1).sort().values)  # all rows once, in some order
    noise = seen[:, :3][seen[:, 3:] == 0]
    assert noise.min() >= 0
    assert noise.max() <= NOISE
    assert abs(noise.mean() - NOISE / 2) < NOISE / 20
    before, after = training.discriminator.inputs
    assert torch.equal(before, after)  # the generator moves after the discriminator
    completed, hint = after[:, :3], after[:, 3:]
    assert torch.equal(completed[seen[:, 3:] == 1], seen[:, :3][seen[:, 3:] == 1])
    assert (hint[seen[:, 3:] == 0] == 0).all()
    assert abs(hint[seen[:, 3:] == 1].mean() - hint_rate) < 0.02


def test_each_step_moves_both_networks_by_their_own_loss():
    x, missing = torch.rand(50, 3), torch.rand(50, 3) < 0.3
    training = _Training(GAINImputer(batch_size=50), x, missing, torch.Generator().manual_seed(0))
    before = [[p.detach().clone() for p in net.parameters()] for net in (training.generator, training.discriminator)]
    training.step()
    for net, old in zip((training.generator, training.discriminator), before, strict=True):
        assert all(not torch.equal(a, b) for a, b in zip(net.parameters(), old, strict=True))


def test_noise_of_a_row_depends_on_the_row_and_the_seed_alone():
    rows = np.random.default_rng(0).random((500, 6)).round(1)
    noise = row_noise(rows, seed=1)
    order = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(row_noise(rows[order], seed=1), noise[order])
    assert not np.array_equal(row_noise(rows, seed=2), noise)


def test_noise_is_uniform_and_its_columns_are_independent():
    noise = row_noise(np.random.default_rng(0).random((20_000, 4)).round(2), seed=0)
    edges = np.histogram(noise, bins=20, range=(0, 1))[0] / noise.size
    assert (abs(edges - 0.05) < 4 * np.sqrt(0.05 * 0.95 / noise.size)).all()
    assert abs(np.corrcoef(noise.T) - np.eye(4)).max() < 0.03


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)) + 0.1 * rng.normal(size=(400, 4))
    return X, np.where(rng.random(X.shape) < 0.2, np.nan, X)


def test_it_learns_from_the_other_columns(table):
    X, holes = table
    fitted = GAINImputer(n_steps=600, learning_rate=1e-2, random_state=0).fit(holes)
    missing = np.isnan(holes)
    error = np.sqrt(((fitted.transform(holes) - X)[missing] ** 2).mean())
    assert error < 0.5 * X[missing].std()
    assert [record["step"] for record in fitted.history_] == list(range(RECORD, 601, RECORD))
    assert not fitted.timed_out_


def test_transform_learns_nothing(table):
    fitted = GAINImputer(n_steps=20, random_state=0).fit(table[1])
    before = [p.clone() for p in fitted.generator_.parameters()]
    first = fitted.transform(table[1])
    np.testing.assert_array_equal(fitted.transform(table[1]), first)
    assert all(torch.equal(a, b) for a, b in zip(fitted.generator_.parameters(), before, strict=True))


def test_running_out_of_time_is_told(table):
    fitted = GAINImputer(max_time=1e-9, random_state=0).fit(table[1])
    assert fitted.timed_out_
    assert [record["step"] for record in fitted.history_] == [1]
