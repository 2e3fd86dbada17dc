"""The command line: `emflow impute` and its siblings, `emflow experiments`, `emflow demo`. Argument parsing only."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emflow import EMFlowError, __version__, commands
from emflow.experiments.cli import add_parser as add_experiments
from emflow.formats import ENDINGS, FORMATS
from emflow.formats.cells import categories
from emflow.table.column import KINDS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 after an error, 130 after an interrupt, 143 if terminated."""
    arguments = _parser().parse_args(argv)
    try:
        with _plain_warnings(), _terminable():
            arguments.run(arguments)
    except BrokenPipeError:  # who reads standard output has gone, and what is left in it must not be flushed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (EMFlowError, OSError, UnicodeDecodeError) as error:
        print(f"emflow: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("emflow: interrupted", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings that are meant for users as lines."""
    with warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = lambda message, *rest: print(f"emflow: warning: {message}", file=sys.stderr)
        yield


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a signal to terminate end the program by an exception, so that no half-written file is left."""

    def leave(*signal: Any) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="emflow", description="Fill missing values.")
    parser.add_argument("--version", action="version", version=f"emflow {__version__}")
    actions = parser.add_subparsers(required=True, metavar="command")
    table, fitting = _table(), _fitting()
    output = _output("OUT", "a table; - is standard output")
    outputs = _output("OUT", "OUT.csv makes the files OUT-1.csv, OUT-2.csv and so on")
    written = _output("MODEL.safetensors", "the model")
    page = _output("REPORT.html", "the page")
    model = _part("model", metavar="MODEL", help="a file that `emflow fit` wrote")
    perhaps = _part("model", nargs="?", metavar="MODEL", help="a file that `emflow fit` wrote; default: fit to IN")
    unseen = _part("--unseen", choices=("error", "missing"), help="what a category is that the model does not know")
    draws = _part("--draws", type=_whole(1), default=5, metavar="N", help="default: %(default)s")
    draws.add_argument(
        "--bootstrap", action="store_true",
        help="fit for each draw, to a bootstrap sample of the rows of IN, so that pooled standard errors are right",
    )  # fmt: skip
    for name, parts, summary in (
        ("impute", [table, output, fitting], "fill the holes of a table"),
        ("fit", [table, written, fitting], "fit a model to a table, to fill others like it"),
        ("transform", [model, table, output, unseen], "fill the holes of a table by a model"),
        ("draw", [perhaps, table, outputs, draws, fitting, unseen], "fill a table by draws, several times"),
        ("evaluate", [table, fitting], "hide observed cells of a table, and see how well they are filled"),
        ("report", [table, page, fitting], "write a page on what is missing and how well it can be filled"),
        ("info", [model], "say what is in a model's file"),
    ):
        action = actions.add_parser(name, parents=parts, help=summary, description=f"{summary.capitalize()}.")
        action.set_defaults(run=getattr(commands, name))

    add_experiments(actions)

    demo = actions.add_parser("demo", help="hide cells of the data sets that scikit-learn ships, fill them, compare")
    demo.add_argument(
        "-o", "--output", type=Path, default=Path("demo"), help="folder of the picture, default: %(default)s"
    )
    demo.set_defaults(run=_demo)
    return parser


def _part(*names: str, **options: Any) -> argparse.ArgumentParser:
    """Return a parser of one argument, of which others can be made."""
    part = argparse.ArgumentParser(add_help=False)
    part.add_argument(*names, **options)
    return part


def _table() -> argparse.ArgumentParser:
    endings = ", ".join(ENDINGS)
    part = _part("input", metavar="IN", help=f"a table ({endings}), its format is in its name; - is standard input")
    part.add_argument("--format", choices=FORMATS, help="of - and of files whose names do not say it; default: csv")
    part.add_argument(
        "--delimiter", type=_delimiter, metavar="C", help="of CSV and TSV, if it is not a comma or a tabulator"
    )
    part.add_argument("--no-header", action="store_true", help="of CSV and TSV; columns are called 1, 2 and so on")
    part.add_argument("--quiet", action="store_true", help="no progress, no summary")
    return part


def _output(name: str, what: str) -> argparse.ArgumentParser:
    part = _part("-o", "--output", required=True, metavar=name, help=what)
    part.add_argument("--force", action="store_true", help="overwrite an existing file")
    return part


def _fitting() -> argparse.ArgumentParser:
    part = _part("--method", choices=commands.METHODS, help="default: emflow")
    part.add_argument("--seed", type=_whole(0), metavar="N", help="default: 0")
    part.add_argument("--max-time", type=_seconds, metavar="SECONDS", help="stop then, with what was learnt")
    part.add_argument(
        "--kinds", type=_kinds, default={}, metavar="age=integer,grade=low<middle<high",
        help=f"kinds of columns that are not what they look like: {', '.join(KINDS)}, or categories in their order",
    )  # fmt: skip
    part.add_argument(
        "--bounds", type=_bounds, default={}, metavar="age=0:120,weight=0:",
        help="least and greatest values that may be filled in; default: the observed range",
    )  # fmt: skip
    return part


def _bounds(text: str) -> dict[str, tuple[float | None, float | None]]:
    bounds: dict[str, tuple[float | None, float | None]] = {}
    for part in text.split(","):
        name, separator, ends = part.rpartition("=")
        try:
            low, high = (float(end) if end else None for end in ends.split(":"))
        except ValueError:
            separator = ""
        if not separator:
            raise argparse.ArgumentTypeError(f"{part!r} is not like age=0:120 or weight=0:")
        bounds[name] = low, high
    return bounds


def _kinds(text: str) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for part in text.split(","):
        name, separator, kind = part.rpartition("=")
        if not separator:
            raise argparse.ArgumentTypeError(f"{part!r} is not like age=integer")
        if "<" not in kind and kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} of {name!r} is no kind; there are {', '.join(KINDS)}")
        kinds[name] = categories(kind.split("<")) if "<" in kind else kind
    return kinds


def _delimiter(text: str) -> str:
    text = "\t" if text == "\\t" else text
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"{text!r} is not one character between cells")
    return text


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _demo(arguments: argparse.Namespace) -> None:
    from emflow.demo import run  # needs matplotlib, which the imputers do not

    run(arguments.output)
