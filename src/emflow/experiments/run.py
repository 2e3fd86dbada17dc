"""The scheduler: every cell that is not finished yet, each in a process of its own, cheap ones first."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from emflow.errors import DatasetError, ParameterError
from emflow.experiments.catalogue import AnyCell, AnyExperiment, load
from emflow.experiments.cell import run_cell
from emflow.experiments.image_cell import run_image_cell
from emflow.experiments.image_plan import ImageCell, ImageExperiment
from emflow.experiments.machine import provenance, usable_cores
from emflow.experiments.methods import STOP_THEMSELVES
from emflow.experiments.plan import N_FOLDS
from emflow.experiments.process import CellError, call
from emflow.experiments.results import Record, Results

GRACE = 60.0  # seconds beyond twice the budget, after which a method that should have stopped itself is killed
COSTS = {  # seconds per 100,000 values, as measured once; missForest and neighbours grow faster than that
    "mean": 0.1, "gaussian": 1, "bayesian_ridge": 2, "emflow": 10, "knn": 10, "gain": 15, "missforest": 30,
    "mcflow": 60, "ours": 10, "nearest": 0.5, "emflow_paper": 10, "misgan": 30,
}  # fmt: skip
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {postfix}"
METRICS = ("rmse", "mae", "sliced_wasserstein", "energy_distance", "congeniality", "coverage")
IMAGE_METRICS = ("rmse", "mae", "accuracy", "clean_accuracy")


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    already, finished : int
        Cells that were in the results before, and that this run added.
    unavailable : dict
        Set -> why it cannot be had.
    errors : list of (cell, str)
        Cells that failed, to be tried again by the next run.
    """

    already: int = 0
    finished: int = 0
    unavailable: dict[str, str] = field(default_factory=dict)
    errors: list[tuple[AnyCell, str]] = field(default_factory=list)


def run(
    name: str,
    folder: str | os.PathLike[str],
    *,
    sets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    rates: Sequence[float] | None = None,
    folds: int | None = None,
    jobs: int = 1,
    quick: bool = False,
    budget: float | None = None,
    quiet: bool = False,
) -> Report:
    """Run the cells of an experiment that its results lack.

    Parameters
    ----------
    name : str
        The experiment: one of `catalogue.NAMES`.
    folder : path
        Where its file of results is, or will be.
    sets, methods : sequence of str, optional
        Which ones; all of them by default. A set named here that cannot be had is an error, others are passed over.
    mechanisms : sequence of str, optional
        Which ones of an experiment on tables.
    rates : sequence of float, optional
        Which missing rates of an experiment on images.
    folds : int, optional
        How many of the five folds of a table; by default all of small sets, two of large ones.
    jobs : int
        Cells that run at the same time; the cores are divided among them.
    quick : bool
        A smoke test: few rows, short training, a file of results of its own.
    budget : float, optional
        Seconds per cell; by default those that the plan gives the method. A method that can stop itself does so and
        keeps its best; others are killed. Either way the result says so.
    quiet : bool
        No progress bar.
    """
    if folds is not None and not 1 <= folds <= N_FOLDS:
        raise ParameterError(f"folds must be from 1 to {N_FOLDS}, but it is {folds}")
    if jobs < 1 or not (budget is None or budget > 0):
        raise ParameterError(f"jobs and budget must be positive, but they are {jobs} and {budget} seconds")
    experiment = load(name)
    chosen: tuple[list[str], list[str], list[Any]]  # the last ones are mechanisms, or rates of images
    if isinstance(experiment, ImageExperiment):
        _refuse(name, "images", mechanisms=mechanisms, folds=folds)
        chosen = experiment.select(sets, methods, rates, quick)
    else:
        _refuse(name, "tables", rates=rates)
        chosen = experiment.select(sets, methods, mechanisms)
    report = Report()
    data = _look_up(experiment, chosen[0], report, must_exist=sets is not None)
    if not data:
        raise DatasetError(
            "no set can be had: " + "; ".join(f"{key}: {why}" for key, why in report.unavailable.items())
        )
    results = Results(folder, experiment.cells_of, quick, experiment.cell_type)
    results.repair()
    budgets = {_imputer(experiment, method): budget or 60 * experiment.methods[method].budget for method in chosen[1]}
    cells = [
        cell
        for dataset in data
        for method in chosen[1]
        for condition in chosen[2]
        for cell in _cells(experiment, dataset, condition, method, folds, data[dataset]["rows"], quick)
    ]
    todo = [
        cell
        for cell in cells
        if not results.finished(cell, budgets[cell.method], data[cell.dataset]["rows"])
        or _lacks_picture(experiment, cell, results)
    ]
    todo.sort(key=lambda cell: cost(cell, data[cell.dataset]))
    report.already = len(cells) - len(todo)
    _train_classifiers(todo, quiet)
    _run_all(todo, data, results, report, jobs, budgets, quiet)
    return report


