import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression

from emflow import metrics
from emflow.errors import DataError, ParameterError
from emflow.metrics import congeniality, energy_distance, mae, rmse, sliced_wasserstein

RNG = np.random.default_rng(0)
X = RNG.random((60, 4))
Y = RNG.random((45, 4)) ** 2
FILLED = np.where(RNG.random(X.shape) < 0.3, 0.5, X)
TARGET = X @ [1.0, -2, 3, 0] + 0.1 * RNG.standard_normal(60)
CLASSES = np.digitize(TARGET, [0, 1])  # three of them
SETS = [sliced_wasserstein, energy_distance]
PAIRS = [*SETS, partial(congeniality, target=TARGET, kind="linear")]

# --- cell by cell

TRUTH = np.array([[1.0, 2], [3, 4], [5, 6]])
GUESS = np.array([[1.0, 5], [3, 0], [9, 9]])
HIDDEN = np.array([[False, True], [False, True], [False, False]])


def test_errors_are_those_of_the_hidden_cells():
    assert rmse(TRUTH, GUESS, HIDDEN) == pytest.approx(np.sqrt((9 + 16) / 2))
    assert mae(TRUTH, GUESS, HIDDEN) == pytest.approx(3.5)


@pytest.mark.parametrize("measure", [rmse, mae])
class TestCells:
    def test_takes_lists_and_frames(self, measure):
        expected = measure(TRUTH, GUESS, HIDDEN)
        assert measure(TRUTH.tolist(), GUESS.tolist(), HIDDEN.tolist()) == expected
        assert measure(*map(pd.DataFrame, (TRUTH, GUESS, HIDDEN))) == expected

    def test_other_cells_may_be_anything(self, measure):
        holes = np.where(HIDDEN, 0.0, np.nan)
        assert measure(TRUTH + holes, GUESS + holes, HIDDEN) == measure(TRUTH, GUESS, HIDDEN)

    @pytest.mark.parametrize("value", [np.nan, -np.inf])
    @pytest.mark.parametrize("place", [0, 1])
    def test_names_a_hidden_cell_without_a_number(self, measure, place, value):
        tables = [TRUTH.copy(), GUESS.copy()]
        tables[place][1, 1] = value
        with pytest.raises(DataError, match=f"{['X', 'filled'][place]} holds {value} in row 1, column 1"):
            measure(*tables, HIDDEN)

    def test_needs_a_hidden_cell(self, measure):
        with pytest.raises(DataError, match="no hidden cell"):
            measure(TRUTH, GUESS, np.zeros_like(HIDDEN))

    def test_needs_booleans(self, measure):
        with pytest.raises(DataError, match="missing must be a boolean array"):
            measure(TRUTH, GUESS, HIDDEN.astype(int))

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_shapes_must_be_alike(self, measure, place):
        tables = [TRUTH, GUESS, HIDDEN]
        tables[place] = tables[place][:2]
        with pytest.raises(DataError, match=r"have shapes .*\(2, 2\).*: they must be alike"):
            measure(*tables)


# --- what all distances between tables have in common


@pytest.mark.parametrize("distance", PAIRS)
class TestTables:
    def test_is_nought_for_equal_tables_and_not_for_others(self, distance):
        assert distance(X, X.copy()) == 0
        assert distance(X, FILLED) > 1e-3

    def test_takes_lists_and_frames(self, distance):
        if distance is sliced_wasserstein:
            distance = partial(distance, random_state=0)
        expected = distance(X, FILLED)
        assert type(expected) is float
        assert distance(X.tolist(), pd.DataFrame(FILLED)) == expected

    def test_names_a_cell_that_is_not_finite(self, distance):
        holed = X.copy()
        holed[5, 2] = np.nan
        with pytest.raises(DataError, match="filled holds nan in row 5, column 2"):
            distance(X, holed)
        with pytest.raises(DataError, match="X holds nan in row 5, column 2"):
            distance(np.ma.masked_array(X, np.isnan(holed)), X)

    def test_columns_must_be_the_same(self, distance):
        with pytest.raises(DataError, match="filled has 3 columns, X has 4"):
            distance(X, X[:, :3])

    @pytest.mark.parametrize("table", [X[0], X[:0], [["a"] * 4], None])
    def test_refuses_what_is_no_table(self, distance, table):
        with pytest.raises(DataError, match="filled must be a table of numbers"):
            distance(X, table)


