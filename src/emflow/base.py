"""What all our imputers share: parameters checked by a table of limits, rows scaled, filled and scaled back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from emflow.errors import DataError, ParameterError
from emflow.table.fill import fill_middle
from emflow.table.images import ImageShape, hide, image_shape, to_rows, to_type
from emflow.table.schema import Array, Schema, read

Limit = tuple[str, Callable[[Any], bool]]  # of a hyperparameter: what it must be, and a test


def check(limits: Mapping[str, Limit], values: Mapping[str, Any], owner: str) -> None:
    """Raise a ParameterError for the first of the values that is not within its limit."""
    for name, value in values.items():
        text, test = limits[name]
        try:
            ok = bool(test(value))
        except (TypeError, ValueError, RuntimeError, AssertionError):  # the last one is torch's, without CUDA
            ok = False
        if not ok:
            raise ParameterError(f"{name} of {owner} must be {text}, but it is {value!r}")


def integer(low: int) -> Limit:
    """Limit of a hyperparameter: an integer of at least `low`."""
    text = f"an integer of at least {low}"
    return text, lambda v: isinstance(v, Integral) and not isinstance(v, bool) and int(v) >= low


def real(text: str, test: Callable[[Any], bool]) -> Limit:
    """Limit of a hyperparameter: a number that passes a test, described by `text`."""
    return text, lambda v: isinstance(v, Real) and not isinstance(v, bool) and test(v)


def optional(limit: Limit) -> Limit:
    """Limit of a hyperparameter that may also be None."""
    return f"None or {limit[0]}", lambda v: v is None or limit[1](v)


def _usable(device: Any) -> bool:
    return isinstance(device, str) and torch.zeros(1, device=device).double().sum().item() == 0


NOT_NEGATIVE = real("a number of at least 0", lambda v: 0 <= v < np.inf)
POSITIVE = real("a positive number", lambda v: 0 < v < np.inf)
SECONDS = optional(real("a positive number of seconds", lambda v: 0 < v < np.inf))
BOOLEAN = ("True or False", lambda v: isinstance(v, bool | np.bool_))
DEVICE = ('a device with double precision that torch finds here, like "cpu" or "cuda"', _usable)
FLOW = ('"auto", "dense" or "convolutional"', lambda v: v in ("auto", "dense", "convolutional"))
SEED = ("None, a whole number from 0 to 2**32 - 1, or a RandomState", lambda v: bool(check_random_state(v)))


class Imputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Base of the imputers. Subclasses implement `fit`, which learns `schema_`, and `_complete`.

    Attributes
    ----------
    schema_ : Schema
        Range and middle of each column.
    image_shape_ : tuple or None
        (h, w) or (h, w, c) after a fit to images, which are rows of p = h w c pixel values inside; None for a table.
    """

    limits: ClassVar[dict[str, Limit]]
    clip: bool
    device: str
    random_state: Any
    schema_: Schema
    image_shape_: ImageShape | None

    def _read_new(self, X: Any, missing: Any = None) -> Array:
        """Begin a fit: check the parameters, read X and learn `schema_` and `image_shape_` from it."""
        self._check_parameters()
        shape = image_shape(X)
        X = self._read(X, missing, reset=True)
        self.schema_ = Schema.learn(self, X) if shape is None else Schema.learn_pixels(X)
        self.image_shape_ = shape
        return X

    def _read(self, X: Any, missing: Any = None, *, reset: bool = False) -> Array:
        """Return X as rows of floats (n, p), NaN where missing: a table, or images."""
        shape = image_shape(X)
        if not reset and shape != self.image_shape_:
            raise DataError(f"fitted to {_kind(self.image_shape_)}, but X is {_kind(shape)}")
        if shape is not None:
            return read(self, to_rows(X, missing), reset=reset)
        X = read(self, X, reset=reset)
        return X if missing is None else hide(X, missing)

    def _check_parameters(self) -> None:
        """Check every hyperparameter against `limits`: name -> (what it must be, test)."""
        check(self.limits, {name: getattr(self, name) for name in self.limits}, type(self).__name__)

    def _tensors(self, X: Array) -> tuple[Tensor, Tensor]:
        """Return scaled x (n, p), zero where missing, and `missing`, on the device.

        In double precision; images in single precision, unless they come in double.
        """
        scale = self.schema_.scale if self.image_shape_ is None else self.schema_.scale_pixels
        x = torch.from_numpy(np.ascontiguousarray(scale(X))).to(self.device)
        missing = x.isnan()
        return x.masked_fill_(missing, 0), missing

    def _fill_middle(self, x: Tensor, missing: Tensor) -> Tensor:
        middle = self.schema_.scale(np.array([self.schema_.middle]))
        return fill_middle(x, missing, torch.from_numpy(middle).to(x))

    def _convolved(self, flow: str) -> ImageShape | None:
        """Return the shape of the images that a convolutional flow is to be made for, or None for a dense one."""
        if flow == "convolutional" and self.image_shape_ is None:
            raise ParameterError('flow="convolutional" is for images')
        return None if flow == "dense" else self.image_shape_

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def transform(self, X: Any, *, missing: Any = None) -> Array:
        """Fill the missing cells of X.

        Deterministic and row by row: the answer for a row depends on that row alone. Observed cells come back bit for
        bit, and no NaN is left.

        Parameters
        ----------
        X : array-like of shape (n, p), or images of shape (n, h, w) or (n, h, w, c)
            NaN where values are missing; the columns seen in `fit`, or images of the size seen there.
        missing : array of bool, optional
            Further missing cells, True where missing: of the shape of X, or (n, h, w) for whole pixels of images with
            channels.

        Returns
        -------
        ndarray of the shape of X
            In the floating-point type of X; images in their own type, whole numbers rounded.
        """
        check_is_fitted(self)
        rows = self._read(X, missing)
        return self._put_back(X, rows, self._complete(rows) if np.isnan(rows).any() else None)

    def _put_back(self, X: Any, rows: Array, x_hat: Tensor | None) -> Array:
        """Return X, which was read to `rows`, with scaled x_hat (n, p) in its missing cells, in its units and type."""
        result = rows.copy() if self.image_shape_ is None else np.array(X).reshape(rows.shape)
        if x_hat is not None:
            holes = np.isnan(rows)
            result[holes] = to_type(self._unscale(x_hat)[holes], result.dtype)
        lost = ~np.isfinite(result).all(1)
        if lost.any():
            raise DataError(f"row {int(lost.argmax())} is so far from the training data that its imputation overflows")
        return result if self.image_shape_ is None else result.reshape(-1, *self.image_shape_)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Fit to X and fill it; what `fit` takes beside X, like `missing`, is passed on."""
        fitted = self.fit(X, y, **fit_params)
        return fitted.transform(X, missing=fit_params.get("missing"))

    def _complete(self, X: Array) -> Tensor:
        """Return the completed rows in scaled units (n, p); each one must depend on itself alone."""
        raise NotImplementedError

    def _unscale(self, x: Tensor) -> Array:
        X = self.schema_.unscale(x.cpu().numpy())
        return self.schema_.clip(X) if self.clip else X

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _kind(shape: ImageShape | None) -> str:
    return "a table" if shape is None else f"images of shape {shape}"
