from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

import emflow
from emflow import DataError, ParameterError, Pooled, pool

ARRAYS = ["estimate", "standard_error", "dof", "within", "between", "relative_increase", "missing_information"]
RNG = np.random.default_rng(0)
Q = RNG.normal([1.0, -2, 30], [0.1, 0.2, 3], (5, 3))
S = RNG.uniform(0.1, 0.3, (5, 3)) * [1, 1, 10]


def assert_alike(found, expected, rtol=1e-9, only=ARRAYS):
    for name in only:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=rtol, err_msg=name)


# --- numbers from elsewhere


def test_three_imputations_by_hand():
    """B = 1 and U = (1 + 1 + 4) / 3 = 2, so T = 2 + 4/3 = 10/3, lambda = (4/3) / (10/3) = 2/5, r = (4/3) / 2 = 2/3."""
    pooled = pool([1.0, 2, 3], [1.0, 1, 2], dof=9)
    nu = 1 / (1 / 12.5 + 1 / 4.5)  # nu_old = 2 / (2/5)^2, nu_obs = 3/5 * 9 * 10 / 12
    expected = {
        "estimate": 2,
        "standard_error": np.sqrt(10 / 3),
        "dof": nu,
        "within": 2,
        "between": 1,
        "relative_increase": 2 / 3,
        "missing_information": (2 / 3 + 2 / (nu + 3)) / (5 / 3),
    }
    assert nu == pytest.approx(225 / 68)
    assert {name: getattr(pooled, name).tolist() for name in ARRAYS} == {
        name: [pytest.approx(value, rel=1e-12)] for name, value in expected.items()
    }
    assert pooled.n_imputations == 3


def test_oxygen_in_exact_fractions():
    """Means of oxygen intake in five imputations of 31 rows, complete-data degrees of freedom 30.

    Input: SAS/STAT 13.2 User's Guide, MIANALYZE procedure, example 64.1.
    """
    q = [Fraction(x) for x in ("47.0120", "47.2407", "47.4995", "47.1485", "47.0042")]
    s = [Fraction(x) for x in ("0.95984", "0.93540", "1.00766", "0.95439", "0.96528")]
    mean = sum(q) / 5
    within = sum(x**2 for x in s) / 5
    between = sum((x - mean) ** 2 for x in q) / 4
    total = within + Fraction(6, 5) * between
    share = Fraction(6, 5) * between / total
    old, observed = 4 / share**2, Fraction(31, 33) * 30 * (1 - share)
    nu = old * observed / (old + observed)
    pooled = pool([float(x) for x in q], [float(x) for x in s], dof=30)
    exact = {
        "estimate": mean,
        "dof": nu,
        "within": within,
        "between": between,
        "relative_increase": Fraction(6, 5) * between / within,
        "missing_information": (nu + 1) / (nu + 3) * share + 2 / (nu + 3),
    }
    for name, value in exact.items():
        assert getattr(pooled, name)[0] == pytest.approx(float(value), rel=1e-10, abs=0), name
    assert pooled.standard_error[0] ** 2 == pytest.approx(float(total), rel=1e-10)


def test_published_table():
    """B, U, T, degrees of freedom, r and fraction of missing information as SAS prints them, with m = 5 and dof = 28.

    Source: SAS/STAT 13.1 User's Guide, MIANALYZE procedure, output 62.10.2. The fraction is Rubin's equation 3.1.10,
    which is ours if the complete-data degrees of freedom are infinite.
    """
    between, within = np.array([45.529229, 0.014715]), np.array([76.543614, 0.114324])
    q = np.outer([-1, -1, 0, 1, 1], np.sqrt(between))  # of variance `between`
    s = np.tile(np.sqrt(within), (5, 1))
    pooled = pool(q, s, dof=28)
    np.testing.assert_allclose(pooled.standard_error**2, [131.178689, 0.131983], rtol=1e-5)
    np.testing.assert_allclose(pooled.dof, [9.1917, 20.598], rtol=5e-5)
    np.testing.assert_allclose(pooled.relative_increase, [0.713777, 0.154459], rtol=5e-5)
    np.testing.assert_allclose(pool(q, s).missing_information, [0.461277, 0.141444], rtol=5e-5)


