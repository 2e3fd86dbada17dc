"""Real tables of the paper; skipped where the folder with them is not there."""

import os
from pathlib import Path

import numpy as np
import pytest

from emflow import EMFlowImputer, GaussianImputer

FOLDER = Path(os.environ.get("EMFLOW_DATA", ""))


def split(name):
    """Return training and test rows with 20 % of the cells missing, the test rows and their hidden cells."""
    path = FOLDER / f"{name}.parquet"
    if "EMFLOW_DATA" not in os.environ or not path.is_file():
        pytest.skip(f"set EMFLOW_DATA to a folder that holds {name}.parquet")
    pd = pytest.importorskip("pandas")
    X = pd.read_parquet(path).to_numpy(float)
    X = (X - X.min(0)) / np.ptp(X, 0)
    rng = np.random.default_rng(1)
    missing = rng.random(X.shape) < 0.2
    test, train = np.split(rng.permutation(len(X)), [len(X) // 5])
    holes = np.where(missing, np.nan, X)
    return holes[train], holes[test], X[test], missing[test]


@pytest.mark.parametrize(
    ("name", "imputer", "limit"),
    [
        ("letter", GaussianImputer(), 0.110),
        ("ctg", GaussianImputer(), 0.117),  # one column is the difference of two others
        ("wine", EMFlowImputer.paper(n_iterations=1, random_state=0), 0.079),
    ],
)
def test_error_on_unseen_rows(name, imputer, limit):
    train, test, X, missing = split(name)
    filled = imputer.fit(train).transform(test)
    assert np.sqrt(((filled - X)[missing] ** 2).mean()) < limit


def test_identical_columns_of_energy_fill_each_other():
    train, test, X, missing = split("energy")
    imputer = GaussianImputer(covariance_inflation=0.0).fit(train)
    filled = imputer.transform(test)
    twins = missing[:, -2] & ~missing[:, -1]  # rv1 missing, rv2 observed
    np.testing.assert_allclose(filled[twins, -2], X[twins, -2], atol=1e-4)
    assert sum(record["retries"] for record in imputer.history_) > 0
