"""How the E-step for tables is learnt: from observed cells that are hidden on top of the missing ones.

The Gaussian completes the rows without them, neighbours are looked up among the training rows, and the network learns
the distribution of what was hidden. No complete row is needed.
"""

from __future__ import annotations

import math
import time
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from emflow.errors import DivergedError, ParameterError
from emflow.order import sample, shuffled
from emflow.progress import progress as show_progress
from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding
from emflow.refine.forest import grow
from emflow.refine.images import Complete
from emflow.refine.network import LEAST_SCALE, Cells, TableNetwork
from emflow.refine.tables import Batch, TableRefinement
from emflow.threads import few_threads

SHARE = 0.05, 0.35  # of the observed cells of a row are hidden, where it is not those that another row lacks
WARM_UP = 0.15  # of the steps, in which the learning rate rises; then it falls to zero along a cosine
LATE = 0.75  # of the steps, after which its errors are those of the trained network
WEIGHT_DECAY = 1e-2
STORED_ROWS = 16_000
NARROW = 200  # columns beyond which neighbours are not looked up, nor trees grown: they cost the square of it
GROWN_ROWS = 16_000  # that trees are grown on,
GROWING = 0.2  # in this share of the time, where that is short
SHORTEST = 1e-3  # seconds for the network, which suffice for a step
MOST_MOVED, MOST_WIDER = 1.0, 2.0  # columns may be, in standard deviations, for training to go on with further rows
EXAMPLES = 4096  # rows that are hidden, filled and looked up together,
SPARE = 2  # times as many are drawn: in some nothing comes to be hidden