def _imputer(experiment: AnyExperiment, method: str) -> str:
    """Return the name that cells of a method have."""
    return method if isinstance(experiment, ImageExperiment) else experiment.methods[method].imputer


def _refuse(name: str, kind: str, **options: Any) -> None:
    for option, value in options.items():
        if value is not None:
            raise ParameterError(f"{name} is about {kind} and takes no {option}: leave them out")


def _cells(
    experiment: AnyExperiment, dataset: str, condition: Any, method: str, folds: int | None, rows: int, quick: bool
) -> Iterable[AnyCell]:
    if isinstance(experiment, ImageExperiment):
        return experiment.cells(dataset, condition, method, quick)
    return experiment.cells(dataset, condition, method, folds or experiment.n_folds(rows, quick), quick)


def _lacks_picture(experiment: AnyExperiment, cell: AnyCell, results: Results) -> bool:
    """Whether images are to be shown that a finished cell does not have, say because only its line was handed on."""
    if not (isinstance(experiment, ImageExperiment) and isinstance(cell, ImageCell) and experiment.with_pictures):
        return False
    record = results.get(cell)
    killed = record is not None and record["rmse"] is None
    return not (killed or (results.path.parent / cell.picture).exists())


def _train_classifiers(todo: list[AnyCell], quiet: bool) -> None:
    """Train what will judge the images, once and before any cell starts: it is no part of a cell's time."""
    wanted = {cell.dataset for cell in todo if isinstance(cell, ImageCell) and cell.with_accuracy}
    if wanted:
        from emflow.experiments.classify import classifier

        for dataset in sorted(wanted):
            classifier(dataset, verbose=not quiet)


def _look_up(
    experiment: AnyExperiment, sets: Sequence[str], report: Report, must_exist: bool
) -> dict[str, dict[str, Any]]:
    """Return rows, columns and note of each set that can be had; note the others in the report."""
    data = {}
    for name in sets:
        try:
            data[name] = experiment.look_up(name)
        except DatasetError as error:
            if must_exist:
                raise
            report.unavailable[name] = str(error)
    return data


def _run_all(
    todo: list[AnyCell],
    data: dict[str, Any],
    results: Results,
    report: Report,
    jobs: int,
    budgets: dict[str, float],
    quiet: bool,
) -> None:
    threads = max(1, usable_cores() // jobs)
    origin = provenance(threads)  # of now: the code that runs is the one that was imported
    costs = {cell.key: cost(cell, data[cell.dataset]) for cell in todo}
    running: set[BaseProcess] = set()
    pool = ThreadPoolExecutor(jobs)
    bar = tqdm(total=sum(costs.values()), desc="experiments", disable=quiet, bar_format=BAR)
    futures = {
        pool.submit(execute, cell, budgets[cell.method], threads, running, results.path.parent): cell for cell in todo
    }
    try:
        for done, future in enumerate(as_completed(futures), start=1):
            cell = futures[future]
            try:
                measured = future.result()
            except CellError as error:
                report.errors.append((cell, str(error)))
                bar.write(f"failed: {cell}: {error}", file=sys.stderr)
            else:
                results.append(asdict(cell) | data[cell.dataset] | measured | origin)
                report.finished += 1
            bar.set_postfix_str(f"{done} of {len(todo)} cells, {cell}", refresh=False)
            bar.update(costs[cell.key])
    finally:  # after an interrupt too: no cell outlives the run
        pool.shutdown(wait=False, cancel_futures=True)
        while any(not future.done() for future in futures):  # a cell may be about to start
            for process in list(running):
                process.kill()
            time.sleep(0.05)
        bar.close()


def cost(cell: AnyCell, data: dict[str, Any]) -> float:
    """Return roughly how long a cell takes, in units that are the same for all, for the order and the progress bar."""
    most = cell.max_train if isinstance(cell, ImageCell) else cell.max_rows
    rows = min(data["rows"], most or data["rows"])
    return 1 + COSTS[cell.method] * rows * data["columns"] / 1e5


def execute(cell: AnyCell, budget: float, threads: int, running: set[BaseProcess], folder: Path) -> Record:
    """Run a cell in a fresh process and return its result; `running` holds the process meanwhile."""
    limit = 2 * budget + GRACE if cell.method in STOP_THEMSELVES else budget
    if isinstance(cell, ImageCell):
        result = call(run_image_cell, (cell, budget, folder), limit, threads, running)
    else:
        result = call(run_cell, (cell, budget), limit, threads, running)
    if result is None:
        metrics = IMAGE_METRICS if isinstance(cell, ImageCell) else METRICS
        result = dict.fromkeys(metrics) | {"timed_out": True, "fit_seconds": None, "warnings": []}
    return result | {"budget": budget}
