"""A saved model answers as the one that was saved; a file that is not a whole model of ours is refused."""

import json
import pickle
import struct
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import emflow.files
from emflow import EMFlowImputer, FileError, GaussianImputer

SHORT = {"refine": "off", "n_iterations": 2, "n_epochs": 1, "patience": 2, "batch_size": 16, "random_state": 0}
IMPUTERS = {
    "emflow": partial(EMFlowImputer, **SHORT, initial_fill="median"),
    "emflow from a gaussian": partial(EMFlowImputer, **SHORT, initial_fill="gaussian"),
    "emflow in double precision": partial(EMFlowImputer, **SHORT, dtype="float64", hidden_width=5, n_couplings=3),
    "emflow, refined": partial(EMFlowImputer, refine={"width": np.int64(32)}, refine_steps=3, random_state=0),
    "gaussian": partial(GaussianImputer, random_state=0),
}


@pytest.fixture(params=IMPUTERS)
def make(request):
    return IMPUTERS[request.param]


@pytest.fixture
def x():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(40, 1)) + 0.3 * rng.normal(size=(40, 3))) * [1, 10, 0.1]
    return np.where(rng.random(x.shape) < 0.2, np.nan, x)


@pytest.fixture
def saved(make, x, tmp_path):
    """A fitted model and the path of its file."""
    model = make().fit(pd.DataFrame(x, columns=["a", "b", "c"]))
    model.save(tmp_path / "model")
    return model, tmp_path / "model"


@pytest.fixture
def path(x, tmp_path):
    """The file of a fitted EMFlowImputer."""
    IMPUTERS["emflow"]().fit(x).save(tmp_path / "model")
    return tmp_path / "model"


# --- round trip


def test_a_loaded_model_answers_bit_for_bit(saved, x):
    model, path = saved
    loaded = type(model).load(path)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    np.testing.assert_array_equal(loaded.transform(frame), model.transform(frame))
    np.testing.assert_array_equal(loaded.score_samples(frame), model.score_samples(frame))
    np.testing.assert_array_equal(loaded.sample(7), model.sample(7))
    np.testing.assert_array_equal(loaded.intervals(frame), model.intervals(frame))
    np.testing.assert_array_equal(loaded.sample_imputations(frame), model.sample_imputations(frame))


def test_a_loaded_model_has_the_same_attributes(saved):
    model, path = saved
    loaded = type(model).load(path)
    parts = {"stages_", "refinement_"}
    fitted = {name for name in vars(model) if name.endswith("_")} - parts
    assert fitted == {name for name in vars(loaded) if name.endswith("_")} - parts
    assert {"history_", "n_iter_", "schema_", "feature_names_in_", "latent_mean_"} <= fitted
    for name in fitted:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert len(loaded.stages_) == len(model.stages_)
    assert (loaded.refinement_ is None) == (model.refinement_ is None)


def test_a_loaded_model_has_the_same_parameters(saved):
    model, path = saved
    assert type(model).load(path).get_params() == model.get_params()


def test_a_model_without_column_names_has_none_when_loaded(path):
    assert not hasattr(EMFlowImputer.load(path), "feature_names_in_")


def test_a_model_can_be_saved_loaded_and_fitted_again(saved, x):
    model, path = saved
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    again = type(model).load(path).fit(frame)
    np.testing.assert_array_equal(again.transform(frame), model.transform(frame))


@pytest.mark.parametrize(
    "parameters",
    [
        {"checkpoint": "a path"},
        {"covariance_inflation": np.array([0.1, 0.0])},
        {"covariance_inflation": [np.float32(0.1)]},
        {"max_time": np.float64(1e9)},
        {"n_epochs": np.int32(1), "clip": np.bool_(False), "learning_rate": np.float32(1e-3)},
        {"random_state": np.int64(3)},
    ],
    ids=repr,
)
def test_any_parameters_that_can_be_fitted_can_be_saved(parameters, x, tmp_path):
    if "checkpoint" in parameters:
        parameters = {"checkpoint": tmp_path / "folder"}
    model = IMPUTERS["emflow"](**parameters).fit(x)
    model.save(tmp_path / "model")
    loaded = EMFlowImputer.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(x), model.transform(x))
    for name, value in parameters.items():
        np.testing.assert_array_equal(getattr(loaded, name), str(value) if name == "checkpoint" else value)


