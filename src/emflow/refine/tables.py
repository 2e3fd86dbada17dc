"""The learned E-step for tables: a distribution for every missing cell, given the rest of its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding
from emflow.refine.neighbours import Reference
from emflow.refine.network import Cells, Neighbours, TableNetwork, near_enough

CHUNK = 512  # rows that are completed together
BLOCK = 16  # and a multiple of this: fewer are multiplied by other routines, with other last digits


class Batch(NamedTuple):
    """Rows, standardised and completed; what is missing of them (n, p); and their neighbours (n, k)."""

    z_hat: Tensor
    missing: Tensor
    near: Tensor


class TableRefinement(nn.Module):
    """The fitted E-step: bins, encoding, reference rows and network.

    Attributes
    ----------
    mean, scale : Tensor of shape (p,)
        By which columns are standardised.
    """

    kind = "table"
    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        n_columns: int,
        n_bins: int,
        n_pieces: int,
        n_reference: int,
        n_neighbours: int,
        width: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_neighbours = n_neighbours
        self.shape = {
            "n_columns": n_columns, "n_bins": n_bins, "n_pieces": n_pieces, "n_reference": n_reference,
            "n_neighbours": n_neighbours, "width": width,
        }  # fmt: skip
        self.register_buffer("mean", torch.zeros(n_columns))
        self.register_buffer("scale", torch.ones(n_columns))
        self.bins, self.encoding = Bins(n_columns, n_bins), Encoding(n_columns, n_pieces)
        self.reference = Reference(n_reference, n_columns)
        self.network = TableNetwork(
            n_columns, n_bins, n_pieces, width, dropout=dropout, with_neighbours=n_reference > 0
        )

    def ready(self) -> TableRefinement:
        """Return the model as it is used, after its tensors were set."""
        self.reference.prepare(self.bins, self.encoding)
        return self.eval()

    def standard(self, x: Tensor) -> Tensor:
        """Return rows standardised, in single precision."""
        return ((x - self.mean.to(x)) / self.scale.to(x)).to(self.mean)

    def look_up(self, x: Tensor, missing: Tensor, itself: Tensor | None = None) -> Tensor:
        """Return the neighbours (n, k) of standardised rows, by their number among the reference rows."""
        return self.reference.search(near_enough(x), (~missing).to(x), self.encoding, self.n_neighbours, itself)

    def log_probability(self, batch: Batch, cells: Cells) -> Tensor:
        """Return those of the bins (cells, b), not normalised."""
        z_hat, missing, near = batch
        ramps = self.encoding.ramps(z_hat).masked_fill(missing[:, :, None], 0)
        rows = None
        if near.shape[1]:
            tables = (self.reference.x, self.reference.observed, self.reference.bin)
            rows = Neighbours(*(table.index_select(0, near.flatten()).view(*near.shape, -1) for table in tables))
        logit: Tensor = self.network(ramps, z_hat, missing, rows, cells, self.bins)
        return logit

    @torch.no_grad()
    def distributions(self, x_hat: Tensor, missing: Tensor) -> Iterator[tuple[Cells, Tensor]]:
        """Yield, rows by rows, the missing cells of the completed rows x_hat (n, p), and how likely each bin is."""
        incomplete = missing.any(1).nonzero().flatten()
        for rows in incomplete.split(CHUNK) if len(incomplete) else ():
            z_hat, holes = self.standard(x_hat.index_select(0, rows)), missing.index_select(0, rows)
            if len(z_hat) % BLOCK:
                z_hat, holes = (pad(part, (0, 0, 0, -len(part) % BLOCK)) for part in (z_hat, holes))
            cells = Cells(*holes.nonzero(as_tuple=True))
            logit = self.log_probability(Batch(z_hat, holes, self.look_up(z_hat, holes)), cells)
            yield Cells(rows[cells.row], cells.column), logit.softmax(-1)

    def complete(self, x_hat: Tensor, missing: Tensor, clip: bool) -> Tensor:
        """Return the completed rows x_hat (n, p) with the mean of its distribution in each missing cell."""
        result = x_hat.clone()
        for (row, column), probability in self.distributions(x_hat, missing):
            mean = self.bins.mean(probability, column) * self.scale.take(column) + self.mean.take(column)
            result[row, column] = (mean.clamp(0, 1) if clip else mean).to(result)
        return result

    def quantiles(self, x_hat: Tensor, missing: Tensor, level: Tensor) -> Tensor:
        """Return the rows x_hat (n, p) d times, with their quantiles at level (d, n, p) in the missing cells."""
        result = x_hat.repeat(len(level), 1, 1)
        for cells, probability in self.distributions(x_hat, missing):
            self._put(
                result, cells, self.bins.quantile(probability, cells.column, level[:, cells.row, cells.column].mT)
            )
        return result

    def intervals(self, x_hat: Tensor, missing: Tensor, coverage: float) -> Tensor:
        """Return the rows x_hat (n, p) twice, with the ends of central intervals in the missing cells."""
        result = x_hat.repeat(2, 1, 1)
        ends = torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2], device=x_hat.device)
        for cells, probability in self.distributions(x_hat, missing):
            level = ends.expand(len(cells.row), 2)
            self._put(result, cells, self.bins.interval(probability, cells.column, level))
        return result

    def _put(self, result: Tensor, cells: Cells, values: Tensor) -> None:
        """Write standardised values (cells, d) into (d, n, p)."""
        scaled = values.mT * self.scale.take(cells.column) + self.mean.take(cells.column)
        result[:, cells.row, cells.column] = scaled.to(result)
