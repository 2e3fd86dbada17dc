from functools import partial

import numpy as np
import pandas as pd
import pytest

from emflow import missingness
from emflow.errors import DataError, ParameterError
from emflow.missingness import block, like, mar, mar_paper, mcar, mnar_logistic, mnar_quantile, monotone

N, P = 3000, 6
X = np.random.default_rng(0).gamma(2.0, size=(N, P)) * [1, 10, 100, 1, 1, 1]
OTHER = np.where(np.random.default_rng(1).random((40, P)) < [0, 0.1, 0.2, 0.3, 0.4, 0.5], np.nan, 1.0)
RATED = {
    "mcar": mcar,
    "monotone": monotone,
    "block": block,
    "mar_paper": mar_paper,
    "mar": partial(mar, columns=[1, 4]),
    "mnar_logistic": mnar_logistic,
    "mnar_quantile": mnar_quantile,
}
ALL = {
    **{name: partial(simulate, rate=0.3) for name, simulate in RATED.items()},
    "literal": partial(mar_paper, literal=True),
    "like": partial(like, other=OTHER),
}
ALL_COLUMNS = list(range(P))
RANGE = {"mar_paper": [4, 5], "literal": [4, 5], "mar": [1, 4]}  # the columns that the rate speaks of
HIT = {**RANGE, "monotone": ALL_COLUMNS[1:], "like": ALL_COLUMNS[1:]}  # those that can lose values


def assert_near(found, expected, standard_error):
    assert abs(found - expected) < 4 * standard_error


@pytest.mark.parametrize("name", ALL)
class TestEverySimulator:
    def test_returns_a_boolean_array_and_leaves_the_table_alone(self, name):
        before = X.copy()
        missing = ALL[name](X)
        assert missing.dtype == bool
        assert missing.shape == X.shape
        assert np.array_equal(X, before)

    def test_hits_only_the_columns_it_may(self, name):
        assert np.flatnonzero(ALL[name](X, random_state=0).any(0)).tolist() == HIT.get(name, ALL_COLUMNS)

    def test_depends_on_the_seed_alone(self, name):
        first, second, other = (ALL[name](X, random_state=seed) for seed in (1, 1, 2))
        assert np.array_equal(first, second)
        assert not np.array_equal(first, other)

    def test_takes_a_generator_and_moves_it_on(self, name):
        generator = np.random.default_rng(1)
        assert np.array_equal(ALL[name](X, random_state=generator), ALL[name](X, random_state=1))
        assert not np.array_equal(ALL[name](X, random_state=generator), ALL[name](X, random_state=1))

    def test_takes_lists_and_frames(self, name):
        expected = ALL[name](X, random_state=1)
        assert np.array_equal(ALL[name](X.tolist(), random_state=1), expected)
        assert np.array_equal(ALL[name](pd.DataFrame(X), random_state=1), expected)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_names_a_cell_that_is_not_finite(self, name, value):
        holed = X.copy()
        holed[7, 3] = value
        with pytest.raises(DataError, match=f"X holds {value} in row 7, column 3:"):
            ALL[name](holed)

    def test_masked_cell_is_not_uncovered(self, name):
        with pytest.raises(DataError, match="X holds nan in row 0, column 2:"):
            ALL[name](np.ma.masked_array(X, np.arange(X.size).reshape(X.shape) == 2))

    @pytest.mark.parametrize("table", [X[0], X[:0], [["a", "b"]], None])
    def test_refuses_what_is_no_table(self, name, table):
        with pytest.raises(DataError, match="X must be a table of numbers"):
            ALL[name](table)

    @pytest.mark.parametrize("seed", [-1, "one", 0.5])
    def test_refuses_a_bad_seed(self, name, seed):
        with pytest.raises(ParameterError, match="random_state must be None, a seed or a Generator"):
            ALL[name](X, random_state=seed)


@pytest.mark.parametrize("name", RATED)
class TestEveryRate:
    @pytest.mark.parametrize("rate", [0.05, 0.45])
    def test_is_met_within_four_standard_errors(self, name, rate):
        missing = RATED[name](X, rate, random_state=3)[:, RANGE.get(name, ALL_COLUMNS)]
        error = missing.mean(1).std() / np.sqrt(N)  # rows are independent,
        if name == "block":  # except here: a cell depends on those up to 9 rows and 1 column away
            error = np.sqrt(rate * (1 - rate) * (2 * 9 + 1) * (2 * 1 + 1) / X.size)
        assert_near(missing.mean(), rate, error)

    def test_of_nought_hides_nothing(self, name):
        assert not RATED[name](X, 0, random_state=0).any()

    @pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan, None, "0.2", True])
    def test_must_be_in_range(self, name, rate):
        with pytest.raises(ParameterError, match="rate must be a number from 0 to"):
            RATED[name](X, rate)


