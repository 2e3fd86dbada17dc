import naive
import pytest
import torch

from emflow.latent import patterns
from emflow.latent.patterns import Patterns

MISSING = {
    "nothing missing": torch.zeros(9, 4, dtype=torch.bool),
    "everything missing": torch.ones(9, 4, dtype=torch.bool),
    "one column": naive.random_missing(9, 1, 0.5),
    "one row": naive.random_missing(1, 6, 0.3),
    "ties": torch.tensor([[True, True, False, False], [False, True, False, True]]),
    "few patterns": naive.random_missing(4, 7, 0.4).repeat(20, 1),
    "many columns": naive.random_missing(30, 150, 0.5),
    "both sides": torch.cat([naive.random_missing(20, 9, 0.1), naive.random_missing(20, 9, 0.9)]),
}
GROUP_SIZES = {"small groups": (1, 2**23), "tiny groups": (1, 1), "cut": (2**14, 200), "uncut": (2**14, 2**23)}


@pytest.fixture(params=GROUP_SIZES)
def limits(request, monkeypatch):
    small, large = GROUP_SIZES[request.param]
    monkeypatch.setattr(patterns, "SMALL_BATCH", 0)
    monkeypatch.setattr(patterns, "SMALL_GROUP", small)
    monkeypatch.setattr(patterns, "LARGE_GROUP", large)
    return small, large


@pytest.fixture(params=MISSING)
def missing(request):
    return MISSING[request.param]


def blocks(groups, p):
    """Return row -> its coordinates in the blocks, padding left out, after checking that no row is there twice."""
    found = {}
    for group in groups:
        which = torch.arange(len(group.cells)) if group.which is None else group.which
        padding = group.index >= p
        for cells, block in zip(group.cells, which, strict=True):
            row = cells // p
            assert torch.equal(cells % p + p * padding[block], group.index[block])  # the padding points past the matrix
            assert torch.equal(row, row[:1].expand_as(row))
            assert row[0].item() not in found
            found[row[0].item()] = set((cells % p)[~padding[block]].tolist())
    return found


def coordinates(chosen):
    return set(chosen.nonzero().flatten().tolist())


@pytest.mark.parametrize("shuffled", [False, True])
def test_each_row_has_the_block_of_its_smaller_side(missing, shuffled, limits):
    n, p = missing.shape
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // 2 + 1] if shuffled else torch.arange(n)
    layout = Patterns(missing).layout(rows)
    by_observed = {i: 2 * int(row.sum()) > p for i, row in enumerate(missing[rows])}
    sides = {side: {i: row for i, row in enumerate(missing[rows]) if by_observed[i] == side} for side in (False, True)}
    assert torch.equal(layout.missing, missing[rows])
    assert layout.n_by_observed == len(sides[True])
    assert blocks(layout.by_missing, p) == {i: coordinates(row) for i, row in sides[False].items() if row.any()}
    assert blocks(layout.by_observed, p) == {i: coordinates(~row) for i, row in sides[True].items() if not row.all()}


def test_groups_hold_distinct_coordinates_and_all_counts(missing, limits):
    layout = Patterns(missing).layout(torch.arange(len(missing)))
    for group in layout.by_missing + layout.by_observed:
        assert ((group.index % missing.shape[1]).sort(1).values.diff(dim=1) > 0).all()
        which = torch.arange(len(group.index)) if group.which is None else group.which
        assert torch.equal(group.count, which.bincount(minlength=len(group.index)))


def test_groups_keep_to_their_limits(missing, limits):
    small, large = limits
    layout = Patterns(missing).layout(torch.arange(len(missing)))
    for group in layout.by_missing + layout.by_observed:
        n, k = group.index.shape
        assert (n - 1) * k**2 <= large
        if small == 1:
            assert (4 * (group.index < missing.shape[1]).sum(1) > 3 * k).all()


def test_a_pattern_has_one_block_however_many_rows(monkeypatch):
    monkeypatch.setattr(patterns, "SMALL_BATCH", 0)
    missing = MISSING["few patterns"]
    layout = Patterns(missing).layout(torch.arange(len(missing)))
    distinct = missing.unique(dim=0).sum(1)
    assert sum(len(group.index) for group in layout.by_missing + layout.by_observed) == int((distinct % 7 != 0).sum())


def test_a_small_batch_is_one_group_of_its_rows_as_they_come():
    missing = naive.random_missing(40, 9, 0.1)
    (group,) = Patterns(missing).layout(torch.arange(40)).by_missing
    assert len(group.index) == 40
    assert blocks([group], 9) == {i: coordinates(row) for i, row in enumerate(missing)}


@pytest.mark.parametrize("shuffled", [False, True])
def test_wide_tables_leave_out_large_blocks(missing, shuffled, monkeypatch):
    monkeypatch.setattr(patterns, "WIDE", 1)
    monkeypatch.setattr(patterns, "LARGE_BLOCK", 2)
    n, p = missing.shape
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // 2 + 1] if shuffled else torch.arange(n)
    layout = Patterns(missing).layout(rows)
    size = missing[rows].sum(1)
    large = torch.minimum(size, p - size) > 2
    assert torch.equal(layout.missing, missing[rows])
    assert sorted([] if layout.too_large is None else layout.too_large.tolist()) == large.nonzero().flatten().tolist()
    small = [i for i in range(len(rows)) if not large[i]]
    assert blocks(layout.by_missing, p) == {i: coordinates(missing[rows[i]]) for i in small if 0 < 2 * size[i] <= p}
    assert blocks(layout.by_observed, p) == {
        i: coordinates(~missing[rows[i]]) for i in small if p < 2 * size[i] < 2 * p
    }
