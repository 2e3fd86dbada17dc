"""MCFlow (Richardson et al., CVPR 2020): a flow with a standard normal base and a network that moves latent vectors."""

from __future__ import annotations

import copy
import math
import time
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from emflow.base import Imputer
from emflow.errors import DivergedError
from emflow.flow.image import Flow, make_flow
from emflow.limits import BOOLEAN, DEVICE, FLOW, POSITIVE, SECONDS, SEED, integer
from emflow.table.fill import fill_draw
from emflow.table.schema import Array
from emflow.threads import few_threads

CHUNK = 2**12  # rows that are filled together


class Stage(NamedTuple):
    """Flow and latent network at the moment at which they made a new completion."""

    flow: Flow
    network: nn.Sequential


class MCFlowImputer(Imputer):
    """Fill missing values by MCFlow.

    In turns a flow learns the density of the current completion, and a network in its latent space learns to move each
    row to a likely one that agrees with the observed cells. After epochs 2, 4, 8, 16, ... all rows are completed
    anew and the flow starts afresh; the network goes on. A fitted model is the sequence of (flow, network) at these
    moments and at the end, which `transform` replays on any rows.

    Parameters
    ----------
    n_epochs : int
        Passes over the rows.
    batch_size : int
        Rows per step. Their published code has 64; in the comparison of the EMFlow paper it is that of EMFlow.
    learning_rate : float
        Of Adam, for the flow and for the network.
    n_couplings : int
        Affine couplings in the flow.
    flow : {"auto", "dense", "convolutional"}
        Networks of the couplings: fully connected, or convolutions, which "auto" takes for images.
    flow_sees_network_loss : bool
        In their published code the gradients of the network's loss by the flow's weights are not cleared before the
        flow's next step, which thus follows both losses. True does so too; False lets the flow follow its own alone.
    max_time : float or None
        Seconds after which training stops at the end of the epoch; `timed_out_` tells. A flow that has not trained as
        long as the one before it by then is left out.
    device : str
        "cpu", or a CUDA device.
    random_state : int, RandomState or None
        Seeds every random choice. Nothing is seeded globally.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    stages_ : list of Stage
        The fitted model.
    stage_history_ : list of dict
        For each stage the epoch after which it was taken and the seconds of training until then.
    history_ : list of dict
        For each epoch the mean of both losses over its batches and the seconds of training until then.
    timed_out_ : bool
        Whether `max_time` ended the training.

    Notes
    -----
    Deviation: new rows start from the median of each column, where they draw at random from the observed values: the
    answer for a row depends on that row alone.
    """

    limits: ClassVar[dict[str, Any]] = {
        "n_epochs": integer(1),
        "batch_size": integer(1),
        "learning_rate": POSITIVE,
        "n_couplings": integer(1),
        "flow": FLOW,
        "flow_sees_network_loss": BOOLEAN,
        "max_time": SECONDS,
        "device": DEVICE,
        "random_state": SEED,
        "verbose": BOOLEAN,
    }
    clip = True  # to [0, 1] in scaled units, as in their code

    def __init__(
        self,
        *,
        n_epochs: int = 500,
        batch_size: int = 64,
        learning_rate: float = 1e-4,
        n_couplings: int = 6,
        flow: str = "auto",
        flow_sees_network_loss: bool = False,
        max_time: float | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.n_couplings = n_couplings
        self.flow = flow
        self.flow_sees_network_loss = flow_sees_network_loss
        self.max_time = max_time
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, missing: Any = None) -> MCFlowImputer:
        """Learn from the rows of X (n, p), or from images; `y` is not used.

        Missing is what is NaN, and what `missing` says: see `transform`.
        """
        X = self._read_new(X, missing)
        generator = torch.Generator().manual_seed(self._seed())
        x, holes = self._tensors(X)
        shape = self._convolved(self.flow)
        size = {"n_features": x.shape[1]} if shape is None else {"image_shape": shape}
        flow_shape = {**size, "n_couplings": self.n_couplings}
        training = _Training(self, flow_shape, fill_draw(x, holes, generator).float(), holes, x.dtype, generator)
        stages, stage_history, history = [], [], []
        started, deadline = time.monotonic(), math.inf if self.max_time is None else self.max_time
        bar = tqdm(total=self.n_epochs, desc="mcflow", unit="epoch", disable=not self.verbose)
        with bar, few_threads(self.batch_size * x.shape[1]):
            for epoch in range(1, self.n_epochs + 1):
                losses = training.epoch()
                seconds = time.monotonic() - started
                history.append({"epoch": epoch, "flow_loss": losses[0], "network_loss": losses[1], "seconds": seconds})
                bar.update()
                late = seconds > deadline
                if self._is_stage(epoch, late):
                    stages.append(training.complete_anew())
                    stage_history.append({"epoch": epoch, "seconds": time.monotonic() - started})
                if late:
                    break
        self.stages_, self.stage_history_, self.history_ = stages, stage_history, history
        self.timed_out_ = len(history) < self.n_epochs
        return self

    def _is_stage(self, epoch: int, late: bool) -> bool:
        """Whether rows are completed anew after an epoch: a power of two, the last one, or the one that time ends."""
        before = 1 << (epoch.bit_length() - 1)  # the power of two at which this flow started
        if late and epoch > 1:
            return 2 * epoch >= 3 * before or epoch == before
        return late or epoch == self.n_epochs or epoch == before > 1

    def _complete(self, X: Array) -> Tensor:
        x, missing = self._tensors(X)
        x_hat = self._fill_middle(x, missing).to(self.stages_[-1].flow.weights)
        for stage in self.stages_:
            x_hat = refresh(stage, x_hat, missing)
        return x_hat

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "stages_")