@pytest.mark.parametrize("name", ["mcar", "block", "mar_paper", "mar", "mnar_logistic"])
def test_rate_of_one_hides_all(name):
    assert RATED[name](X, 1, random_state=0)[:, RANGE.get(name, ALL_COLUMNS)].all()


@pytest.mark.parametrize("rate", [1e-6, 0.12, 0.5, 0.97])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_solved_probabilities_have_the_rate_as_their_mean(rate, scale):
    score = scale * np.random.default_rng(0).standard_normal(N)
    probability = missingness._solve(score, rate)
    assert probability.mean() == pytest.approx(rate, abs=1e-9)
    order = np.argsort(score)
    assert (np.diff(probability[order]) >= 0).all()


def test_solved_probabilities_are_logistic_in_the_score():
    probability = missingness._solve(score := np.linspace(-2, 5, 50), 0.3)
    np.testing.assert_allclose(np.diff(np.log(probability / (1 - probability)) - score), 0, atol=1e-12)


def test_mcar_cells_are_independent():
    missing = mcar(X, 0.3, random_state=0)
    for column in missing.T:
        assert_near(column.mean(), 0.3, np.sqrt(0.21 / N))
    assert np.abs(np.corrcoef(missing.T) - np.eye(P)).max() < 4 / np.sqrt(N)


def test_mcar_hides_a_fifth_unless_told_otherwise():
    assert np.array_equal(mcar(X, random_state=0), mcar(X, 0.2, random_state=0))


# --- monotone


@pytest.mark.parametrize("order", [None, [3, 1, 0, 5, 4, 2]])
def test_monotone_rows_never_come_back(order):
    missing = monotone(X, 0.4, order=order, random_state=0)[:, order or range(P)]
    assert not missing[:, 0].any()
    assert (missing[:, 1:] >= missing[:, :-1]).all()
    assert len(np.unique(missing.sum(1))) == P  # rows drop out at every column, and some never do


def test_monotone_rows_drop_out_at_the_same_pace_everywhere():
    seen = (~monotone(X, 0.4, random_state=0)).sum(0)
    hazard = 1 - seen[1:] / seen[:-1]
    pooled = 1 - seen[1:].sum() / seen[:-1].sum()
    assert (np.abs(hazard - pooled) < 4 * np.sqrt(pooled * (1 - pooled) / seen[:-1])).all()


def test_monotone_rate_leaves_the_first_column():
    assert monotone(X, (P - 1) / P)[:, 1:].all()
    with pytest.raises(ParameterError, match=r"rate must be a number from 0 to 0\.833333, but it is 0\.84"):
        monotone(X, 0.84)


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 6]])
def test_monotone_order_names_all_columns(order):
    with pytest.raises(ParameterError, match="order must"):
        monotone(X, 0.2, order=order)


# --- block


def test_block_hides_whole_rectangles():
    """Every hidden cell is in a full rectangle, if those that the border cuts off are left aside."""
    missing = block(X, 0.2, height=4, width=3, random_state=0)
    full = np.lib.stride_tricks.sliding_window_view(missing, (4, 3)).all((2, 3))
    covered = np.zeros_like(missing)
    for i, j in np.argwhere(full):
        covered[i : i + 4, j : j + 3] = True
    inner = np.s_[3:-3, 2:-2]
    assert np.array_equal(covered[inner], missing[inner])


def test_block_of_single_cells_can_be_certain():
    assert block(X, 1, height=1, width=1).all()


def test_block_of_one_rectangle():
    """With few corners most rectangles stand alone: runs are as long as they are high."""
    missing = block(np.zeros((20_000, 1)), 0.01, height=7, width=1, random_state=0)[:, 0]
    steps = np.flatnonzero(np.diff(np.r_[0, missing, 0]))
    lengths = steps[1::2] - steps[::2]
    assert lengths.min() == 7
    assert (lengths == 7).mean() > 0.8


def test_block_reaches_every_cell_alike():
    """Cells at the border are covered as often as others."""
    counts = sum(block(np.zeros((6, 4)), 0.3, height=3, width=2, random_state=seed) for seed in range(2000))
    assert (np.abs(counts / 2000 - 0.3) < 4 * np.sqrt(0.21 / 2000)).all()


@pytest.mark.parametrize("size", [{"height": N + 1}, {"width": P + 1}, {"height": 0}, {"width": 1.0}, {"height": True}])
def test_block_size_is_checked(size):
    with pytest.raises(ParameterError, match=rf"{next(iter(size))} must be a whole number from 1 to \d+, but it is"):
        block(X, 0.2, **size)


# --- like


