"""Algorithm 1 and the outer loop: training phase and re-imputation phase in turns."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from emflow.errors import DivergedError
from emflow.latent.condition import Conditional
from emflow.latent.gaussian import NotPositiveDefiniteError
from emflow.learn.objective import composite_loss, negative_log_likelihood
from emflow.learn.reimpute import reimpute
from emflow.learn.state import Run
from emflow.order import shuffled
from emflow.progress import progress
from emflow.threads import few_threads


def train(
    run: Run, after_epoch: Callable[[], None] = lambda: None, max_time: float = math.inf, verbose: bool = False
) -> None:
    """Move a run on until it is finished: outer iterations of training phase and re-imputation phase.

    Parameters
    ----------
    after_epoch : callable
        Called after every epoch and every outer iteration, to save the run.
    max_time : float
        Seconds after which the current epoch is the last one. An iteration that is cut short is left out, unless it is
        the first: then it gets its re-imputation phase.
    verbose : bool
        Show a progress bar.
    """
    deadline = time.monotonic() + max_time
    epochs = run.settings.n_epochs
    bar = progress(
        total=run.settings.n_iterations * epochs, initial=run.iteration * epochs + run.epoch,
        desc="emflow", unit="epoch", verbose=verbose and run.settings.n_iterations > 0,
    )  # fmt: skip
    with bar, few_threads(run.settings.batch_size * run.x_hat.shape[1]):
        while not run.finished and (time.monotonic() < deadline or not run.stages):
            started = time.monotonic()
            try:
                while run.epoch < epochs and (time.monotonic() < deadline or run.em.estimate is None):
                    training_epoch(run)
                    bar.update()
                    after_epoch()
            except (DivergedError, NotPositiveDefiniteError) as error:
                _give_up(run, error)
                return
            if run.epoch < epochs and run.stages:  # cut short: those before it are better
                return
            reimputation_phase(run, started)
            after_epoch()
            rmse = run.history["iterations"][-1]["validation_rmse"]
            bar.set_postfix(iteration=run.iteration, best=run.best_iteration, validation_rmse=rmse)


def training_epoch(run: Run) -> None:
    """One pass of Algorithm 1 over the rows, in random batches of nearly equal size."""
    started = time.monotonic()
    n = len(run.x_hat)
    order = shuffled(n, run.generator, run.weight).to(run.x_hat.device)
    batches = order.tensor_split(max(1, round(n / run.settings.batch_size)))
    totals, retries = torch.zeros(3, dtype=torch.float64, device=run.x_hat.device), 0
    for rows in batches:
        losses, again = training_step(run, rows)
        totals += losses
        retries += again
    l1, l2, reconstruction = (totals / len(batches)).tolist()
    if not math.isfinite(l1 + l2):
        raise DivergedError(f"the loss is not finite (L1 = {l1}, L2 = {l2})")
    assert run.em.estimate is not None
    run.epoch += 1
    run.history["epochs"].append({
        "iteration": run.iteration + 1, "epoch": run.epoch, "l1": l1, "l2": l2, "reconstruction": reconstruction,
        "frobenius": run.em.estimate.cov.norm().item(), "retries": retries, "seconds": time.monotonic() - started,
    })  # fmt: skip


@torch.no_grad()
def training_step(run: Run, rows: Tensor) -> tuple[Tensor, int]:
    """Lines 3 to 14 of Algorithm 1 for one batch; return (L1, L2, reconstruction error) and factorisation retries."""
    flow, em, beta = run.flow, run.em, run.settings.beta(run.iteration)
    x_hat, layout = run.x_hat.index_select(0, rows), run.patterns.layout(rows)
    encoding = flow.walk(x_hat)
    if em.estimate is None:  # appendix D: the first batch of embeddings initialises the base distribution
        em.start(encoding.result)
    gaussian = em.estimate.inflated(beta)  # type: ignore[union-attr]

    # update the flow
    first = negative_log_likelihood(gaussian, encoding.result, encoding.log_det)
    _, gradient = encoding.pull_back(first.by_z, first.by_log_det)
    _descend(run, gradient)

    # update the base distribution; one factorisation serves z_hat, its gradient and the statistics
    encoding = flow.walk(x_hat)
    conditional = Conditional(gaussian, layout, run.generator)
    z_hat = conditional.mean(encoding.result)  # equation 13
    gaussian = em.update(conditional.statistics(z_hat)).inflated(beta)  # equations 7, 8 and 31

    # update the flow again; the gradient flows through z_hat: without that, training goes to nonsense
    decoding = flow.walk(z_hat, decode=True)
    second = composite_loss(
        gaussian, z_hat, decoding.result, decoding.log_det, x_hat, layout.missing, run.settings.reconstruction_weight
    )
    by_z_hat, gradient = decoding.pull_back(second.by_x_rec, second.by_log_det)
    by_z = conditional.pull_back(by_z_hat.add_(second.by_z_hat))
    gradient += encoding.pull_back(by_z, torch.zeros_like(encoding.log_det))[1]
    _descend(run, gradient)
    return torch.stack((first.value, second.value, second.reconstruction)), conditional.retries


def _descend(run: Run, gradient: Tensor) -> None:
    run.flow.weights.grad = gradient
    run.optimiser.step()


def reimputation_phase(run: Run, started: float) -> None:
    """Algorithm 2 on the training rows; keeps the stage and, unless told otherwise, starts flow and base afresh."""
    stage = run.snapshot()
    before = run.x_hat
    run.x_hat = reimpute(stage, before.to(run.precision), run.patterns, run.settings.clip).to(before.dtype)
    change = (run.x_hat - before)[run.patterns.missing]
    run.stages.append(stage)
    run.iteration += 1
    run.epoch = 0
    run.record_iteration(change.square().mean().sqrt().item() if len(change) else 0.0, time.monotonic() - started)
    if run.settings.reinit and not run.finished:
        run.new_model()


def _give_up(run: Run, error: Exception) -> None:
    """Keep what earlier iterations learnt, and say so; without any there is nothing to keep."""
    advice = "lower learning_rate, raise covariance_inflation, or enlarge batch_size or super_batch_size"
    message = f"training diverged in outer iteration {run.iteration + 1}: {error}; {advice}"
    if not run.model:
        raise DivergedError(message) from error
    warnings.warn(f"{message}. Kept: what was learnt before it.", RuntimeWarning, stacklevel=4)
