"""The tilt of the E-step: from a row with holes to distributions over the bins of its missing cells."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from emflow.refine.attention import Attention, Neighbours
from emflow.refine.bins import Bins
from emflow.refine.neighbours import near_enough

LEAST_SCALE = 0.3  # standard deviations: with a narrower Gaussian the first steps would throw the network off
SMOOTHING = 0.05  # share of the overall frequencies in those among the neighbours
MULTIPLE = 16  # of rows are multiplied: fewer would be by other routines, with other last digits
BLOCKS = 2  # of the residual network
INPUTS = 4  # numbers per column beside its encoding: whether missing, z_hat, mean and deviation of the neighbours


class Cells(NamedTuple):
    """Which cells of a batch distributions are wanted for: row and column of each, one column after the other."""

    row: Tensor
    column: Tensor

    @classmethod
    def where(cls, chosen: Tensor) -> Cells:
        """Return those of a table that are chosen (n, p)."""
        column, row = chosen.mT.nonzero(as_tuple=True)
        return cls(row, column)


class TableNetwork(nn.Module):
    """Two experts and a tilt.

    The log-probability of bin b of column j is, up to a constant, the sum of

        1/2 log q_jb - (c_jb - z_hat_j)^2 / 2 s_j^2              the Gaussian conditional, the E-step of the paper,
        - (c_jb - m_j)^2 / 2 t_j^2 + g_j log(h_jb + .05 q_jb)    the neighbours: their mean and their histogram,
        + f_jb(x_obs, z_hat, m, d)                               and the tilt, a residual network that starts at zero,

    with the share q_jb and the centre c_jb of the bin, and mean m_j, deviation d_j and histogram h_j of column j among
    the weighted neighbours. Of columns that no training row lacks f sees m and d only where a cell is asked for.
    """

    def __init__(
        self,
        n_columns: int,
        n_bins: int,
        n_pieces: int,
        width: int,
        dropout: float = 0.0,
        with_neighbours: bool = True,
    ) -> None:
        super().__init__()
        self.n_columns, self.n_bins, self.dropout = n_columns, n_bins, dropout
        self.width = width
        self.log_scale = nn.Parameter(torch.zeros(n_columns))
        self.attention = Attention(n_columns) if with_neighbours else None
        if not width:
            return
        self.first = nn.Linear(n_columns * (n_pieces + (INPUTS if with_neighbours else INPUTS - 2)), width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Parameter(torch.zeros(n_columns, width, n_bins))
        self.bias = nn.Parameter(torch.zeros(n_columns, n_bins))

    @torch.no_grad()
    def go_on_from(self, other: TableNetwork, within: Tensor) -> None:
        """Take over the weights of a network with other bins, of which each of ours lies within one (p, b)."""
        state = other.state_dict()
        for name in ("last", "bias") if self.width else ():
            weight = state[name]
            place = within if name == "bias" else within[:, None].expand(-1, self.width, -1)
            state[name] = weight.gather(-1, place)
        self.load_state_dict(state)

    def forward(
        self, ramps: Tensor, z_hat: Tensor, missing: Tensor, near: Neighbours | None, cells: Cells, bins: Bins
    ) -> Tensor:
        """Return log-probabilities (cells, b), not normalised.

        Parameters
        ----------
        ramps : Tensor of shape (n, p, t)
            Encoding of the observed cells, zero where missing.
        z_hat : Tensor of shape (n, p)
            The rows, standardised, completed by the Gaussian.
        """
        row, column = cells
        at = row * self.n_columns + column
        inputs = [ramps.flatten(1), missing.to(z_hat), z_hat]
        centre, share = bins.centre.index_select(0, column), 0.5 * bins.log_share
        base = (share + self.bias if self.width else share).index_select(0, column)
        middle = z_hat.take(at)
        log_scale: Tensor = self.log_scale
        if self.attention is not None:
            assert near is not None
            mean, square, histogram = self.attention(
                near_enough(z_hat), (~missing).to(z_hat), near, row, column, self.n_bins
            )
            inputs += [mean, (square - mean.square()).clamp_min(1e-6).sqrt()]
            smooth = SMOOTHING * bins.log_share.exp() + 1e-6
            frequent = torch.log(histogram.add_(smooth.index_select(0, column)))
            log_scale, theirs = _product(log_scale, self.attention.log_scale)
            middle = torch.lerp(middle, mean.take(at), theirs.take(column))
            base = torch.addcmul(base, self.attention.exponent.take(column)[:, None], frequent)
        base = _around(base, centre, middle, log_scale.take(column))
        if not self.width:
            return base
        h = self.first(torch.cat(inputs, 1))
        for block in self.blocks:
            h = block(h)
        h = _dropout(self.norm(h), self.dropout, self.training)
        return base.add_(self._last(h, cells))

    def _last(self, h: Tensor, cells: Cells) -> Tensor:
        """Return the tilt (cells, b): the last layer, of which only what is wanted is computed, column by column."""
        row, column = cells
        there, nth, count = column.unique_consecutive(return_inverse=True, return_counts=True)
        most = int(count.max()) if len(count) else 0
        most += -most % MULTIPLE
        first = (count.cumsum(0) - count).index_select(0, nth)
        place = nth * most + torch.arange(len(row), device=row.device) - first
        padded = row.new_zeros(len(there) * most).index_copy_(0, place, row)
        wanted = h.index_select(0, padded)
        tilt = torch.bmm(wanted.view(len(there), most, self.width), self.last.index_select(0, there))
        return tilt.flatten(0, 1).index_select(0, place)


class Block(nn.Module):
    """A residual block of two layers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, h: Tensor) -> Tensor:
        inner = functional.gelu(self.inner(self.norm(h)))
        outer: Tensor = self.outer(_dropout(inner, self.dropout, self.training))
        return h + outer


def _product(log_scale: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-scale (p,) of the bell that the product of two is, and the other one's share (p,) in its middle.

    Column by column: of numbers for each cell the last digits of logaddexp would depend on how many cells there are.
    """
    log_precision = torch.logaddexp(-2 * log_scale, -2 * other)
    return -0.5 * log_precision, torch.exp(-2 * other - log_precision)


def _around(base: Tensor, centre: Tensor, middle: Tensor, log_scale: Tensor) -> Tensor:
    """Return log-probabilities (cells, b) times a bell around the middle (cells,) of each cell."""
    times = torch.exp(-log_scale)
    away = torch.addcmul((-middle * times)[:, None], centre, times[:, None])
    return torch.addcmul(base, away, away, value=-0.5)


def _dropout(h: Tensor, share: float, training: bool) -> Tensor:
    """Drop a share of the numbers, rounded to 1/256, by random bytes: eight of them are drawn at once."""
    dropped = min(255, round(256 * share))
    if not (training and dropped):
        return h
    words = torch.empty(-(-h.numel() // 8), dtype=torch.int64, device=h.device).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: h.numel()].view_as(h) >= dropped
    return (h * kept).mul_(256 / (256 - dropped))
