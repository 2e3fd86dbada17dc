import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from emflow import DataError, GaussianImputer
from emflow.table.schema import Schema, column_name, read

NAN = np.nan
X = np.array([[0.0, 5, -3, 1e6], [2, 5, NAN, 3e6], [NAN, 5, 7, NAN], [1, NAN, 1, 2e6]])
NAMED = SimpleNamespace(feature_names_in_=np.array(["a", "b", "c", "d"], dtype=object))


@pytest.fixture
def schema():
    return Schema.learn(None, X)


def test_learns_range_and_median(schema):
    assert schema.low == [0, 5, -3, 1e6]
    assert schema.high == [2, 5, 7, 3e6]
    assert schema.middle == [1, 5, 1, 2e6]


def test_scale_maps_the_range_to_the_unit_interval(schema):
    x = schema.scale(X)
    varying = [0, 2, 3]
    assert np.array_equal(np.isnan(x), np.isnan(X))
    assert np.array_equal(np.nanmin(x, 0)[varying], [0, 0, 0])
    assert np.array_equal(np.nanmax(x, 0)[varying], [1, 1, 1])
    assert x[3].tolist() == pytest.approx([0.5, NAN, 0.4, 0.5], nan_ok=True)


def test_unscale_undoes_scale(schema):
    np.testing.assert_allclose(schema.unscale(schema.scale(X)), X, rtol=1e-15)


def test_constant_column_is_zero_when_scaled(schema):
    assert schema.span[1] == 1
    assert np.nanmax(np.abs(schema.scale(X)[:, 1])) == 0


def test_scale_is_computed_in_double_precision():
    single = (X / 3).astype(np.float32)
    double = single.astype(np.float64)
    found = Schema.learn(None, single).scale(single)
    assert found.dtype == np.float64
    assert np.array_equal(found, Schema.learn(None, double).scale(double), equal_nan=True)


def test_survives_json(schema):
    assert Schema(**json.loads(json.dumps(asdict(schema)))) == schema


@pytest.mark.parametrize(("estimator", "name"), [(None, "2"), (NAMED, "'c'")])
def test_column_without_values_is_named(estimator, name):
    empty = X.copy()
    empty[:, 2] = NAN
    with pytest.raises(DataError, match=f"no observed value in column {name}:"):
        Schema.learn(estimator, empty)


@pytest.mark.parametrize(("estimator", "name"), [(None, "1"), (NAMED, "'b'")])
def test_column_name(estimator, name):
    assert column_name(estimator, 1) == name


# --- read


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("value", "message"), [(np.inf, "infinity in row 1"), ("red", "the text 'red' in row 1")])
def test_culprit_is_named(value, message, named):
    table = X.astype(object)
    table[1, 2] = value
    table = pd.DataFrame(table, columns=list("abcd")) if named else table
    with pytest.raises(DataError, match=f"column {'.c.' if named else '2'} holds {message}"):
        read(GaussianImputer(), table, reset=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_keep_their_type(dtype):
    found = read(GaussianImputer(), X.astype(dtype), reset=True)
    assert found.dtype == dtype
    assert np.array_equal(found, X.astype(dtype), equal_nan=True)


def test_integers_become_double():
    assert read(GaussianImputer(), [[1, 2], [3, 4]], reset=True).dtype == np.float64


def test_another_number_of_columns_is_refused():
    imputer = GaussianImputer()
    read(imputer, X, reset=True)
    with pytest.raises(ValueError, match="expecting 4 features"):
        read(imputer, X[:, :3], reset=False)
