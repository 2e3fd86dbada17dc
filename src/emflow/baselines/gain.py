"""GAIN (Yoon et al., ICML 2018): a generator fills the holes, a discriminator tells which cells it filled."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from emflow.base import Imputer
from emflow.baselines.steps import take_steps
from emflow.limits import BOOLEAN, DEVICE, NOT_NEGATIVE, POSITIVE, SECONDS, SEED, integer, real
from emflow.table.schema import Array
from emflow.threads import few_threads

NOISE = 0.01  # in the holes: uniform in [0, NOISE]
LOSSES = ("discriminator_loss", "generator_loss")


class GAINImputer(Imputer):
    """Fill missing values by GAIN.

    The generator sees a row, noise in its holes, beside the indicator of observed cells. The discriminator sees the
    completed row beside a hint, the indicator with some of its entries set to 0, and gives for every cell the
    probability that it was observed. Both have two hidden layers of width p with ReLU, and sigmoid outputs.

    Parameters
    ----------
    n_steps : int
        Training steps, each of one update of the discriminator and one of the generator.
    batch_size : int
        Rows per step, drawn without replacement.
    learning_rate : float
        Of Adam, for both networks.
    hint_rate : float
        Probability with which an entry of the indicator is kept in the hint.
    reconstruction_weight : float
        Weight of the mean squared error on observed cells in the generator's loss.
    max_time : float or None
        Seconds after which training stops; `timed_out_` tells.
    device : str
        "cpu", or a CUDA device.
    random_state : int, RandomState or None
        Seeds every random choice. Nothing is seeded globally.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    generator_, discriminator_ : torch.nn.Sequential
        The fitted networks.
    history_ : list of dict
        Every hundred steps both losses, averaged since the last record, and the seconds of training until then.
    timed_out_ : bool
        Whether `max_time` ended the training.

    Notes
    -----
    The noise in the holes of a row that is filled comes from a hash of that row and of the seed: `transform` gives a
    row the same answer wherever it stands, and learns nothing from it.
    """

    limits: ClassVar[dict[str, Any]] = {
        "n_steps": integer(1),
        "batch_size": integer(1),
        "learning_rate": POSITIVE,
        "hint_rate": real("a number in [0, 1]", lambda v: 0 <= v <= 1),
        "reconstruction_weight": NOT_NEGATIVE,
        "max_time": SECONDS,
        "device": DEVICE,
        "random_state": SEED,
        "verbose": BOOLEAN,
    }
    clip = True  # the sigmoid does it already, up to rounding

    def __init__(
        self,
        *,
        n_steps: int = 10_000,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        hint_rate: float = 0.9,
        reconstruction_weight: float = 100.0,
        max_time: float | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.hint_rate = hint_rate
        self.reconstruction_weight = reconstruction_weight
        self.max_time = max_time
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, missing: Any = None) -> GAINImputer:
        """Learn from the rows of X (n, p), or from images; `y` is not used.

        Missing is what is NaN, and what `missing` says: see `transform`.
        """
        X = self._read_new(X, missing)
        seed = self._seed()
        draws = torch.Generator().manual_seed(seed)
        x, holes = self._tensors(X)
        training = _Training(self, x.float(), holes, draws)
        with few_threads(self.batch_size * x.shape[1]):
            self.history_, self.timed_out_ = take_steps(
                training.step, LOSSES, self.n_steps, self.max_time, "GAIN", bool(self.verbose)
            )
        self.generator_, self.discriminator_ = training.generator.to(x.dtype), training.discriminator.to(x.dtype)
        self.noise_seed_ = seed
        return self

    @torch.no_grad()
    def _complete(self, X: Array) -> Tensor:
        x, missing = self._tensors(X)
        x = x.to(next(self.generator_.parameters()))
        noise = torch.from_numpy(row_noise(x.masked_fill(missing, -1).cpu().numpy(), self.noise_seed_)).to(x)
        filled = self.generator_(torch.cat((torch.where(missing, NOISE * noise, x), (~missing).to(x)), 1)).sigmoid()
        return torch.where(missing, filled, x)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "generator_")


class _Training:
    """Both networks and their optimisers while they learn from the rows x, zero where missing."""

    def __init__(self, imputer: GAINImputer, x: Tensor, missing: Tensor, draws: torch.Generator) -> None:
        self.imputer, self.x, self.missing, self.draws = imputer, x, missing, draws
        p = x.shape[1]
        self.generator, self.discriminator = (network(p, draws).to(x) for _ in range(2))
        self.optimisers = [
            torch.optim.Adam(net.parameters(), lr=imputer.learning_rate, fused=True)
            for net in (self.discriminator, self.generator)
        ]

    def step(self) -> Tensor:
        """Update discriminator and generator by one batch; return both losses."""
        rows = torch.randperm(len(self.x), generator=self.draws)[: self.imputer.batch_size].to(self.x.device)
        x, missing = self.x.index_select(0, rows), self.missing.index_select(0, rows)
        observed = (~missing).to(x)
        noise, kept = (torch.rand(2, *x.shape, generator=self.draws)).to(x)
        filled = self.generator(torch.cat((torch.where(missing, NOISE * noise, x), observed), 1)).sigmoid()
        completed = torch.where(missing, filled, x)
        hint = observed * (kept < self.imputer.hint_rate)
        first = discriminator_loss(self.discriminator(torch.cat((completed.detach(), hint), 1)), observed)
        self._descend(0, first)
        logits = self.discriminator(torch.cat((completed, hint), 1))
        second = generator_loss(logits, filled, x, observed, self.imputer.reconstruction_weight)
        self._descend(1, second)
        return torch.stack((first.detach(), second.detach())).cpu()

    def _descend(self, which: int, loss: Tensor) -> None:
        optimiser = self.optimisers[which]
        parameters = optimiser.param_groups[0]["params"]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimiser.step()


def discriminator_loss(logits: Tensor, observed: Tensor) -> Tensor:
    """Return the cross-entropy of the indicator of observed cells, averaged over all cells."""
    return binary_cross_entropy_with_logits(logits, observed)


def generator_loss(logits: Tensor, filled: Tensor, x: Tensor, observed: Tensor, weight: float) -> Tensor:
    """Return how badly the generator deceives in the holes, and how badly it copies the observed cells.

    The first term is -log D summed over the holes and divided by the number of all cells, as in their published code;
    the second one the squared error over the observed cells, divided by their number.
    """
    deception = -((1 - observed) * logsigmoid(logits)).mean()
    return deception + weight * (observed * (filled - x).square()).sum() / observed.sum().clamp_min(1)


def network(p: int, draws: torch.Generator) -> nn.Sequential:
    """Return a network from 2 p inputs to p logits, with two hidden layers of width p and Glorot's initial weights."""
    layers: list[nn.Module] = []
    for inputs in (2 * p, p, p):
        linear = nn.utils.skip_init(nn.Linear, inputs, p)
        nn.init.normal_(linear.weight, std=math.sqrt(2 / inputs), generator=draws)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def row_noise(X: Array, seed: int) -> Array:
    """Return numbers uniform in [0, 1), of the shape of X (n, p), each row's from a hash of that row and the seed."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        weights = np.random.default_rng(seed).integers(2**63, size=X.shape[1], dtype=np.uint64)
        weights = 2 * weights + 1  # odd, so that no bit of a word is lost
        words = np.ascontiguousarray(X, dtype=np.float64).view(np.uint64)
        row = (_mix(words) * weights).sum(1, dtype=np.uint64)
        return (_mix(row[:, None] + weights) >> np.uint64(11)) * 2.0**-53


def _mix(words: Array) -> Array:
    """Spread every bit of 64-bit words over all of them: xor with a shifted copy, multiply by an odd number, twice."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
