"""What all our imputers share: parameters checked by a table of limits, rows scaled, filled and scaled back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from emflow.errors import DataError, ParameterError
from emflow.table import column
from emflow.table.fill import fill_middle
from emflow.table.frame import Layout, as_array, is_frame
from emflow.table.images import ImageShape, hide, image_shape, per_value, to_rows, to_type
from emflow.table.masked import MaskedTable
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


def _is_kind(kind: Any) -> bool:
    return kind in column.KINDS if isinstance(kind, str) else isinstance(kind, list | tuple) and len(kind) > 0


def _is_pair(bounds: Any) -> bool:
    low, high = bounds
    return all(end is None or (isinstance(end, Real) and abs(float(end)) < np.inf) for end in (low, high))


NOT_NEGATIVE = real("a number of at least 0", lambda v: 0 <= v < np.inf)
POSITIVE = real("a positive number", lambda v: 0 < v < np.inf)
SECONDS = optional(real("a positive number of seconds", lambda v: 0 < v < np.inf))
BOOLEAN = ("True or False", lambda v: isinstance(v, bool | np.bool_))
DEVICE = ('a device with double precision that torch finds here, like "cpu" or "cuda"', _usable)
FLOW = ('"auto", "dense" or "convolutional"', lambda v: v in ("auto", "dense", "convolutional"))
KINDS = (
    f"None, or a dict from columns to {', '.join(map(repr, column.KINDS))} or a list of categories",
    lambda v: v is None or (isinstance(v, dict) and all(_is_kind(kind) for kind in v.values())),
)
BOUNDS = (
    "None, or a dict from columns to pairs (low, high) of numbers, or None for an open end",
    lambda v: v is None or (isinstance(v, dict) and all(_is_pair(pair) for pair in v.values())),
)
UNSEEN = ('"error" or "missing"', lambda v: v in ("error", "missing"))
SEED = ("None, a whole number from 0 to 2**32 - 1, or a RandomState", lambda v: bool(check_random_state(v)))


class Imputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Base of the imputers. Subclasses implement `fit`, which learns `schema_`, and `_complete`.

    Attributes
    ----------
    layout_ : Layout or None
        The columns of a table: kinds, categories, bounds; None after a fit to images.
    schema_ : Schema
        Range and middle of each column of numbers.
    image_shape_ : tuple or None
        (h, w) or (h, w, c) after a fit to images, which are rows of p = h w c pixel values inside; None for a table.
    """

    limits: ClassVar[dict[str, Limit]]
    kinds: Any = None
    bounds: Any = None
    unseen: str = "error"
    clip: bool
    device: str
    random_state: Any
    layout_: Layout | None
    schema_: Schema
    image_shape_: ImageShape | None

    def _read_new(self, X: Any, missing: Any = None) -> Array:
        """Begin a fit: check the parameters, read X and learn `schema_` and `image_shape_` from it."""
        self._check_parameters()
        shape = image_shape(X)
        X = self._read(X, missing, reset=True)
        self.schema_ = Schema.learn_pixels(X) if self.layout_ is None else Schema.learn(self, X, self.layout_)
        self.image_shape_ = shape
        return X

    def _read(self, X: Any, missing: Any = None, *, reset: bool = False) -> Array:
        """Return X as rows of floats (n, p), NaN where missing: a table, whose layout is learnt, or images."""
        shape = image_shape(X)
        if not reset and shape != self.image_shape_:
            raise DataError(f"fitted to {_kind(self.image_shape_)}, but X is {_kind(shape)}")
        if shape is not None:
            if reset:
                self.layout_ = None
            return read(self, to_rows(X, missing), reset=reset)
        X = self._columns(X, reset)
        if reset:
            self.layout_ = self._learn_layout(X)
        assert self.layout_ is not None
        rows = self.layout_.encode(X, self.unseen)
        return rows if missing is None else hide(rows, per_value(missing, X.shape)[:, self.layout_.owner])

    def _columns(self, X: Any, reset: bool) -> Any:
        """Return X as a frame, or as an array: of numbers, unless the layout has other columns."""
        if is_frame(X) or self.kinds or (not reset and not self._layout.plain):
            X = X if is_frame(X) else as_array(X)
            if isinstance(X, MaskedTable):
                X.check_names(self, reset=reset)
            else:
                validate_data(self, X, reset=reset, skip_check_array=True)
            if not len(X):
                raise DataError("X has 0 samples: it has no rows")
            return X
        return read(self, X, reset=reset)

    def _learn_layout(self, X: Any) -> Layout:
        if not is_frame(X) and not self.kinds and not self.bounds:
            return Layout.numbers(X.shape[1])
        return Layout.learn(X, self.kinds or {}, self.bounds or {})

    @property
    def _layout(self) -> Layout:
        assert self.layout_ is not None
        return self.layout_

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
        X : frame, array-like of shape (n, p), or images of shape (n, h, w) or (n, h, w, c)
            NaN or null where values are missing; the columns seen in `fit`, or images of the size seen there.
        missing : array of bool, optional
            Further missing cells, True where missing: of the shape of X, or (n, h, w) for whole pixels of images with
            channels.

        Returns
        -------
        A frame as X is one, or an ndarray of the shape of X
            In the floating-point type of X; frames and images in their own types.
        """
        check_is_fitted(self)
        rows = self._read(X, missing)
        return self._put_back(X, rows, self._complete(rows) if np.isnan(rows).any() else None)

    def _put_back(self, X: Any, rows: Array, x_hat: Tensor | None, without: tuple[str, ...] = ()) -> Any:
        """Return X, which was read to `rows`, with scaled x_hat (n, p) in its missing cells, in its units and type.

        Columns `without` whose kinds it is to be are left as they are.
        """
        if self.layout_ is not None and (is_frame(X) or not self.layout_.plain):
            filled = rows if x_hat is None else np.where(np.isnan(rows), self._unscale(x_hat), rows)
            self._check_finite(filled)
            return self.layout_.decode(X, np.isnan(rows), filled, without)
        result = rows.copy() if self.image_shape_ is None else np.array(X).reshape(rows.shape)
        if x_hat is not None:
            holes = np.isnan(rows)
            result[holes] = to_type(self._unscale(x_hat)[holes], result.dtype)
        self._check_finite(result)
        return result if self.image_shape_ is None else result.reshape(-1, *self.image_shape_)

    def _check_finite(self, X: Array) -> None:
        lost = ~np.isfinite(X).all(1)
        if lost.any():
            raise DataError(f"row {int(lost.argmax())} is so far from the training data that its imputation overflows")

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
