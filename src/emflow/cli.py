"""The command line: `emflow impute`, `emflow experiments` and `emflow demo`. Argument parsing only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from emflow import EMFlowError, EMFlowImputer, GaussianImputer, __version__
from emflow.csv_table import read_csv, write_csv
from emflow.experiments.cli import add_parser as add_experiments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 after an error, 130 after an interrupt."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (EMFlowError, OSError, UnicodeDecodeError) as error:
        print(f"emflow: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("emflow: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="emflow", description="Fill missing values.")
    parser.add_argument("--version", action="version", version=f"emflow {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    impute = commands.add_parser("impute", help="fill the holes of a numeric CSV file")
    impute.add_argument("input", type=Path, metavar="IN.csv", help="empty cells, NA, NaN, null, None and ? are missing")
    impute.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.csv")
    impute.add_argument("--method", choices=("emflow", "gaussian"), default="emflow", help="default: %(default)s")
    impute.add_argument(
        "--model", type=Path, help="use this fitted model instead of fitting one (its kind is --method)"
    )
    impute.add_argument("--save-model", type=Path, help="write the fitted model, to fill other files with --model")
    impute.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    impute.add_argument("--no-header", action="store_true", help="the first line holds numbers, not column names")
    impute.add_argument("--delimiter", default=",", help="default: %(default)r")
    impute.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    impute.set_defaults(run=_impute)

    add_experiments(commands)

    demo = commands.add_parser("demo", help="hide cells of the data sets that scikit-learn ships, fill them, compare")
    demo.add_argument(
        "-o", "--output", type=Path, default=Path("demo"), help="folder of the picture, default: %(default)s"
    )
    demo.set_defaults(run=_demo)
    return parser


def _impute(arguments: argparse.Namespace) -> None:
    if arguments.output.exists() and arguments.output.samefile(arguments.input):
        raise EMFlowError(f"the output {arguments.output} is the input: name another file")
    table = read_csv(arguments.input, has_header=not arguments.no_header, delimiter=arguments.delimiter)
    method = {"emflow": EMFlowImputer, "gaussian": GaussianImputer}[arguments.method]
    if arguments.model:
        imputer = method.load(arguments.model)
    else:
        imputer = method(random_state=arguments.seed, verbose=not arguments.quiet).fit(table.X)
    write_csv(arguments.output, table, imputer.transform(table.X))
    if arguments.save_model:
        imputer.save(arguments.save_model)
    if not arguments.quiet:
        filled = int((table.X != table.X).sum())
        print(f"{filled} of {table.X.size} cells filled, written to {arguments.output}", file=sys.stderr)


def _demo(arguments: argparse.Namespace) -> None:
    from emflow.demo import run  # needs matplotlib, which the imputers do not

    run(arguments.output)
