"""What the pictures share: axes, colours, and text that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emflow.errors import EMFlowError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OBSERVED, IMPUTED, GREY = "#3a87c8", "#e0762f", "#8a8f98"
AS_IT_IS: dict[str, Any] = {"parse_math": False}  # text of the user's: a dollar in it is a dollar


def axes_of(ax: Axes | None) -> Axes:
    """Return `ax`, or those of a new figure."""
    if ax is not None:
        return ax
    need_matplotlib()
    from matplotlib import pyplot as plt

    return plt.subplots(layout="constrained")[1]


def need_matplotlib() -> None:
    """Raise how to install matplotlib if it is not there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise EMFlowError(f'plots need matplotlib ({error}): pip install "emflow-impute[plot]"') from error


def tidy(ax: Axes) -> None:
    """Draw a light grid, and no lines above and on the right."""
    ax.grid(alpha=0.15)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def short(name: Any, most: int = 22) -> str:
    """Return a name on one line, cut where it is long."""
    text = " ".join(str(name).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def percent(share: float) -> str:
    """Return a share in whole per cent; little is not nothing, and nearly all is not all."""
    if 0 < share < 0.005 or 0.995 <= share < 1:
        return "<1 %" if share < 0.5 else ">99 %"
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Return a number to four digits, large ones to the unit."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