def test_intervals_and_tests_with_two_degrees_of_freedom():
    """There the t distribution has closed forms: F(x) = 1/2 + x / (2 sqrt(2 + x^2))."""
    pooled = pool([1.0, 2, 3], [0.0, 0, 0])
    se = np.sqrt(4 / 3)
    assert pooled.dof.tolist() == [2]
    for coverage, level in ((0.95, 0.975), (0.5, 0.75)):
        half = (2 * level - 1) / np.sqrt(2 * level * (1 - level)) * se
        np.testing.assert_allclose(pooled.interval(coverage), [[2 - half], [2 + half]], rtol=1e-10)
    assert pooled.interval()[0] == pooled.interval(0.95)[0]
    for null, gap in ((0.0, 2), (5.0, 3), (2.0, 0)):
        x = gap / se
        assert pooled.p_value(null) == pytest.approx(1 - x / np.sqrt(2 + x**2), rel=1e-10)


# --- invariances

numbers = st.floats(-100, 100).map(lambda x: round(x, 3))  # far from under- and overflow of squares
tables = st.tuples(st.integers(2, 6), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(arrays(float, shape, elements=numbers), arrays(float, shape, elements=numbers.map(abs)))
)
dofs = st.sampled_from([0.5, 3, 100, np.inf])


