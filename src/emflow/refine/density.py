"""The density of whole rows that the learned E-step for tables gives: column by column, each given those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from emflow.progress import progress
from emflow.refine.images import Complete
from emflow.refine.tables import TableRefinement

ROWS = 2**14  # that go together
KNOWN = 5.0  # cells that the trust in experts counts for, before there are any to learn it from
PASSES = 50  # of EM, to learn it
POSSIBLE = 1e-6  # share of any category, so that none is impossible;
LEAST_REST = 1e-5  # of the rows have a category without an indicator, if there is one: less is rounding


class Turn(NamedTuple):
    """A column, or the indicators of a category: which they are (k,), and their place in the order of columns."""

    columns: Tensor
    place: int


class Chain:
    """The columns of a table in turn.

    The density of a row is the product over its columns j, in the model's order, of

        u_j P_jb / |b| + v_j q_jb / |b| + w_j N(x_j; x_hat_j, d_j^2)

    with the bin b that x_j is in, its width |b|, its probability P_jb by the learned E-step if all columns from j on
    are missing, its share q_jb in the training data, the completion x_hat_j that the E-step starts from, and the trust
    (u, v, w) in these three experts. The indicators of a category take one turn: P and q are those of the category
    then, and P stands in for N.

    Parameters
    ----------
    complete : callable
        The completion that the model refines.
    owner : Tensor of shape (p,)
        Columns with the same one are the indicators of a category.
    deviation : Tensor of shape (p,)
        d, of each column given those before it.
    """

    def __init__(
        self, model: TableRefinement, complete: Complete, owner: Tensor, deviation: Tensor, verbose: bool = False
    ) -> None:
        self.model, self.complete, self.deviation, self.verbose = model, complete, deviation, verbose
        self.start, self.end = model.bins.extent()
        whose = owner.to(model.order).take(model.order)
        places = [0, *((whose[1:] != whose[:-1]).nonzero().flatten() + 1).tolist(), len(whose)]
        self.turns = [Turn(model.order[first:last], first) for first, last in pairwise(places)]

    def log_density(self, x: Tensor) -> Tensor:
        """Return that (n,) of complete rows x (n, p) in scaled units."""
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for rows, turn in self._walk(len(x)):
            total[rows] += (self._experts(x[rows], turn) + self.model.trust[turn.place].log()).logsumexp(1)
        return total

    def learn(self, x: Tensor, asked: Tensor) -> None:
        """Learn how far to trust the experts: by EM, from some cells (n, p) of complete rows x (n, p).

        Their values should be unknown to the model. There may be few: the trust before counts for some more of them.
        """
        for turn in self.turns:
            rows = asked[:, turn.columns[0]].nonzero().flatten()
            if len(rows):
                experts = self._experts(x.index_select(0, rows), turn).to(self.model.trust)
                trust = before = self.model.trust[turn.place].clone()
                for _ in range(PASSES):
                    shares = (experts + trust.log()).softmax(1)
                    trust = (shares.sum(0) + KNOWN * before) / (len(rows) + KNOWN)
                self.model.trust[turn.place] = trust

    def sample(self, n: int, generator: torch.Generator, clip: bool) -> Tensor:
        """Draw n rows (n, p) in scaled units: values with a bin of their own are met, and categories that are known."""
        model, device = self.model, self.deviation.device
        x = torch.zeros(n, len(self.deviation), dtype=torch.float64, device=device)
        for rows, (columns, place) in self._walk(n):
            probability, x_hat = self._ask(x[rows], Turn(columns, place))
            noise = torch.randn(len(x_hat), generator=generator, dtype=torch.float64).to(device)
            level, chosen = torch.rand(2, len(x_hat), generator=generator).to(device)
            expert = torch.searchsorted(model.trust[place, :2].cumsum(0), chosen)
            probability = torch.where((expert == 1)[:, None], self._shares(columns), probability)
            if len(columns) > 1:
                upto = probability[:, :-1].cumsum(1)
                category = torch.searchsorted(upto, level[:, None] * upto[:, -1:]).clamp_max_(len(columns) - 1)
                x[rows, columns] = one_hot(category.squeeze(1), len(columns)).to(x)
                continue
            column = columns.expand(len(x_hat))
            mean, scale = model.mean[columns], model.scale[columns]
            binned = model.bins.quantile(probability, column, level[:, None]).squeeze(1)
            around = model.bins.snapped((x_hat + noise * self.deviation[columns] - mean) / scale, column)
            value = torch.where(expert == 2, around, binned) * scale + mean
            x[rows, columns] = (value.clamp(0, 1) if clip else value)[:, None].to(x)
        return x

    def _walk(self, n: int) -> Iterator[tuple[slice, Turn]]:
        """Yield n rows in parts, each with all turns."""
        steps = [(slice(first, first + ROWS), turn) for first in range(0, n, ROWS) for turn in self.turns]
        yield from progress(steps, desc="density", unit="step", verbose=self.verbose)

    def _experts(self, x: Tensor, turn: Turn) -> Tensor:
        """Return the log-densities (n, 3) that the experts have for the columns of a turn in rows x (n, p)."""
        probability, x_hat = self._ask(x, turn)
        shares = self._shares(turn.columns)
        if len(turn.columns) > 1:
            indicators = x[:, turn.columns]
            category = indicators.argmax(1).masked_fill((indicators == 0).all(1), len(turn.columns))
            own = probability.gather(1, category[:, None]).squeeze(1)
            return torch.stack((own, shares.take(category), own), 1).log()
        (column,) = turn.columns.tolist()
        bins, scale, deviation = self.model.bins, self.model.scale[column], self.deviation[column]
        value = (x[:, column] - self.model.mean[column]).to(scale) / scale
        at = torch.searchsorted(bins.edges[column], value, right=True)
        start, end = self.start[column, at], self.end[column, at]
        binned = torch.stack((probability.gather(1, at[:, None]).squeeze(1), shares.take(at))).log()
        binned = (binned - torch.log((end - start) * scale)).masked_fill((value < start) | (value > end), -math.inf)
        away = (x[:, column] - x_hat) / deviation
        around = -0.5 * away.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        return torch.cat((binned, around[None])).mT.contiguous()

    def _ask(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Return the probabilities (n, b) of the bins of a column, or of categories, by what precedes it in the rows.

        Return also what the E-step starts from (n,).
        """
        model, columns = self.model, turn.columns
        missing = torch.zeros_like(x, dtype=torch.bool)
        missing[:, model.order[turn.place :]] = True
        x_hat, one = self.complete(x, missing), len(columns) == 1
        found = torch.zeros(len(x), model.bins.centre.shape[1] if one else len(columns), device=x.device)
        for cells, probability, mean in model.means(x_hat, missing):
            own = torch.isin(cells.column, columns).nonzero().flatten()
            row, column, mean = cells.row.take(own), cells.column.take(own), mean.take(own)
            if one:
                found[row] = model.bins.tilted(probability.index_select(0, own), column, mean)
            else:
                found[row, column - columns[0]] = mean * model.scale[column] + model.mean[column]
        return found if one else categories(found, self._rest(columns)), x_hat[:, columns[0]]

    def _shares(self, columns: Tensor) -> Tensor:
        """Return those (b,) of the bins of a column in the training data, or of categories."""
        model = self.model
        if len(columns) > 1:
            return categories(model.mean[columns], self._rest(columns))
        return model.bins.log_share[columns[0]].exp()

    def _rest(self, columns: Tensor) -> bool:
        """Return whether there are more categories than have indicators."""
        return bool(self.model.mean[columns].sum() < 1 - LEAST_REST)


def categories(shares: Tensor, rest: bool) -> Tensor:
    """Return the probabilities (..., k + 1) of k categories with shares (..., k); the last is of others, the rest."""
    shares = shares.clamp(0, 1)
    others = rest * (1 - shares.sum(-1, keepdim=True))
    shares = torch.cat((shares, others), -1).clamp_min(POSSIBLE)
    return shares / shares.sum(-1, keepdim=True)
