"""Settings and fixtures of all tests. This file also puts its folder on the path, so that tests can import `naive`."""

from dataclasses import replace

import hypothesis
import pytest
import torch

from emflow.latent.patterns import Patterns
from emflow.learn.state import Run, Settings

torch.set_num_threads(1)  # the sizes are small, and threads that wait for each other slow them down a hundredfold
hypothesis.settings.register_profile("emflow", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("emflow")


SETTINGS = Settings(
    n_iterations=2, n_epochs=2, batch_size=20, learning_rate=1e-3, reconstruction_weight=1e6, step_scale=0.99,
    step_exponent=0.8, covariance_inflation=(0.0,), super_batch_size=50, n_couplings=2, hidden_width=None, reinit=True,
    clip=True, tol=1e-3, patience=1, dtype="float64", image_shape=None,
)  # fmt: skip


@pytest.fixture
def new_run():
    """Return a function that makes a run of Algorithm 1, at its start, with other settings where given."""

    def make(x, missing, hidden=(), error=0.0, start=None, **changes):
        hidden = torch.tensor(hidden, dtype=torch.long)  # flat positions of the cells to validate with,
        values = x.take(hidden)
        x_hat = x.clone().put_(hidden, values + error)  # which the initial imputation misses by this error
        patterns = Patterns(missing.flatten().index_fill(0, hidden, True).view_as(missing))
        generator = torch.Generator().manual_seed(0)
        return Run(replace(SETTINGS, **changes), x_hat, patterns, hidden, values, generator, 0, start=start)

    return make