@given(tables, dofs, st.randoms(use_true_random=False))
def test_order_of_imputations_is_no_matter(table, dof, random):
    q, s = table
    order = random.sample(range(len(q)), len(q))
    assert_alike(pool(q[order], s[order], dof=dof), pool(q, s, dof=dof), only=["within", "standard_error"])
    np.testing.assert_allclose(pool(q[order], s).estimate, pool(q, s).estimate, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(pool(q[order], s, dof=dof).dof, pool(q, s, dof=dof).dof, rtol=1e-6)


@given(tables, dofs, st.sampled_from([-8.0, 0.25, 3.7]))
def test_units_carry_through(table, dof, unit):
    q, s = table
    before, after = pool(q, s, dof=dof), pool(q * unit, s * abs(unit), dof=dof)
    assert_alike(after, before, only=["dof", "relative_increase", "missing_information"])
    np.testing.assert_allclose(after.estimate, before.estimate * unit, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(after.standard_error, before.standard_error * abs(unit), rtol=1e-9)
    np.testing.assert_allclose(after.between, before.between * unit**2, rtol=1e-9)
    np.testing.assert_allclose(after.p_value(unit), before.p_value(1.0), rtol=1e-6, atol=1e-12)


@given(tables, dofs)
def test_bounds(table, dof):
    """nu is below both of its parts, 0 <= lambda <= gamma <= 1, and T is between U and U + 3/2 B."""
    pooled = pool(*table, dof=dof)
    q, _ = table
    assert (pooled.dof >= 0).all()
    assert (pooled.dof <= dof).all()
    total = pooled.standard_error**2 * (1 + 1e-12)
    assert (total >= pooled.within).all()
    assert (total <= (pooled.within + 1.5 * pooled.between) * (1 + 1e-9)).all()
    share = 1 - 1 / (1 + pooled.relative_increase)
    assert (pooled.missing_information >= share - 1e-12).all()
    assert (pooled.missing_information <= 1).all()
    low, high = pooled.interval()
    assert (low <= pooled.estimate).all()
    assert (pooled.estimate <= high).all()
    assert (pooled.estimate <= q.max(0) + 1e-9).all()


@given(tables, st.integers(2, 12), st.sampled_from([0.5, 3, 30]))
def test_copies_of_one_result_are_that_result(table, m, dof):
    """The same estimate bit for bit, no variance between, and the observed-data degrees of freedom."""
    (q, *_), (s, *_) = table
    pooled = pool(np.tile(q, (m, 1)), np.tile(s, (m, 1)), dof=dof)
    assert np.array_equal(pooled.estimate, q)
    assert not pooled.between.any()
    assert not pooled.relative_increase.any()
    np.testing.assert_allclose(pooled.standard_error, s, rtol=1e-14)
    np.testing.assert_allclose(pooled.dof, dof * (dof + 1) / (dof + 3), rtol=1e-14)
    np.testing.assert_allclose(pooled.missing_information, 2 / (pooled.dof + 3), rtol=1e-14)


@pytest.mark.parametrize("wanted", [slice(1), slice(1, 3)])
def test_quantities_do_not_depend_on_each_other(wanted):
    whole, part = pool(Q, S, dof=[10, 20, 30]), pool(Q[:, wanted], S[:, wanted], dof=[10, 20, 30][wanted])
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[wanted])


# --- edges


def test_large_complete_data_is_infinite_complete_data():
    assert_alike(pool(Q, S, dof=1e12), pool(Q, S), rtol=1e-6)
    share = 1.2 * pool(Q, S).between / pool(Q, S).standard_error ** 2
    np.testing.assert_allclose(pool(Q, S).dof, 4 / share**2, rtol=1e-12)


def test_no_variance_between_and_infinite_complete_data_is_the_normal_distribution():
    pooled = pool([0.1] * 3, [2.0] * 3)  # the floating-point mean of three times 0.1 is not 0.1
    assert pooled.estimate.tolist() == [0.1]
    assert pooled.dof.tolist() == [np.inf]
    assert pooled.missing_information.tolist() == [0]
    np.testing.assert_allclose(pooled.interval(0.9)[1], 0.1 + 2 * norm.ppf(0.95), rtol=1e-12)
    np.testing.assert_allclose(pooled.p_value(-3.0), 2 * norm.sf(1.55), rtol=1e-12)


def test_no_variance_within_tells_nothing_about_finite_data():
    pooled = pool([1.0, 2, 3], [0.0] * 3, dof=10)
    assert pooled.dof.tolist() == [0]
    assert pooled.relative_increase.tolist() == [np.inf]
    assert pooled.missing_information.tolist() == [1]
    assert pooled.interval() == (-np.inf, np.inf)
    assert pooled.p_value().tolist() == [1]


def test_little_variance_within_comes_near_to_none():
    near, none = (pool([1.0, 2, 3], [s] * 3, dof=10) for s in (1e-6, 0.0))
    np.testing.assert_allclose(near.dof, none.dof, atol=1e-9)
    np.testing.assert_allclose(near.missing_information, none.missing_information, rtol=1e-9)


@pytest.mark.parametrize("dof", [7.0, np.inf])
def test_no_variance_at_all_is_certainty(dof):
    pooled = pool([[1.0, 0.1]] * 3, np.zeros((3, 2)), dof=dof)
    assert pooled.standard_error.tolist() == [0, 0]
    assert pooled.relative_increase.tolist() == [0, 0]
    assert (pooled.dof == (7 * 8 / 10 if dof == 7 else np.inf)).all()
    low, high = pooled.interval()
    assert low.tolist() == high.tolist() == [1, 0.1]
    assert pooled.p_value([1.0, 0.0]).tolist() == [1, 0]


# --- what goes in and what comes out


def test_takes_vectors_lists_and_frames():
    expected = pool(Q, S, dof=20)
    assert_alike(pool(Q.tolist(), pd.DataFrame(S), dof=20), expected, rtol=0)
    column = pool(Q[:, 1], S[:, 1], dof=20)
    assert column.estimate.shape == (1,)
    assert column.names == ("0",)
    assert column.dof[0] == expected.dof[1]


def test_leaves_its_input_alone():
    q, s = Q.copy(), S.copy()
    pooled = pool(q, s)
    pooled.estimate[:] = pooled.within[:] = 0
    assert np.array_equal(q, Q)
    assert np.array_equal(s, S)


def test_is_frozen():
    with pytest.raises(AttributeError):
        pool(Q, S).dof = 1


def test_prints_a_table():
    text = str(pool([[1.0, 10], [2, 10], [3, 10]], [[1.0, 3], [1, 3], [2, 3]], dof=9, names=["speed", "x"]))
    assert text.splitlines() == [
        "Pooled over 3 imputations",
        "       estimate  std. error  95 % from     to    dof        p     fmi",
        "speed         2       1.826     -3.515  7.515  3.309   0.3466  0.5902",
        "x            10           3      3.001     17    7.5  0.01134  0.1905",
    ]


def test_is_exported():
    assert {"pool", "Pooled"} <= set(emflow.__all__)
    assert isinstance(pool(Q, S), Pooled)


# --- fitted models


def fake(i, names=("const", "age", "dose"), dof=20):
    """Return what is read of a result of statsmodels that was fitted on a data frame."""
    q, s = (pd.Series(x[i, : len(names)], names) for x in (Q, S))
    return SimpleNamespace(params=q, bse=s, df_resid=dof)


def test_results_are_their_estimates_and_standard_errors():
    pooled = pool([fake(i, dof=30 - i) for i in range(5)])
    assert_alike(pooled, pool(Q, S, dof=26), rtol=0)
    assert pooled.names == ("const", "age", "dose")
    assert_alike(pool(fake(i, dof=30 - i) for i in range(5)), pooled, rtol=0)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (SimpleNamespace(exog_names=["const", "x1", "x2"]), ("const", "x1", "x2")),
        (SimpleNamespace(exog_names=["const"]), ("0", "1", "2")),
        (None, ("0", "1", "2")),
    ],
)
@pytest.mark.parametrize("kind", [np.array, list])
def test_names_of_results_without_an_index(model, names, kind):
    results = [SimpleNamespace(params=kind(q), bse=kind(s), df_resid=9, model=model) for q, s in zip(Q, S, strict=True)]
    assert pool(results).names == names
    assert_alike(pool(results), pool(Q, S, dof=9), rtol=0)


