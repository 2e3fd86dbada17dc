"""Everything a run is: its settings, data, model in the making, history and position. To save, resume, ship."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emflow import files
from emflow.errors import FileError
from emflow.flow.image import Flow, make_flow
from emflow.latent.gaussian import Gaussian
from emflow.latent.online_em import OnlineEM, Statistics
from emflow.latent.patterns import Patterns
from emflow.learn.reimpute import Stage

TINY = 1e-12  # next to an error in scaled units
CLEAR = 1.0  # standard errors by which something must be better on hidden cells to be kept


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of training, under the names and with the meaning they have in `EMFlowImputer`.

    `image_shape` is that of images with a convolutional flow; None takes a fully connected one.
    """

    n_iterations: int
    n_epochs: int
    batch_size: int
    learning_rate: float
    reconstruction_weight: float
    step_scale: float
    step_exponent: float
    covariance_inflation: tuple[float, ...]
    super_batch_size: int
    n_couplings: int
    hidden_width: int | None
    reinit: bool
    clip: bool
    tol: float
    patience: int
    dtype: str
    image_shape: tuple[int, ...] | None

    def beta(self, iteration: int) -> float:
        """Inflation in an outer iteration, counted from 0; the last value of the schedule holds from there on."""
        schedule = self.covariance_inflation or (0.0,)
        return schedule[min(iteration, len(schedule) - 1)]


