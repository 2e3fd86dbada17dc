"""A small forest for every column: what trees make of a row that the network has completed.

Networks are smooth and trees are not; together they err less than either. The trees are grown by scikit-learn
and kept as tensors, so that they are saved, moved and asked like the rest of the model.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor, nn

from emflow.compiled import by_rows, compiled
from emflow.progress import progress
from emflow.refine.neighbours import FURTHEST, near_enough
from emflow.refine.network import Cells

MOST_FEATURES = 20  # that a split chooses from, or
SHARE_OF_FEATURES = 0.8  # of all that there are
LEAST_IN_LEAF = 2
LONG = 3000  # rows from which on half of the trees do without the linear regression
RIDGE = 1.0  # rows that speak for slopes of zero, in the linear regression on the other columns
NOISY, NOISY_LEAVES = 0.75, 1600  # at most so many, if more than this share of the column's variance is unexplained
MOST_LEAVES = 3_000_000  # of all trees: with twice as many nodes, of nine bytes each, the model stays below 55 MB


class Forest(nn.Module):
    """Extremely randomised trees for each column, from the other columns of a completed row.

    Trees cut along one column at a time, and need many leaves for what is a plane. So they may also compare what the
    others say by a linear regression: a sum with slopes, in which values far outside are drawn nearer. In tables of
    `LONG` rows or more half of the trees may not, so that they differ more.

    Attributes
    ----------
    compared : uint8 Tensor of shape (nodes,)
        Of the nodes of all trees: the column that is compared; p for the sum. A leaf compares p + 1, in which no value
        is greater.
    child : int32 Tensor of shape (nodes,)
        The first of two children, which follow each other; a leaf itself.
    value : float32 Tensor of shape (nodes,)
        What is compared with; the mean of a leaf.
    root : int32 Tensor of shape (p, t)
        Where the trees of a column begin; -1 for a column that has none.
    slope : float32 Tensor of shape (p, p)
        Of the sum that the trees of a column compare, in the other columns; 0 in those that tell nothing of it.
    """

    compared: Tensor
    child: Tensor
    value: Tensor
    root: Tensor
    slope: Tensor

    def __init__(self, n_columns: int, n_trees: int, n_nodes: int) -> None:
        super().__init__()
        for name, dtype in (("compared", torch.uint8), ("child", torch.int32), ("value", torch.float32)):
            self.register_buffer(name, torch.zeros(n_nodes, dtype=dtype))
        self.register_buffer("root", torch.full((n_columns, n_trees), -1, dtype=torch.int32))
        self.register_buffer("slope", torch.zeros(n_columns, n_columns if n_trees else 0))

    def means(self, x: Tensor, cells: Cells) -> Tensor:
        """Return what the trees say of cells (c,) of completed rows x (n, p): their mean; NaN if there is none."""
        values = np.full(len(cells.column), np.nan, dtype=np.float32)
        if self.root.numel():
            inputs = x, *cells, self.compared, self.child, self.value, self.root, self.slope
            arrays: list[Any] = [*(part.cpu().numpy() for part in inputs), values]
            by_rows(len(values), lambda *part: _descend(*arrays, *part))
        return torch.from_numpy(values).to(x.device)


@compiled
def _descend(
    x: NDArray[np.float32],
    row: NDArray[np.int64],
    column: NDArray[np.int64],
    compared: NDArray[np.uint8],
    child: NDArray[np.int32],
    value: NDArray[np.float32],
    root: NDArray[np.int32],
    slope: NDArray[np.float32],
    values: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """Write the mean of where cells first to last arrive in their trees into values (c,); NaN if they have none.

    The trees of a cell are descended together, so that a processor need not wait for one node before it asks for the
    next. A leaf is its own child.
    """
    n_columns, n_trees = root.shape
    at = np.empty(n_trees, np.int64)
    one = np.full(n_columns + 2, -np.inf, np.float32)  # a row, the sum, and the column that leaves compare
    for cell in range(first, last):
        if root[column[cell], 0] < 0:
            values[cell] = np.nan
            continue
        total = 0.0
        for other in range(n_columns):
            one[other] = x[row[cell], other]
            total += min(max(one[other], -FURTHEST), FURTHEST) * slope[column[cell], other]
        one[n_columns] = total
        for tree in range(n_trees):
            at[tree] = root[column[cell], tree]
        on = True
        while on:
            on = False
            for tree in range(n_trees):
                node = at[tree]
                at[tree] = child[node] + (one[compared[node]] > value[node])
                on |= at[tree] != node
        total = 0.0
        for tree in range(n_trees):
            total += value[at[tree]]
        values[cell] = total / n_trees


def grow(
    x: Tensor,
    observed: Tensor,
    wanted: Tensor,
    unexplained: Tensor,
    n_trees: int,
    seed: int,
    weight: Tensor | None = None,
    max_time: float = math.inf,
    verbose: bool = False,
    owner: Tensor | None = None,
) -> tuple[Forest, bool]:
    """Return forests grown on completed rows x (n, p), for each wanted column (p,) on those rows that have it.

    Columns with the same owner (p,) are missing together, and tell nothing of each other.
    Columns that lack most come first, and those that there is no time for have no trees: return also whether there was
    time for all. Rows count by their weight (n,). Where much of the variance is unexplained (p,) leaves are larger,
    lest the trees learn the noise.
    """
    started = time.monotonic()
    rows, near, known = (part.cpu().numpy() for part in (x, near_enough(x).double(), observed))
    weights = None if weight is None else weight.cpu().numpy()
    n, p = rows.shape
    noisy = (unexplained > NOISY).tolist()
    owners = np.arange(p) if owner is None else owner.cpu().numpy()
    trees: list[tuple[NDArray[Any], ...]] = []
    root, first, done = np.full((p, n_trees), -1, dtype=np.int32), 0, True
    slope = np.zeros((p, p), dtype=np.float32)
    columns = [column for column in known.sum(0).argsort(kind="stable").tolist() if wanted[column]]
    for column in progress(columns, desc="forest", unit="column", verbose=verbose):
        use = known[:, column]
        others = np.flatnonzero(owners != owners[column])
        if not len(others) or use.sum() < 2 * LEAST_IN_LEAF:
            continue
        if time.monotonic() - started > max_time:
            done = False
            break
        truth, weight_of = rows[use, column], None if weights is None else weights[use]
        slope[column, others] = _slopes(near[use][:, others], truth, weight_of)
        plain = rows[use][:, others]
        summed = np.column_stack((plain, near[use] @ slope[column]))
        least = max(LEAST_IN_LEAF, math.ceil(n * len(columns) * n_trees / MOST_LEAVES))
        least = max(least, n // NOISY_LEAVES) if noisy[column] else least
        n_plain = n_trees // 2 if n >= LONG else 0
        grown = [
            estimator.tree_
            for shift, seen, count in ((0, summed, n_trees - n_plain), (p, plain, n_plain))
            if count
            for estimator in ExtraTreesRegressor(
                count, min_samples_leaf=least, max_features=min(SHARE_OF_FEATURES, MOST_FEATURES / p),
                random_state=seed + shift + column, n_jobs=torch.get_num_threads(),
            ).fit(seen, truth, weight_of).estimators_
        ]  # fmt: skip
        for number, tree in enumerate(grown):
            root[column, number] = first
            trees.append(_flat(tree, np.append(others, p), p, first))
            first += tree.node_count
    forest = Forest(p, n_trees, first)
    if trees:
        parts = (torch.from_numpy(np.concatenate(part)) for part in zip(*trees, strict=True))
        (forest.compared, forest.child, forest.value), forest.root = parts, torch.from_numpy(root)
        forest.slope = torch.from_numpy(slope)
    return forest.to(x.device), done


def _slopes(x: NDArray[Any], y: NDArray[Any], weight: NDArray[Any] | None) -> NDArray[Any]:
    """Return those (p,) of the linear regression of y (n,) on the columns of x (n, p), of rows with a weight (n,)."""
    share = np.full(len(y), 1 / len(y)) if weight is None else weight / weight.sum()
    x, y = x - share @ x, y - share @ y
    shared = x.T * share
    return np.linalg.solve(shared @ x + RIDGE / len(y) * np.eye(x.shape[1]), shared @ y)


def _flat(tree: Any, columns: NDArray[np.intp], n_columns: int, first: int) -> tuple[NDArray[Any], ...]:
    """Return compared, child and value of a tree that scikit-learn has grown on some of the columns.

    Nodes are numbered from `first`, with children beside each other.
    """
    left, right = tree.children_left, tree.children_right
    inner = np.flatnonzero(left >= 0)
    place, child = np.zeros((2, tree.node_count), dtype=np.int32)
    child[inner] = 1 + 2 * np.arange(len(inner))
    place[left[inner]], place[right[inner]] = child[inner], child[inner] + 1
    leaf = left < 0
    child[leaf] = place[leaf]
    compared = np.where(leaf, n_columns + 1, columns[np.maximum(tree.feature, 0)]).astype(np.uint8)
    value = np.where(leaf, tree.value[:, 0, 0], tree.threshold).astype(np.float32)
    order = place.argsort()
    return compared[order], (child + np.int32(first))[order], value[order]
