"""The learned E-step for tables: a distribution for every missing cell, given the rest of its row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from emflow.refine.attention import Neighbours
from emflow.refine.bins import IMPOSSIBLE, Bins
from emflow.refine.encoding import Encoding
from emflow.refine.forest import Forest
from emflow.refine.neighbours import Reference, near_enough
from emflow.refine.network import MULTIPLE, Cells, TableNetwork

BLOCK = 8192  # rows that the forest completes together;
TOGETHER = 2**16  # cells of rows that the network looks at together
APART = 3.0  # standard deviations that the networks count as away from the forest, at most
SHARES = 101  # of which is known how far values lie from the middle, if there are
ENOUGH_CELLS = 50  # to learn it from
BASE = 0.05  # trust in the completion that is refined, in a density of rows, and
OVERALL = 0.85  # in the shares of bins in the training data, as long as nothing of a row is known; half with one column


class Batch(NamedTuple):
    """Rows, standardised and completed; what is missing of them (n, p); and their neighbours (n, k)."""

    z_hat: Tensor
    missing: Tensor
    near: Tensor


class TableRefinement(nn.Module):
    """The fitted E-step: bins, encoding, reference rows, networks and forest.

    Attributes
    ----------
    mean, scale : Tensor of shape (p,)
        By which columns are standardised.
    spread : Tensor of shape (2, m)
        How far from the middle of its distribution a value lies, at most, in 0, 1 / (m - 1), ..., 1 of all cells: for
        intervals, where a single value lies in the middle of its probability, and for draws, where it is all over it.
    unexplained : Tensor of shape (p,)
        Share of each column's variance that the networks have left in training; it is not stored.
    order : Tensor of shape (p,)
        The columns in the order in which they make up a density of rows: first those that lack least, or did in the
        first part of a table that comes in parts.
    trust : Tensor of shape (p, 3)
        By their place in it: what counts of the learned distribution, of overall shares, and of the completion.
    """

    kind = "table"
    mean: Tensor
    scale: Tensor
    spread: Tensor
    unexplained: Tensor
    order: Tensor
    trust: Tensor

    def __init__(
        self,
        n_columns: int,
        n_bins: int,
        n_pieces: int,
        n_reference: int,
        n_neighbours: int,
        n_leaves: int,
        n_networks: int,
        width: int,
        n_trees: int,
        n_nodes: int,
        forest_share: float = 0.5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_neighbours, self.forest_share = n_neighbours, forest_share
        self.shape: dict[str, Any] = {
            "n_columns": n_columns, "n_bins": n_bins, "n_pieces": n_pieces, "n_reference": n_reference,
            "n_neighbours": n_neighbours, "n_leaves": n_leaves, "n_networks": n_networks, "width": width,
            "n_trees": n_trees, "n_nodes": n_nodes, "forest_share": forest_share,
        }  # fmt: skip
        self.register_buffer("mean", torch.zeros(n_columns))
        self.register_buffer("scale", torch.ones(n_columns))
        self.register_buffer("spread", torch.linspace(0, 1, SHARES).repeat(2, 1))
        self.register_buffer("unexplained", torch.ones(n_columns), persistent=False)
        self.register_buffer("order", torch.arange(n_columns))
        overall = OVERALL / (1 + torch.arange(n_columns).square())
        base = torch.full((n_columns,), BASE)
        self.register_buffer("trust", torch.stack((1 - overall - base, overall, base), 1))
        self.bins, self.encoding = Bins(n_columns, n_bins), Encoding(n_columns, n_pieces)
        self.reference = Reference(n_reference, n_columns, n_leaves)
        self.networks: Sequence[TableNetwork] = nn.ModuleList(  # type: ignore[assignment]
            TableNetwork(n_columns, n_bins, n_pieces, width, dropout=dropout, with_neighbours=n_reference > 0)
            for _ in range(n_networks)
        )
        self.forest = Forest(n_columns, n_trees, n_nodes)

    def ready(self) -> TableRefinement:
        """Return the model as it is used, after its tensors were set."""
        self.reference.prepare(self.bins, self.encoding)
        return self.eval()

    def plant(self, forest: Forest) -> None:
        """Put a forest beside the network."""
        self.forest = forest
        self.shape |= {"n_trees": forest.root.shape[1], "n_nodes": len(forest.value)}

    def standard(self, x: Tensor) -> Tensor:
        """Return rows standardised, in single precision."""
        return ((x - self.mean.to(x)) / self.scale.to(x)).to(self.mean)

    def look_up(self, x: Tensor, missing: Tensor, itself: Tensor | None = None) -> Tensor:
        """Return the neighbours (n, k) of standardised rows, by their number among the reference rows."""
        return self.reference.search(near_enough(x), (~missing).to(x), self.n_neighbours, itself)

    def log_probability(self, network: TableNetwork, batch: Batch, cells: Cells) -> Tensor:
        """Return those of the bins (cells, b) by one of the networks, not normalised."""
        z_hat, missing, near = batch
        ramps = self.encoding.ramps(z_hat).masked_fill_(missing[:, :, None], 0)
        rows = None
        if near.shape[1]:
            rows = Neighbours(self.reference.beside, self.reference.bin, near)
        logit: Tensor = network(ramps, z_hat, missing, rows, cells, self.bins)
        return logit

    @torch.no_grad()
    def means(
        self, x_hat: Tensor, missing: Tensor, with_trees: bool = True, itself: Tensor | None = None
    ) -> Iterator[tuple[Cells, Tensor, Tensor]]:
        """Yield, rows by rows, the missing cells of x_hat (n, p), probabilities of their bins, and their means.

        The probabilities are the networks' on average; the means are weighed ones of these distributions and of the
        forest. In the tails of a column, of which few rows tell, a network may go far astray, and a mean of leaves not:
        its say ends some way from the forest. `itself` is that of `Reference.search`.
        """
        incomplete = missing.any(1).nonzero().flatten()
        for block in incomplete.split(BLOCK) if len(incomplete) else ():
            x, holes = self.standard(x_hat.index_select(0, block)), missing.index_select(0, block)
            x, holes = (pad(part, (0, 0, 0, -len(part) % MULTIPLE)) for part in (x, holes))
            mine = None if itself is None else pad(itself.index_select(0, block), (0, -len(block) % MULTIPLE), value=-1)
            near = self.look_up(x, holes, mine)
            some = max(1, TOGETHER // (MULTIPLE * x.shape[1])) * MULTIPLE
            batches = zip(*(part.split(some) for part in (x, holes, near)), strict=True)
            parts = []
            for first, batch in zip(range(0, len(x), some), itertools.starmap(Batch, batches), strict=True):
                cells = Cells.where(batch.missing)
                each = [self.log_probability(network, batch, cells).softmax(-1) for network in self.networks]
                parts.append((first + cells.row, cells.column, sum(each[1:], each[0]).div_(len(each))))
            row, column, probability = map(torch.cat, zip(*parts, strict=True))
            mean = self.bins.mean(probability, column)
            if with_trees and self.forest.root.numel():
                x.put_(row * x.shape[1] + column, mean)
                trees = self.forest.means(x, Cells(row, column))
                away = (mean - trees).clamp(-APART, APART)
                mean = torch.where(trees.isnan(), mean, trees + (1 - self.forest_share) * away)
            yield Cells(block[row], column), probability, mean

    def distributions(self, x_hat: Tensor, missing: Tensor) -> Iterator[tuple[Cells, Tensor]]:
        """Yield, rows by rows, the missing cells of the completed rows x_hat (n, p), and how likely each bin is.

        That is the network's distribution, tilted so far that its mean is the one that `complete` fills in.
        """
        for cells, probability, mean in self.means(x_hat, missing):
            yield cells, self.bins.tilted(probability, cells.column, mean)

    def complete(self, x_hat: Tensor, missing: Tensor, clip: bool, with_trees: bool = True) -> Tensor:
        """Return the completed rows x_hat (n, p) with the mean of its distribution in each missing cell.

        Without trees that is what the networks say, and what trees see of a row.
        """
        result = x_hat.clone()
        for (row, column), _, mean in self.means(x_hat, missing, with_trees):
            mean = mean * self.scale.take(column) + self.mean.take(column)
            result.put_(row * result.shape[1] + column, (mean.clamp(0, 1) if clip else mean).to(result))
        return result

    def calibrate(self, x_hat: Tensor, missing: Tensor, truth: Tensor) -> None:
        """Learn how far from the middle of their distributions the true values of hidden cells lie.

        Level l is |2 l - 1| away from the middle. What a share of the hidden cells is away at most, is how far the ends
        of an interval for this share must be, and how far draws must go. Intervals are those for a standard error more:
        other cells of these rows were learnt from, so that they are a little nearer than those of rows to come. Columns
        of two values have no say: they have no intervals, and would make those of others too narrow. With too few cells
        nothing is changed.

        Parameters
        ----------
        truth : Tensor of shape (n, p)
            The values of the hidden cells, NaN elsewhere.
        """
        truth, found = self.standard(truth), []
        many = (self.bins.log_share > IMPOSSIBLE).sum(1) > 2
        for cells, probability in self.distributions(x_hat, missing):
            value = truth[cells]
            known = (~value.isnan() & many[cells.column]).nonzero().flatten()
            found.append(self.bins.levels(probability[known], cells.column[known], value[known]))
        if (n := sum(map(len, found))) >= ENOUGH_CELLS:
            level, share = torch.cat(found), torch.linspace(0, 1, SHARES, device=x_hat.device)[1:-1]
            safe = share + (share * (1 - share) / n).sqrt()
            for spread, each, at in zip(self.spread, (level.mean(1), level.flatten()), (safe, share), strict=True):
                spread[1:-1] = (2 * each - 1).abs().quantile(at.clamp_max(1))

    def quantiles(self, x_hat: Tensor, missing: Tensor, level: Tensor) -> Tensor:
        """Return the rows x_hat (n, p) d times, with their quantiles at level (d, n, p) in the missing cells."""
        result = x_hat.repeat(len(level), 1, 1)
        for cells, probability in self.distributions(x_hat, missing):
            side = 2 * level[:, cells.row, cells.column].mT - 1
            side = side.sign() * _between(self.spread[1], side.abs())
            self._put(result, cells, self.bins.quantile(probability, cells.column, (1 + side) / 2))
        return result

    def intervals(self, x_hat: Tensor, missing: Tensor, coverage: float) -> Tensor:
        """Return the rows x_hat (n, p) twice, with the ends of central intervals in the missing cells."""
        result = x_hat.repeat(2, 1, 1)
        far = _between(self.spread[0], torch.tensor(coverage, device=x_hat.device))
        for cells, probability in self.distributions(x_hat, missing):
            level = torch.stack(((1 - far) / 2, (1 + far) / 2)).expand(len(cells.row), 2)
            self._put(result, cells, self.bins.interval(probability, cells.column, level))
        return result

    def _put(self, result: Tensor, cells: Cells, values: Tensor) -> None:
        """Write standardised values (cells, d) into (d, n, p)."""
        scaled = values.mT * self.scale.take(cells.column) + self.mean.take(cells.column)
        result[:, cells.row, cells.column] = scaled.to(result)


def _between(values: Tensor, at: Tensor) -> Tensor:
    """Return what lies at places in [0, 1] along values (m,) that are spread over it evenly."""
    at = at.to(values) * (len(values) - 1)
    first = at.long().clamp(max=len(values) - 2)
    return torch.lerp(values[first], values[first + 1], at - first)
