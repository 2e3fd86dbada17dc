"""Pieces of an HTML page that needs nothing beside itself. Text is escaped here, and nowhere else."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#0a0b0c"  # of text and axes in pictures: it becomes the colour of the page's text, light or dark
INKED = "text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "emflow", "font.family": "sans-serif", "font.size": 9,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.facecolor": "none", "figure.facecolor": "none",
    **dict.fromkeys(INKED, INK),
}  # fmt: skip
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

CSS = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5b6470; --line: #d9dee5; --page: #fff; --card: #f5f7f9;
  --blue: #2a6fa8; --orange: #b4541a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ed; --soft: #a0a9b5; --line: #363d46; --page: #14181d;
  --card: #1d232a; --blue: #6fb1e6; --orange: #f0995f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 .25rem; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 1.35rem; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1.05rem; }
p { max-width: 46rem; }
.soft, caption, figcaption { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
.tile { padding: .9rem 1rem; border-radius: .6rem; background: var(--card); }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; }
.tile span { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
caption { padding-bottom: .4rem; text-align: left; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td:first-child { max-width: 16rem; overflow-wrap: anywhere; min-width: 8rem; }
.number { text-align: right; white-space: nowrap; }
.good, .warn { white-space: nowrap; }
.good { color: var(--blue); font-weight: 600; }
.warn { color: var(--orange); font-weight: 600; }
.verdict { padding: .8rem 1rem; border-left: 4px solid var(--blue); background: var(--card); max-width: none; }
.bar { display: inline-block; height: .6rem; border-radius: .3rem; background: var(--orange); vertical-align: middle; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 0 2rem; }
.pair > * { min-width: 0; }
figure { margin: 1rem 0; }
.grid figure { margin: 0; }
svg { display: block; max-width: 100%; height: auto; }
.grid svg { width: 100%; }
.scroll svg { max-width: none; }
figcaption { margin-top: .3rem; font-size: .9rem; }
summary { cursor: pointer; font-weight: 600; }
"""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(value: Any) -> Html:
    """Return a value as HTML: text is escaped."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def element(name: str, content: Any, of_class: str = "") -> Html:
    """Return an element with text or HTML in it."""
    attribute = f' class="{of_class}"' if of_class else ""
    return Html(f"<{name}{attribute}>{html(content)}</{name}>")


def join(parts: Iterable[Any]) -> Html:
    """Return pieces one after the other."""
    return Html("\n".join(html(part) for part in parts))


def section(title: str, *parts: Any) -> Html:
    """Return a part of the page under a heading."""
    return element("section", join([element("h2", title), *parts]))


def tiles(facts: Sequence[tuple[str, str]]) -> Html:
    """Return numbers, each with what it is."""
    found = (element("div", join([element("b", number), element("span", what)]), "tile") for number, what in facts)
    return element("div", join(found), "tiles")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int], caption: str = "") -> Html:
    """Return a table that scrolls for itself; columns `numbers` of it are set to the right."""

    def line(cells: Sequence[Any], kind: str) -> Html:
        return element("tr", Html("".join(element(kind, c, "number" * (j in numbers)) for j, c in enumerate(cells))))

    above = [element("caption", caption)] if caption else []
    body = element("tbody", join(line(row, "td") for row in rows))
    return element("div", element("table", join([*above, element("thead", line(head, "th")), body])), "scroll")


def bar(share: float) -> Html:
    """Return a bar as long as a share."""
    return Html(f'<span class="bar" style="width:{max(2, round(120 * share))}px"></span>')


def picture(draw: Callable[[Axes], Any], width: float, height: float, label: str, caption: str = "") -> Html:
    """Return what `draw` draws on axes of this size (inches) as SVG, in the colours of the page.

    The label is for those who cannot see it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts have what matplotlib's have not
        mpl.rcdefaults()  # whatever the caller's pictures look like
        mpl.rcParams.update(STYLE)
        drawn = Figure(figsize=(width, height), layout="constrained")
        draw(drawn.subplots())
        file = StringIO()
        drawn.savefig(file, format="svg", metadata=NO_METADATA)
    svg = file.getvalue().partition("<svg")[2].partition(">")[2].replace(INK, "currentColor")
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # names of groups, the same in every picture
    size = f'width="{96 * width:.0f}" height="{96 * height:.0f}" viewBox="0 0 {72 * width:g} {72 * height:g}"'
    image = Html(f'<svg role="img" aria-label="{escape(label)}" {size}>{svg}')
    return element("figure", join([image, element("figcaption", caption)] if caption else [image]))


def page(title: str, *parts: Any) -> str:
    """Return the whole page."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n{join(parts)}\n</body>\n</html>\n"
    )
