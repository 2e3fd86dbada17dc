"""Both imputers keep scikit-learn's contract."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from emflow import EMFlowImputer, GaussianImputer

EXPECTED_FAILURES: dict[str, str] = {}  # name of a check -> why it cannot hold; none so far


@parametrize_with_checks(
    [
        EMFlowImputer(n_iterations=1, n_epochs=2, refine="off", random_state=0),
        EMFlowImputer(refine="on", refine_steps=2, random_state=0),
        GaussianImputer(),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_clone_copies_parameters_and_nothing_fitted(make, x):
    fitted = make(clip=False).fit(x)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not any(name.endswith("_") for name in vars(copy))


@pytest.fixture
def labels(complete):
    return (complete[:, 0] > 0).astype(int)


def test_pipeline_with_a_classifier(make, x, labels):
    pipeline = make_pipeline(make(), StandardScaler(), LogisticRegression()).fit(x, labels)
    assert pipeline.score(x, labels) > 0.8


def test_grid_search_over_a_parameter(make, x, labels):
    pipeline = make_pipeline(make(), LogisticRegression(C=1e-3))
    name = f"{type(pipeline[0]).__name__.lower()}__covariance_inflation"
    search = GridSearchCV(pipeline, {name: [0.0, 0.5]}, cv=2, error_score="raise").fit(x, labels)
    assert [p[name] for p in search.cv_results_["params"]] == [0.0, 0.5]
    assert search.best_estimator_[0].covariance_inflation == search.best_params_[name]


def test_set_output_gives_a_frame_with_names_and_index(make, x):
    frame = pd.DataFrame(x, columns=list("abcd"), index=range(100, 160))
    filled = make().set_output(transform="pandas").fit_transform(frame)
    assert isinstance(filled, pd.DataFrame)
    assert list(filled.columns) == list("abcd")
    assert filled.index.equals(frame.index)
    np.testing.assert_array_equal(filled, make().fit_transform(x))


@pytest.mark.parametrize("names", [None, list("abcd")])
def test_feature_names_out(make, x, names):
    fitted = make().fit(x if names is None else pd.DataFrame(x, columns=names))
    assert list(fitted.get_feature_names_out()) == (names or ["x0", "x1", "x2", "x3"])


def test_fit_transform_is_fit_then_transform(make, x):
    np.testing.assert_array_equal(make().fit_transform(x), make().fit(x).transform(x))


@pytest.mark.parametrize("method", ["transform", "score_samples"])
@pytest.mark.parametrize("rows", [[5], [40, 3, 3, 17], np.random.default_rng(2).permutation(60)], ids=len)
def test_a_row_does_not_depend_on_the_rows_beside_it(make, x, method, rows):
    answer = getattr(make(n_iterations=2).fit(x), method)
    np.testing.assert_allclose(answer(x[rows]), answer(x)[rows], rtol=1e-10, atol=1e-10)


def test_transform_is_deterministic(make, x):
    fitted = make(random_state=None).fit(x)
    np.testing.assert_array_equal(fitted.transform(x), fitted.transform(x))


def test_the_same_seed_gives_the_same_model(make, x):
    np.testing.assert_array_equal(make().fit(x).transform(x), make().fit(x).transform(x))


def test_global_generators_are_left_alone(make, x):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 (the global one is the point)
    make(random_state=None).fit(x).sample(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floating_point_type_is_kept(make, x, dtype):
    x = x.astype(dtype)
    filled = make().fit_transform(x)
    assert filled.dtype == dtype
    assert np.dtype(dtype).name in get_tags(make()).transformer_tags.preserves_dtype
    np.testing.assert_array_equal(filled[~np.isnan(x)], x[~np.isnan(x)])


def test_input_is_not_written_to(make, x):
    given = x.copy()
    make().fit_transform(given)
    np.testing.assert_array_equal(given, x)


def test_the_result_is_a_copy_even_if_nothing_is_missing(make, complete):
    assert not np.shares_memory(make().fit(complete).transform(complete), complete)