def test_like_draws_rows_of_patterns():
    patterns = np.unique(np.isnan(OTHER), axis=0)[::3]  # so that each occurs once
    missing = like(X, patterns, random_state=0)
    assert {tuple(row) for row in missing} == {tuple(row) for row in patterns}
    for found, expected in zip(missing.mean(0), patterns.mean(0), strict=True):
        assert_near(found, expected, np.sqrt(expected * (1 - expected) / N) + 1e-12)


def test_like_takes_a_boolean_array():
    assert np.array_equal(like(X, np.isnan(OTHER), random_state=0), like(X, OTHER, random_state=0))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (OTHER[:, :4], "other has 4 columns, X has 6"),
        (OTHER[0], "other must be a table of numbers"),
        (np.isnan(OTHER).astype(int), "other has no missing value"),
        (np.zeros((3, P), dtype=bool), "other has no missing value"),
    ],
)
def test_like_refuses_a_table_without_patterns(other, message):
    with pytest.raises(DataError, match=message):
        like(X, other)


# --- at random


@pytest.mark.parametrize("simulate", [mar_paper, partial(mar, columns=[4, 5])])
def test_mar_looks_at_the_other_columns_alone(simulate):
    changed, moved = X.copy(), X.copy()
    changed[:, 4:] = -(changed[:, 4:] ** 2)
    moved[:, 0] = np.roll(moved[:, 0], 1)
    expected = simulate(X, 0.3, random_state=0)
    assert np.array_equal(simulate(changed, 0.3, random_state=0), expected)
    assert not np.array_equal(simulate(moved, 0.3, random_state=0), expected)


@pytest.mark.parametrize("simulate", [mar_paper, partial(mar, columns=[4, 5])])
def test_mar_cells_of_a_row_are_independent_given_the_other_columns(simulate):
    """The other columns are constant here, so that nothing ties the cells together."""
    missing = simulate(X * [0, 0, 0, 0, 1, 1], 0.3, random_state=0)
    assert abs(np.corrcoef(missing[:, 4:].T)[0, 1]) < 4 / np.sqrt(N)


def test_mar_paper_hides_rows_with_a_large_sum():
    score = ((X - X.min(0)) / np.ptp(X, axis=0))[:, :4].sum(1)
    hidden = mar_paper(X, 0.3, random_state=0)[:, 4]
    assert score[hidden].mean() > score[~hidden].mean() + 4 * score.std() / np.sqrt(hidden.sum())


@pytest.mark.parametrize(("p", "kept"), [(2, 1), (9, 6), (10, 7), (13, 9), (60, 42), (90, 63)])
def test_mar_paper_keeps_the_first_seven_tenths(p, kept):
    table = np.random.default_rng(0).random((200, p))
    assert np.flatnonzero(mar_paper(table, 0.5, random_state=0).any(0)).tolist() == list(range(kept, p))


def test_mar_paper_literally_has_the_printed_probability():
    """Equation 32 with one column that is kept, of three values that scale to 0, 1/2 and 1."""
    table = np.repeat([[3.0, 0.0], [4.0, 0.0], [5.0, 0.0]], N, axis=0)
    missing = mar_paper(table, literal=True, random_state=0)[:, 1].reshape(3, N)
    for found, expected in zip(missing.mean(1), 1 / (1 + np.exp([0, -0.5, -1])), strict=True):
        assert_near(found, expected, np.sqrt(expected * (1 - expected) / N))


def test_mar_paper_literally_cannot_give_the_rates_of_the_paper():
    assert mar_paper(X, literal=True, random_state=0)[:, 4:].mean() > 0.5


@pytest.mark.parametrize("arguments", [{}, {"rate": 0.3, "literal": True}])
def test_mar_paper_takes_either_a_rate_or_the_letter(arguments):
    with pytest.raises(ParameterError, match="rate must be"):
        mar_paper(X, **arguments)


def test_mar_paper_needs_two_columns():
    with pytest.raises(DataError, match="X has one column"):
        mar_paper(X[:, :1], 0.2)


def test_mar_weights_belong_to_the_other_columns():
    """All the weight on column 3, with columns 0 and 4 hidden: its high values decide, sharply."""
    missing = mar(X, 0.25, columns=[4, 0], weights=[0, 0, 1000, 0], random_state=0)
    high = X[:, 3] > np.quantile(X[:, 3], 0.75)
    assert (missing[:, [0, 4]] == high[:, None]).mean() > 0.995


def test_mar_with_no_weight_is_completely_at_random():
    missing = mar(X, 0.25, columns=[0], weights=np.zeros(5), random_state=0)[:, 0]
    assert np.array_equal(missing, np.random.default_rng(0).random(N) < 0.25)


@pytest.mark.parametrize("weights", [[1.0], [[1.0] * 4], [1, 2, 3, np.nan], [1, 2, 3, 1001], list("abcd")])
def test_mar_weights_are_checked(weights):
    with pytest.raises(ParameterError, match="weights must be 4 numbers"):
        mar(X, 0.2, columns=[0, 1], weights=weights)


