"""Fit, evaluate, fill, and write the page."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sklearn.base import clone
from tqdm.auto import tqdm

from emflow.evaluation import hide_and_fit
from emflow.files import check_free, whole
from emflow.imputer import EMFlowImputer
from emflow.plot.canvas import need_matplotlib
from emflow.report.doubt import Filling
from emflow.report.page import page
from emflow.report.sections import Findings, details, sections
from emflow.staged import StagedImputer

FIT_SECONDS = 45  # for the fit to a long table, so that its report takes a minute or so


def write_report(
    X: Any,
    path: str | os.PathLike[str],
    imputer: StagedImputer | None = None,
    *,
    title: str = "Missing values",
    random_state: Any = 0,
    force: bool = False,
    verbose: bool = False,
) -> None:
    """Write a page on a table: what is missing, how well it can be filled, and what of it not to trust.

    One HTML file that needs nothing beside itself, written whole or not at all. It needs matplotlib:
    `pip install "emflow-impute[plot]"`.

    There is one fit, as in `evaluate`: a copy of the imputer is fitted to the table with observed cells hidden. It is
    judged by these, and it fills the missing ones, given all that is observed. If the imputer comes fitted, it fills
    them itself.

    Parameters
    ----------
    X : frame, or array of shape (n, p)
    path : path
        Of the file.
    imputer : EMFlowImputer or GaussianImputer, optional
        None has `EMFlowImputer(max_time=45, random_state=random_state)`, as the fit to a long table would take longer.
    title : str
        Heading of the page.
    random_state : int, RandomState or None
        Seeds what is hidden.
    force : bool
        Overwrite a file that is there.
    verbose : bool
        Say on standard error what is being done, and show the progress of the fit.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from emflow import GaussianImputer
    >>> from emflow.report import write_report
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 3))
    >>> X[rng.random(X.shape) < 0.2] = np.nan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(X, Path(folder) / "report.html", GaussianImputer())
    ...     "Cells not to trust" in (Path(folder) / "report.html").read_text(encoding="utf-8")
    True
    """
    check_free(path, force)
    need_matplotlib()
    if imputer is None:
        asked: StagedImputer = EMFlowImputer(max_time=FIT_SECONDS, random_state=random_state)
    else:
        asked = clone(imputer)
    if verbose:
        asked.set_params(verbose=True)
    watch = _Watch(verbose)
    with watch("fit, with cells hidden"):
        trial = hide_and_fit(X, asked, random_state=random_state)
    with watch("evaluate"):
        evaluation = trial.evaluate()
    fitted = imputer is not None and imputer.__sklearn_is_fitted__()
    with watch("fill"):
        filling = Filling.of(imputer if imputer is not None and fitted else trial.imputer, X)
    found = Findings(trial, evaluation, filling, fitted)
    with watch("draw"):
        body = sections(found, title)
    with whole(path) as temporary:
        temporary.write_text(page(title, *body, details(found, random_state, watch.seconds)), encoding="utf-8")


class _Watch:
    """Takes the time of each part of the work, and says what is being done."""

    def __init__(self, verbose: bool) -> None:
        self.verbose, self.seconds = verbose, dict[str, float]()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self.verbose:
            tqdm.write(f"report: {name}", sys.stderr)
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
