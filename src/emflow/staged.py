"""What all our imputers share once they are fitted: a sequence of (flow, Gaussian) replayed on rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from emflow import files
from emflow.errors import DataError, FileError, ParameterError
from emflow.latent.patterns import Patterns
from emflow.learn.reimpute import Stage, reimpute
from emflow.learn.state import stages_from_tensors, stages_to_tensors
from emflow.table.fill import fill_median
from emflow.table.schema import Array, Schema, read


def integer(low: int) -> tuple[str, Callable[[Any], bool]]:
    """Limit of a hyperparameter: an integer of at least `low`."""
    return f"an integer of at least {low}", lambda v: isinstance(v, Integral) and not isinstance(v, bool) and v >= low


def real(text: str, test: Callable[[Any], bool]) -> tuple[str, Callable[[Any], bool]]:
    """Limit of a hyperparameter: a number that passes a test, described by `text`."""
    return text, lambda v: isinstance(v, Real) and not isinstance(v, bool) and test(v)


def optional(limit: tuple[str, Callable[[Any], bool]]) -> tuple[str, Callable[[Any], bool]]:
    """Limit of a hyperparameter that may also be None."""
    return f"None or {limit[0]}", lambda v: v is None or limit[1](v)


def _usable(device: Any) -> bool:
    return isinstance(device, str) and torch.zeros(1, device=device).double().sum().item() == 0


NOT_NEGATIVE = real("a number of at least 0", lambda v: 0 <= v < np.inf)
BOOLEAN = ("True or False", lambda v: isinstance(v, bool | np.bool_))
DEVICE = ('a device with double precision that torch finds here, like "cpu" or "cuda"', _usable)
SEED = ("None, a whole number from 0 to 2**32 - 1, or a RandomState", lambda v: bool(check_random_state(v)))


class StagedImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Base of the imputers. Subclasses implement `fit`, which ends in `_keep`.

    Attributes
    ----------
    stages_ : list of Stage
        The fitted model: flow and Gaussian of each outer iteration kept, in the order in which rows pass them.
    schema_ : Schema
        Range and median of each column.
    """

    limits: ClassVar[dict[str, tuple[str, Callable[[Any], bool]]]]
    clip: bool
    device: str
    random_state: Any
    history_: Any

    # --- fitting

    def _check_parameters(self) -> None:
        """Check every hyperparameter against `limits`: name -> (what it must be, test)."""
        for name, (text, test) in self.limits.items():
            value = getattr(self, name)
            try:
                ok = bool(test(value))
            except (TypeError, ValueError, RuntimeError, AssertionError):  # the last one is torch's, without CUDA
                ok = False
            if not ok:
                raise ParameterError(f"{name} of {type(self).__name__} must be {text}, but it is {value!r}")

    def _tensors(self, X: Array) -> tuple[Tensor, Tensor]:
        """Return scaled x (n, p), zero where missing, and `missing`, on the device."""
        x = torch.from_numpy(self.schema_.scale(X)).to(self.device)
        missing = x.isnan()
        return x.masked_fill(missing, 0), missing

    def _fill_median(self, x: Tensor, missing: Tensor) -> Tensor:
        median = self.schema_.scale(np.array([self.schema_.median]))
        return fill_median(x, missing, torch.from_numpy(median).to(x))

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _keep(self, stages: list[Stage]) -> None:
        self.stages_ = stages
        self.latent_mean_ = stages[-1].gaussian.mean.cpu().numpy()
        self.latent_covariance_ = stages[-1].gaussian.cov.cpu().numpy()

    # --- using

    def transform(self, X: Any) -> Array:
        """Fill the missing cells of X.

        Deterministic and row by row: the answer for a row depends on that row alone. Observed cells come back bit for
        bit, and no NaN is left.

        Parameters
        ----------
        X : array-like of shape (n, p)
            NaN where values are missing; the columns seen in `fit`.

        Returns
        -------
        ndarray of shape (n, p)
            In the floating-point type of X.
        """
        check_is_fitted(self)
        X = read(self, X, reset=False)
        missing = np.isnan(X)
        if not missing.any():
            return X.copy()
        filled = self._unscale(self._complete(X))
        result = X.copy()
        with np.errstate(over="ignore"):
            result[missing] = filled[missing].astype(X.dtype)
        lost = ~np.isfinite(result).all(1)
        if lost.any():
            raise DataError(f"row {int(lost.argmax())} is so far from the training data that its imputation overflows")
        return result

    def _complete(self, X: Array) -> Tensor:
        """Return the completed rows in scaled units (n, p)."""
        x, missing = self._tensors(X)
        patterns = Patterns(missing)
        x_hat = self._fill_median(x, missing)
        for stage in self.stages_:
            x_hat = reimpute(stage, x_hat, patterns, self.clip)
        return x_hat

    def _unscale(self, x: Tensor) -> Array:
        X = self.schema_.unscale(x.cpu().numpy())
        return self.schema_.clip(X) if self.clip else X

    @torch.no_grad()
    def score_samples(self, X: Any) -> Array:
        """Return the exact log-density (n,) of the rows of X, completed first where values are missing.

        It is the density of equation 3 under the last stage, in the units of X: that of scaled data, divided by the
        product of the column ranges. Minus infinity for a row so far away that its density is no number.
        """
        check_is_fitted(self)
        x_hat = self._complete(read(self, X, reset=False))
        flow, gaussian = self.stages_[-1].double()
        z, log_det = flow.encode(x_hat)
        density = (gaussian.log_prob(z) + log_det).cpu().numpy() - np.log(self.schema_.span).sum()
        return np.where(np.isnan(density), -np.inf, density)

    @torch.no_grad()
    def sample(self, n_samples: int = 1) -> Array:
        """Draw new rows (n_samples, p) from the last stage: z from its Gaussian, decoded. Seeded by `random_state`."""
        check_is_fitted(self)
        text, test = integer(1)
        if not test(n_samples):
            raise ParameterError(f"n_samples must be {text}, but it is {n_samples!r}")
        flow, gaussian = self.stages_[-1].double()
        x, _ = flow.decode(gaussian.sample(n_samples, torch.Generator().manual_seed(self._seed())))
        return self._unscale(x)

    # --- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors with a JSON header; never pickle)."""
        check_is_fitted(self)
        header = {
            "kind": type(self).__name__,
            "version": version("emflow-impute"),
            "parameters": self._portable_parameters(),
            "schema": asdict(self.schema_),
            "names": list(map(str, names)) if (names := getattr(self, "feature_names_in_", None)) is not None else None,
            "n_features": self.n_features_in_,
            "stages": [stage.flow.shape for stage in self.stages_],
            "fitted": {name: getattr(self, name) for name in self._fitted_scalars()},
        }
        files.write(path, stages_to_tensors(self.stages_), header)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | None = None) -> Any:
        """Read a model that `save` wrote; `device` moves it, say from a GPU to the processor."""
        tensors, header = files.read(path)
        if header.get("kind") != cls.__name__:
            raise FileError(f"{path} holds a {header.get('kind')}, not a {cls.__name__}")
        try:
            imputer = cls(**header["parameters"])
            if device is not None:
                imputer.device = device
            imputer.schema_ = Schema(**header["schema"])
            imputer.n_features_in_ = header["n_features"]
            if header["names"] is not None:
                imputer.feature_names_in_ = np.array(header["names"], dtype=object)
            for name, value in header["fitted"].items():
                setattr(imputer, name, value)
            imputer._keep(stages_from_tensors(tensors, header["stages"], torch.device(imputer.device)))
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} lacks a part of a {cls.__name__}: {error}") from error
        return imputer

    def _portable_parameters(self) -> dict[str, Any]:
        """Return the constructor parameters as JSON can hold them; a RandomState object is not kept."""
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], Integral):
            parameters["random_state"] = None
        for name, value in parameters.items():
            if isinstance(value, os.PathLike):
                parameters[name] = os.fspath(value)
            elif isinstance(value, np.generic | np.ndarray | list | tuple):
                parameters[name] = np.asarray(value).tolist()
        return parameters

    def _fitted_scalars(self) -> list[str]:
        return ["history_", "n_iter_"]

    # --- scikit-learn

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "stages_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