class _Training:
    """Completion, flow, latent network and their optimisers while they learn."""

    def __init__(
        self,
        imputer: MCFlowImputer,
        flow_shape: dict[str, Any],
        x_hat: Tensor,
        missing: Tensor,
        precision: torch.dtype,
        generator: torch.Generator,
    ) -> None:
        self.imputer, self.flow_shape = imputer, flow_shape
        self.x_hat, self.missing, self.generator = x_hat, missing, generator
        self.precision = precision  # in which rows are completed
        self.network = latent_network(x_hat.shape[1], generator).to(x_hat)
        self.network_optimiser = self._adam(self.network)
        self.start_flow()

    def start_flow(self) -> None:
        self.flow = make_flow(self.flow_shape, self.generator).to(self.x_hat)
        self.flow_optimiser = self._adam(self.flow)
        self.left_over = torch.zeros_like(self.flow.weights)  # gradient of the network's loss by the flow's weights

    def _adam(self, module: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(module.parameters(), lr=self.imputer.learning_rate, fused=True)

    def epoch(self) -> tuple[float, float]:
        """Pass once over the rows; return the mean of both losses."""
        n = len(self.x_hat)
        order = torch.randperm(n, generator=self.generator).to(self.x_hat.device)
        batches = order.tensor_split(max(1, round(n / self.imputer.batch_size)))
        losses = torch.stack([self.step(rows) for rows in batches]).mean(0)
        if not losses.isfinite().all():
            raise DivergedError(f"the losses of MCFlow are not finite ({losses.tolist()}): lower learning_rate")
        return losses[0].item(), losses[1].item()

    @torch.no_grad()
    def step(self, rows: Tensor) -> Tensor:
        """Update the flow by one batch, then the network; return both losses."""
        x_hat, missing, n = self.x_hat.index_select(0, rows), self.missing.index_select(0, rows), len(rows)

        # the flow: negative log-likelihood of the current completion, (|z|^2 + p log 2 pi) / 2 - log|det dz/dx|
        encoding = self.flow.walk(x_hat)
        flow_loss = _negative_log_normal(encoding.result) - encoding.log_det.mean()
        _, gradient = encoding.pull_back(encoding.result / n, torch.full_like(encoding.log_det, -1 / n))
        self.flow.weights.grad = gradient.add_(self.left_over)
        self.flow_optimiser.step()

        # the network: error on observed cells, summed over the batch, and mean negative log-likelihood of x_rec
        encoding = self.flow.walk(x_hat)
        z = encoding.result.requires_grad_(self.imputer.flow_sees_network_loss)
        with torch.enable_grad():
            moved = self.network(z)
        z_hat = moved.detach()
        decoding = self.flow.walk(z_hat, decode=True)
        error = (decoding.result - x_hat).masked_fill_(missing, 0)
        network_loss = error.square().sum() + _negative_log_normal(z_hat) + decoding.log_det.mean()
        gradients = 2 * error, torch.full_like(decoding.log_det, 1 / n)
        if self.imputer.flow_sees_network_loss:
            by_z_hat, self.left_over = decoding.pull_back(*gradients)
        else:
            by_z_hat = decoding.pull_back_to_x(*gradients)
        self.network_optimiser.zero_grad()
        moved.backward(by_z_hat.add_(z_hat, alpha=1 / n))
        self.network_optimiser.step()
        if z.grad is not None:  # the flow is to see it
            self.left_over += encoding.pull_back(z.grad, torch.zeros_like(encoding.log_det))[1]
        return torch.stack((flow_loss, network_loss))

    def complete_anew(self) -> Stage:
        """Fill the rows by what was learnt so far, start the flow afresh, and return what was learnt."""
        stage = Stage(copy.deepcopy(self.flow).to(self.precision), copy.deepcopy(self.network).to(self.precision))
        self.x_hat = refresh(stage, self.x_hat.to(self.precision), self.missing).to(self.x_hat.dtype)
        self.start_flow()
        return stage


def latent_network(p: int, generator: torch.Generator) -> nn.Sequential:
    """Return five linear layers of width p with LeakyReLU between them, weights uniform in +-1/sqrt(p)."""
    layers: list[nn.Module] = []
    for _ in range(5):
        linear = nn.utils.skip_init(nn.Linear, p, p)
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(p), 1 / math.sqrt(p), generator=generator)
        layers += [linear, nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def refresh(stage: Stage, x_hat: Tensor, missing: Tensor) -> Tensor:
    """Return x_hat (n, p) with its missing cells taken from the decoded rows, clipped to [0, 1]."""
    flow, network = stage
    chunks = []
    for x, holes in zip(x_hat.split(CHUNK), missing.split(CHUNK), strict=True):
        x_rec, _ = flow.decode(network(flow.encode(x)[0]))
        chunks.append(torch.where(holes, x_rec.clamp(0, 1), x))
    return torch.cat(chunks)


def _negative_log_normal(z: Tensor) -> Tensor:
    """Return the mean over the rows of -log N(z; 0, I)."""
    return 0.5 * (z.square().sum() / len(z) + z.shape[1] * math.log(2 * math.pi))