@pytest.mark.parametrize("columns", [[], [0, 0], [6], [-1], [0.0], 0, "ab", [True]])
@pytest.mark.parametrize("simulate", [mar, mnar_logistic, mnar_quantile])
def test_columns_are_checked(simulate, columns):
    with pytest.raises(ParameterError, match="columns must be different whole numbers from 0 to 5"):
        simulate(X, 0.2, columns=columns)


def test_mar_leaves_a_column_complete():
    with pytest.raises(ParameterError, match="columns names all columns"):
        mar(X, 0.2, columns=range(P))


# --- not at random


@pytest.mark.parametrize("simulate", [mnar_logistic, mnar_quantile])
def test_mnar_hides_high_values_in_each_column_at_the_rate(simulate):
    missing = simulate(X, 0.3, columns=[0, 2, 5], random_state=0)
    assert np.flatnonzero(missing.any(0)).tolist() == [0, 2, 5]
    for x, hidden in zip(X.T[[0, 2, 5]], missing.T[[0, 2, 5]], strict=True):
        assert_near(hidden.mean(), 0.3, np.sqrt(0.21 / N))
        assert x[hidden].mean() > x[~hidden].mean() + 0.5 * x.std()


def test_mnar_logistic_strength_has_a_sign_and_a_size():
    def gap(strength):
        hidden = mnar_logistic(X, 0.3, strength=strength, random_state=0)[:, 0]
        return (X[hidden, 0].mean() - X[~hidden, 0].mean()) / X[:, 0].std()

    assert gap(-1) < -0.3
    assert abs(gap(0)) < 4 / np.sqrt(0.21 * N)
    assert 0.3 < gap(1) < gap(10)


@pytest.mark.parametrize("strength", [np.nan, np.inf, -1001, "2", None])
def test_mnar_logistic_strength_is_checked(strength):
    with pytest.raises(ParameterError, match="strength must be a number from -1000 to 1000"):
        mnar_logistic(X, 0.2, strength=strength)


@pytest.mark.parametrize(("side", "ends"), [("high", (0, 0.4)), ("low", (0.4, 0)), ("both", (0.2, 0.2))])
def test_mnar_quantile_hides_outer_cells_only(side, ends):
    low, high = ends
    rank = X.argsort(0).argsort(0)
    outer = (rank < low * N) | (rank >= N - high * N)
    missing = mnar_quantile(X, 0.3, side=side, share=0.4, random_state=0)
    assert not (missing & ~outer).any()
    assert_near(missing[outer].mean(), 0.75, np.sqrt(0.75 * 0.25 / outer.sum()))
    assert np.array_equal(mnar_quantile(X, 0.4, side=side, share=0.4), outer)  # all of them


def test_mnar_quantile_breaks_ties_by_chance():
    """All values are equal, so that each cell is among the outer ones as often as any other."""
    counts = sum(mnar_quantile(np.ones((8, 1)), 0.25, share=0.25, random_state=seed) for seed in range(1000))
    assert (np.abs(counts / 1000 - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 1000)).all()


def test_mnar_quantile_meets_the_rate_where_the_share_is_no_whole_number_of_cells():
    counts = sum(mnar_quantile(X[:7], 0.3, share=0.3, random_state=seed).mean() for seed in range(500))
    assert_near(counts / 500, 0.3, np.sqrt(0.21 / (7 * P * 500)))


@pytest.mark.parametrize("share", [0.1, 1.1, np.nan, None])
def test_mnar_quantile_share_is_at_least_the_rate(share):
    with pytest.raises(ParameterError, match=r"share must be a number from 0\.2 to 1, but it is"):
        mnar_quantile(X, 0.2, share=share)


def test_mnar_quantile_side_is_checked():
    with pytest.raises(ParameterError, match='side must be "high", "low" or "both", but it is \'left\''):
        mnar_quantile(X, 0.2, side="left")


# --- columns that are hard to scale


@pytest.mark.parametrize("simulate", [mar_paper, partial(mar, columns=[4, 5]), mnar_logistic])
def test_constant_and_huge_columns_are_no_trouble(simulate):
    table = X * 1e300
    table[:, 1] = table[:, 5] = 0.1
    missing = simulate(table, 0.3, random_state=0)[:, 5]
    assert_near(missing.mean(), 0.3, np.sqrt(0.21 / N))


@pytest.mark.parametrize("simulate", [mar_paper, partial(mar, columns=[4, 5]), mnar_logistic])
def test_column_beyond_double_precision_is_refused(simulate):
    table = X.copy()
    table[:2, 0] = [-1.7e308, 1.7e308]
    with pytest.raises(DataError, match="spans more than double precision can hold"):
        simulate(table, 0.3)
