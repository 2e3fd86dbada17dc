import numpy as np
import pytest

from emflow.errors import DataError
from emflow.table.images import image_shape, to_rows, to_type

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (5, 4, 6), dtype=np.uint8)
COLOUR = RNG.random((5, 4, 6, 3))


@pytest.mark.parametrize(("X", "shape"), [(GREY, (4, 6)), (COLOUR, (4, 6, 3)), (GREY[0], None), ([[1, 2]], None)])
def test_images_have_three_or_four_dimensions(X, shape):
    assert image_shape(X) == shape


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.uint8, np.float32), (np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_rows_are_floats_wide_enough(dtype, expected):
    rows = to_rows(GREY.astype(dtype))
    assert rows.dtype == expected
    assert np.array_equal(rows, GREY.reshape(5, 24).astype(dtype).astype(expected))


def test_rows_are_a_copy():
    X = COLOUR.copy()
    to_rows(X, missing=np.ones(X.shape, dtype=bool))
    assert np.array_equal(X, COLOUR)


def test_nan_and_missing_both_count():
    X, missing = COLOUR.copy(), np.zeros(COLOUR.shape, dtype=bool)
    X[0, 1, 2, 0] = np.nan
    missing[3, 2, 1, 2] = True
    assert np.argwhere(np.isnan(to_rows(X, missing)).reshape(X.shape)).tolist() == [[0, 1, 2, 0], [3, 2, 1, 2]]


def test_a_missing_pixel_is_missing_in_all_channels():
    missing = RNG.random((5, 4, 6)) < 0.5
    found = np.isnan(to_rows(COLOUR, missing)).reshape(COLOUR.shape)
    assert np.array_equal(found, np.repeat(missing[..., None], 3, axis=3))


def test_a_masked_value_is_missing():
    missing = RNG.random(GREY.shape) < 0.5
    found = to_rows(np.ma.MaskedArray(GREY, missing))
    assert np.array_equal(np.isnan(found).reshape(GREY.shape), missing)


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (np.zeros((5, 4, 6), dtype=int), "True"),
        (np.zeros((5, 4), dtype=bool), r"\(5, 4\).*\(5, 4, 6, 3\).*\(5, 4, 6\) for whole pixels"),
    ],
)
def test_missing_that_does_not_fit_is_an_error(missing, text):
    with pytest.raises(DataError, match=text):
        to_rows(COLOUR, missing)


@pytest.mark.parametrize("X", [np.array([[["a"]]]), np.zeros((0, 4, 4)), np.zeros((2, 0, 4))])
def test_images_of_no_use_are_an_error(X):
    with pytest.raises(DataError, match="images"):
        to_rows(X)


def test_whole_numbers_are_rounded_and_kept_in_range():
    values = np.array([-3.0, 0.49, 0.51, 254.6, 300.0])
    assert to_type(values, np.dtype(np.uint8)).tolist() == [0, 0, 1, 255, 255]
    assert to_type(values / 255, np.dtype(bool)).tolist() == [False, False, False, True, True]
    assert to_type(values, np.dtype(np.float32)).dtype == np.float32
