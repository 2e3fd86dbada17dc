"""Killed and resumed equals uninterrupted, bit for bit; a checkpoint of another run is refused."""

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch

import emflow.files
import emflow.learn.train
from emflow import EMFlowImputer, FileError
from emflow.learn.state import Run

# eight saves: after each epoch and each outer iteration
SETTINGS = {
    "n_iterations": 2,
    "n_epochs": 3,
    "batch_size": 16,
    "super_batch_size": 40,
    "validation_fraction": 0.1,
    "patience": 2,
    "initial_fill": "median",
    "refine": "off",
    "random_state": 0,
}
KILLS = {
    "first epoch": [("after save", 1)],
    "end of the first training phase": [("after save", 3)],
    "first iteration": [("after save", 4)],
    "second iteration": [("after save", 6)],
    "last epoch": [("after save", 7)],
    "before the first rename": [("before rename", 1)],
    "before a later rename": [("before rename", 6)],
    "three times": [("after save", 1), ("before rename", 2), ("after save", 3)],
}
VARIANTS = {
    "plain": {},
    "same flow": {"reinit": False},
    "drawn start": {"initial_fill": "draw", "super_batch_size": 0},
    "gaussian start": {"initial_fill": "gaussian"},
    "no validation, double precision": {"validation_fraction": 0, "dtype": "float64"},
    "no seed": {"random_state": None},
}
CASES = [("plain", kill) for kill in KILLS]
CASES += [("same flow", kill) for kill in ("first epoch", "first iteration", "before a later rename")]
CASES += [(variant, "second iteration") for variant in VARIANTS if variant != "plain"]


def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 1)) + 0.3 * rng.normal(size=(48, 4))
    return np.where(rng.random(x.shape) < 0.2, np.nan, x)


@pytest.fixture
def x():
    return table()


def fit(x, folder, initial=None, **changes):
    return EMFlowImputer(**SETTINGS | {"checkpoint": folder} | changes).fit(x, initial=initial)


def without_seconds(history):
    return {
        name: [{key: value for key, value in record.items() if key != "seconds"} for record in records]
        for name, records in history.items()
    }


def assert_same_model(one, two, x):
    assert (one.n_iter_, one.best_iteration_, len(one.stages_)) == (two.n_iter_, two.best_iteration_, len(two.stages_))
    assert without_seconds(one.history_) == without_seconds(two.history_)
    for a, b in zip(one.stages_, two.stages_, strict=True):
        assert torch.equal(a.flow.weights, b.flow.weights)
        assert torch.equal(a.flow.orders, b.flow.orders)
        assert torch.equal(a.gaussian.mean, b.gaussian.mean)
        assert torch.equal(a.gaussian.cov, b.gaussian.cov)
    np.testing.assert_array_equal(one.transform(x), two.transform(x))


# --- killed and resumed


