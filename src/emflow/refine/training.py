"""How the E-step for tables is learnt: from observed cells that are hidden on top of the missing ones.

The Gaussian completes the rows without them, neighbours are looked up among the training rows, and the network learns
the distribution of what was hidden. No complete row is needed.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from emflow.errors import DivergedError
from emflow.order import sample
from emflow.progress import progress as show_progress
from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding
from emflow.refine.examples import Data, Examples, wanted_columns
from emflow.refine.forest import grow
from emflow.refine.network import LEAST_SCALE, TableNetwork
from emflow.refine.size import Size
from emflow.refine.tables import TableRefinement
from emflow.threads import few_threads

WARM_UP = 0.15  # of the steps, in which the learning rate rises; then it falls to zero along a cosine
LATE = 0.75  # of the steps, after which its errors are those of the trained network
WEIGHT_DECAY = 1e-2
GROWN_ROWS = 16_000  # that trees are grown on,
GROWING = 0.2  # in this share of the time, where that is short
SHORTEST = 1e-3  # seconds for the network, which suffice for a step
MOST_MOVED, MOST_WIDER = 1.0, 2.0  # columns may be, in standard deviations, for training to go on with further rows


def fit_tables(
    data: Data,
    size: Size,
    generator: torch.Generator,
    max_time: float = math.inf,
    verbose: bool = False,
    earlier: TableRefinement | None = None,
) -> tuple[TableRefinement, list[dict[str, Any]]]:
    """Return the E-step learnt from rows, and a history; its last record has whether all trees are grown.

    Parameters
    ----------
    max_time : float
        Seconds; training is made short enough to end by then, with its learning rate at zero as ever.
    earlier : TableRefinement, optional
        An E-step from whose network training goes on; see `can_go_on`.
    """
    started, seed = time.monotonic(), int(torch.randint(2**31, (), generator=generator))
    with torch.random.fork_rng(devices=[]), few_threads(size.batch_size * size.width):
        torch.manual_seed(seed)  # weights and dropout know no generator; what the caller has seeded is put back
        model, rows = _begin(data, size, generator, earlier)
        examples = Examples(data, model, rows, size, generator)
        history: list[dict[str, Any]] = []
        model.unexplained = torch.zeros_like(model.mean)
        for number, network in enumerate(model.networks):
            left = (1 - GROWING * bool(size.n_trees)) * max_time - (time.monotonic() - started)
            left = max(left / (len(model.networks) - number), SHORTEST)
            records, missed = _train(model, network, examples, size, left, verbose, fresh=earlier is None)
            history += records
            model.unexplained += missed / len(model.networks)
    if size.n_trees:
        left = max_time - (time.monotonic() - started)
        history[-1]["forest"] = plant(model, data, size.n_trees, generator, left, verbose)
    return model, history


def plant(
    model: TableRefinement,
    data: Data,
    n_trees: int,
    generator: torch.Generator,
    max_time: float = math.inf,
    verbose: bool = False,
) -> bool:
    """Give the model trees, grown on rows as its networks complete them; return whether there was time for all columns.

    If there was not, and it has some already, these stay.
    """
    started, seed = time.monotonic(), int(torch.randint(2**31, (), generator=generator))
    rows, count = (part.to(data.x.device) for part in sample(len(data.x), GROWN_ROWS, generator, data.weight))
    x, missing = data.x.index_select(0, rows), data.missing.index_select(0, rows)
    filled = model.standard(model.complete(data.complete(x, missing), missing, clip=False, with_trees=False))
    forest, done = grow(
        filled, ~missing, wanted_columns(data.missing), model.unexplained, n_trees, seed,
        None if data.weight is None else count, max_time - (time.monotonic() - started), verbose, data.owner,
    )  # fmt: skip
    if done or not model.forest.root.numel():
        model.plant(forest)
    return done


def _begin(
    data: Data, size: Size, generator: torch.Generator, earlier: TableRefinement | None
) -> tuple[TableRefinement, Tensor]:
    """Learn all that needs no gradient: scales, bins, encoding, reference rows; return also which rows these are."""
    x, missing = data.x, data.missing
    mean, scale = moments(x, missing) if earlier is None else (earlier.mean.to(x), earlier.scale.to(x))
    standard = ((x - mean) / scale).float().cpu()
    holes = missing.cpu()
    bins = Bins.learn(standard, holes, size.n_bins, None if data.weight is None else data.weight.cpu())
    encoding = Encoding.learn(standard, holes, size.n_pieces) if earlier is None else earlier.encoding
    rows, count = (part.to(x.device) for part in sample(len(x), size.n_reference, generator, data.weight))
    model = TableRefinement(
        x.shape[1], bins.centre.shape[1], encoding.left.shape[1], len(rows), size.n_neighbours, size.n_leaves,
        size.n_networks, size.width,
        n_trees=0, n_nodes=0, forest_share=size.forest_share, dropout=size.dropout,
    )  # fmt: skip
    model.bins, model.encoding, model.mean, model.scale = bins, encoding, mean.float(), scale.float()
    model.order = holes.sum(0).argsort(stable=True)
    model.to(x.device)
    if earlier is not None:
        model.order = earlier.order  # which trust goes by; this and spread stay where no hidden cells tell them anew
        model.spread, model.trust = earlier.spread, earlier.trust
        within = earlier.bins.index(model.bins.centre.mT).mT
        for network, before in zip(model.networks, earlier.networks, strict=True):
            network.go_on_from(before, within)
        model.reference.weight = earlier.reference.weight
    for network in model.networks:
        if network.attention is not None:
            network.attention.wanted = wanted_columns(missing)
    if len(rows):
        holes = missing.index_select(0, rows)
        model.reference.x = model.standard(data.complete(x.index_select(0, rows), holes))
        model.reference.observed, model.reference.count, model.reference.origin = (~holes).float(), count, rows
        model.reference.arrange(model.encoding)
    return model.ready(), rows


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


def _train(
    model: TableRefinement,
    network: TableNetwork,
    examples: Examples,
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
