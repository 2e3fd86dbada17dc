"""GaussianImputer: exact EM of one Gaussian in data space, the baseline that comes nearly free with the kernel."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from emflow.errors import DataError
from emflow.flow.realnvp import RealNVP
from emflow.latent.gaussian import Gaussian
from emflow.latent.online_em import Statistics
from emflow.latent.patterns import Patterns
from emflow.latent.start import stationary_start
from emflow.learn.em import fit_gaussian
from emflow.learn.reimpute import Stage
from emflow.limits import BOOLEAN, BOUNDS, DEVICE, KINDS, NOT_NEGATIVE, SECONDS, SEED, UNSEEN, integer
from emflow.staged import StagedImputer
from emflow.table.schema import Array, Schema
from emflow.table.weights import weighed


class GaussianImputer(StagedImputer):
    """Fill missing values by their conditional mean under one multivariate Gaussian, fitted by exact EM.

    What EMFlow is without its flow: the same E-step kernel, in data space, on all rows at once (appendix B.1 of the
    paper). Linear, fast, and hard to beat where columns depend on each other linearly. From 1000 columns on the
    E-step draws instead of factorising, and the last digits depend on `random_state`. Images start from correlations
    that depend on the offset of two pixels, tables from the moments of pairs of columns.

    Parameters
    ----------
    n_iterations : int
        Maximum number of EM iterations.
    tol : float
        Stop when means move by less than so many standard deviations, and covariances by less than that in the scale
        of a correlation, in the root mean square.
    covariance_inflation : float
        beta of equation 31: the diagonal is enlarged in proportion. Of use with few rows for many columns.
    max_time : float or None
        Seconds after which the current iteration is the last one.
    kinds, bounds, unseen
        As in `EMFlowImputer`: kinds and bounds of columns, and what a category is that `fit` did not see.
    add_indicator, keep_empty_features : bool
        As in `EMFlowImputer`: tell in further columns what was missing; keep columns without any value.
    clip : bool
        Keep filled values within the observed range of the column, or its bounds.
    device : str
        "cpu", or a CUDA device.
    random_state : int, RandomState or None
        Seeds `sample`, and the draws for wide data.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    history_ : list of dict
        A record per iteration with change, Frobenius norm of the covariance, retried factorisations and seconds.
        Values are in scaled units, columns in [0, 1].
    n_iter_ : int
        EM iterations run.
    timed_out_ : bool
        Whether `max_time` ended them.
    n_seen_ : float
        Rows learnt from, or the sum of their weights.
    stages_, latent_mean_, latent_covariance_
        The fitted Gaussian, in scaled units, behind a flow that is the identity.
    """

    limits: ClassVar[dict[str, Any]] = {
        "n_iterations": integer(1),
        "tol": NOT_NEGATIVE,
        "covariance_inflation": NOT_NEGATIVE,
        "max_time": SECONDS,
        "kinds": KINDS,
        "bounds": BOUNDS,
        "unseen": UNSEEN,
        "add_indicator": BOOLEAN,
        "keep_empty_features": BOOLEAN,
        "clip": BOOLEAN,
        "device": DEVICE,
        "random_state": SEED,
        "verbose": BOOLEAN,
    }

    def __init__(
        self,
        *,
        n_iterations: int = 100,
        tol: float = 3e-4,
        covariance_inflation: float = 1e-3,
        max_time: float | None = None,
        kinds: dict[Any, Any] | None = None,
        bounds: dict[Any, Any] | None = None,
        unseen: str = "error",
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        clip: bool = True,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_iterations = n_iterations
        self.tol = tol
        self.covariance_inflation = covariance_inflation
        self.max_time = max_time
        self.kinds = kinds
        self.bounds = bounds
        self.unseen = unseen
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.clip = clip
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, *, missing: Any = None, sample_weight: ArrayLike | None = None
    ) -> GaussianImputer:
        """Learn mean and covariance from the rows of X (n, p), or from images; `y` is not used.

        Missing is what is NaN, and what `missing` says: see `transform`. A row with a `sample_weight` (n,) of 3 counts
        as three rows, and one with 0 as none.
        """
        weight, X, missing = weighed(sample_weight, X, missing)
        return self._fit_rows(self._read_new(X, missing, weight), weight)

    def _fit_rows(self, X: Array, weight: Array | None = None) -> GaussianImputer:
        x, holes = self._tensors(X)
        w = None if weight is None else torch.from_numpy(weight).to(x)
        start = None if self.image_shape_ is None else stationary_start(x, holes, self.image_shape_, w)
        return self._learn(x, holes, w, start)

    def partial_fit(
        self, X: Any, y: Any = None, *, missing: Any = None, sample_weight: ArrayLike | None = None
    ) -> GaussianImputer:
        """Learn from further rows as well: the next part of a table that comes in parts, or of a stream.

        The first call is a `fit`. What earlier rows have told is kept as the sums that EM needs of them, and EM runs on
        the new rows with these added. Over some parts that comes near to a `fit` to all rows at once, and without
        missing values it is the same. Ranges grow with the rows. Columns, their kinds and categories are those of the
        first part: others are an error. For tables.
        """
        if not hasattr(self, "stages_"):
            return self.fit(X, y, missing=missing, sample_weight=sample_weight)
        self._check_parameters()
        weight, X, missing = weighed(sample_weight, X, missing)
        rows = self._read(X, missing)
        if self.layout_ is None:
            raise DataError("partial_fit is for tables, not for images")
        holed = np.flatnonzero(self.layout_.holes(X, rows, missing).any(0)).tolist()
        with self._unless_it_fails():
            self.indicated_ = sorted({*self.indicated_, *holed})
            before, self.schema_ = self.schema_, self.schema_.widened(rows, self.layout_)
            x, holes = self._tensors(rows)
            known = Statistics.behind(self._rescaled(before), self.n_seen_)
            return self._learn(x, holes, None if weight is None else torch.from_numpy(weight).to(x), known=known)

    def _rescaled(self, before: Schema) -> Gaussian:
        """Return the Gaussian, as EM left it, that was fitted with another schema, in the units of this one."""
        gaussian = self.stages_[-1].gaussian
        factor = torch.from_numpy(before.span / self.schema_.span).to(gaussian.mean)
        shift = torch.from_numpy(np.subtract(before.low, self.schema_.low) / self.schema_.span).to(gaussian.mean)
        cov = gaussian.cov.clone()
        cov.diagonal().div_(1 + self.covariance_inflation)
        return Gaussian(factor * gaussian.mean + shift, torch.outer(factor, factor) * cov)

    def _learn(
        self,
        x: Tensor,
        holes: Tensor,
        weight: Tensor | None,
        start: Gaussian | None = None,
        known: Statistics | None = None,
    ) -> GaussianImputer:
        """Fit to scaled rows x (n, p), and keep the Gaussian; `known` statistics are those of earlier rows."""
        gaussian, self.history_ = fit_gaussian(
            x, Patterns(holes), torch.Generator().manual_seed(self._seed()), self.n_iterations, self.tol,
            self.covariance_inflation, math.inf if self.max_time is None else self.max_time, bool(self.verbose),
            start if known is None else known.maximiser(), weight=weight, known=known,
        )  # fmt: skip
        self.n_seen_ = (len(x) if weight is None else float(weight.sum())) + (0 if known is None else known.count)
        self.n_iter_ = len(self.history_)
        self.timed_out_ = self.n_iter_ < self.n_iterations and self.history_[-1]["change"] > self.tol
        self._keep([Stage(RealNVP(x.shape[1], n_couplings=0).to(x), gaussian)])
        return self

    def _fitted_scalars(self) -> list[str]:
        return [*super()._fitted_scalars(), "timed_out_", "n_seen_"]