@pytest.mark.parametrize("frame", [True, False])
def test_statsmodels(frame):
    """Least squares and logistic regression, against the normal equations and against the models' own numbers."""
    sm = pytest.importorskip("statsmodels.api", reason="statsmodels is not installed: pool was tried on a fake alone")
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(4, 40, 2))
    y = draws.mean(0) @ [1.0, -1] + rng.normal(size=40)
    designs = [sm.add_constant(pd.DataFrame(x, columns=["age", "dose"]) if frame else x) for x in draws]
    pooled = pool([sm.OLS(y, design).fit() for design in designs])
    q, s = [], []
    for design in map(np.asarray, designs):
        inverse = np.linalg.inv(design.T @ design)
        q.append(inverse @ design.T @ y)
        s.append(np.sqrt(np.diag(inverse) * ((y - design @ q[-1]) ** 2).sum() / 37))
    assert_alike(pooled, pool(q, s, dof=37))
    assert pooled.names == (("const", "age", "dose") if frame else ("const", "x1", "x2"))
    fits = [sm.Logit(y > 0, design).fit(disp=0) for design in designs]
    assert_alike(pool(fits), pool([f.params for f in fits], [f.bse for f in fits], dof=37), rtol=0)


# --- errors


def changed(x, i, j, value):
    x = x.copy()
    x[i, j] = value
    return x


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_says_which_number_is_not_finite(value):
    with pytest.raises(DataError, match=f"the estimate of 'b' in imputation 3 is {value}: it must be finite"):
        pool(changed(Q, 3, 1, value), S, names=list("abc"))
    with pytest.raises(DataError, match=f"the standard error of '1' in imputation 3 is {value}"):
        pool(Q, changed(S, 3, 1, value))
    results = [fake(i) for i in range(5)]
    results[2].bse["age"] = value
    with pytest.raises(DataError, match=f"the standard error of 'age' in imputation 2 is {value}"):
        pool(results)


def test_masked_number_is_not_uncovered():
    with pytest.raises(DataError, match="the estimate of '2' in imputation 0 is nan"):
        pool(np.ma.masked_array(Q, np.arange(Q.size).reshape(Q.shape) == 2), S)


def test_says_which_standard_error_is_negative():
    with pytest.raises(DataError, match=r"the standard error of '2' in imputation 4 is -0\.5: .* not negative"):
        pool(Q, changed(S, 4, 2, -0.5))


@pytest.mark.parametrize("few", [(Q[:1], S[:1]), ([1.0], [1.0]), ([fake(0)],)])
def test_needs_two_imputations(few):
    with pytest.raises(DataError, match="only 1 imputation"):
        pool(*few)


