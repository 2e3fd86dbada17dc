"""EMFlowImputer, the front door: checks its input, then calls the rooms behind it in order."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if
from torch import Tensor
from tqdm.auto import tqdm

from emflow import files
from emflow.errors import DataError, DivergedError, FileError, ParameterError
from emflow.flow.realnvp import RealNVP
from emflow.further import in_units_of, keeps_rows, stored_rows
from emflow.latent.gaussian import Gaussian
from emflow.latent.patterns import WIDE, Patterns
from emflow.latent.start import stationary_start
from emflow.learn.em import fit_gaussian, regular
from emflow.learn.reimpute import Stage, reimpute
from emflow.learn.state import CLEAR, Run, Settings
from emflow.learn.train import train
from emflow.limits import EMFLOW, FILLS, SETTINGS, Limit, check
from emflow.refine.examples import Data, wanted_columns
from emflow.refine.images import fit_images
from emflow.refine.kinds import Refinement
from emflow.refine.size import Size
from emflow.refine.tables import TableRefinement
from emflow.refine.training import can_go_on, fit_tables, plant
from emflow.staged import StagedImputer, plain
from emflow.table.fill import fill_draw, fill_nearest, hide, hide_alike
from emflow.table.frame import is_frame
from emflow.table.schema import Array, from_objects
from emflow.table.weights import weighed

STEPS = 150  # of a training phase, where the number of epochs is left open
IMAGE_PASSES, IMAGE_INFLATION = 3, 3e-3  # of EM for the Gaussian from which images start,
EM_IMAGES = 10_000  # with so many of them
VALIDATED = 2000  # images in which pixels are hidden;
ENOUGH_HIDDEN = 500  # so many cells of tables;
WORTH_BACK = 0.01  # of what else is observed in columns that lack values: so many are worth learning from in the end
IMAGE_STEPS = 500  # of its training
GOING_ON = 1 / 3  # of the steps, where training goes on with further rows
ENOUGH_ROWS = 700  # of a table, for the learned E-step to be of use


class EMFlowImputer(StagedImputer):
    """Fill missing values by EM in the latent space of a normalising flow (Ma & Ghosh, EMFlow).

    Outer iterations of two phases. Training (Algorithm 1): a Real NVP flow learns the density of the current
    completion while an online EM learns the Gaussian of its latent space. Re-imputation (Algorithm 2): rows are
    encoded, the missing coordinates replaced by their conditional mean, and decoded. The model is the sequence of
    (flow, Gaussian), one per outer iteration; `transform` replays it on any rows.

    Images, arrays of shape (n, h, w) or (n, h, w, c), are rows of pixel values inside. A convolutional network, trained
    by hiding further observed pixels, then corrects what the last stage fills in.

    Parameters
    ----------
    n_iterations : int or None
        Maximum number of outer iterations; None has 4, and 0 for images that start from the Gaussian, and for tables
        that do and whose E-step is refined: that takes their place.
    n_epochs : int or None
        Passes over the rows in each training phase; None makes them about 150 steps, and one pass at the least.
    batch_size : int
        Rows per step; batches are made nearly equal.
    learning_rate : float
        Of Adam, for the flow.
    reconstruction_weight : float
        alpha of equation 14.
    step_scale, step_exponent : float
        C in (0, 1] and gamma in [0, 1] of the step sizes C t^-gamma, equation 10. The paper has gamma in (0.5, 1].
    covariance_inflation : float or sequence of float
        beta of equation 31, one value per outer iteration; the last one holds for all that follow.
    super_batch_size : int
        S_super of appendix D; 0 updates the Gaussian from the current batch alone.
    flow : {"auto", "dense", "convolutional"}
        Networks of the couplings: fully connected as in the paper, or convolutions, which "auto" takes for images.
    n_couplings : int
        Affine couplings in the flow.
    hidden_width : int or None
        Units in each hidden layer of the coupling networks; None takes the number of columns, or 32 channels in
        convolutions.
    reinit : bool
        Start flow and Gaussian afresh in every outer iteration, as the paper does; False keeps them.
    initial_fill : {"gaussian", "draw", "median", "nearest", "zero", "mean"}
        Where training starts: the conditional mean under a Gaussian fitted by exact EM, random draws from the observed
        values of the column, or their median; in images the nearest observed pixel, zero (black), or the mean of the
        pixel, but not the median. New rows start in the same way; where training draws they start from the median (or
        the mean of the pixel), so that their answer depends on themselves alone.
    refine : {"auto", "on", "off"} or dict
        Refine the fill by an E-step that is learnt from further observed cells, hidden for that; docs/method.md tells
        how. It is dropped if it does not help on the cells hidden for validation. "auto" learns it for tables of 700
        rows or more, and less than 1000 columns or pixel values: photographs of 32 x 32 x 3 gained nothing in 300 steps
        of a second each. A dict is "on", for tables, with settings of your own: any of `batch_size`, `learning_rate`,
        `width`, `n_bins`, `n_pieces`, `n_neighbours`, `n_leaves`, `dropout`, `error_weight`, `reuse`, `like`,
        `weighed`, `haste`, `n_networks`, `n_trees` and `forest_share`, which `emflow.refine.size.Size` explains.
    refine_steps : int or None
        Steps of its training; None has 500 for images, and as many for a table as suit its size.
    store_rows : bool or int
        Keep training rows of a table in the model, to look up those most alike a row that is filled: 16,000 of them at
        most, or so many. They go into the model's file. False does without them, and is less accurate.
    kinds : dict or None
        Kinds of columns by name, or by number in an array, where they are not what their types say: "continuous",
        "integer", "ordinal", "binary", "nominal", "date", or "pass" to leave a column alone. A list of categories, from
        low to high, makes an ordinal column of it.
    bounds : dict or None
        Least and greatest value that may be filled in, by column, like `{"age": (0, None)}`; otherwise the observed
        range holds.
    unseen : {"error", "missing"}
        What a category is that `fit` did not see: an error, or a missing value, which is filled.
    add_indicator : bool
        Let `transform` of a table add a column, `missingindicator_<name>`, for every one in which `fit` found holes:
        True, or 1 in an array, where a value was missing.
    keep_empty_features : bool
        Keep a column without any value: one of numbers is filled with zeros, one of categories or dates stays missing,
        with a warning that names it. It plays no part in the rest. If False, such a column is an error that names it.
        (scikit-learn would drop it without a word.)
    clip : bool
        Keep filled values within the observed range of the column, or its bounds.
    validation_fraction : float
        Share of the observed cells hidden during training, to measure the error of each outer iteration and of the
        learned E-step, and to calibrate its intervals; 500 cells of a table are enough. Where they are more than a
        hundredth, trees come to know them in the end. In images only in the first 2000.
    tol : float
        An outer iteration improves if it lowers the error on hidden cells by this share.
    patience : int
        Stop after so many outer iterations in a row without improvement. The best one is kept.
    max_time : float or None
        Seconds after which training stops at the end of the epoch. An outer iteration that is cut short is left out,
        unless it is the first. The network gets what is left of the time. The start is made in any case.
    checkpoint : path or None
        A folder. The state of the run is written there after every epoch, and a `fit` with the same data and
        parameters goes on from it; killed and resumed gives what an uninterrupted run gives, bit for bit.
    dtype : {"float32", "float64"}
        Type of the flow in training. The Gaussian and `transform` always use double precision.
    device : str
        "cpu", or a CUDA device.
    random_state : int, RandomState or None
        Seeds every random choice. Nothing is seeded globally.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    history_ : dict
        `"epochs"`: a record per epoch with L1, L2, reconstruction error, Frobenius norm of the covariance, retried
        factorisations and seconds. `"iterations"`: a record per outer iteration with the change of the imputed values
        (root mean square), the error on hidden cells (RMSE), by how many standard errors it is below that of the start,
        and seconds. `"refine"`: the loss of the network, or its RMSE on the pixels it was shown, every 100 steps, and
        in the last record the RMSE on hidden cells before and after it. Values are in scaled units, columns in [0, 1].
    n_iter_ : int
        Outer iterations run.
    timed_out_ : bool
        Whether `max_time` cut training short.
    best_iteration_ : int
        The one that was kept, counted from 1; `transform` replays the stages up to it. 0 if none of them was better
        on the hidden cells than the Gaussian from which training started, by a standard error.
    n_seen_ : float
        Rows learnt from, or the sum of their weights.
    stages_, latent_mean_, latent_covariance_
        The fitted flows and Gaussians, and mean and covariance of the last Gaussian.

    Examples
    --------
    >>> import numpy as np
    >>> from emflow import EMFlowImputer
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 4))
    >>> X[rng.random(X.shape) < 0.2] = np.nan
    >>> filled = EMFlowImputer(n_iterations=1, random_state=0).fit_transform(X)
    >>> bool(np.isnan(filled).any())
    False
    """

    limits: ClassVar[dict[str, Limit]] = EMFLOW

    def __init__(
        self,
        *,
        n_iterations: int | None = None,
        n_epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        reconstruction_weight: float = 1e4,
        step_scale: float = 0.99,
        step_exponent: float = 0.8,
        covariance_inflation: float | tuple[float, ...] = 1e-2,
        super_batch_size: int = 3000,
        flow: str = "auto",
        n_couplings: int = 6,
        hidden_width: int | None = None,
        reinit: bool = True,
        initial_fill: str = "gaussian",
        refine: str | dict[str, float] = "auto",
        refine_steps: int | None = None,
        store_rows: bool | int = True,
        kinds: dict[Any, Any] | None = None,
        bounds: dict[Any, Any] | None = None,
        unseen: str = "error",
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        clip: bool = True,
        validation_fraction: float = 0.05,
        tol: float = 1e-3,
        patience: int = 2,
        max_time: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_iterations = n_iterations
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.reconstruction_weight = reconstruction_weight
        self.step_scale = step_scale
        self.step_exponent = step_exponent
        self.covariance_inflation = covariance_inflation
        self.super_batch_size = super_batch_size
        self.flow = flow
        self.n_couplings = n_couplings
        self.hidden_width = hidden_width
        self.reinit = reinit
        self.initial_fill = initial_fill
        self.refine = refine
        self.refine_steps = refine_steps
        self.store_rows = store_rows
        self.kinds = kinds
        self.bounds = bounds
        self.unseen = unseen
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.clip = clip
        self.validation_fraction = validation_fraction
        self.tol = tol
        self.patience = patience
        self.max_time = max_time
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, kind: str = "tabular", **overrides: Any) -> EMFlowImputer:
        """Return an imputer with the paper's hyperparameters (appendix F) and no additions of ours.

        No cells are hidden for validation, so all outer iterations run and the last one is kept. The paper does not
        give the number of epochs; ten per training phase reach its numbers. Under MAR it inflates the covariance:
        pass `covariance_inflation=(1e-2, 1e-2, 1e-3, 1e-3, 0)`. For images `kind="image"` has the alpha of MNIST;
        for CIFAR-10 pass `reconstruction_weight=1e6` and the same inflation.

        Deviation: new rows of tables start from the median, where the paper draws at random (see `initial_fill`).
        """
        common: dict[str, Any] = {
            "n_iterations": 5, "n_epochs": 10, "step_scale": 0.99, "step_exponent": 0.8, "covariance_inflation": 0.0,
            "n_couplings": 6, "hidden_width": None, "reinit": True, "clip": True, "validation_fraction": 0.0,
            "flow": "dense", "refine": "off",
        }  # fmt: skip
        kinds: dict[str, dict[str, Any]] = {
            "tabular": {
                "batch_size": 256, "learning_rate": 1e-4, "reconstruction_weight": 1e6, "super_batch_size": 0,
                "initial_fill": "draw",
            },
            "image": {
                "batch_size": 512, "learning_rate": 1e-3, "reconstruction_weight": 5e8, "super_batch_size": 3000,
                "initial_fill": "nearest",
            },
        }  # fmt: skip
        if kind not in kinds:
            raise ParameterError(f'kind must be "tabular" or "image", but it is {kind!r}')
        return cls(**(common | kinds[kind] | overrides))

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        missing: Any = None,
        initial: Any = None,
        sample_weight: ArrayLike | None = None,
    ) -> EMFlowImputer:
        """Learn from the rows of X.

        Parameters
        ----------
        X : array-like of shape (n, p), or images of shape (n, h, w) or (n, h, w, c)
            Numbers, NaN where missing. A row may be missing as a whole, a column only with `keep_empty_features`.
        y : None
            Not used; here for scikit-learn's pipelines.
        missing : array of bool, optional
            Further missing cells, True where missing: of the shape of X, or (n, h, w) for whole pixels of images with
            channels.
        initial : array-like of the shape of X, optional
            An initial imputation of your own, in the units of X, instead of `initial_fill`. Only its values at the
            missing cells count.
        sample_weight : array-like of shape (n,), optional
            What each row counts for, at least 0. The Gaussian takes a row of weight 3 as three rows; training shows
            rows in proportion to it, and errors on hidden cells are weighted. A row of weight 0 is left out.
        """
        started = time.monotonic()
        weight, X, missing, initial = weighed(sample_weight, X, missing, initial)
        return self._fit_rows(self._read_new(X, missing, weight), weight, initial, started)

    @available_if(keeps_rows)  # type: ignore[untyped-decorator]
    def partial_fit(
        self, X: Any, y: Any = None, *, missing: Any = None, sample_weight: ArrayLike | None = None
    ) -> EMFlowImputer:
        """Learn from further rows as well: the next part of a table that comes in parts, or of a stream.

        The first call is a `fit`. After that, the rows that the model keeps (`store_rows`) stand for all before them:
        the Gaussian is fitted to them and the new ones, and training of the learned E-step goes on from where it was,
        with a third of the steps, or `refine_steps`; from the start, if means or deviations of columns have changed by
        much. Ranges grow with the rows. Columns, their kinds and categories are those of the first part: others are an
        error. For tables whose E-step is learnt: a model that keeps no rows has no `partial_fit`. `checkpoint` is not
        used.
        """
        if not hasattr(self, "stages_"):
            return self.fit(X, y, missing=missing, sample_weight=sample_weight)
        started = time.monotonic()
        self._check_parameters()
        weight, X, missing = weighed(sample_weight, X, missing)
        rows = self._read(X, missing)
        refinement = cast(TableRefinement, self.refinement_)
        kept, stands_for = stored_rows(refinement, self.schema_, rows)
        weight = np.concatenate([stands_for, np.ones(len(rows)) if weight is None else weight])
        holed = np.flatnonzero(self._layout.holes(X, rows, missing).any(0)).tolist()
        schema = self.schema_.widened(rows, self._layout)
        earlier = in_units_of(schema, refinement, self.schema_)
        with self._unless_it_fails():
            self.schema_, self.indicated_ = schema, sorted({*self.indicated_, *holed})
            return self._fit_rows(np.concatenate([kept, rows]), weight, started=started, earlier=earlier)

    def _fit_rows(
        self,
        X: Array,
        weight: Array | None = None,
        initial: Any = None,
        started: float | None = None,
        earlier: TableRefinement | None = None,
    ) -> EMFlowImputer:
        """Fit to rows (n, p) of numbers; the first ones are those that an earlier E-step keeps, if there is one."""
        started = time.monotonic() if started is None else started
        self.n_seen_ = float(len(X) if weight is None else weight.sum())
        n_known = 0 if earlier is None else len(earlier.reference.x)
        n_rows = max(len(X), ENOUGH_ROWS) if n_known else len(X)  # what is learnt is not given up for having few rows
        self._check_fill(n_rows)
        start = None if initial is None else self._read_initial(initial, X)
        saved = self._saved() if earlier is None else None
        seed = self._seed() if saved is None else saved[1]["seed"]
        run = self._begin(X, start, weight, seed, self.settings(n_rows), n_known)
        del X, start  # their memory
        if saved is not None:
            run.restore(*saved)
        train(
            run,
            after_epoch=(lambda: run.save(self._checkpoint_file()))
            if self.checkpoint and not n_known
            else lambda: None,
            max_time=self._time_left(started),
            verbose=bool(self.verbose),
        )
        refinement, done = self._refine(run, started, earlier) if self._refines(n_rows) else (None, True)
        self.timed_out_ = bool(not done or (self._time_left(started) <= 0 and not run.finished))
        self.history_ = run.history
        self.n_iter_ = run.iteration
        self.best_iteration_ = run.best_iteration
        self._keep(run.model, refinement)
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.refine, dict):
            if unknown := self.refine.keys() - SETTINGS.keys():
                raise ParameterError(f"refine has no {', '.join(map(repr, unknown))}; it has {', '.join(SETTINGS)}")
            check(SETTINGS, self.refine, "refine")

    def _check_fill(self, n_rows: int) -> None:
        """Check the initial imputation, and how it is refined, against what X is."""
        kind, for_images = self.initial_fill, self.image_shape_ is not None
        if for_images and isinstance(self.refine, dict):
            raise ParameterError('settings in refine are for tables; images have "auto", "on" and "off"')
        if FILLS[kind] not in (None, for_images):
            raise ParameterError(f"initial_fill={kind!r} is for {'tables' if for_images else 'images'}")
        if self._most_iterations(n_rows) == 0 and kind != "gaussian":
            raise ParameterError(f'without outer iterations initial_fill must be "gaussian", but it is {kind!r}')
        if not for_images:
            self._size(n_rows)  # which refuses what cannot be

    def _most_iterations(self, n_rows: int) -> int:
        """Return the maximum number of outer iterations."""
        if self.n_iterations is None:
            refined = self.image_shape_ is not None or self._refines(n_rows)
            return 0 if refined and self.initial_fill == "gaussian" else 4
        return int(self.n_iterations)

    def _refines(self, n_rows: int) -> bool:
        """Return whether the E-step is learnt for so many rows or images."""
        if self.refine != "auto":
            return self.refine != "off"
        return len(self.schema_.low) < WIDE and (self.image_shape_ is not None or n_rows >= ENOUGH_ROWS)

    def _time_left(self, started: float) -> float:
        return np.inf if self.max_time is None else self.max_time - (time.monotonic() - started)

    def _begin(
        self, X: Array, initial: Array | None, weight: Array | None, seed: int, settings: Settings, n_known: int
    ) -> Run:
        """Return a run at its start: cells hidden, but none in the first rows that are known; holes filled."""
        generator = torch.Generator().manual_seed(seed)
        x, missing = self._tensors(X)
        w = None if weight is None else torch.from_numpy(weight).to(x)
        if self.image_shape_ is None:
            hidden = hide_alike(x, missing, self.validation_fraction, generator, self._owner(), ENOUGH_HIDDEN, n_known)
        else:
            hidden = hide(missing[:VALIDATED], self.validation_fraction, generator, self._owner())
        values = x.take(hidden)
        holes = missing.flatten().index_fill(0, hidden, True).view_as(missing)
        dtype = getattr(torch, self.dtype)
        patterns = Patterns(holes)
        stage = None
        x_hat = fill_draw(x, holes, generator) if self.initial_fill == "draw" else self._fill(x, holes)
        if initial is not None:  # not at the hidden cells, whose values it may know
            x_hat = torch.where(missing, torch.from_numpy(self.schema_.scale(initial)).to(x), x_hat)
        elif self.initial_fill == "gaussian":
            stage = Stage(RealNVP(x.shape[1], n_couplings=0).to(x), self._fit_start(x_hat, patterns, generator, w))
            if self.image_shape_ is None or settings.n_iterations:
                x_hat = reimpute(stage, x_hat, patterns, self.clip)
            else:  # without outer iterations the other images would be filled for nothing
                x_hat[:VALIDATED] = reimpute(stage, x_hat[:VALIDATED], Patterns(holes[:VALIDATED]), self.clip)
        return Run(settings, x_hat.to(dtype), patterns, hidden, values.to(dtype), generator, seed, x.dtype, stage, w)

    def _fit_start(self, x: Tensor, patterns: Patterns, generator: torch.Generator, weight: Tensor | None) -> Gaussian:
        """Return the Gaussian from whose conditional mean the outer iterations start."""
        if self.image_shape_ is None:
            return fit_gaussian(x, patterns, generator, verbose=bool(self.verbose), weight=weight)[0]
        start = stationary_start(x, patterns.missing, self.image_shape_, weight)
        if x.shape[1] >= WIDE:
            return regular(start, IMAGE_INFLATION)
        rows = torch.randperm(len(x), generator=generator)[:EM_IMAGES].to(x.device)
        missing = patterns.missing.index_select(0, rows)
        share = missing.float().mean().item()  # EM contracts by factors from 0 up to about this one
        return fit_gaussian(
            x.index_select(0, rows), Patterns(missing), generator, IMAGE_PASSES, beta=IMAGE_INFLATION,
            verbose=bool(self.verbose), start=start, relaxation=2 / (2 - share),
            weight=None if weight is None else weight.index_select(0, rows),
        )[0]  # fmt: skip

    def _fill(self, x: Tensor, missing: Tensor) -> Tensor:
        if self.initial_fill == "zero":
            return x.masked_fill(missing, 0)
        middle = self._fill_middle(x, missing)
        if self.initial_fill != "nearest":
            return middle
        assert self.image_shape_ is not None
        return fill_nearest(middle, missing, self.image_shape_)

    @torch.no_grad()
    def _refine(self, run: Run, started: float, earlier: TableRefinement | None) -> tuple[Refinement | None, bool]:
        """Learn the E-step that refines what the stages fill in; None if it does not help on the hidden cells.

        Return also whether there was time for all of its steps.
        """
        history = run.history["refine"] = []
        left = self._time_left(started)
        if left <= 0 and earlier is None:
            return None, False
        x, missing = run.x_hat.to(run.precision), run.patterns.missing
        try:
            refinement, records, n_steps = self._learn(run, x, missing, left, earlier)
        except DivergedError as diverged:
            if earlier is not None:
                raise
            warnings.warn(f"{diverged}. Kept: what was learnt before it.", RuntimeWarning, stacklevel=3)
            return None, True
        history += records
        done = history[-1]["step"] == n_steps and history[-1].get("forest", True)
        if not len(run.hidden):
            return refinement, done
        row, column = run.hidden // x.shape[1], run.hidden % x.shape[1]
        rows, row = row.unique(return_inverse=True)  # those in which cells are hidden
        hidden, truth, holes = row * x.shape[1] + column, run.hidden_values, missing.index_select(0, rows)
        before = self._replay(run.model, x.index_select(0, rows), holes)
        after = refinement.complete(before, holes, self.clip)
        emphasis = run.emphasis(run.hidden)
        errors = [(filled.take(hidden) - truth).abs() for filled in (before, after)]
        for name, error in zip(("validation_rmse_before", "validation_rmse"), errors, strict=True):
            history[-1][name] = (error.square() * emphasis).mean().sqrt().item()
        better = run.gain(*errors) > CLEAR or earlier is not None  # which was better
        if self.verbose:
            outcome = "kept" if better else "no better, so not kept"
            texts = [f"{history[-1][name]:.4f}" for name in ("validation_rmse", "validation_rmse_before")]
            tqdm.write(f"learned E-step {outcome}: RMSE {texts[0]} on hidden cells, {texts[1]} without it", sys.stderr)
        if better and isinstance(refinement, TableRefinement):
            known = torch.full_like(before, math.nan).flatten().index_copy(0, hidden, truth.to(before)).view_as(before)
            refinement.calibrate(before, holes, known)
            self._learn_trust(run, refinement, rows, torch.where(known.isnan(), after, known), ~known.isnan())
            done &= self._plant_again(run, refinement, x, missing, self._time_left(started))
        return refinement if better else None, done

    def _learn_trust(self, run: Run, refinement: TableRefinement, rows: Tensor, x: Tensor, asked: Tensor) -> None:
        """Let cells asked for (n, p), which were hidden, tell what a density trusts in; x (n, p) are their rows."""
        chain, holes = self._chain(run.model, refinement), run.patterns.missing.index_select(0, rows)
        weight = torch.ones(len(x)).to(x) if run.weight is None else run.weight.index_select(0, rows)
        settled = chain.settled(x, holes & ~asked)
        chain.learn(settled, asked, weight / weight.mean(), refinement.reference.numbers(rows))

    def _plant_again(self, run: Run, refinement: TableRefinement, x: Tensor, missing: Tensor, left: float) -> bool:
        """Let trees know the hidden cells, which have served their purpose, where they are a good share of all.

        Return whether there was time for it.
        """
        n_trees, observed = refinement.shape["n_trees"], (~missing[:, wanted_columns(missing)]).sum().item()
        if not n_trees or len(run.hidden) <= WORTH_BACK * observed:
            return True
        if left > 0:
            known = x.flatten().index_copy(0, run.hidden, run.hidden_values.to(x)).view_as(x)
            holes = missing.flatten().index_fill(0, run.hidden, False).view_as(missing)
            data = Data(known, holes, partial(self._replay, run.model), self._owner(), run.weight)
            return plant(refinement, data, n_trees, run.generator, left, bool(self.verbose))
        return False

    @torch.enable_grad()
    def _learn(
        self, run: Run, x: Tensor, missing: Tensor, left: float, earlier: TableRefinement | None
    ) -> tuple[Refinement, list[dict[str, Any]], int]:
        """Return the learned E-step, the history of its training, and the steps that this should have."""
        data = x, missing, partial(self._replay, run.model)
        options = run.generator, left, bool(self.verbose)
        if self.image_shape_ is not None:
            n_steps = self.refine_steps or IMAGE_STEPS
            return *fit_images(*data, self.image_shape_, n_steps, *options, run.weight), n_steps
        size = self._size(len(x), wanted_columns(missing).float().mean().item())
        if earlier is not None and not can_go_on(earlier, x, missing, size):
            earlier = None
        if earlier is not None and self.refine_steps is None:
            size = replace(size, n_steps=math.ceil(size.n_steps * GOING_ON))
        rows = Data(*data, self._owner(), run.weight)
        return *fit_tables(rows, size, *options, earlier), size.n_steps

    def _size(self, n_rows: int, lacking: float = 1.0) -> Size:
        """Return the size of the E-step that is learnt from so many rows of a table, of whose columns a share lacks."""
        settings = plain(self.refine) if isinstance(self.refine, dict) else {}
        return Size.of(n_rows, len(self.schema_.low), self.refine_steps, self.store_rows, lacking, **settings)

    def settings(self, n_rows: int) -> Settings:
        """Return the hyperparameters as training sees them."""
        values = {name: getattr(self, name) for name in Settings.__dataclass_fields__ if name != "image_shape"}
        values["image_shape"] = self._convolved(self.flow)
        values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        values["n_iterations"] = self._most_iterations(n_rows)
        values["covariance_inflation"] = tuple(float(beta) for beta in np.atleast_1d(self.covariance_inflation))
        values["n_epochs"] = values["n_epochs"] or math.ceil(STEPS * self.batch_size / max(n_rows, self.batch_size))
        return Settings(**values)

    def _read_initial(self, initial: Any, X: Array) -> Array:
        if self.layout_ is not None and (is_frame(initial) or not self.layout_.plain):
            initial = self.layout_.encode(self._columns(initial, reset=False), self.unseen)
        try:
            initial = np.asarray(initial, dtype=np.float64)
        except (TypeError, ValueError) as error:
            initial = np.asarray(from_objects(initial, error))
        if initial.ndim > 2 and initial.shape[1:] == self.image_shape_:
            initial = initial.reshape(len(initial), -1)
        if initial.shape != X.shape:
            raise DataError(f"initial has shape {initial.shape}, X has {X.shape}: they must be alike")
        bad = ~np.isfinite(initial) & np.isnan(X)
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise DataError(f"initial holds no finite number in row {i}, column {j}, which is missing in X")
        return np.where(np.isfinite(initial), initial, np.asarray(self.schema_.middle))

    def _checkpoint_file(self) -> Path:
        return Path(os.fspath(self.checkpoint)) / "run.safetensors"  # type: ignore[arg-type]

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the checkpoint of an earlier run, if there is one."""
        if self.checkpoint is None:
            return None
        path = self._checkpoint_file()
        if path.parent.exists() and not path.parent.is_dir():
            raise FileError(f"checkpoint {path.parent} is a file: name a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return None
        tensors, header = files.read(path)
        if header.get("kind") != "checkpoint":
            raise FileError(f"{path} is not a checkpoint: name another folder")
        if isinstance(self.random_state, Integral) and header["seed"] != self._seed():
            raise FileError(f"{path} was made from other data or parameters (random_state): name another folder")
        return tensors, header

    def _fitted_scalars(self) -> list[str]:
        return [*super()._fitted_scalars(), "best_iteration_", "timed_out_", "n_seen_"]
