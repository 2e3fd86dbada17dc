"""A score to choose parameters by: of hidden cells, always the same ones."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline

from emflow import DataError, EMFlowImputer, GaussianImputer


def test_the_score_is_the_error_on_hidden_cells(make, complete):
    """Of a complete table of which each row is its first column, whatever is hidden is found again."""
    exact = np.column_stack([complete[:, 0], 2 * complete[:, 0]]) @ np.array([[1, 0, 1], [0, 1, 1]])
    scores = [make(covariance_inflation=0.0).fit(X).score(X) for X in (exact, complete)]
    assert -0.5 < scores[1] < -0.02
    assert scores[1] < scores[0] <= 0


def test_the_score_by_hand(x):
    imputer = GaussianImputer().fit(x)
    far = np.where(np.isnan(x), x, np.nanmin(x, 0) + 3 * imputer.schema_.span)  # at 3, in scaled units
    assert imputer.score(far) == pytest.approx(-2, abs=1e-6)  # filled with 1, the end of the range


def test_the_score_does_not_depend_on_the_seed(x):
    scores = {GaussianImputer(random_state=seed).fit(x).score(x) for seed in (0, 1, None)}
    assert len(scores) == 1


def test_frames_and_images_have_a_score(complete):
    frame = pd.DataFrame(complete, columns=list("abcd")).assign(word=np.where(complete[:, 0] > 0, "u", "v"))
    assert -0.5 < GaussianImputer().fit(frame).score(frame) < 0
    images = complete.reshape(60, 2, 2)
    assert -0.5 < GaussianImputer().fit(images).score(images) < 0


def test_there_must_be_a_cell_to_hide(make_gaussian, x):
    with pytest.raises(DataError, match="no cell to hide"):
        make_gaussian().fit(x).score(x[:2])


def test_cross_validation(x):
    scores = cross_val_score(GaussianImputer(), x, cv=3, error_score="raise")
    assert ((scores < 0) & (scores > -0.5)).all()


def test_grid_search_finds_the_inflation(x):
    """Columns that depend on each other are filled badly by a Gaussian that hardly lets them."""
    search = GridSearchCV(GaussianImputer(), {"covariance_inflation": [30.0, 1e-3, 100.0]}, cv=3, error_score="raise")
    search.fit(x)
    assert search.best_params_ == {"covariance_inflation": 1e-3}
    assert search.best_estimator_.covariance_inflation == 1e-3


def test_grid_search_over_iterations(x):
    imputer = EMFlowImputer(n_epochs=1, batch_size=32, refine="off", random_state=0)
    search = GridSearchCV(imputer, {"n_iterations": [0, 1]}, cv=2, error_score="raise").fit(x)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.n_iter_ == search.best_params_["n_iterations"]


def test_grid_search_through_a_pipeline(x, complete):
    labels = (complete.sum(1) > np.median(complete.sum(1))).astype(int)
    pipeline = Pipeline([("imputer", GaussianImputer()), ("classifier", LogisticRegression(max_iter=2000))])
    grid = {"imputer__covariance_inflation": [1e-3, 0.1], "imputer__add_indicator": [False, True]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(x, labels)
    assert search.best_score_ > 0.7
    assert len(search.cv_results_["params"]) == 4
