"""What a fit tells of itself, when it stops, what it keeps, and the density it has learnt."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

import emflow.imputer
import emflow.learn.train
from emflow import DataError, DivergedError
from emflow.refine import forest, training
from emflow.refine.tables import TableRefinement

EPOCH = {"iteration", "epoch", "l1", "l2", "reconstruction", "frobenius", "retries", "seconds"}
ITERATION = {"iteration", "change", "validation_rmse", "gain", "seconds"}
EM_ITERATION = {"iteration", "change", "frobenius", "retries", "seconds"}


def numbers(records):
    return [value for record in records for value in record.values() if value is not None]


# --- the records


def test_history_of_emflow(make_emflow, x):
    model = make_emflow(n_iterations=3, n_epochs=2, patience=3).fit(x)
    epochs, iterations = model.history_["epochs"], model.history_["iterations"]
    assert set(model.history_) == {"epochs", "iterations"}
    assert all(set(record) == EPOCH for record in epochs)
    assert all(set(record) == ITERATION for record in iterations)
    assert [(r["iteration"], r["epoch"]) for r in epochs] == [(i, e) for i in (1, 2, 3) for e in (1, 2)]
    assert [r["iteration"] for r in iterations] == [1, 2, 3]
    assert model.n_iter_ == 3
    assert np.isfinite(numbers(epochs) + numbers(iterations)).all()
    json.dumps(model.history_, allow_nan=False)


def test_history_of_the_gaussian(make_gaussian, x):
    model = make_gaussian().fit(x)
    assert all(set(record) == EM_ITERATION for record in model.history_)
    assert [r["iteration"] for r in model.history_] == list(range(1, model.n_iter_ + 1))
    json.dumps(model.history_, allow_nan=False)


def test_the_gaussian_stops_when_little_changes(make_gaussian, x):
    model = make_gaussian(n_iterations=500, tol=1e-2).fit(x)
    changes = [record["change"] for record in model.history_]
    assert model.n_iter_ < 500
    assert changes[-1] <= 1e-2 < min(changes[:-1])


def test_the_change_is_that_of_the_imputed_values(make_emflow, complete, x):
    assert make_emflow().fit(x).history_["iterations"][0]["change"] > 0
    unchanged = make_emflow(validation_fraction=0).fit(complete).history_["iterations"][0]
    assert (unchanged["change"], unchanged["validation_rmse"]) == (0, None)


def test_seconds_add_up(make_emflow, x):
    history = make_emflow().fit(x).history_
    spent = [record["seconds"] for record in history["epochs"]]
    assert min(spent) > 0
    assert sum(spent) <= history["iterations"][0]["seconds"]


# --- which iteration is kept, and when training stops


@pytest.mark.parametrize("start", ["median", "gaussian"])
def test_the_best_iteration_is_kept(make_emflow, x, start):
    model = make_emflow(n_iterations=4, patience=4, initial_fill=start).fit(x)
    first = 0 if start == "gaussian" else 1  # a Gaussian to start from is a stage, and counts as iteration 0
    records = model.history_["iterations"]
    assert [record["iteration"] for record in records] == list(range(first, 5))
    able = [record for record in records if start == "median" or record["iteration"] == 0 or record["gain"] > 1]
    assert model.best_iteration_ == min(able, key=lambda record: record["validation_rmse"])["iteration"]
    assert len(model.stages_) == model.best_iteration_ + 1 - first
    np.testing.assert_array_equal(model.latent_mean_, model.stages_[-1].gaussian.mean)
    np.testing.assert_array_equal(model.latent_covariance_, model.stages_[-1].gaussian.cov)


@pytest.mark.parametrize(
    ("errors", "patience", "best"),
    [
        ([0.3, 0.1, 0.2], 1, 2),
        ([0.3, 0.1, 0.2, 0.15], 2, 2),
        ([0.3, 0.2, 0.25, 0.1, 0.11, 0.12], 2, 4),
        ([0.3, 0.29], 1, 2),  # better, though by less than tol: a reason to stop, and to keep it
        ([0.3, 0.28, 0.26, 0.26, 0.26], 2, 3),  # small steps add up to tol
        ([0.2, 0.2], 1, 1),
        ([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], 1, 6),  # the maximum
    ],
)
def test_training_stops_after_patience(make_emflow, x, monkeypatch, errors, patience, best):
    phase, left = emflow.learn.train.reimputation_phase, iter(errors)

    def with_error(run, started):
        phase(run, started)
        run.history["iterations"][-1]["validation_rmse"] = next(left)

    monkeypatch.setattr(emflow.learn.train, "reimputation_phase", with_error)
    model = make_emflow(n_iterations=6, n_epochs=1, reinit=False, patience=patience, tol=0.1).fit(x)
    assert (model.n_iter_, model.best_iteration_, len(model.stages_)) == (len(errors), best, best)


@pytest.mark.parametrize("patience", [1, 2])
def test_no_improvement_at_all_stops_early(make_emflow, x, patience):
    model = make_emflow(n_iterations=5, n_epochs=1, patience=patience, tol=0.999).fit(x)
    assert model.n_iter_ == 1 + patience


def test_without_validation_all_iterations_run_and_count(make_emflow, x):
    model = make_emflow(n_iterations=4, n_epochs=1, validation_fraction=0, tol=0.999).fit(x)
    assert (model.n_iter_, model.best_iteration_, len(model.stages_)) == (4, 4, 4)
    assert [record["validation_rmse"] for record in model.history_["iterations"]] == [None] * 4


def test_the_error_is_that_of_hidden_cells(make_emflow, complete):
    """Columns that are copies of each other: hidden cells are found again, but not by looking at them."""
    model = make_emflow(n_iterations=2, n_epochs=20, validation_fraction=0.1).fit(complete[:, [0, 0, 0]])
    spread = np.std((complete[:, 0] - complete[:, 0].min()) / np.ptp(complete[:, 0]))
    assert 0 < model.history_["iterations"][0]["validation_rmse"] < 0.5 * spread


def test_max_time_stops_early_and_leaves_a_model(make_emflow, x):
    model = make_emflow(n_iterations=3, n_epochs=5, max_time=1e-9).fit(x)
    assert (model.n_iter_, len(model.history_["epochs"]), len(model.stages_)) == (1, 1, 1)
    assert np.isfinite(model.transform(x)).all()


@pytest.mark.parametrize("reinit", [True, False])
def test_reinit_starts_a_new_flow(make_emflow, x, reinit):
    model = make_emflow(n_iterations=2, n_epochs=1, validation_fraction=0, reinit=reinit, learning_rate=1e-5).fit(x)
    first, second = (stage.flow.weights.detach().numpy() for stage in model.stages_)
    step = np.abs(second - first).max()
    assert step > 0
    assert (step > 0.1) == reinit  # Adam moves a weight by about the learning rate at a time


# --- the initial imputation


def test_an_initial_imputation_is_used(make_emflow, x):
    imputer = make_emflow(validation_fraction=0)
    by_name, median, largest = (
        imputer.fit(x, initial=None if values is None else np.tile(values, (len(x), 1))).transform(x)
        for values in (None, np.nanmedian(x, 0), np.nanmax(x, 0))
    )
    np.testing.assert_array_equal(median, by_name)
    assert (largest != by_name).any()


def test_only_the_missing_cells_of_an_initial_imputation_count(make_emflow, complete, x):
    given = np.where(np.isnan(x), complete, np.nan)
    expected = make_emflow().fit(x, initial=complete).transform(x)
    np.testing.assert_array_equal(make_emflow().fit(x, initial=given).transform(x), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_initial_imputation_is_named(make_emflow, complete, x, value):
    complete[3, 2], x[3, 2] = value, np.nan
    with pytest.raises(DataError, match="row 3, column 2"):
        make_emflow().fit(x, initial=complete)


def test_an_initial_imputation_of_another_shape_is_refused(make_emflow, complete, x):
    with pytest.raises(DataError, match=r"\(60, 3\).*\(60, 4\)"):
        make_emflow().fit(x, initial=complete[:, :3])


# --- progress


def test_progress_is_shown_on_the_error_stream(make, x, capsys):
    make(verbose=True).fit(x)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "iterations in 00:" in shown.err or "epochs in 00:" in shown.err  # lines: this is no terminal


def test_no_progress_unless_asked_for(make, x, capsys, tmp_path):
    model = make(verbose=False).fit(x)
    model.transform(x)
    model.save(tmp_path / "model")
    assert capsys.readouterr() == ("", "")


# --- density and samples


def test_the_score_of_the_gaussian_is_its_log_density(make_gaussian, complete):
    model = make_gaussian(covariance_inflation=0, tol=0, n_iterations=2).fit(complete)
    known = multivariate_normal(complete.mean(0), np.cov(complete.T, bias=True))
    np.testing.assert_allclose(model.score_samples(complete), known.logpdf(complete), rtol=1e-8)


def test_the_density_of_emflow_integrates_to_one(make_emflow, complete):
    x = complete[:, [1, 3]]
    model = make_emflow(clip=False, n_epochs=5, dtype="float64").fit(x)
    low, span = x.min(0), np.ptp(x, 0)
    edges = [np.linspace(low[j] - 2 * span[j], low[j] + 3 * span[j], 300) for j in (0, 1)]
    cell = np.prod([e[1] - e[0] for e in edges])
    grid = np.stack(np.meshgrid(*edges), -1).reshape(-1, 2)
    assert np.exp(model.score_samples(grid)).sum() * cell == pytest.approx(1, abs=0.01)


def test_the_score_of_a_row_with_gaps_is_that_of_its_completion(make, x):
    model = make().fit(x)
    rows = np.vstack([x, [5, np.nan, np.nan, np.nan], [np.nan, np.nan, np.nan, 0]])  # two of them out of range
    np.testing.assert_allclose(model.score_samples(rows), model.score_samples(model.transform(rows)), rtol=1e-5)


def test_samples_have_the_shape_and_moments_of_the_rows(make, complete):
    drawn = make(clip=False).fit(complete).sample(4000)
    assert drawn.shape == (4000, 4)
    np.testing.assert_allclose((drawn.mean(0) - complete.mean(0)) / complete.std(0), 0, atol=0.3)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.corrcoef(complete.T), atol=0.2)


def test_samples_are_seeded(make, x):
    model = make(random_state=3).fit(x)
    np.testing.assert_array_equal(model.sample(5), model.sample(5))
    assert (model.set_params(random_state=4).sample(5) != make(random_state=3).fit(x).sample(5)).any()


@pytest.mark.parametrize("seed", range(3))
def test_samples_stay_within_range_if_clipped(make, seed):
    x = np.random.default_rng(seed).normal(size=(40, 5))
    clipped, free = (make(clip=clip).fit(x).sample(1000) for clip in (True, False))
    assert ((x.min(0) <= clipped) & (clipped <= x.max(0))).all()
    assert ((free < x.min(0)) | (free > x.max(0))).any()


@pytest.mark.parametrize("value", ["red", pd.NaT, np.inf])
def test_an_initial_imputation_without_a_number_is_refused_by_cell(make_emflow, complete, x, value):
    x[3, 1] = np.nan
    initial = complete.astype(object)
    initial[3, 1] = value
    with pytest.raises(DataError, match=r"row 3, column 1|column 1 .*row 3"):
        make_emflow().fit(x, initial=initial)


@pytest.mark.parametrize(("refine", "rows", "learnt"), [("auto", 60, True), ("auto", 61, False), ("on", 61, True)])
def test_enough_rows_have_their_e_step_learnt(make_refined, x, monkeypatch, refine, rows, learnt):
    monkeypatch.setattr(emflow.imputer, "ENOUGH_ROWS", rows)
    fitted = make_refined(refine=refine, n_epochs=1).fit(x)
    assert ("refine" in fitted.history_) == learnt
    assert (fitted.n_iter_ == 0) == learnt  # it takes the place of the outer iterations


def test_a_learned_e_step_that_does_not_help_is_dropped(make_refined, x, monkeypatch):
    monkeypatch.setattr(TableRefinement, "complete", lambda refinement, x_hat, missing, clip, **_: 1 - x_hat)
    fitted = make_refined().fit(x)
    assert fitted.refinement_ is None
    last = fitted.history_["refine"][-1]
    assert last["validation_rmse"] > last["validation_rmse_before"]


@pytest.mark.parametrize(("factor", "outcome"), [(0, "kept: RMSE"), (1, "no better, so not kept: RMSE")])
def test_fit_says_whether_the_learned_e_step_is_kept(make_refined, complete, x, monkeypatch, capsys, factor, outcome):
    scaled = (complete - np.nanmin(x, 0)) / (np.nanmax(x, 0) - np.nanmin(x, 0))
    right = torch.from_numpy(scaled)

    def complete_rightly(refinement, x_hat, missing, clip, **_):
        apart = (x_hat[:, None] - right).square().masked_fill(missing[:, None], 0).sum(2)
        return right[apart.argmin(1)] + factor

    monkeypatch.setattr(TableRefinement, "complete", complete_rightly)
    fitted = make_refined(verbose=True).fit(x)
    assert (fitted.refinement_ is None) == bool(factor)
    assert f"learned E-step {outcome}" in capsys.readouterr().err


@pytest.mark.parametrize(("worth", "times"), [(0.0, 2), (1.0, 1)])
def test_trees_know_the_hidden_cells_in_the_end(make_refined, x, monkeypatch, worth, times):
    observed, weights = [], []

    def grow(filled, known, *others):
        observed.append(int(known.sum()))
        weights.append(others[4])
        return forest.grow(filled, known, *others)

    monkeypatch.setattr(training, "grow", grow)
    monkeypatch.setattr(emflow.imputer, "WORTH_BACK", worth)
    monkeypatch.setattr(emflow.imputer, "CLEAR", -100.0)  # so that it is kept
    make_refined().fit(x, sample_weight=np.arange(1.0, 1 + len(x)))
    assert len(observed) == times
    assert all(len(weight.unique()) == len(x) for weight in weights)
    assert observed[0] < (~np.isnan(x)).sum()
    assert times == 1 or observed[1] == (~np.isnan(x)).sum()


def test_a_learned_e_step_that_diverges_leaves_what_there_is(make_refined, x, monkeypatch):
    def diverge(*arguments):
        raise DivergedError("the loss of the network is not finite at step 3")

    monkeypatch.setattr(emflow.imputer, "fit_tables", diverge)
    with pytest.warns(RuntimeWarning, match=r"at step 3\. Kept: "):
        fitted = make_refined().fit(x)
    assert fitted.refinement_ is None
    assert not fitted.timed_out_
    assert np.isfinite(fitted.transform(x)).all()


def test_no_time_leaves_the_gaussian(make_refined, x):
    fitted = make_refined(max_time=1e-9).fit(x)
    assert fitted.refinement_ is None
    assert fitted.timed_out_


def test_little_time_shortens_the_training(make_refined, x):
    fitted = make_refined(refine_steps=10**6, max_time=1.0).fit(x)
    assert 1 <= fitted.history_["refine"][-1]["step"] < 10**6
    assert fitted.timed_out_
