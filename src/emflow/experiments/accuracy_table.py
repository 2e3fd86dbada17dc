"""The table of accuracy: errors under each mechanism, what each part is worth, seconds and coverage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from emflow.experiments.entry import MARKS, Entry, explained, number
from emflow.experiments.plan import Experiment, label
from emflow.experiments.render import Block
from emflow.experiments.results import Record, Results

OURS, FORESTS = "ours", ("missforest", "missforest_full")
HEADINGS = {
    "mcar": "MCAR, 20 % of all cells",
    "mar": "MAR, the last 30 % of the columns, at the rates of the paper",
    "mcar40": "MCAR, 40 % of all cells",
}
BEST = "*"
MARK = {
    BEST: "The lowest of its line, but for the last column: our error over that of the better missForest, for the "
    "seeds that they have in common."
}


def accuracy_blocks(experiment: Experiment, results: Results, quick: bool) -> tuple[list[Block], list[str]]:
    """Return blocks: errors and what parts are worth, one each per mechanism; seconds; the coverage of intervals."""
    blocks = [_errors(experiment, mechanism, results, quick) for mechanism in experiment.mechanisms]
    parts = [_parts(experiment, mechanism, results, quick) for mechanism in experiment.mechanisms]
    blocks += [block for block in parts if block.rows]
    blocks += [_seconds(experiment, mechanism, results, quick) for mechanism in experiment.mechanisms]
    blocks.append(_coverage(experiment, results, quick))
    return blocks, [*experiment.notes, *explained(MARKS | MARK, blocks)]


def _sets(experiment: Experiment, mechanism: str) -> Sequence[str]:
    return experiment.sets_of.get(mechanism, experiment.sets)


def _records(
    experiment: Experiment, dataset: str, mechanism: str, method: str, results: Results, quick: bool
) -> list[Record]:
    cells = experiment.cells(dataset, mechanism, method, quick=quick)
    return [record for cell in cells if (record := results.get(cell)) is not None]


def _entries(
    experiment: Experiment, dataset: str, mechanism: str, methods: Iterable[str], results: Results, quick: bool
) -> tuple[dict[str, Entry], dict[str, float]]:
    """Return the entry of each method, and the mean of each that has one."""
    entries = {
        method: Entry.of(_records(experiment, dataset, mechanism, method, results, quick), experiment.value)
        for method in methods
    }
    return entries, {method: float(np.mean(entry.values)) for method, entry in entries.items() if entry.values}


def _errors(experiment: Experiment, mechanism: str, results: Results, quick: bool) -> Block:
    methods = [method for method, spec in experiment.methods.items() if method == OURS or spec.imputer != OURS]
    rows, ratios = [], []
    for dataset in _sets(experiment, mechanism):
        entries, means = _entries(experiment, dataset, mechanism, methods, results, quick)
        best = min(means.values(), default=0)
        texts = [
            entry.text(experiment.digits) + BEST * (means.get(method) == best) for method, entry in entries.items()
        ]
        ratio = _ratio(experiment, dataset, mechanism, results, quick)
        ratios += [] if ratio is None else [ratio]
        rows.append([label(dataset), *texts, "-" if ratio is None else number(ratio, 3)])
    if ratios:
        rows.append(["geometric mean", *[""] * len(methods), number(_geometric_mean(ratios), 3)])
    return Block(HEADINGS[mechanism], ["", *_labels(experiment, methods), "ratio"], rows)


def _ratio(experiment: Experiment, dataset: str, mechanism: str, results: Results, quick: bool) -> float | None:
    """Return our error over that of the better missForest, for the seeds that all of them have."""
    errors = [
        {
            record["seed"]: record[experiment.value]
            for record in _records(experiment, dataset, mechanism, method, results, quick)
            if record[experiment.value] is not None
        }
        for method in (OURS, *FORESTS)
    ]
    ours, forests = errors[0], [found for found in errors[1:] if found]
    seeds = set(ours).intersection(*forests)
    if not seeds or not forests:
        return None
    mean, *means = (float(np.mean([found[seed] for seed in seeds])) for found in (ours, *forests))
    return mean / min(means)


def _parts(experiment: Experiment, mechanism: str, results: Results, quick: bool) -> Block:
    methods = [method for method, spec in experiment.methods.items() if spec.imputer == OURS]
    rows: list[list[str]] = []
    ratios: dict[str, list[float]] = {method: [] for method in methods}
    for dataset in _sets(experiment, mechanism):
        entries, means = _entries(experiment, dataset, mechanism, methods, results, quick)
        if means.keys() - {OURS}:
            rows.append([label(dataset), *(entry.text(experiment.digits) for entry in entries.values())])
        for method in means.keys() - {OURS} if OURS in means else ():
            ratios[method].append(means[method] / means[OURS])
    if any(ratios.values()):
        last = [number(_geometric_mean(found), 3) if found else "" for found in ratios.values()]
        rows.append(["geometric mean of the ratio to the whole", *last])
    return Block(f"Without a part; {HEADINGS[mechanism]}", ["", *_labels(experiment, methods)], rows)


def _geometric_mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def _labels(experiment: Experiment, methods: Iterable[str]) -> list[str]:
    return [experiment.methods[method].label for method in methods]


def _seconds(experiment: Experiment, mechanism: str, results: Results, quick: bool) -> Block:
    """Return the seconds of the first seed, and how many times faster we fill than the faster missForest."""
    methods, rows = [OURS, *FORESTS, *(name for name in experiment.methods if name not in (OURS, *FORESTS))], []
    for dataset in _sets(experiment, mechanism):
        times: dict[str, tuple[float, float]] = {}
        for method in methods:
            for record in _records(experiment, dataset, mechanism, method, results, quick):
                if record["seed"] == experiment.seed and record["rmse"] is not None:
                    times[method] = record["fit_seconds"], record["transform_seconds"]
        forests = [times[method][1] for method in FORESTS if method in times]
        ratio = f"{min(forests) / times[OURS][1]:.1f}" if forests and OURS in times else "-"
        texts = ["{:.1f} / {:.2f}".format(*times[method]) if method in times else "-" for method in methods]
        rows.append([label(dataset), *texts, ratio])
    heading = f"Seconds to fit / to fill the test rows, seed {experiment.seed}; {HEADINGS[mechanism]}"
    return Block(heading, ["", *_labels(experiment, methods), "times faster"], rows)


def _coverage(experiment: Experiment, results: Results, quick: bool) -> Block:
    rows = []
    for dataset in experiment.sets:
        row = [label(dataset)]
        for mechanism in experiment.mechanisms:
            records = _records(experiment, dataset, mechanism, OURS, results, quick)
            covered = [record["coverage"] for record in records if record["coverage"] is not None]
            row.append(number(float(np.mean(covered)), 3) if covered else "-")
        rows.append(row)
    headings = [HEADINGS[mechanism].split(",")[0] for mechanism in experiment.mechanisms[:2]]
    return Block("Share of hidden cells within the intervals for 90 %, EMFlow", ["", *headings, "MCAR, 40 %"], rows)
