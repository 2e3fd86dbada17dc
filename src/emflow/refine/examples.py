"""What the E-step for tables is learnt from: rows, and examples of them with further cells hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from emflow.order import shuffled
from emflow.refine.images import Complete
from emflow.refine.network import Cells
from emflow.refine.size import Size
from emflow.refine.tables import Batch, TableRefinement

SHARE = 0.05, 0.35  # of the observed cells of a row are hidden, where it is not those that another row lacks;
BARE = 0.01  # of the rows lose more than that, up to all: nobody knows how little will be known of a row to come
EXAMPLES = 4096  # rows that are hidden, filled and looked up together,
SPARE = 2  # times as many are drawn: in some nothing comes to be hidden


class Data(NamedTuple):
    """Rows to learn from.

    Attributes
    ----------
    x, missing : Tensor of shape (n, p)
        What is missing of x may be anything.
    complete : callable
        The completion that is to be refined.
    owner : Tensor of shape (p,)
        Counts up from 0; columns with the same one are hidden together.
    weight : Tensor of shape (n,), optional
        Rows are shown in proportion to it.
    """

    x: Tensor
    missing: Tensor
    complete: Complete
    owner: Tensor
    weight: Tensor | None = None


def wanted_columns(missing: Tensor) -> Tensor:
    """Return which columns (p,) are to be filled: those that lack values; all, where none does."""
    return missing.any(0) | ~missing.any()


class Examples:
    """Rows with further cells hidden. They serve for several steps, then the oldest are replaced."""

    def __init__(
        self, data: Data, model: TableRefinement, reference: Tensor, size: Size, generator: torch.Generator
    ) -> None:
        self.data, self.model, self.generator, self.kept, self.like = data, model, generator, size.reuse, size.like
        n, device = len(data.x), data.x.device
        self.batch_size = min(size.batch_size, n)
        self.chunk = self.batch_size * max(1, min(n, EXAMPLES) // self.batch_size)
        self.place = torch.full((n,), -1, device=device)
        self.place[reference] = torch.arange(len(reference), device=device)

    def __iter__(self) -> Iterator[tuple[Batch, Tensor, Tensor, Cells]]:
        """Yield batches, the true values (n, p), their bins, and the cells that were hidden; without end."""
        chunks: list[tuple[Tensor, ...]] = []
        while True:
            chunks = [*chunks, self._make()][-self.kept :]
            pool = tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
            order = torch.randperm(len(pool[0]), generator=self.generator).to(self.data.x.device)
            for rows in order.split(self.batch_size):
                *batch, truth, truth_bin, hidden = (part.index_select(0, rows) for part in pool)
                yield Batch(*batch), truth, truth_bin, Cells.where(hidden)

    def _make(self) -> tuple[Tensor, ...]:
        data = self.data
        rows = shuffled(len(data.x), self.generator, data.weight)[: SPARE * self.chunk].to(data.x.device)
        hidden = self._draw(len(rows)) & ~data.missing.index_select(0, rows)
        tell = (hidden.any(1) | ~hidden.any()).nonzero().flatten()  # from rows without hidden cells nothing is learnt
        tell = tell[: min(self.chunk, max(len(tell) // self.batch_size, 1) * self.batch_size)]
        rows, hidden = rows.index_select(0, tell), hidden.index_select(0, tell)
        x, holes = data.x.index_select(0, rows), data.missing.index_select(0, rows)
        holes = holes | hidden
        z_hat = self.model.standard(data.complete(x, holes))
        near = self.model.look_up(z_hat, holes, self.place.index_select(0, rows))
        truth = self.model.standard(x)
        return z_hat, holes, near, truth, self.model.bins.index(truth), hidden

    def _draw(self, n: int) -> Tensor:
        """Draw cells (n, p) to hide: in most rows those that another row lacks, in the others any; in a few most."""
        (low, high), owner = SHARE, self.data.owner
        kind, share = torch.rand(2, n, 1, generator=self.generator)
        bare, like = kind < BARE, kind > 1 - (1 - BARE) * self.like
        share = torch.where(bare, high + (1 - high) * share, low + (high - low) * share)
        cells = (torch.rand(n, int(owner[-1]) + 1, generator=self.generator) < share)[:, owner]
        other = torch.randint(len(self.data.x), (n,), generator=self.generator)
        cells, like, other = (part.to(self.data.x.device) for part in (cells, like, other))
        return torch.where(like, self.data.missing.index_select(0, other), cells)