@cache
def uninterrupted(variant):
    return fit(table(), None, **VARIANTS[variant])


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders, by case, with what fits left there that were killed."""
    root = tmp_path_factory.mktemp("killed")
    np.save(root / "x.npy", table())
    folders = {case: root / str(number) for number, case in enumerate(CASES)}
    jobs = []
    for (variant, kill), folder in folders.items():
        parameters = SETTINGS | {"checkpoint": str(folder)} | VARIANTS[variant]
        jobs += [
            {"data": str(root / "x.npy"), "parameters": parameters, "when": when, "n": n} for when, n in KILLS[kill]
        ]
    (root / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, Path(__file__).with_name("killed_fit.py"), root / "jobs.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [-signal.SIGKILL] * len(jobs)
    return folders


@pytest.fixture
def trained(monkeypatch):
    """The epochs that are trained during the test."""
    epoch, epochs = emflow.learn.train.training_epoch, []

    def counted(run):
        epochs.append((run.iteration, run.epoch))
        epoch(run)

    monkeypatch.setattr(emflow.learn.train, "training_epoch", counted)
    return epochs


@pytest.mark.parametrize(("variant", "kill"), CASES)
def test_killed_and_resumed_equals_uninterrupted(killed, x, monkeypatch, trained, variant, kill):
    folder = killed[variant, kill]
    file = folder / "run.safetensors"
    assert file.exists() == (kill != "before the first rename")
    done = len(emflow.files.read(file)[1]["history"]["epochs"]) if file.exists() else 0
    resumed = fit(x, folder, **VARIANTS[variant])
    assert trained == [(i, e) for i in range(2) for e in range(3)][done:]
    if variant == "no seed":
        seed = emflow.files.read(file)[1]["seed"]
        monkeypatch.setattr(EMFlowImputer, "_seed", lambda self: seed)
    assert_same_model(resumed, uninterrupted(variant), x)


# --- what is written


def test_a_checkpoint_changes_nothing(x, tmp_path):
    assert_same_model(fit(x, tmp_path / "made" / "when" / "missing"), uninterrupted("plain"), x)


def test_the_folder_may_be_given_as_text(x, tmp_path):
    fit(x, str(tmp_path / "folder"))
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["run.safetensors"]


def test_the_file_can_be_read_at_any_moment(x, tmp_path, monkeypatch):
    replace, save = Path.replace, Run.save
    seen = []

    def look_then_replace(new, old):
        seen.append([len(emflow.files.read(path)[1]["history"]["epochs"]) for path in (old, new) if path.exists()])
        return replace(new, old)

    def save_then_look(run, path):
        save(run, path)
        assert emflow.files.read(path)[1]["position"] == [run.iteration, run.epoch]

    monkeypatch.setattr(Path, "replace", look_then_replace)
    monkeypatch.setattr(Run, "save", save_then_look)
    fit(x, tmp_path)
    assert seen == [[1], [1, 2], [2, 3], [3, 3], [3, 4], [4, 5], [5, 6], [6, 6]]


# --- what is found


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return fit(table(), folder), folder / "run.safetensors"


@pytest.fixture
def finished(finished_run, tmp_path):
    """A model, and a copy of the checkpoint of its finished run."""
    model, file = finished_run
    return model, Path(copy(file, tmp_path))


def test_a_finished_checkpoint_returns_at_once(x, finished, trained):
    model, file = finished
    content = file.read_bytes()
    assert_same_model(fit(x, file.parent), model, x)
    assert trained == []
    assert file.read_bytes() == content


def changed(x, row, column, value):
    x = x.copy()
    x[row, column] = value
    return x


OTHER_DATA = {
    "a cell": lambda x: changed(x, 0, 0, 0.123),
    "a hole": lambda x: changed(x, np.flatnonzero(~np.isnan(x[:, 1]))[-1], 1, np.nan),
    "a row": lambda x: x[:-1],
    "a column": lambda x: x[:, :-1],
    "order": lambda x: x[::-1],
}
OTHER_PARAMETERS = [
    {"n_iterations": 3},
    {"n_epochs": 4},
    {"batch_size": 8},
    {"learning_rate": 1e-2},
    {"reconstruction_weight": 1.0},
    {"step_scale": 0.5},
    {"step_exponent": 0.6},
    {"covariance_inflation": 0.0},
    {"super_batch_size": 0},
    {"n_couplings": 4},
    {"hidden_width": 8},
    {"reinit": False},
    {"initial_fill": "draw"},
    {"initial_fill": "gaussian"},
    {"clip": False},
    {"validation_fraction": 0.3},
    {"tol": 0.1},
    {"patience": 1},
    {"dtype": "float64"},
    {"random_state": 1},
    {"initial": np.zeros((48, 4))},
]


def assert_refused(x, file, **changes):
    content = file.read_bytes()
    with pytest.raises(FileError, match="other data or parameters"):
        fit(x, file.parent, **changes)
    assert file.read_bytes() == content


@pytest.mark.parametrize("case", OTHER_DATA)
def test_a_checkpoint_of_other_data_is_refused(x, finished, case):
    assert_refused(OTHER_DATA[case](x), finished[1])


@pytest.mark.parametrize("changes", OTHER_PARAMETERS, ids=lambda changes: "-".join(map(str, changes.items()))[:40])
def test_a_checkpoint_of_other_parameters_is_refused(x, finished, changes):
    assert_refused(x, finished[1], **changes)


def test_the_same_initial_imputation_goes_on(x, tmp_path):
    initial = np.zeros(x.shape)
    assert_same_model(fit(x, tmp_path, initial=initial), fit(x, tmp_path, initial=initial), x)


@pytest.mark.parametrize("change", [{"verbose": True}, {"max_time": 1e9}], ids=str)
def test_what_does_not_change_the_model_may_differ(x, finished, change):
    assert_same_model(fit(x, finished[1].parent, **change), finished[0], x)


@pytest.mark.parametrize("share", [0, 0.1, 0.9])
def test_a_truncated_checkpoint_is_refused(x, finished, share):
    file = finished[1]
    content = file.read_bytes()[: int(share * file.stat().st_size)]
    file.write_bytes(content)
    with pytest.raises(FileError, match=r"run\.safetensors"):
        fit(x, file.parent)
    assert file.read_bytes() == content


def test_a_model_is_not_a_checkpoint(x, tmp_path):
    uninterrupted("plain").save(tmp_path / "run.safetensors")
    with pytest.raises(FileError, match=r"run\.safetensors"):
        fit(x, tmp_path)


def test_a_checkpoint_is_not_a_model(finished):
    with pytest.raises(FileError, match="checkpoint"):
        EMFlowImputer.load(finished[1])


def test_a_file_is_not_a_folder(x, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(FileError, match="notes is a file"):
        EMFlowImputer(checkpoint=tmp_path / "notes").fit(x)
    assert (tmp_path / "notes").read_text() == "mine"