@pytest.mark.parametrize("distance", SETS)
class TestSets:
    def test_order_of_rows_is_no_matter(self, distance):
        assert distance(X, X[::-1]) == pytest.approx(0, abs=1e-12)

    def test_repeated_rows_are_the_same_distribution(self, distance):
        """Sets of different size, equal as distributions; no interpolation of quantiles gives nought here."""
        assert distance(np.repeat(X, 3, axis=0), np.repeat(X, 2, axis=0)) == pytest.approx(0, abs=1e-12)

    def test_is_symmetric(self, distance):
        there, back = distance(X, Y, random_state=0), distance(Y, X, random_state=0)
        assert there == pytest.approx(back, rel=1e-12)

    def test_chunks_add_up(self, distance, monkeypatch):
        expected = distance(X, Y, random_state=0)
        monkeypatch.setattr(metrics, "CHUNK", 1000)
        assert distance(X, Y, random_state=0) == pytest.approx(expected, rel=1e-12)
        monkeypatch.setattr(metrics, "CHUNK", 1)
        assert distance(X, Y, random_state=0) == pytest.approx(expected, rel=1e-12)


# --- sliced Wasserstein


def test_wasserstein_of_a_shift_is_its_projected_length():
    """W2 along u is |u'd|, and E (u'd)^2 = |d|^2 / p: within the error of 20,000 directions."""
    d, p = np.array([3.0, 0, 0, 4]), 4
    found = sliced_wasserstein(X, X + d, n_projections=20_000, random_state=0)
    spread = 25 * np.sqrt(3 / (p * (p + 2)) - 1 / p**2)  # standard deviation of (u'd)^2
    assert abs(found**2 - 25 / p) < 4 * spread / np.sqrt(20_000)


def test_wasserstein_of_one_column_is_exact():
    x = X[:, :1]
    assert sliced_wasserstein(x, x - 0.7) == pytest.approx(0.7)
    assert sliced_wasserstein([[0.0], [1]], [[0.0], [3]]) == pytest.approx(np.sqrt(4 / 2))


def test_wasserstein_of_sets_of_different_size():
    """Quantiles of {0, 6} and {0, 3, 6}: they differ by 3 on (1/3, 1/2) and on (1/2, 2/3)."""
    assert sliced_wasserstein([[0.0], [6]], [[6.0], [0], [3]]) == pytest.approx(np.sqrt(9 / 3))


def test_wasserstein_against_the_common_multiple():
    """Sets of 60 and 45 rows are those of 180 rows, each repeated: there W2 is the distance of sorted values."""
    x, y = X[:, :1], Y[:, :1]
    expected = np.sqrt(np.mean((np.sort(np.repeat(x, 3)) - np.sort(np.repeat(y, 4))) ** 2))
    assert sliced_wasserstein(x, y) == pytest.approx(expected, rel=1e-12)


def test_wasserstein_is_not_below_the_one_of_order_one():
    x, y = X[:, 0], Y[:, 0]
    assert sliced_wasserstein(X[:, :1], Y[:, :1]) > stats.wasserstein_distance(x, y) > 0.1


def test_wasserstein_depends_on_seed_and_number_of_directions():
    assert sliced_wasserstein(X, Y, random_state=1) == sliced_wasserstein(X, Y, random_state=np.random.default_rng(1))
    assert sliced_wasserstein(X, Y, random_state=1) != sliced_wasserstein(X, Y, random_state=2)
    assert sliced_wasserstein(X, Y, random_state=1) != sliced_wasserstein(X, Y, n_projections=99, random_state=1)


@pytest.mark.parametrize("number", [0, 1.5, True, None])
def test_whole_numbers_are_checked(number):
    with pytest.raises(ParameterError, match="n_projections must be a whole number of at least 1"):
        sliced_wasserstein(X, Y, n_projections=number)
    if number is not None:
        with pytest.raises(ParameterError, match="max_rows must be a whole number of at least 1"):
            energy_distance(X, Y, max_rows=number)


@pytest.mark.parametrize("distance", [sliced_wasserstein, partial(energy_distance, max_rows=5)])
def test_bad_seed_is_refused(distance):
    with pytest.raises(ParameterError, match="random_state must be None, a seed or a Generator"):
        distance(X, Y, random_state="one")


# --- energy distance


