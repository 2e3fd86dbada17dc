"""The density of whole rows that the learned E-step for tables gives: column by column, each given those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.special import ndtr

from emflow.progress import progress
from emflow.refine.bins import IMPOSSIBLE
from emflow.refine.images import Complete
from emflow.refine.tables import TableRefinement

ROWS = 2**14  # that go together
KNOWN = 5.0  # cells that the trust in experts counts for, before there are any to learn it from;
LEAST_TRUST = 1e-3  # that each keeps
PASSES = 50  # of EM, to learn it
NARROWEST = 1e-6  # standard deviations that a bin is wide
POSSIBLE = 1e-6  # share of any category, so that none is impossible
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
    (u, v, w) in these three experts. Where a bin is one value, N is its mean over the bin. The indicators of a category
    take one turn: P and q are those of the category then, and P stands in for N.

    Parameters
    ----------
    complete : callable
        The completion that the model refines.
    owner : Tensor of shape (p,)
        Columns with the same one are the indicators of a category.
    deviation : Tensor of shape (p,)
        d, of each column given those before it where the completion is that of a Gaussian.
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

    def settled(self, x: Tensor, missing: Tensor) -> Tensor:
        """Return completed rows x (n, p) with one category, or one of two values, where what was missing is between."""
        x, two = x.clone(), (self.model.bins.log_share > IMPOSSIBLE).sum(1) <= 2
        for columns, _ in self.turns:
            rows = missing[:, columns[0]].nonzero()
            if len(columns) > 1:
                x[rows, columns] = one_hot(x[rows, columns].argmax(1), len(columns)).to(x)
            elif two[columns]:
                mean, scale = self.model.mean[columns], self.model.scale[columns]
                value = ((x[rows, columns] - mean) / scale).squeeze(1)
                x[rows, columns] = (self.model.bins.snapped(value, columns.expand(len(rows))) * scale + mean)[:, None]
        return x

    def learn(self, x: Tensor, asked: Tensor, weight: Tensor, itself: Tensor) -> None:
        """Learn how far to trust the experts: by EM, from some cells (n, p) of complete rows x (n, p).

        Their values should be unknown to the model. There may be few: the trust before counts for some more of them.

        Parameters
        ----------
        weight : Tensor of shape (n,)
            Of the rows; 1 in the mean.
        itself : Tensor of shape (n,)
            Their numbers among the reference rows, or -1: a row is not its own neighbour.
        """
        for turn in self.turns:
            rows = asked[:, turn.columns[0]].nonzero().flatten()
            if len(rows):
                experts = self._experts(x.index_select(0, rows), turn, itself.index_select(0, rows))
                counts = weight.index_select(0, rows)[:, None]
                trust = before = self.model.trust[turn.place].to(experts)
                for _ in range(PASSES):
                    shares = counts * (experts + trust.log()).softmax(1)
                    trust = (shares.sum(0) + KNOWN * before) / (counts.sum() + KNOWN)
                trust = trust.clamp_min(LEAST_TRUST)
                self.model.trust[turn.place] = (trust / trust.sum()).to(self.model.trust)

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

    def _experts(self, x: Tensor, turn: Turn, itself: Tensor | None = None) -> Tensor:
        """Return the log-densities (n, 3) that the experts have for the columns of a turn in rows x (n, p)."""
        probability, x_hat = self._ask(x, turn, itself)
        shares = self._shares(turn.columns)
        if len(turn.columns) > 1:
            indicators = x[:, turn.columns]
            category = indicators.argmax(1).masked_fill((indicators == 0).all(1), len(turn.columns))
            own = probability.gather(1, category[:, None]).squeeze(1)
            return torch.stack((own, shares.take(category), own), 1).double().log()
        (column,) = turn.columns.tolist()
        bins, mean, scale = self.model.bins, self.model.mean[column].double(), self.model.scale[column].double()
        value = ((x[:, column] - mean) / scale).to(bins.edges)
        at = torch.searchsorted(bins.edges[column], value, right=True)
        value, start, end = (each.double() for each in (value, self.start[column, at], self.end[column, at]))
        width, inside = (end - start).clamp_min(NARROWEST), (start <= value) & (value <= end)
        binned = torch.stack((probability.gather(1, at[:, None]).squeeze(1), shares.take(at)), 1) / width[:, None]
        deviation, middle = self.deviation[column] / scale, (x_hat - mean) / scale
        away, begin, stop = ((each - middle) / deviation for each in (value, start, end))
        around = -0.5 * away.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        single = inside & (bins.lower[column, at] == bins.upper[column, at])
        around = torch.where(single, torch.log((ndtr(stop) - ndtr(begin)) / width), around)
        return torch.column_stack((binned.masked_fill(~inside[:, None], 0).log(), around)) - scale.log()

    def _ask(self, x: Tensor, turn: Turn, itself: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the probabilities (n, b) of the bins of a column, or of categories, by what precedes it in the rows.

        Return also what the E-step starts from (n,).
        """
        model, columns = self.model, turn.columns
        missing = torch.zeros_like(x, dtype=torch.bool)
        missing[:, model.order[turn.place :]] = True
        x_hat, one = self.complete(x, missing), len(columns) == 1
        found = torch.zeros(len(x), model.bins.centre.shape[1] if one else len(columns), device=x.device)
        for cells, probability, mean in model.means(x_hat, missing, itself=itself):
            own = torch.isin(cells.column, columns).nonzero().flatten()
            row, column, mean = cells.row.take(own), cells.column.take(own), mean.take(own)
            if one:
                found[row] = model.bins.tilted(probability.index_select(0, own), column, mean)
            else:
                found[row, column - columns[0]] = mean * model.scale[column] + model.mean[column]
        return found if one else categories(found, self._rest(columns)), x_hat[:, columns[0]]

    def _shares(self, columns: Tensor) -> Tensor:
        """Return those (b,) of the bins of a column in the training data, or of categories."""
        if len(columns) > 1:
            return categories(self._indicated(columns), self._rest(columns))
        return self.model.bins.log_share[columns[0]].exp()

    def _indicated(self, columns: Tensor) -> Tensor:
        """Return the shares (k,) of the categories that have indicators: of the greater one of two values."""
        return self.model.bins.log_share[columns, 1].exp()

    def _rest(self, columns: Tensor) -> bool:
        """Return whether there are more categories than have indicators."""
        return bool(self._indicated(columns).sum() < 1 - LEAST_REST)


def categories(shares: Tensor, rest: bool) -> Tensor:
    """Return the probabilities (..., k + 1) of k categories with shares (..., k); the last is of others, the rest."""
    shares = shares.clamp(0, 1)
    others = rest * (1 - shares.sum(-1, keepdim=True))
    shares = torch.cat((shares, others), -1).clamp_min(POSSIBLE)
    return shares / shares.sum(-1, keepdim=True)
