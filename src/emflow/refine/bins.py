"""The values of every column in bins: what a distribution over them is, and its mean, quantiles and draws."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

LEAST = 16  # bins there are: of products with fewer columns last digits would depend on where a row is
UNIFORM = 4  # one cut in so many is placed evenly in the values, the others by their quantiles
POSSIBLE = 1e-3  # share of the overall frequencies in a distribution before it is tilted
MOST_TILT, HALVINGS = 1e4, 30  # by which it is, per standard deviation of the column, and steps to find it
POINTS = 8  # that stand for the levels of a value that is a bin of its own
IMPOSSIBLE = -1e4  # log-probability of a bin that a column does not have
BEYOND = 0.05  # of its extent, that an outermost bin of several values reaches beyond them

Values = NDArray[np.float64]
Places = NDArray[np.int64]


class Bins(nn.Module):
    """At most some hundred bins per column, each a run of the values that were observed there.

    A column with few distinct values has a bin for each of them, and so has every single value that is frequent: a
    code like -200 for "absent", a zero, a full score. Integers and categories need nothing else.

    Attributes
    ----------
    edges : Tensor of shape (p, b - 1)
        Between the bins of a column; infinite beyond its last one.
    centre, lower, upper : Tensor of shape (p, b)
        Mean, least and greatest of the observed values in a bin. They are the same where it is one value.
    log_share : Tensor of shape (p, b)
        Logarithm of the share of the observed values in a bin.
    """

    edges: Tensor
    centre: Tensor
    lower: Tensor
    upper: Tensor
    log_share: Tensor

    def __init__(self, n_columns: int, n_bins: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.full((n_columns, n_bins - 1), torch.inf))
        for name in ("centre", "lower", "upper", "log_share"):
            self.register_buffer(name, torch.full((n_columns, n_bins), IMPOSSIBLE if name == "log_share" else 0.0))

    @classmethod
    def learn(cls, x: Tensor, missing: Tensor, most: int, weight: Tensor | None = None) -> Bins:
        """Return about `most` bins per column, or fewer, for the observed cells of x (n, p).

        In the shares, and only there, rows count by their weight (n,).
        """
        columns = [
            _column(column[~holes], most) for column, holes in zip(x.mT.numpy(), missing.mT.numpy(), strict=True)
        ]
        bins = cls(len(columns), max(LEAST, *(len(counts) for _, _, counts in columns)))
        for j, (levels, first, counts) in enumerate(columns):
            level, count = levels
            last = np.append(first[1:], len(level)) - 1
            b = len(first)
            mean = np.add.reduceat(level * count, first) / counts
            if weight is not None:
                seen = ~missing[:, j].numpy()
                at = np.searchsorted(level[first], x[:, j].numpy()[seen], side="right") - 1
                mass = np.bincount(at, weight.numpy()[seen], b)
                counts = mass * (counts.sum() / mass.sum())
            shares = np.log((counts + 0.5) / (counts.sum() + 0.5 * b))
            bins.edges[j, : b - 1] = torch.from_numpy((level[last[:-1]] + level[first[1:]]) / 2)
            for name, values in (
                ("centre", mean),
                ("lower", level[first]),
                ("upper", level[last]),
                ("log_share", shares),
            ):
                getattr(bins, name)[j, :b] = torch.from_numpy(values)
        return bins

    def index(self, x: Tensor) -> Tensor:
        """Return the bin of each value of x (n, p)."""
        return torch.searchsorted(self.edges, x.mT.contiguous(), right=True).mT.contiguous()

    def extent(self) -> tuple[Tensor, Tensor]:
        """Return where bins begin and end (p, b): at the edges between them, and somewhat beyond the outermost values.

        A bin that is one value has it in the middle, if it is the outermost one; if it is the only one, its width is 1.
        """
        last = (self.log_share > IMPOSSIBLE).sum(1, keepdim=True) - 1
        edges = functional.pad(self.edges, (1, 1), value=torch.inf)  # bin b lies between edges b and b + 1
        single = self.lower == self.upper
        for at, inner, outer, values in ((last * 0, 1, 0, self.lower), (last, 0, 1, self.upper)):
            value = values.gather(1, at)
            reach = (value - edges.gather(1, at + inner)) * torch.where(single.gather(1, at), 1, BEYOND)
            reach = torch.where(last > 0, reach, outer - 0.5)
            edges = edges.scatter(1, at + outer, value + reach)
        return edges[:, :-1], edges[:, 1:]

    def snapped(self, x: Tensor, column: Tensor) -> Tensor:
        """Return values x (cells,), but where one is in a bin that is one value, that value."""
        _, lower, upper = self._around(x.to(self.edges), column)
        return torch.where(lower < upper, x, lower.to(x))

    def mean(self, probability: Tensor, column: Tensor) -> Tensor:
        """Return the means of cells, given their distributions (..., cells, b) and columns (cells,)."""
        return (probability * self.centre.index_select(0, column)).sum(-1)

    def tilted(self, probability: Tensor, column: Tensor, mean: Tensor) -> Tensor:
        """Return distributions (cells, b) times exp(t c) at the centres c of bins, with t such that they have a mean.

        Of all with this mean it is the nearest to the given one, in the sense of Kullback and Leibler. No value of the
        column is impossible, so that any mean can be had; it rises with t, which is found by halving.
        """
        away, share = self.centre.index_select(0, column) - mean[:, None], self.log_share.index_select(0, column).exp()
        log_probability = torch.lerp(probability, share, POSSIBLE).log()
        t = torch.zeros_like(mean)
        for halving in range(HALVINGS):
            tilted = (log_probability + t[:, None] * away).softmax(1)
            t = t - (tilted * away).sum(1).sign() * MOST_TILT / 2 ** (halving + 1)
        return (log_probability + t[:, None] * away).softmax(1)

    def quantile(self, probability: Tensor, column: Tensor, level: Tensor) -> Tensor:
        """Return quantiles (cells, d) at levels (cells, d); values are spread evenly over the extent of a bin."""
        return self._value(column, *_locate(probability, level))

    def interval(self, probability: Tensor, column: Tensor, level: Tensor) -> Tensor:
        """Return the ends (cells, 2) of intervals between two levels (cells, 2).

        A bin that is one value can only be in or out: it is in if at least half of it lies between the levels. So the
        intervals of integers and codes have about the probability that they should, rather than more.
        """
        within, above = _locate(probability, level)
        single = self.lower.index_select(0, column).eq(self.upper.index_select(0, column)).gather(1, within)
        low, high = within.unbind(1)
        out = single[:, 0] & (above[:, 0] > 0.5) & (low < high)
        low, start = low + out.long(), above[:, 0].masked_fill(out, 0)
        out = single[:, 1] & (above[:, 1] < 0.5) & (low < high)
        high, end = high - out.long(), above[:, 1].masked_fill(out, 1)
        return self._value(column, torch.stack((low, high), 1), torch.stack((start, end), 1))

    def levels(self, probability: Tensor, column: Tensor, x: Tensor) -> Tensor:
        """Return at which levels (cells, POINTS) of their distributions values x (cells,) lie.

        All the same, unless the bin is one value: then they are spread evenly over its probability.
        """
        within, lower, upper = (part[:, None] for part in self._around(x, column))
        anywhere = (torch.arange(POINTS, device=x.device) + 0.5) / POINTS
        above = torch.where(lower < upper, (x[:, None] - lower) / (upper - lower), anywhere).clamp(0, 1)
        return probability.cumsum(1).gather(1, within) - (1 - above) * probability.gather(1, within)

    def _around(self, x: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the bins that values x (cells,) are in, and the least and the greatest of the values there."""
        within = torch.searchsorted(self.edges.index_select(0, column), x[:, None], right=True)
        lower, upper = (end.index_select(0, column).gather(1, within).squeeze(1) for end in (self.lower, self.upper))
        return within.squeeze(1), lower, upper

    def _value(self, column: Tensor, within: Tensor, above: Tensor) -> Tensor:
        """Return the values (cells, d) so far above the least of the bins they are in."""
        lower, upper = (end.index_select(0, column).gather(1, within) for end in (self.lower, self.upper))
        return torch.lerp(lower, upper, above)


