"""What holds for every table: no NaN is left, observed cells come back, filled ones stay in range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from emflow import EMFlowImputer, GaussianImputer

IMPUTERS = {
    "Gaussian": GaussianImputer(n_iterations=5),
    "EMFlow": EMFlowImputer(n_iterations=1, n_epochs=1, refine="off", random_state=0),
    "EMFlow, refined": EMFlowImputer(refine="on", refine_steps=1, random_state=0),
}


@st.composite
def tables(draw):
    """Tables in either precision with NaN in any cells, except in all of a column."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    shape = draw(stn.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=10))
    X = draw(stn.arrays(dtype, shape, elements=st.floats(-1e6, 1e6, width=32)))
    missing = draw(stn.arrays(bool, shape))
    missing[draw(st.integers(0, shape[0] - 1)), missing.all(0)] = False
    X[missing] = np.nan
    return X


@pytest.mark.parametrize("imputer", IMPUTERS.values(), ids=IMPUTERS)
@given(X=tables())
def test_any_table(imputer, X):
    low, high = np.nanmin(X, 0), np.nanmax(X, 0)
    before, missing = X.copy(), np.isnan(X)
    filled = imputer.fit_transform(X)
    assert np.array_equal(X, before, equal_nan=True)
    assert filled.dtype == X.dtype
    assert not np.isnan(filled).any()
    assert filled[~missing].tobytes() == X[~missing].tobytes()
    assert (filled >= low).all()
    assert (filled <= high).all()
    variances = np.linalg.eigvalsh(imputer.latent_covariance_)
    assert variances[0] >= -1e-12 * variances[-1]