def test_needs_results():
    with pytest.raises(DataError, match="there are no results"):
        pool([])
    with pytest.raises(DataError, match="results must be a list"):
        pool(fake(0))
    with pytest.raises(DataError, match=r"imputation 0 has no params: .* or estimates and standard_errors"):
        pool(Q)
    with pytest.raises(DataError, match="imputation 1 has no df_resid"):
        pool([fake(0), SimpleNamespace(params=Q[0], bse=S[0])])


@pytest.mark.parametrize(
    ("names", "what"),
    [(("const", "age", "weight"), "dose, weight"), (("const", "age"), "dose"), (("age", "const", "dose"), "the order")],
)
def test_says_which_result_estimates_something_else(names, what):
    with pytest.raises(DataError, match=f"imputations 0 and 2 do not estimate the same, but differ in: {what}$"):
        pool([fake(0), fake(1), fake(2, names)])


def test_says_which_result_is_of_another_shape():
    odd = fake(1)
    odd.bse = odd.bse[:2]
    with pytest.raises(DataError, match=r"params and bse of imputation 1 have shapes \(3,\) and \(2,\)"):
        pool([fake(0), odd])
    table = SimpleNamespace(params=Q, bse=S, df_resid=3)  # as of a multinomial model
    with pytest.raises(DataError, match=r"params and bse of imputation 0 have shapes \(5, 3\) and \(5, 3\)"):
        pool([table, table])


@pytest.mark.parametrize("dof", [0, -1.0, np.nan, None])
def test_says_which_result_has_no_degrees_of_freedom(dof):
    with pytest.raises(DataError, match=f"df_resid of imputation 1 is {dof}: it must be a number above 0"):
        pool([fake(0), fake(1, dof=dof)])


@pytest.mark.parametrize("extra", [{"dof": 3}, {"dof": [3, 3, 3]}, {"names": ["a", "b", "c"]}])
def test_results_have_their_own_names_and_degrees_of_freedom(extra):
    with pytest.raises(ParameterError, match="dof and names are read from results"):
        pool([fake(0), fake(1)], **extra)


def test_shapes_must_be_alike():
    with pytest.raises(DataError, match=r"shapes \(5, 3\) and \(4, 3\): they must be alike"):
        pool(Q, S[:4])


@pytest.mark.parametrize("table", [[[1.0, 2], [3.0]], [["a"], ["b"]], [None, {}]])
def test_refuses_what_is_no_numbers(table):
    with pytest.raises(DataError, match="estimates must be numbers"):
        pool(table, S)


@pytest.mark.parametrize("table", [1.0, np.ones((2, 2, 2)), np.ones((2, 0))])
def test_refuses_what_has_no_rows(table):
    with pytest.raises(DataError, match=r"standard_errors must have shape \(m,\) or \(m, k\)"):
        pool(Q, table)


def test_refuses_what_cannot_be_squared():
    with pytest.raises(DataError, match="the variance of '1' is beyond double precision"):
        pool(Q, changed(S, 0, 1, 1e200))
    with pytest.raises(DataError, match="the variance of '0' is beyond double precision"):
        pool([1e308, -1e308], [1.0, 1])


@pytest.mark.parametrize("dof", [0, -2.0, np.nan, None, "many", [1, 2], [[1, 2, 3]], [1, 0, 3]])
def test_degrees_of_freedom_are_checked(dof):
    with pytest.raises(ParameterError, match="dof must be a number above 0, or 3 of them"):
        pool(Q, S, dof=dof)


def test_names_are_counted():
    with pytest.raises(ParameterError, match="names has 2 entries for 3 estimates"):
        pool(Q, S, names=["a", "b"])


@pytest.mark.parametrize("coverage", [0, 1, 1.5, np.nan, None, "all"])
def test_coverage_is_checked(coverage):
    with pytest.raises(ParameterError, match=r"coverage must be a number in \(0, 1\)"):
        pool(Q, S).interval(coverage)


@pytest.mark.parametrize("null", [np.nan, [0, 0], "none", None])
def test_null_is_checked(null):
    with pytest.raises(ParameterError, match="null must be a number, or 3 of them"):
        pool(Q, S).p_value(null)
