"""How large the E-step for a table is, and how it is trained: by the size of the table and by its holes."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, replace
from typing import Any

from emflow.errors import ParameterError

STORED_ROWS = 16_000
NARROW = 200  # columns beyond which neighbours are not looked up, nor trees grown: they cost the square of it


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
        Share of the rows in which those cells are hidden that another row lacks; in the others it is any. In one row
        in a hundred more are hidden, whatever this is.
    weighed : float
        Share of the steps after which neighbours are looked up by the columns that have shown to matter; 1 for never.
    haste : float
        How much faster the weights of neighbours are learnt than the rest: they are few, and have far to go.
    n_trees : int
        In the forest of each column, which has a say in the mean; 0 for none.
    forest_share : float
        What of the mean is its, and not the networks'.
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
    forest_share: float = 0.5

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
        table, where steps are long, they have fewer steps, and fewer trees.
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
            forest_share=(0.5, 0.5, 0.5, 0.4)[kind],
        )  # fmt: skip
        size = replace(size, **settings)
        if size.n_trees and p > NARROW:
            raise ParameterError(f"n_trees in refine is for tables of at most {NARROW} columns, but there are {p}")
        return size