@dataclass(frozen=True)
class Size:
    """How large the model is and how it is trained.

    Attributes
    ----------
    width : int
        Of the residual network; 0 does without it.
    n_bins, n_pieces : int
        Of each column: bins of its distributions, and pieces of its encoding; about so many at most.
    n_neighbours, n_reference : int
        Rows looked up for each row, and training rows among which they are; 0 for none.
    n_leaves : int
        How many leaves, of about 64 of these training rows, are searched: the fewer, the faster. Up to 768 are one.
    n_networks : int
        Whose distributions are averaged: what one learns from few rows depends on chance.
    error_weight : float
        Of the squared error of the mean, in standard deviations, beside the cross-entropy of the distribution.
    reuse : int
        How often an example (hidden cells, fill, neighbours) is shown before it is replaced.
    like : float
        Share of the rows in which those cells are hidden that another row lacks; in the others it is any.
    weighed : float
        Share of the steps after which neighbours are looked up by the columns that have shown to matter; 1 for never.
    haste : float
        How much faster the weights of neighbours are learnt than the rest: they are few, and have far to go.
    n_trees : int
        In the forest of each column, which has a say in the mean; 0 for none.
    """

    n_steps: int
    batch_size: int
    learning_rate: float
    width: int
    n_bins: int
    n_pieces: int
    n_neighbours: int
    n_reference: int
    n_leaves: int
    dropout: float
    error_weight: float
    reuse: int
    like: float
    weighed: float = 0.3
    haste: float = 3.0
    n_networks: int = 1
    n_trees: int = 10

    @classmethod
    def of(
        cls,
        n: int,
        p: int,
        n_steps: int | None = None,
        store_rows: bool | int = True,
        lacking: float = 1.0,
        **settings: Any,
    ) -> Size:
        """Return the size for a table of n rows and p columns, with settings of one's own.

        `lacking` is the share of the columns that have holes: where these are few, a search is short, and of a long
        table, where steps are long, they have fewer steps.
        """
        kind = bisect((1200, 3000, 10_000), n)
        n_reference = min(n, STORED_ROWS if store_rows is True else int(store_rows))
        if n_reference < 2 or p > NARROW:  # a row has no use for itself
            n_reference = 0
        size = cls(
            n_steps=n_steps or (600, 600, max(800, n // 5), round(800 + 1200 * lacking))[kind],
            batch_size=(64, 128, 256, 512)[kind], learning_rate=8e-3, width=128,
            n_bins=max(16, min((128, 64, 64, 64)[kind], 2048 // p)), n_pieces=8,
            n_neighbours=max(16, min(48, 2048 // p) // 8 * 8),  # processors take eight at a time
            n_reference=n_reference, n_leaves=12 if lacking > 0.5 else 8,
            dropout=(0.15, 0.15, 0.3, 0.05)[kind], error_weight=2.0,
            reuse=1 if n_reference < 5000 else 2, like=(0.7, 0.7, 0.9, 0.9)[kind],
            n_networks=(2, 2, 1, 1)[kind], n_trees=0 if p > NARROW else (40, 40, 16, 16 if lacking > 0.5 else 10)[kind],
        )  # fmt: skip
        size = replace(size, **settings)
        if size.n_trees and p > NARROW:
            raise ParameterError(f"n_trees in refine is for tables of at most {NARROW} columns, but there are {p}")
        return size


def fit_tables(
    x: Tensor,
    missing: Tensor,
    complete: Complete,
    size: Size,
    generator: torch.Generator,
    max_time: float = math.inf,
    verbose: bool = False,
    owner: Tensor | None = None,
    weight: Tensor | None = None,
    earlier: TableRefinement | None = None,
) -> tuple[TableRefinement, list[dict[str, Any]]]:
    """Return the E-step learnt from the rows x (n, p), and a history; its last record has whether all trees are grown.

    Parameters
    ----------
    complete : callable
        The completion that is to be refined.
    max_time : float
        Seconds; training is made short enough to end by then, with its learning rate at zero as ever.
    owner : Tensor of shape (p,), optional
        Counts up from 0; columns with the same one are hidden together.
    weight : Tensor of shape (n,), optional
        Rows are shown in proportion to it.
    earlier : TableRefinement, optional
        An E-step from whose network training goes on; see `can_go_on`.
    """
    started, seed = time.monotonic(), int(torch.randint(2**31, (), generator=generator))
    with torch.random.fork_rng(devices=[]), few_threads(size.batch_size * size.width):
        torch.manual_seed(seed)  # weights and dropout know no generator; what the caller has seeded is put back
        model, rows = _begin(x, missing, complete, size, generator, weight, earlier)
        owner = torch.arange(x.shape[1]) if owner is None else owner
        examples = _Examples(x, missing, complete, model, rows, owner, size, generator, weight)
        history: list[dict[str, Any]] = []
        model.unexplained = torch.zeros(x.shape[1], device=x.device)
        for number, network in enumerate(model.networks):
            left = (1 - GROWING * bool(size.n_trees)) * max_time - (time.monotonic() - started)
            left = max(left / (len(model.networks) - number), SHORTEST)
            records, missed = _train(model, network, examples, size, left, verbose, fresh=earlier is None)
            history += records
            model.unexplained += missed / len(model.networks)
    if size.n_trees:
        left = max_time - (time.monotonic() - started)
        history[-1]["forest"] = plant(model, x, missing, complete, size, generator, left, verbose, owner, weight)
    return model, history


def plant(
    model: TableRefinement,
    x: Tensor,
    missing: Tensor,
    complete: Complete,
    size: Size,
    generator: torch.Generator,
    max_time: float = math.inf,
    verbose: bool = False,
    owner: Tensor | None = None,
    weight: Tensor | None = None,
) -> bool:
    """Give the model trees, grown on rows x (n, p) as it completes them; return whether there was time for all columns.

    If there was not, and it has some already, these stay. Parameters are those of `fit_tables`.
    """
    started, wanted, seed = (
        time.monotonic(),
        wanted_columns(missing),
        int(torch.randint(2**31, (), generator=generator)),
    )
    rows, count = (part.to(x.device) for part in sample(len(x), GROWN_ROWS, generator, weight))
    x, missing = x.index_select(0, rows), missing.index_select(0, rows)
    weight = None if weight is None else count
    filled = model.standard(model.complete(complete(x, missing), missing, clip=False))
    left = max_time - (time.monotonic() - started)
    forest, done = grow(filled, ~missing, wanted, model.unexplained, size.n_trees, seed, weight, left, verbose, owner)
    if done or not model.forest.root.numel():
        model.plant(forest)
    return done


def _begin(
    x: Tensor,
    missing: Tensor,
    complete: Complete,
    size: Size,
    generator: torch.Generator,
    weight: Tensor | None,
    earlier: TableRefinement | None,
) -> tuple[TableRefinement, Tensor]:
    """Learn all that needs no gradient: scales, bins, encoding, reference rows; return also which rows these are."""
    mean, scale = moments(x, missing) if earlier is None else (earlier.mean.to(x), earlier.scale.to(x))
    standard = ((x - mean) / scale).float().cpu()
    holes = missing.cpu()
    bins = Bins.learn(standard, holes, size.n_bins)
    encoding = Encoding.learn(standard, holes, size.n_pieces) if earlier is None else earlier.encoding
    rows, count = (part.to(x.device) for part in sample(len(x), size.n_reference, generator, weight))
    model = TableRefinement(
        x.shape[1], bins.centre.shape[1], encoding.left.shape[1], len(rows), size.n_neighbours, size.n_leaves,
        size.n_networks, size.width,
        n_trees=0, n_nodes=0, dropout=size.dropout,
    )  # fmt: skip
    model.bins, model.encoding, model.mean, model.scale = bins, encoding, mean.float(), scale.float()
    model.to(x.device)
    if earlier is not None:
        model.spread = earlier.spread  # unless there are cells to calibrate by
        within = earlier.bins.index(model.bins.centre.mT).mT
        for network, before in zip(model.networks, earlier.networks, strict=True):
            network.go_on_from(before, within)
        model.reference.weight = earlier.reference.weight
    for network in model.networks:
        if network.attention is not None:
            network.attention.wanted = wanted_columns(missing)
    if len(rows):
        holes = missing.index_select(0, rows)
        model.reference.x = model.standard(complete(x.index_select(0, rows), holes))
        model.reference.observed, model.reference.count = (~holes).float(), count
        model.reference.arrange(model.encoding)
    return model.ready(), rows


def wanted_columns(missing: Tensor) -> Tensor:
    """Return which columns (p,) are to be filled: those that lack values; all, where none does."""
    return missing.any(0) | ~missing.any()


def moments(x: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the observed cells of each column of x (n, p); 1 for a constant one."""
    seen = (~missing).sum(0).clamp_min(1)
    mean = x.masked_fill(missing, 0).sum(0) / seen
    scale = ((x - mean).masked_fill(missing, 0).square().sum(0) / seen).sqrt()
    return mean, torch.where(scale > 0, scale, 1)


def can_go_on(earlier: TableRefinement, x: Tensor, missing: Tensor, size: Size) -> bool:
    """Return whether training can go on from an earlier E-step: of the same size, with columns about the same."""
    mean, scale = moments(x, missing)
    moved, wider = (mean - earlier.mean.to(x)).abs() / earlier.scale.to(x), scale / earlier.scale.to(x)
    alike = (moved < MOST_MOVED) & (wider < MOST_WIDER) & (wider > 1 / MOST_WIDER)
    same = all(earlier.shape[name] == getattr(size, name) for name in ("width", "n_networks"))
    return bool(alike.all()) and same and size.n_reference > 0


class _Examples:
    """Rows with further cells hidden. They serve for several steps, then the oldest are replaced."""

    def __init__(
        self,
        x: Tensor,
        missing: Tensor,
        complete: Complete,
        model: TableRefinement,
        reference: Tensor,
        owner: Tensor,
        size: Size,
        generator: torch.Generator,
        weight: Tensor | None,
    ) -> None:
        self.x, self.missing, self.complete, self.model, self.generator = x, missing, complete, model, generator
        self.owner, self.weight = owner, weight
        self.batch_size, self.kept, self.like = min(size.batch_size, len(x)), size.reuse, size.like
        self.chunk = self.batch_size * max(1, min(len(x), EXAMPLES) // self.batch_size)
        self.place = torch.full((len(x),), -1, device=x.device)
        self.place[reference] = torch.arange(len(reference), device=x.device)

    def __iter__(self) -> Iterator[tuple[Batch, Tensor, Tensor, Cells]]:
        """Yield batches, the true values (n, p), their bins, and the cells that were hidden; without end."""
        chunks: list[tuple[Tensor, ...]] = []
        while True:
            chunks = [*chunks, self._make()][-self.kept :]
            pool = tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
            order = torch.randperm(len(pool[0]), generator=self.generator).to(self.x.device)
            for rows in order.split(self.batch_size):
                *batch, truth, truth_bin, hidden = (part.index_select(0, rows) for part in pool)
                yield Batch(*batch), truth, truth_bin, Cells.where(hidden)

    def _make(self) -> tuple[Tensor, ...]:
        rows = shuffled(len(self.x), self.generator, self.weight)[: SPARE * self.chunk].to(self.x.device)
        hidden = self._draw(len(rows)) & ~self.missing.index_select(0, rows)
        tell = (hidden.any(1) | ~hidden.any()).nonzero().flatten()  # from rows without hidden cells nothing is learnt
        tell = tell[: min(self.chunk, max(len(tell) // self.batch_size, 1) * self.batch_size)]
        rows, hidden = rows.index_select(0, tell), hidden.index_select(0, tell)
        x, holes = self.x.index_select(0, rows), self.missing.index_select(0, rows)
        holes = holes | hidden
        z_hat = self.model.standard(self.complete(x, holes))
        near = self.model.look_up(z_hat, holes, self.place.index_select(0, rows))
        truth = self.model.standard(x)
        return z_hat, holes, near, truth, self.model.bins.index(truth), hidden

    def _draw(self, n: int) -> Tensor:
        """Draw cells (n, p) to hide: in most rows those that another row lacks, in the others any."""
        low, high = SHARE
        share = low + (high - low) * torch.rand(n, 1, generator=self.generator)
        cells = (torch.rand(n, int(self.owner[-1]) + 1, generator=self.generator) < share)[:, self.owner]
        like = torch.rand(n, 1, generator=self.generator) < self.like
        other = torch.randint(len(self.x), (n,), generator=self.generator)
        cells, like, other = (part.to(self.x.device) for part in (cells, like, other))
        return torch.where(like, self.missing.index_select(0, other), cells)


def _train(
    model: TableRefinement,
    network: TableNetwork,
    examples: _Examples,
    size: Size,
    max_time: float,
    verbose: bool,
    fresh: bool,
) -> tuple[list[dict[str, Any]], Tensor]:
    """Train a network; return a history, and the share of each column's variance (p,) that it left in the end."""
    bins = model.bins
    optimiser = torch.optim.AdamW(_groups(network, size.haste), lr=0.0, weight_decay=WEIGHT_DECAY, fused=True)
    history: list[dict[str, Any]] = []
    losses, progress, started = [], 0.0, time.monotonic()
    asked, late, wrong = torch.zeros(3, len(network.log_scale), device=network.log_scale.device)
    bar = show_progress(total=size.n_steps, desc="refine", unit="step", verbose=verbose)
    model.train()
    for step, (batch, x, x_bin, cells) in enumerate(examples, start=1):
        at = cells.row * len(asked) + cells.column
        truth = x.take(at)
        if fresh and step == 1:
            _set_scale(network, batch.z_hat.take(at) - truth, cells.column)
        for group in optimiser.param_groups:
            group["lr"] = group["haste"] * size.learning_rate * _schedule(progress)
        logit = model.log_probability(network, batch, cells)
        error = bins.mean(logit.softmax(-1), cells.column) - truth
        loss = cross_entropy(logit, x_bin.take(at), reduction="sum") + size.error_weight * error.square().sum()
        loss = loss / max(1, len(truth))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
        bar.update()
        count = torch.bincount(cells.column, minlength=len(asked))
        asked += count  # how often each column was,
        if progress > LATE:  # and lately, with what error
            late += count
            wrong.index_add_(0, cells.column, error.detach().square())
        before, progress = progress, max(step / size.n_steps, (time.monotonic() - started) / max_time)
        if network is model.networks[0] and before < size.weighed <= progress < 1:  # the others find what it does
            _weigh(model, asked)
        if step % 100 == 0 or progress >= 1:
            average = torch.stack(losses).mean().item()
            if not math.isfinite(average):
                raise DivergedError(
                    f"the loss of the network is not finite at step {step}: lower learning_rate in refine"
                )
            history.append({"step": step, "loss": average, "seconds": time.monotonic() - started})
            bar.set_postfix(loss=average)
            losses.clear()
        if progress >= 1:
            break
    bar.close()
    model.eval()
    return history, torch.where(late > 0, wrong / late.clamp_min(1), 1)  # of what was not asked, nothing is explained


def _groups(network: TableNetwork, haste: float) -> list[dict[str, Any]]:
    """Return the parameters for the optimiser, each group with what its learning rate is multiplied by."""
    if network.attention is None:
        return [{"params": list(network.parameters()), "haste": 1.0}]
    hasty = list(network.attention.parameters())
    others = [parameter for name, parameter in network.named_parameters() if not name.startswith("attention.")]
    return [{"params": others, "haste": 1.0}, {"params": hasty, "haste": haste}]


@torch.no_grad()
def _set_scale(network: TableNetwork, error: Tensor, column: Tensor) -> None:
    """Start the Gaussian of each column with the deviation that its completion has at hidden cells."""
    total, count = (torch.zeros_like(network.log_scale).index_add(0, column, part) for part in (error**2, error**0))
    network.log_scale.copy_((total / count.clamp_min(1)).sqrt().clamp_min(LEAST_SCALE).log())


@torch.no_grad()
def _weigh(model: TableRefinement, asked: Tensor) -> None:
    """Let a column count, in the search for neighbours, as much as it does in their weights for the columns asked."""
    attention = model.networks[0].attention
    if attention is not None:
        weight = softplus(attention.agree) @ asked
        model.reference.weight.copy_(weight / weight.mean().clamp_min(torch.finfo(weight.dtype).tiny))
        model.reference.arrange(model.encoding)
        model.reference.prepare(model.bins, model.encoding)


def _schedule(progress: float) -> float:
    if progress < WARM_UP:
        return max(0.02, progress / WARM_UP)
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))
