"""What the figures share: an empty canvas, colours, a legend, and what is said if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from emflow.errors import EMFlowError
from emflow.experiments.catalogue import AnyExperiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"emflow": "#0b6e99", "mcflow": "#d1603d"}
QUICK = "quick runs: a smoke test, nothing to compare"


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure (inches) that draws without a window."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EMFlowError(f'figures need matplotlib ({error}): pip install "emflow-impute[bench]"') from error
    drawn = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.suptitle(title)
    return drawn


def legend_below(drawn: Figure, axes: Iterable[Axes]) -> None:
    """Put one legend for all below the panels, where it hides no curve."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
    drawn.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=len(entries), frameon=False)


def tidy(axis: Axes) -> None:
    """Draw a light grid, and no lines above and on the right."""
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def need(there: bool, experiment: AnyExperiment, quick: bool) -> None:
    """Raise what to run if there is nothing to draw."""
    if not there:
        command = f"emflow experiments run {experiment.name}{' --quick' if quick else ''}"
        raise EMFlowError(f"there are no results of {experiment.name} yet: `{command}` makes them")
