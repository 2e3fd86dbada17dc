"""The scheduler: every cell that is not finished yet, each in a process of its own, cheap ones first."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from tqdm.auto import tqdm

from emflow import datasets
from emflow.errors import DatasetError, ParameterError
from emflow.experiments.cell import run_cell
from emflow.experiments.machine import provenance
from emflow.experiments.methods import STOP_THEMSELVES
from emflow.experiments.plan import N_FOLDS, Cell, Experiment
from emflow.experiments.process import CellError, call
from emflow.experiments.results import Record, Results

BUDGET = 20 * 60.0  # seconds per cell
GRACE = 60.0  # seconds beyond twice the budget, after which a method that should have stopped itself is killed
COSTS = {  # seconds per 100,000 values, as measured once; missForest and neighbours grow faster than that
    "mean": 0.1, "gaussian": 1, "bayesian_ridge": 2, "emflow": 10, "knn": 10, "gain": 15, "missforest": 30,
    "mcflow": 60,
}  # fmt: skip
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {postfix}"
METRICS = ("rmse", "mae", "sliced_wasserstein", "energy_distance", "congeniality")


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    already, finished : int
        Cells that were in the results before, and that this run added.
    unavailable : dict
        Set -> why it cannot be had.
    errors : list of (Cell, str)
        Cells that failed, to be tried again by the next run.
    """

    already: int = 0
    finished: int = 0
    unavailable: dict[str, str] = field(default_factory=dict)
    errors: list[tuple[Cell, str]] = field(default_factory=list)


def run(
    name: str,
    folder: str | os.PathLike[str],
    *,
    sets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    folds: int | None = None,
    jobs: int = 1,
    quick: bool = False,
    budget: float = BUDGET,
    quiet: bool = False,
) -> Report:
    """Run the cells of an experiment that its results lack.

    Parameters
    ----------
    name : str
        The experiment: one of `plan.NAMES`.
    folder : path
        Where its file of results is, or will be.
    sets, methods, mechanisms : sequence of str, optional
        Which ones; all of them by default. A set named here that cannot be had is an error, others are passed over.
    folds : int, optional
        How many of the five folds; by default all of small sets, two of large ones.
    jobs : int
        Cells that run at the same time; the cores are divided among them.
    quick : bool
        A smoke test: few rows, short training, a file of results of its own.
    budget : float
        Seconds per cell. A method that can stop itself does so and keeps its best; others are killed. Either way the
        result says so.
    quiet : bool
        No progress bar.
    """
    if folds is not None and not 1 <= folds <= N_FOLDS:
        raise ParameterError(f"folds must be from 1 to {N_FOLDS}, but it is {folds}")
    if jobs < 1 or not budget > 0:
        raise ParameterError(f"jobs and budget must be positive, but they are {jobs} and {budget:g} seconds")
    experiment = Experiment.load(name)
    chosen = experiment.select(sets, methods, mechanisms)
    report = Report()
    data = _look_up(experiment, chosen[0], report, must_exist=sets is not None)
    if not data:
        raise DatasetError(
            "no set can be had: " + "; ".join(f"{key}: {why}" for key, why in report.unavailable.items())
        )
    results = Results(folder, experiment.cells_of, quick)
    results.repair()
    cells = [
        cell
        for dataset in data
        for method in chosen[1]
        for mechanism in chosen[2]
        for cell in experiment.cells(
            dataset, mechanism, method, folds or experiment.n_folds(data[dataset]["rows"], quick), quick
        )
    ]
    todo = [cell for cell in cells if not results.finished(cell, budget, data[cell.dataset]["rows"])]
    todo.sort(key=lambda cell: cost(cell, data[cell.dataset]))
    report.already = len(cells) - len(todo)
    _run_all(todo, data, results, report, jobs, budget, quiet)
    return report


def _look_up(
    experiment: Experiment, sets: Sequence[str], report: Report, must_exist: bool
) -> dict[str, dict[str, Any]]:
    """Return rows, columns and note of each set that can be had; note the others in the report."""
    data = {}
    for name in sets:
        try:
            loaded = datasets.load(name, target=name in experiment.congeniality)
        except DatasetError as error:
            if must_exist:
                raise
            report.unavailable[name] = str(error)
        else:
            rows, columns = loaded.X.shape
            data[name] = {"rows": rows, "columns": columns, "note": loaded.note}
    return data


def _run_all(
    todo: list[Cell], data: dict[str, Any], results: Results, report: Report, jobs: int, budget: float, quiet: bool
) -> None:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    origin = provenance(threads)  # of now: the code that runs is the one that was imported
    costs = {cell.key: cost(cell, data[cell.dataset]) for cell in todo}
    running: set[BaseProcess] = set()
    pool = ThreadPoolExecutor(jobs)
    bar = tqdm(total=sum(costs.values()), desc="experiments", disable=quiet, bar_format=BAR)
    futures = {pool.submit(execute, cell, budget, threads, running): cell for cell in todo}
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


def cost(cell: Cell, data: dict[str, Any]) -> float:
    """Return roughly how long a cell takes, in units that are the same for all, for the order and the progress bar."""
    rows = min(data["rows"], cell.max_rows or data["rows"])
    return 1 + COSTS[cell.method] * rows * data["columns"] / 1e5


def execute(cell: Cell, budget: float, threads: int, running: set[BaseProcess]) -> Record:
    """Run a cell in a fresh process and return its result; `running` holds the process meanwhile."""
    limit = 2 * budget + GRACE if cell.method in STOP_THEMSELVES else budget
    result = call(run_cell, (cell, budget), limit, threads, running)
    if result is None:
        result = dict.fromkeys(METRICS) | {"timed_out": True, "fit_seconds": None, "warnings": []}
    return result | {"budget": budget}
