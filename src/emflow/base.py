"""What all our imputers share: parameters checked by a table of limits, rows scaled, filled and scaled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from emflow.errors import DataError, ParameterError
from emflow.limits import Limit, check
from emflow.table.fill import fill_middle
from emflow.table.frame import Layout, as_array, is_frame
from emflow.table.images import ImageShape, hide, image_shape, per_value, to_rows, to_type
from emflow.table.masked import MaskedTable
from emflow.table.schema import Array, Schema, read
from emflow.table.writing import INDICATOR, append_indicators, to_library


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
    indicated_ : list of int
        The columns of a table in which `fit` found holes: those that `add_indicator` tells of.
    """

    limits: ClassVar[dict[str, Limit]]
    kinds: Any = None
    bounds: Any = None
    unseen: str = "error"
    add_indicator: bool = False
    keep_empty_features: bool = False
    clip: bool
    device: str
    random_state: Any
    layout_: Layout | None
    schema_: Schema
    image_shape_: ImageShape | None
    indicated_: list[int]
    _library: str = "default"  # that `set_output` asks for

    def _read_new(self, X: Any, missing: Any = None, weight: Array | None = None) -> Array:
        """Begin a fit: check the parameters, read X and learn `schema_` and `image_shape_` from it."""
        self._check_parameters()
        shape = image_shape(X)
        if self.add_indicator and shape is not None:
            raise ParameterError("add_indicator is for tables, not for images")
        rows = self._read(X, missing, reset=True)
        self.schema_ = (
            Schema.learn_pixels(rows, weight)
            if self.layout_ is None
            else Schema.learn(self, rows, self.layout_, weight)
        )
        self.image_shape_ = shape
        holes = None if self.layout_ is None else self.layout_.holes(X, rows, missing).any(0)
        self.indicated_ = [] if holes is None else np.flatnonzero(holes).tolist()
        return rows

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
        hidden = None if missing is None else per_value(missing, X.shape)
        if reset:
            self.layout_ = self._learn_layout(X, hidden)
        assert self.layout_ is not None
        rows = self.layout_.encode(X, self.unseen)
        return rows if hidden is None else hide(rows, hidden[:, self.layout_.owner])

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

    def _learn_layout(self, X: Any, missing: Array | None) -> Layout:
        if is_frame(X) or self.kinds or self.bounds:
            return Layout.learn(X, self.kinds or {}, self.bounds or {}, missing, bool(self.keep_empty_features))
        empty = np.isnan(X if missing is None else hide(X, missing)).all(0) & bool(self.keep_empty_features)
        if empty.all():
            raise DataError("no column holds any value: there is nothing to learn from")
        return Layout.numbers(X.shape[1], np.flatnonzero(empty).tolist())

    @property
    def _layout(self) -> Layout:
        assert self.layout_ is not None
        return self.layout_

    def _owner(self) -> Tensor:
        """Return for each column (p,) which pixel, or which column of the table, it is a part of."""
        if self.layout_ is not None:
            return torch.from_numpy(np.unique(self.layout_.owner, return_inverse=True)[1])
        return torch.arange(len(self.schema_.low)) // (*(self.image_shape_ or ()), 1, 1, 1)[2]

    @contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        """Forget what is learnt within if there is an error or an interrupt: the model stays what it was."""
        before, done = self.__dict__.copy(), False
        try:
            yield
            done = True
        finally:
            if not done:
                self.__dict__ = before

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
        bit, and no NaN is left. With `add_indicator` further columns say what was missing.

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
            In the floating-point type of X; frames and images in their own types, and frames of the library that
            `set_output` has been asked for.
        """
        check_is_fitted(self)
        rows = self._read(X, missing)
        filled = self._put_back(X, missing, rows, self._complete(rows) if np.isnan(rows).any() else None)
        filled = self._indicate(filled, self._layout.holes(X, rows, missing)) if self.add_indicator else filled
        library = get_config()["transform_output"] if self._library == "default" else self._library
        return to_library(filled, library) if is_frame(filled) and library != "default" else filled

    def _put_back(self, X: Any, missing: Any, rows: Array, x_hat: Tensor | None, without: tuple[str, ...] = ()) -> Any:
        """Return X, which was read to `rows`, with scaled x_hat (n, p) in its missing cells, in its units and type.

        Columns `without` whose kinds it is to be are left as they are.
        """
        if self.layout_ is not None and (is_frame(X) or not self.layout_.plain):
            filled = rows if x_hat is None else np.where(np.isnan(rows), self._unscale(x_hat), rows)
            self._check_finite(filled)
            return self.layout_.decode(X, self.layout_.holes(X, rows, missing), filled, without)
        result = rows.copy() if self.image_shape_ is None else np.array(X).reshape(rows.shape)
        if x_hat is not None:
            holes = np.isnan(rows)
            result[holes] = to_type(self._unscale(x_hat)[holes], result.dtype)
        self._check_finite(result)
        return result if self.image_shape_ is None else result.reshape(-1, *self.image_shape_)

    def _indicate(self, filled: Any, holes: Array) -> Any:
        """Return the filled table with a column for each of `indicated_`: what of it was missing (n, columns)."""
        names = [column.name for column in self._layout.columns]
        if is_frame(filled):
            return append_indicators(filled, {names[j]: holes[:, j] for j in self.indicated_})
        return np.hstack([filled, holes[:, self.indicated_]])

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the columns that `transform` gives, as scikit-learn's imputers name them."""
        names = super().get_feature_names_out(input_features)
        added = [INDICATOR.format(names[j]) for j in self.indicated_] if self.add_indicator else []
        return np.array([*names, *added], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Any:
        """Choose what `transform` returns: "pandas", "polars", or "default", which is what X is."""
        super().set_output(transform=transform)
        self._library = self._library if transform is None else transform
        return self

    def __sklearn_clone__(self) -> Any:
        copy = super().__sklearn_clone__()
        return copy if self._library == "default" else copy.set_output(transform=self._library)

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