def test_a_generator_is_not_saved(x, tmp_path):
    model = IMPUTERS["gaussian"](random_state=np.random.RandomState(0)).fit(x)
    model.save(tmp_path / "model")
    assert GaussianImputer.load(tmp_path / "model").random_state is None


def test_loading_unpickles_nothing(saved, monkeypatch):
    model, path = saved

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    for module, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")]:
        monkeypatch.setattr(module, name, refuse)
    assert type(model).load(path).n_iter_ == model.n_iter_


def test_loading_leaves_the_global_generator_alone(saved):
    model, path = saved
    before = torch.get_rng_state()
    type(model).load(path)
    assert torch.equal(torch.get_rng_state(), before)


# --- files that are not whole, not ours, or not there


@pytest.mark.parametrize("share", [0, 1e-3, 0.1, 0.5, 0.9, 1], ids="{:.1%}".format)
def test_a_truncated_file_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: min(int(share * len(content)), len(content) - 1)])
    with pytest.raises(FileError, match=path.name):
        EMFlowImputer.load(path)


def test_a_text_file_is_refused(path):
    path.write_text("a,b,c\n1,2,3\n" * 100)
    with pytest.raises(FileError, match=path.name):
        EMFlowImputer.load(path)


HEADERS = [None, "", "{", "3", "[]", "{}", '{"format": "1"}', '{"format": 1}', '{"format": 1, "kind": "EMFlowImputer"}']


@pytest.mark.parametrize("header", HEADERS)
def test_another_safetensors_file_is_refused(path, header):
    save_file({"weights": torch.zeros(3)}, path, None if header is None else {emflow.files.KEY: header})
    with pytest.raises(FileError, match=path.name):
        EMFlowImputer.load(path)


def rewrite_header(path, change):
    """Apply `change` to the JSON header of a file."""
    tensors, header = emflow.files.read(path)
    change(header)
    save_file(tensors, path, {emflow.files.KEY: json.dumps(header)})


def test_a_newer_format_is_refused(path):
    rewrite_header(path, lambda header: header.update(format=emflow.files.FORMAT + 1))
    with pytest.raises(FileError, match=rf"format {emflow.files.FORMAT + 1}.*newer"):
        EMFlowImputer.load(path)


@pytest.mark.parametrize("key", ["parameters", "schema", "stages", "fitted", "names", "n_features"])
def test_a_file_that_lacks_a_part_is_refused(path, key):
    rewrite_header(path, lambda header: header.pop(key))
    with pytest.raises(FileError, match=path.name):
        EMFlowImputer.load(path)


def test_a_file_that_lacks_a_tensor_is_refused(path):
    tensors, header = emflow.files.read(path)
    tensors.pop("stage.0.mean")
    save_file(tensors, path, {emflow.files.KEY: json.dumps(header)})
    with pytest.raises(FileError, match=path.name):
        EMFlowImputer.load(path)


def test_the_model_of_another_class_is_refused(path):
    with pytest.raises(FileError, match=r"EMFlowImputer.*GaussianImputer"):
        GaussianImputer.load(path)


def test_a_missing_file_is_named(make, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        type(make()).load(tmp_path / "nowhere")


# --- writing


def test_a_file_begins_with_a_readable_header(path):
    """What the format promises other tools: eight bytes of length, then JSON."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][emflow.files.KEY])
    assert (header["format"], header["kind"]) == (emflow.files.FORMAT, "EMFlowImputer")


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
def test_an_old_file_survives_a_failing_save(path, x, monkeypatch, failure):
    content = path.read_bytes()

    def fail_half_way(tensors, filename, metadata):
        save_file(tensors, filename, metadata)
        filename.write_bytes(filename.read_bytes()[:100])
        raise failure

    monkeypatch.setattr(emflow.files, "save_file", fail_half_way)
    with pytest.raises(type(failure)):
        IMPUTERS["gaussian"]().fit(x).save(path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_saving_over_an_old_file_leaves_only_the_new_one(path, x):
    IMPUTERS["gaussian"]().fit(x).save(path)
    GaussianImputer.load(path)
    assert list(path.parent.iterdir()) == [path]


def test_saving_into_a_missing_folder_names_it(make, x, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make().fit(x).save(tmp_path / "nowhere" / "model")