@dataclass
class Run:
    """One training run. `train` moves it on; between two epochs it can be saved and taken up again.

    Attributes
    ----------
    x_hat : Tensor of shape (n, p)
        The current imputation, in scaled units.
    patterns : Patterns
        Of the cells that are missing, those hidden for validation included.
    hidden, hidden_values : Tensor of shape (h,)
        Flat positions and true values of the observed cells hidden for validation.
    precision : torch.dtype
        Of the Gaussian and of the re-imputation phase; the flow is trained in that of x_hat.
    start : Stage or None
        The stage that made the initial imputation, if it was one; new rows pass it first. It counts as iteration 0.
    weight : Tensor of shape (n,) or None
        Of the rows, all above zero: they are shown in proportion to it.
    iteration, epoch : int
        Outer iterations done, and epochs done in the current one.
    """

    settings: Settings
    x_hat: Tensor
    patterns: Patterns
    hidden: Tensor
    hidden_values: Tensor
    generator: torch.Generator
    seed: int
    precision: torch.dtype = torch.float64
    start: Stage | None = None
    weight: Tensor | None = None
    iteration: int = 0
    epoch: int = 0
    stages: list[Stage] = field(default_factory=list)
    history: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"epochs": [], "iterations": []})
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.fingerprint = self._fingerprint()
        two_values = ((self.x_hat == 0) | (self.x_hat == 1) | self.patterns.missing).all(0)
        self.either_or = two_values[self.hidden % self.x_hat.shape[1]]
        self.start_error = self.error(self.x_hat)
        if self.start is not None:
            self.record_iteration(change=0.0, seconds=0.0)
        self.new_model()

    def record_iteration(self, change: float, seconds: float) -> None:
        """Add the current imputation to the history, with its error on the hidden cells."""
        error = self.error(self.x_hat)
        rmse = (error.square() * self.emphasis(self.hidden)).mean().sqrt().item() if len(error) else None
        self.history["iterations"].append({
            "iteration": self.iteration, "change": change, "validation_rmse": rmse,
            "gain": self.gain(self.start_error, error), "seconds": seconds,
        })  # fmt: skip

    def error(self, x_hat: Tensor) -> Tensor:
        """Return how far an imputation is from the true values of the hidden cells (h,)."""
        return (x_hat.take(self.hidden) - self.hidden_values).abs()

    def gain(self, before: Tensor, after: Tensor) -> float:
        """Return by how many standard errors one error (h,) is less than another, in the mean; 0 without hidden cells.

        Of absolute errors, as of squares a few cells would decide; but of squares in columns of two values, where the
        absolute error of a probability is least at 0 or 1, however uncertain the cell is.
        """
        before, after = (torch.where(self.either_or, error.square(), error) for error in (before, after))
        gain = (before - after) * self.emphasis(self.hidden)
        return math.sqrt(len(gain)) * gain.mean().item() / (gain.std(correction=0).item() + TINY) if len(gain) else 0.0

    def emphasis(self, hidden: Tensor) -> Tensor:
        """Return the weights of the rows that hidden cells are in, given by flat position; their mean is 1."""
        if self.weight is None or not len(hidden):
            return self.x_hat.new_ones(len(hidden))
        weight = self.weight.index_select(0, hidden // self.x_hat.shape[1])
        return (weight / weight.mean()).to(self.x_hat.dtype)

    def new_model(self) -> None:
        """Initialise flow, optimiser and online EM afresh (appendix D)."""
        s = self.settings
        size = {"n_features": self.x_hat.shape[1]} if s.image_shape is None else {"image_shape": s.image_shape}
        width = {} if s.hidden_width is None else {"width": s.hidden_width}
        flow = make_flow({**size, "n_couplings": s.n_couplings, **width}, self.generator)
        self.flow: Flow = flow.to(self.x_hat.device, self.x_hat.dtype)
        self.optimiser = torch.optim.Adam(self.flow.parameters(), lr=s.learning_rate, fused=True)
        self.em = OnlineEM(s.step_scale, s.step_exponent, s.super_batch_size, self.precision)

    @property
    def best_iteration(self) -> int:
        """Outer iteration with the lowest error on hidden cells; without such cells the last one.

        0 is the start: it is kept unless an iteration is better by a standard error.
        """
        if not (len(self.hidden) and self.history["iterations"]):
            return self.iteration
        records = self.history["iterations"]
        if self.start is not None:
            records = [record for record in records if record["iteration"] == 0 or record.get("gain", math.inf) > CLEAR]
        best: dict[str, int] = min(records, key=lambda record: record["validation_rmse"])
        return best["iteration"]

    @property
    def model(self) -> list[Stage]:
        """The stages up to the best iteration, the start included."""
        return ([] if self.start is None else [self.start]) + self.stages[: self.best_iteration]

    @property
    def finished(self) -> bool:
        """Whether the maximum is reached or the hidden cells have not improved for `patience` iterations."""
        return self.iteration >= self.settings.n_iterations or self.stopped_improving

    @property
    def stopped_improving(self) -> bool:
        if not len(self.hidden):
            return False
        best, since = float("inf"), 0
        for record in self.history["iterations"]:
            if record["validation_rmse"] < best * (1 - self.settings.tol):
                best, since = record["validation_rmse"], 0
            else:
                since += 1
        return since >= self.settings.patience

    def snapshot(self) -> Stage:
        """Return flow and Gaussian as they are now, as the stage of this iteration."""
        assert self.em.estimate is not None
        gaussian = self.em.estimate.inflated(self.settings.beta(self.iteration))
        return Stage(copy.deepcopy(self.flow), gaussian)

    # --- checkpoints

    def _fingerprint(self) -> str:
        """Identify the settings, the data and the initial imputation of this run."""
        digest = hashlib.sha256(json.dumps(asdict(self.settings), sort_keys=True).encode())
        for tensor in (self.x_hat, self.patterns.missing, self.hidden_values, self.weight):
            if tensor is not None:
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the whole state; see `files.write` for what happens if the machine dies meanwhile."""
        tensors = {
            "generator": self.generator.get_state(),
            "x_hat": self.x_hat[self.patterns.missing],
        }
        tensors |= {f"flow.{name}": tensor for name, tensor in self.flow.state_dict().items()}
        for key, value in self.optimiser.state_dict()["state"].get(0, {}).items():
            tensors[f"optimiser.{key}"] = value
        if self.em.estimate is not None:
            tensors |= {"em.mean": self.em.estimate.mean, "em.cov": self.em.estimate.cov}
        for n, recent in enumerate(self.em.recent):
            tensors |= {f"recent.{n}.total": recent.total, f"recent.{n}.outer": recent.outer}
        tensors |= stages_to_tensors(self.stages)  # the start is computed again from the data
        header = {
            "kind": "checkpoint",
            "fingerprint": self.fingerprint,
            "seed": self.seed,
            "position": [self.iteration, self.epoch],
            "em": {"t": self.em.t, "counts": [recent.count for recent in self.em.recent]},
            "stages": [stage.flow.shape for stage in self.stages],
            "history": self.history,
        }
        files.write(path, tensors, header)

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Take up the state of a checkpoint, which must come from the same data and settings."""
        if header["fingerprint"] != self.fingerprint:
            raise FileError("the checkpoint was made from other data or parameters: name another folder or delete it")
        device = self.x_hat.device
        self.iteration, self.epoch = header["position"]
        self.history = header["history"]
        self.stages = stages_from_tensors(tensors, header["stages"], device)
        self.generator.set_state(tensors["generator"])
        self.x_hat[self.patterns.missing] = tensors["x_hat"].to(device)
        self.flow.load_state_dict(under("flow.", tensors))
        state = under("optimiser.", tensors)
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})
        self.em.t = header["em"]["t"]
        if "em.mean" in tensors:
            self.em.estimate = Gaussian(tensors["em.mean"].to(device), tensors["em.cov"].to(device))
        for n, count in enumerate(header["em"]["counts"]):
            total, outer = (tensors[f"recent.{n}.{name}"].to(device) for name in ("total", "outer"))
            self.em.recent.append(Statistics(count, total, outer))


def stages_to_tensors(stages: list[Stage]) -> dict[str, Tensor]:
    """Name the tensors of a model for a file."""
    tensors: dict[str, Tensor] = {}
    for n, (flow, gaussian) in enumerate(stages):
        tensors |= {f"stage.{n}.flow.{name}": tensor for name, tensor in flow.state_dict().items()}
        tensors |= {f"stage.{n}.mean": gaussian.mean, f"stage.{n}.cov": gaussian.cov}
    return tensors


def stages_from_tensors(tensors: dict[str, Tensor], shapes: list[dict[str, Any]], device: torch.device) -> list[Stage]:
    """Rebuild a model from the tensors of a file and the shapes of its flows."""
    stages = []
    for n, shape in enumerate(shapes):
        part = under(f"stage.{n}.flow.", tensors)
        flow = make_flow(shape, torch.Generator()).to(part["weights"].dtype)
        flow.load_state_dict(part)
        gaussian = Gaussian(tensors[f"stage.{n}.mean"].to(device), tensors[f"stage.{n}.cov"].to(device))
        stages.append(Stage(flow.to(device), gaussian))
    return stages


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
