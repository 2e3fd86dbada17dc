"""The sub-command `emflow experiments`: run the paper's experiments, show its tables, draw its figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from emflow.errors import EMFlowError

# Written out here, so that `emflow --help` loads nothing of this.
TABLES = ("table1", "congeniality", "accuracy", "table2", "table3")
FIGURES = ("convergence", "hyperparameters", "samples", "initial")
EXPERIMENTS = TABLES + FIGURES


def add_parser(commands: Any) -> None:
    """Add `experiments` to the sub-commands of a parser (what its `add_subparsers` returned)."""
    parser = commands.add_parser("experiments", help="the paper's tables and figures, next to the published numbers")
    actions = parser.add_subparsers(required=True, metavar="action")

    run = actions.add_parser("run", help="run what is not run yet; a killed run goes on where it was")
    run.add_argument("name", choices=EXPERIMENTS)
    for name in ("sets", "methods"):
        run.add_argument(f"--{name}", type=_names, metavar="A,B", help="default: all")
    run.add_argument("--mechanisms", type=_names, metavar="A,B", help="of tables; default: all")
    run.add_argument("--rates", type=_numbers, metavar="A,B", help="of images; default: all")
    run.add_argument("--folds", type=int, help="of tables, of five; default: 5, or 2 from 10,000 rows on")
    run.add_argument("--jobs", type=int, default=1, help="cells at a time, default: %(default)s")
    run.add_argument(
        "--budget", type=float, metavar="MINUTES", help="per cell; default: 20, and for images as the plan has it"
    )
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    run.set_defaults(run=_run)

    table = actions.add_parser("table", help="print a table from the results")
    table.add_argument("name", choices=TABLES)
    table.add_argument("--format", choices=("text", "markdown", "latex"), help="default: text")
    table.add_argument(
        "--into", type=Path, metavar="PAGE.md", help="put it there, between <!-- NAME --> and <!-- /NAME -->"
    )
    table.set_defaults(run=_table)

    figure = actions.add_parser("figure", help="draw a figure from the results")
    figure.add_argument("name", choices=FIGURES)
    figure.add_argument(
        "-o", "--output", type=Path, default=Path("figures"), metavar="DIR", help="default: %(default)s"
    )
    figure.set_defaults(run=_figure)

    for action in (run, table, figure):
        action.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
        action.add_argument("--quick", action="store_true", help="a smoke test on few rows, with results of its own")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one")
    return names


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _names(text)]


def _run(arguments: argparse.Namespace) -> None:
    from emflow.experiments.run import run

    report = run(
        arguments.name, arguments.results,
        sets=arguments.sets, methods=arguments.methods, mechanisms=arguments.mechanisms, rates=arguments.rates,
        folds=arguments.folds, jobs=arguments.jobs, quick=arguments.quick,
        budget=None if arguments.budget is None else 60 * arguments.budget, quiet=arguments.quiet,
    )  # fmt: skip
    for name, reason in report.unavailable.items():
        sys.stderr.write(f"passed over: {name}: {reason}\n")
    sys.stderr.write(f"{report.finished} cells run, {report.already} were there already\n")
    if report.errors:
        failed = "\n".join(f"  {cell}: {message.splitlines()[-1]}" for cell, message in report.errors)
        raise EMFlowError(f"{len(report.errors)} cells failed, and will be tried again by the next run:\n{failed}")


def _table(arguments: argparse.Namespace) -> None:
    from emflow.experiments.table import table

    form = arguments.format or ("markdown" if arguments.into else "text")
    if arguments.into and form != "markdown":
        raise EMFlowError(f"--into writes Markdown: leave out --format {form}")
    text = table(arguments.name, arguments.results, form, arguments.quick)
    if arguments.into is None:
        sys.stdout.write(text + "\n")
        return
    from emflow.experiments.page import insert

    insert(arguments.into, arguments.name, text)


def _figure(arguments: argparse.Namespace) -> None:
    from emflow.experiments.figure import figure

    paths, summary = figure(arguments.name, arguments.results, arguments.output, arguments.quick)
    sys.stdout.write(f"{summary}\n\nwritten: {', '.join(map(str, paths))}\n")