def test_energy_distance_of_two_points():
    assert energy_distance([[0.0, 0]], [[3.0, 4]]) == pytest.approx(2 * 5)
    assert energy_distance([[0.0, 0]] * 3, [[3.0, 4]] * 2) == pytest.approx(2 * 5)


def test_energy_distance_of_a_point_and_a_pair():
    """2 * 1 - 0 - (0 + 2 + 2 + 0) / 4, by hand."""
    assert energy_distance([[0.0]], [[-1.0], [1.0]]) == pytest.approx(1)


def test_energy_distance_of_one_column_is_the_square_of_scipys():
    assert energy_distance(X[:, :1], Y[:, :1]) == pytest.approx(stats.energy_distance(X[:, 0], Y[:, 0]) ** 2)


def test_energy_distance_is_that_of_all_pairs():
    expected = 2 * cdist(X, Y).mean() - cdist(X, X).mean() - cdist(Y, Y).mean()
    assert energy_distance(X, Y) == pytest.approx(expected, rel=1e-12)


def test_energy_distance_of_some_rows():
    whole = energy_distance(X, Y)
    assert energy_distance(X, Y, max_rows=60) == pytest.approx(whole, rel=1e-12)
    first, second, other = (energy_distance(X, Y, max_rows=20, random_state=seed) for seed in (1, 1, 2))
    assert first == second
    assert len({first, other, whole}) == 3


def test_energy_distance_of_some_rows_takes_the_same_ones_of_equal_tables():
    assert energy_distance(X, X, max_rows=7) == 0
    assert energy_distance(X, X[:-1], max_rows=7, random_state=0) > 0


# --- congeniality


def test_linear_congeniality_is_the_distance_of_least_squares_slopes():
    def slopes(x):
        return np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), TARGET, rcond=None)[0][:-1]

    expected = np.linalg.norm(slopes(X) - slopes(FILLED))
    assert congeniality(X, FILLED, TARGET, kind="linear") == pytest.approx(expected, rel=1e-9)


def test_intercept_does_not_count():
    assert congeniality(X, X + 5, TARGET, kind="linear") == pytest.approx(0, abs=1e-9)


def test_linear_congeniality_survives_equal_columns():
    assert congeniality(X[:, [0, 0, 1]], X[:, [0, 0, 1]] * 2, X[:, 0], kind="linear") == pytest.approx(
        np.linalg.norm([0.25, 0.25, 0])
    )


@pytest.mark.parametrize("target", [CLASSES, CLASSES > 0, np.array(["a", "b", "c"])[CLASSES]])
def test_logistic_congeniality_is_the_distance_of_penalised_slopes(target):
    """Against Newton's method."""
    newton = LogisticRegression(C=1.0, solver="newton-cg", tol=1e-10, max_iter=1000)
    expected = np.linalg.norm(newton.fit(X, target).coef_ - newton.fit(FILLED, target).coef_)
    assert congeniality(X, FILLED, target, kind="logistic") == pytest.approx(expected, abs=1e-4)
    assert congeniality(X, X.copy(), target, kind="logistic") == 0


def test_regression_that_does_not_converge_is_an_error(monkeypatch):
    monkeypatch.setattr(metrics, "LogisticRegression", lambda **_: LogisticRegression(max_iter=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever the caller does with warnings
        with pytest.raises(DataError, match="does not converge: scale the columns"):
            congeniality(X, FILLED, CLASSES, kind="logistic")


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (TARGET, "logistic"),  # not classes
        (np.zeros(60), "logistic"),  # one class
        (np.full(60, np.nan), "linear"),
        (np.array(["a"] * 60), "linear"),
    ],
)
def test_target_must_suit_the_regression(target, kind):
    with pytest.raises(DataError, match=f"target does not suit a {kind} regression"):
        congeniality(X, FILLED, target, kind=kind)


@pytest.mark.parametrize("target", [TARGET[:-1], TARGET[:, None], 1.0])
def test_target_has_a_value_per_row(target):
    with pytest.raises(DataError, match=r"target has shape .* but it must be \(60,\)"):
        congeniality(X, FILLED, target, kind="linear")


def test_rows_must_correspond():
    with pytest.raises(DataError, match=r"filled has shape \(59, 4\), X has \(60, 4\)"):
        congeniality(X, FILLED[:-1], TARGET, kind="linear")


def test_kind_is_checked():
    with pytest.raises(ParameterError, match='kind must be "linear" or "logistic", but it is \'ridge\''):
        congeniality(X, FILLED, TARGET, kind="ridge")
