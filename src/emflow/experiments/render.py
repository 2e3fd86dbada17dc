"""A table as plain text, Markdown or LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

WIDTH = 120  # of the notes in plain text


@dataclass(frozen=True)
class Block:
    """Rows below one header; every row has as many cells as the header."""

    heading: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Sheet:
    """A table: blocks below a title, and the notes below them."""

    title: str
    blocks: list[Block]
    notes: list[str]


def text(sheet: Sheet) -> str:
    """Return columns aligned by spaces."""
    parts = [sheet.title]
    for block in sheet.blocks:
        lines = [block.header, *block.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        rule = "-" * max(map(len, shown))
        body = [line.rstrip() for line in shown]
        parts.append("\n".join([block.heading, rule, body[0], rule, *body[1:], rule]))
    parts.append("\n".join(textwrap.fill(note, WIDTH, subsequent_indent="    ") for note in sheet.notes))
    return "\n\n".join(parts)


def markdown(sheet: Sheet) -> str:
    """Return a pipe table per block."""
    parts = [f"**{sheet.title}**"]
    for block in sheet.blocks:
        lines = [block.header, [":--", *["--:"] * (len(block.header) - 1)], *block.rows]
        parts += [f"**{block.heading}**", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in sheet.notes)])


def latex(sheet: Sheet) -> str:
    """Return a table environment with one tabular per block; it needs the package booktabs."""
    parts = [r"\begin{table}[ht]", r"\centering", r"\footnotesize", rf"\caption{{{_escape(sheet.title)}}}"]
    for block in sheet.blocks:
        header, *rows = [" & ".join(map(_escape, line)) + r" \\" for line in [block.header, *block.rows]]
        parts += [
            rf"\medskip {_escape(block.heading)} \par",
            rf"\begin{{tabular}}{{l{'r' * (len(block.header) - 1)}}}",
            r"\toprule", header, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}",
        ]  # fmt: skip
    notes = (r" \\" + "\n").join(map(_escape, sheet.notes))
    return "\n".join([*parts, r"\par\medskip\raggedright", notes, r"\end{table}"])


def _escape(cell: str) -> str:
    """Return a cell as LaTeX: special characters escaped, marks raised, numbers in math mode."""
    cell = re.sub(r"[\\{}$&#^_~%]", lambda found: LATEX[found.group()], cell)
    cell = re.sub(r"(?<!\S)([+-]?\d*\.\d+)(?: ± (\d*\.\d+))?(?=[†‡* ]|$)", _in_math, cell)
    cell = re.sub(r" ?\[([a-z])\]", r"\\textsuperscript{\1}", cell)
    return cell.replace("±", r"$\pm$").replace("†", r"\textsuperscript{\dag}").replace("‡", r"\textsuperscript{\ddag}")


def _in_math(found: re.Match[str]) -> str:
    mean, spread = found.groups()
    return f"${mean}\\pm{spread}$" if spread else f"${mean}$"


LATEX = {char: f"\\{char}" for char in "{}$&#_%"} | {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
}  # fmt: skip
FORMATS: dict[str, Callable[[Sheet], str]] = {"text": text, "markdown": markdown, "latex": latex}