def _locate(probability: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bins (cells, d) in which quantiles lie, and which share of the bin's probability is below them."""
    cumulative = probability.cumsum(-1)
    level = level.to(probability) * cumulative[:, -1:]
    within = torch.searchsorted(cumulative, level.contiguous()).clamp_max_(probability.shape[1] - 1)
    mass = probability.gather(1, within)
    above = (level - cumulative.gather(1, within) + mass) / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    return within, above.clamp(0, 1)


def _column(values: Values, most: int) -> tuple[tuple[Values, Places], Places, Places]:
    """Return the distinct values of a column with their counts, where each bin begins among them, and its count."""
    level, count = np.unique(values, return_counts=True)
    first = np.concatenate(([0], cuts(level, count, most) + 1))
    return (level, count), first, np.add.reduceat(count, first)


def cuts(level: Values, count: Places, most: int) -> Places:
    """Return after which of the distinct values, in their order, a bin ends."""
    if len(level) <= most:
        return np.arange(len(level) - 1)
    n, even = count.sum(), most // UNIFORM
    by_quantile = np.searchsorted(count.cumsum(), np.linspace(0, n, most - even + 1)[1:-1])
    by_value = np.searchsorted(level[1:], np.linspace(level[0], level[-1], even + 2)[1:-1])
    frequent = np.flatnonzero(count >= n / most)
    ends = np.concatenate((by_quantile, by_value, frequent - 1, frequent))
    return np.unique(ends[(ends >= 0) & (ends < len(level) - 1)])
