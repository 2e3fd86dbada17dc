"""What EMFlowImputer and GaussianImputer are once they are fitted: a sequence of (flow, Gaussian) replayed on rows."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from emflow import files, uncertainty
from emflow.base import Imputer
from emflow.bootstrap import refitted
from emflow.errors import DataError, FileError
from emflow.flow.realnvp import RealNVP
from emflow.latent.patterns import Patterns
from emflow.learn.reimpute import Stage, reimpute
from emflow.learn.state import stages_from_tensors, stages_to_tensors, under
from emflow.limits import BOOLEAN, check, integer, real
from emflow.progress import progress
from emflow.refine.density import Chain
from emflow.refine.kinds import KINDS, Refinement
from emflow.refine.tables import TableRefinement
from emflow.table.fill import hide
from emflow.table.frame import Layout, is_frame
from emflow.table.schema import Array, Schema

SHARE = real("a number in (0, 1)", lambda v: 0 < v < 1)
HIDDEN = 0.2  # of the observed cells, to score by
KEYED = "kinds", "bounds"  # parameters by column
WITHOUT_INTERVAL = "nominal", "binary", "empty"  # kinds of columns


class StagedImputer(Imputer):
    """Base of both. Subclasses implement `fit`, and its second part `_fit_rows`, which ends in `_keep`.

    Attributes
    ----------
    stages_ : list of Stage
        The fitted model: flow and Gaussian of each outer iteration kept, in the order in which rows pass them.
    refinement_ : ImageNetwork, TableRefinement or None
        The learned E-step that refines the fill of the last stage.
    """

    history_: Any

    def _keep(self, stages: list[Stage], refinement: Refinement | None = None) -> None:
        self.stages_, self.refinement_ = stages, refinement
        self.latent_mean_ = stages[-1].gaussian.mean.cpu().numpy()
        self.latent_covariance_ = stages[-1].gaussian.cov.cpu().numpy()

    # --- using

    @torch.inference_mode()
    def _complete(self, X: Array) -> Tensor:
        """Return the completed rows in scaled units (n, p)."""
        x, missing = self._tensors(X)
        x_hat = self._replay(self.stages_, x, missing)
        return x_hat if self.refinement_ is None else self.refinement_.complete(x_hat, missing, self.clip)

    def _replay(self, stages: list[Stage], x: Tensor, missing: Tensor) -> Tensor:
        """Return the scaled rows x (n, p), filled to start with, after the re-imputation phase of each stage."""
        x_hat, patterns = self._fill(x, missing), Patterns(missing)
        for stage in stages:
            x_hat = reimpute(stage, x_hat, patterns, self.clip)
        return x_hat

    def _fill(self, x: Tensor, missing: Tensor) -> Tensor:
        """Return the scaled rows x (n, p) as the first stage expects them; each depends on itself alone."""
        return self._fill_middle(x, missing)

    @torch.no_grad()
    def score_samples(self, X: Any, *, missing: Any = None) -> Array:
        """Return the log-density (n,) of the rows of X, completed first where values are missing, in the units of X.

        It is that of equation 3 under the last stage. Where the E-step for a table is learnt, it is the product of the
        distributions that this gives each column, given those before it: as slow as filling the rows once for every
        column. Numbers with few values, such as whole ones, have a density that is even around each of them, as far as
        the middle to the next one; categories have their probability. Minus infinity for a row so far away that its
        density is no number. Rows that the model keeps (`store_rows`) find themselves among those most alike, so that
        they score higher than new ones.
        """
        check_is_fitted(self)
        rows = self._read(X, missing)
        x_hat = self._complete(rows)
        if isinstance(self.refinement_, TableRefinement):
            chain, holes = self._chain(self.stages_, self.refinement_), torch.from_numpy(np.isnan(rows))
            density = chain.log_density(chain.settled(x_hat, holes.to(x_hat.device)))
        else:
            flow, gaussian = self.stages_[-1].to(x_hat.dtype)
            z, log_det = flow.encode(x_hat)
            density = gaussian.log_prob(z) + log_det
        density = density.cpu().numpy() - np.log(self.schema_.span).sum()
        return np.where(np.isnan(density), -np.inf, density)

    def _chain(self, stages: list[Stage], refinement: TableRefinement) -> Chain:
        """Return the density of rows by the learned E-step, on top of what the stages fill in."""
        flow, gaussian = stages[-1]
        identity = isinstance(flow, RealNVP) and not flow.n_couplings
        deviation = gaussian.deviation(refinement.order) if identity else refinement.scale
        return Chain(refinement, partial(self._replay, stages), self._owner(), deviation, bool(self.verbose))

    def score(self, X: Any, y: Any = None, *, missing: Any = None) -> float:
        """Return minus the RMSE with which a fifth of the observed cells of X are filled, once they are hidden.

        In scaled units, columns in [0, 1]; the higher, the better, so that `GridSearchCV` and `cross_val_score` can
        compare imputers. Always the same cells are hidden, whatever `random_state`. `y` is not used.
        """
        check_is_fitted(self)
        rows = self._read(X, missing)
        x, holes = self._tensors(rows)
        hidden = hide(holes, HIDDEN, torch.Generator().manual_seed(0), self._owner())
        if not len(hidden):
            raise DataError("there is no cell to hide: a column needs at least three values")
        shown = rows.copy()
        np.put(shown, hidden.cpu().numpy(), np.nan)
        error = self._complete(shown).take(hidden) - x.take(hidden)
        return -error.square().mean().sqrt().item()

    @torch.no_grad()
    def sample(self, n_samples: int = 1) -> Any:
        """Draw new rows (n_samples, p), or images, from the last stage: z from its Gaussian, decoded.

        Where the E-step for a table is learnt, a column is drawn after the other, as `score_samples` has them.
        Seeded by `random_state`. Where columns are not all continuous numbers, a dict with a list for each of them,
        of which any frame can be made.
        """
        check_is_fitted(self)
        check({"n_samples": integer(1)}, {"n_samples": n_samples})
        generator = torch.Generator().manual_seed(self._seed())
        if isinstance(self.refinement_, TableRefinement):
            x = self._chain(self.stages_, self.refinement_).sample(n_samples, generator, self.clip)
        else:
            z = self.stages_[-1].gaussian.sample(n_samples, generator)
            x = self.stages_[-1].to(z.dtype).flow.decode(z)[0]
        X = self._unscale(x)
        if self.layout_ is not None:
            return X if self.layout_.plain else self.layout_.to_columns(X)
        return X.reshape(-1, *(self.image_shape_ or ()))

    @torch.no_grad()
    def sample_imputations(self, X: Any, n_draws: int = 5, *, bootstrap: bool = False, missing: Any = None) -> Any:
        """Fill the missing cells of X by draws from their distribution, given what is observed: multiple imputation.

        Observed cells come back bit for bit. Seeded by `random_state`; what is drawn for a row depends on the row and
        its number, not on the other rows.

        Parameters
        ----------
        X, missing
            As in `transform`.
        n_draws : int
        bootstrap : bool
            Let the draws differ by the uncertainty of the fitted parameters, too, as `pool` wants them: a copy of the
            imputer is fitted for each draw, to a bootstrap sample of the rows of X. That takes as long as so many
            fits, and X must be the whole table: what is drawn for a row then depends on all rows. Kinds, categories
            and ranges stay those that `fit` learnt.

        Returns
        -------
        ndarray of shape (n_draws, *shape of X), or a list of frames, if X is one
        """
        check_is_fitted(self)
        check({"n_draws": integer(1), "bootstrap": BOOLEAN}, {"n_draws": n_draws, "bootstrap": bootstrap})
        rows = self._read(X, missing)
        if bootstrap:
            seeds = np.random.SeedSequence(self._seed()).generate_state(n_draws).tolist()
            fits = progress(seeds, desc="bootstrap", unit="fit", verbose=bool(self.verbose))
            draws = [draw for seed in fits for draw in refitted(self, rows, seed)._draw(X, missing, rows, 1)]
        else:
            draws = self._draw(X, missing, rows, n_draws)
        return draws if is_frame(X) else np.stack(draws)

    def _draw(self, X: Any, missing: Any, rows: Array, n_draws: int) -> list[Any]:
        """Return X, which was read to `rows`, with draws in its missing cells."""
        stage, x_hat, holes = self._before_last(rows)
        nominal = [] if self.layout_ is None else self.layout_.nominal
        parts = uncertainty.draw(stage, self.refinement_, x_hat, holes, n_draws, self._seed(), self.clip, nominal)
        return [self._put_back(X, missing, rows, each) for each in torch.cat(list(parts), 1)]

    def _fit_rows(self, X: Array, weight: Array | None = None) -> Any:
        """Fit to rows of numbers (n, p), NaN where missing, whose columns are known; `weight` (n,) is above zero."""
        raise NotImplementedError

    @torch.no_grad()
    def intervals(self, X: Any, coverage: float = 0.9, *, missing: Any = None) -> tuple[Any, Any]:
        """Return lower and upper ends, of the shape of X, between which a missing cell lies with this probability.

        Each for itself, as much probability beyond one end as beyond the other. Observed cells have their value in
        both. Categories without an order have no interval, and stay missing in both: see `probabilities`. So do columns
        without any value.
        """
        check_is_fitted(self)
        check({"coverage": SHARE}, {"coverage": coverage})
        rows = self._read(X, missing)
        stage, x_hat, holes = self._before_last(rows)
        ends = uncertainty.intervals(stage, self.refinement_, x_hat, holes, coverage, self._seed(), self.clip)
        lower, upper = (self._put_back(X, missing, rows, end, WITHOUT_INTERVAL) for end in ends)
        return lower, upper

    @torch.no_grad()
    def probabilities(self, X: Any, *, missing: Any = None) -> dict[Any, Array]:
        """Return, for every nominal or binary column, how probable each of its categories is in each row (n, k).

        They are in the order of `categories_`. An observed category has probability one; a row whose category is seen,
        but not among the 40 most frequent, has NaN.
        """
        check_is_fitted(self)
        rows = self._read(X, missing)
        if self.layout_ is None:
            raise DataError("images have no categories")
        filled = np.where(np.isnan(rows), self._unscale(self._complete(rows)), rows)
        return {
            column.name: column.probabilities(filled[:, at])
            for column, at in self.layout_.places()
            if column.kind in ("nominal", "binary")
        }

    @property
    def categories_(self) -> dict[Any, list[Any]]:
        """The categories of every column that has any, by its name."""
        check_is_fitted(self)
        columns = () if self.layout_ is None else self.layout_.columns
        return {column.name: list(column.categories) for column in columns if column.categories}

    def _before_last(self, X: Array) -> tuple[Stage, Tensor, Tensor]:
        """Return the last stage, scaled rows x_hat (n, p) as it takes them, and `missing`."""
        x, missing = self._tensors(X)
        *before, last = self.stages_
        return last, self._replay(before, x, missing), missing

    # --- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors with a JSON header; never pickle)."""
        check_is_fitted(self)
        header = {
            "kind": type(self).__name__,
            "version": version("emflow-impute"),
            "parameters": self._portable_parameters(),
            "schema": asdict(self.schema_),
            "layout": None if self.layout_ is None else self.layout_.to_json(),
            "names": list(map(str, names)) if (names := getattr(self, "feature_names_in_", None)) is not None else None,
            "n_features": self.n_features_in_,
            "image_shape": self.image_shape_,
            "refinement": None if self.refinement_ is None else [self.refinement_.kind, self.refinement_.shape],
            "stages": [stage.flow.shape for stage in self.stages_],
            "fitted": {name: getattr(self, name) for name in self._fitted_scalars()},
        }
        refinement = {} if self.refinement_ is None else self.refinement_.state_dict()
        weights = {f"refinement.{name}": tensor.contiguous() for name, tensor in refinement.items()}
        files.write(path, stages_to_tensors(self.stages_) | weights, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | None = None) -> Any:
        """Read a model that `save` wrote; `device` moves it, say from a GPU to the processor."""
        tensors, header = files.read(path)
        if header.get("kind") != cls.__name__:
            raise FileError(f"{path} holds a {header.get('kind')}, not a {cls.__name__}")
        try:
            parameters = header["parameters"]
            for name in KEYED:
                if parameters[name] is not None:
                    parameters[name] = dict(parameters[name])
            imputer = cls(**parameters)
            if device is not None:
                imputer.device = device
            imputer.schema_ = Schema(**header["schema"])
            imputer.layout_ = None if header["layout"] is None else Layout.from_json(header["layout"])
            imputer.n_features_in_ = header["n_features"]
            imputer.image_shape_ = None if header["image_shape"] is None else tuple(header["image_shape"])
            if header["names"] is not None:
                imputer.feature_names_in_ = np.array(header["names"], dtype=object)
            for name, value in header["fitted"].items():
                setattr(imputer, name, value)
            stages = stages_from_tensors(tensors, header["stages"], torch.device(imputer.device))
            imputer._keep(stages, _refinement(tensors, header["refinement"], imputer.device))
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise FileError(f"{path} lacks a part of a {cls.__name__}: {error}") from error
        return imputer

    def _portable_parameters(self) -> dict[str, Any]:
        """Return the constructor parameters as JSON can hold them; a RandomState object is not kept."""
        parameters: dict[str, Any] = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], Integral):
            parameters["random_state"] = None
        for name, value in parameters.items():
            if isinstance(value, os.PathLike):
                parameters[name] = os.fspath(value)
            elif name in KEYED and value is not None:
                parameters[name] = list(value.items())  # the keys of JSON are texts
            elif isinstance(value, dict):
                parameters[name] = plain(value)
            elif isinstance(value, np.generic | np.ndarray | list | tuple):
                parameters[name] = np.asarray(value).tolist()
        return parameters

    def _fitted_scalars(self) -> list[str]:
        return ["history_", "n_iter_", "indicated_"]

    # --- scikit-learn

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "stages_")


def plain(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return numbers of NumPy's types as Python's, which JSON can hold."""
    return {name: np.asarray(value).item() for name, value in numbers.items()}


def _refinement(tensors: dict[str, Tensor], made_as: Any, device: str) -> Refinement | None:
    """Rebuild the learned E-step from the tensors of a file, if there is one."""
    if made_as is None:
        return None
    kind, shape = made_as
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn, and replaced
        refinement = KINDS[kind](**shape)
    weights = under("refinement.", tensors)
    refinement.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    return refinement.to(device).ready()
