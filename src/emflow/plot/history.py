"""How a fit went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from emflow.errors import ParameterError
from emflow.plot.canvas import GREY, IMPUTED, OBSERVED, axes_of, tidy
from emflow.staged import StagedImputer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def convergence(imputer: StagedImputer, ax: Axes | None = None, *, part: str | None = None) -> Axes:
    """Draw how the fit went.

    Parameters
    ----------
    imputer : EMFlowImputer or GaussianImputer
        A fitted one.
    ax : Axes, optional
        Where to draw; None makes a new figure.
    part : {"refine", "iterations", "epochs"}, optional
        Of an EMFlowImputer: the loss of the learned E-step, the error on hidden cells by outer iteration (or the change
        of the imputation, if no cells were hidden), or the loss L1 + L2 by epoch. None takes the first that there is.
        A GaussianImputer has the change by iteration, and its tolerance.
    """
    check_is_fitted(imputer)
    there = convergence_parts(imputer)
    part = there[0] if part is None else part
    if part not in there:
        raise ParameterError(f"part must be one of {', '.join(there)}, but it is {part!r}")
    ax = axes_of(ax)
    history = imputer.history_ if part == "em" else imputer.history_[part]
    {"em": _draw_em, "refine": _draw_refine, "iterations": _draw_iterations, "epochs": _draw_epochs}[part](
        ax, imputer, history
    )
    tidy(ax)
    return ax


def convergence_parts(imputer: StagedImputer) -> list[str]:
    """Return what `convergence` can draw of a fitted imputer; a start alone is nothing that could converge."""
    history = imputer.history_
    if isinstance(history, list):
        return ["em"]
    found = [part for part in ("refine", "iterations", "epochs") if len(history.get(part, [])) > (part == "iterations")]
    return found or ["iterations"]


def _draw_em(ax: Axes, imputer: Any, history: Sequence[Any]) -> None:
    ax.plot(*_line(history, "iteration", "change"), color=OBSERVED, marker="o", markersize=3)
    ax.axhline(imputer.tol, color=GREY, linestyle="--", label="tolerance")
    ax.set(xlabel="iteration of EM", ylabel="change", yscale="log")
    ax.legend(frameon=False, fontsize="small")


def _draw_refine(ax: Axes, imputer: Any, history: Sequence[Any]) -> None:
    measure = "loss" if "loss" in history[0] else "rmse"
    ax.plot(*_line(history, "step", measure), color=OBSERVED, marker="o", markersize=3)
    ax.set(xlabel="step", ylabel="loss" if measure == "loss" else "RMSE", title="learned E-step")


def _draw_iterations(ax: Axes, imputer: Any, history: Sequence[Any]) -> None:
    measured = history[0]["validation_rmse"] is not None
    x, y = _line(history, "iteration", "validation_rmse" if measured else "change")
    ax.plot(x, y, color=OBSERVED, marker="o", markersize=4)
    best = imputer.best_iteration_
    ax.plot(best, y[x.index(best)], "o", color=IMPUTED, markersize=9, fillstyle="none", label="kept")
    ax.set(xlabel="outer iteration", ylabel="RMSE on hidden cells" if measured else "change of the imputation")
    ax.locator_params(axis="x", integer=True)
    ax.legend(frameon=False, fontsize="small")


def _draw_epochs(ax: Axes, imputer: Any, history: Sequence[Any]) -> None:
    loss = [record["l1"] + record["l2"] for record in history]
    ax.plot(range(1, len(loss) + 1), loss, color=OBSERVED)
    for i, (before, record) in enumerate(pairwise(history)):
        if record["iteration"] != before["iteration"]:
            ax.axvline(i + 1.5, color=GREY, linestyle=":")
    ax.set(xlabel="epoch; dotted: a new outer iteration", ylabel="loss L1 + L2")


def _line(history: Sequence[Any], x: str, y: str) -> tuple[list[Any], list[Any]]:
    return [record[x] for record in history], [record[y] for record in history]
