"""One cell on images, in this process, on scikit-learn's digits."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from emflow.errors import ParameterError
from emflow.experiments import image_cell
from emflow.experiments.image_cell import KEPT, prepare, run_image_cell, scaled, to_bytes
from emflow.experiments.image_methods import METHODS, NearestPixel, PixelMean, build
from emflow.experiments.image_plan import ImageCell, ImageExperiment
from emflow.experiments.methods import STOP_THEMSELVES
from emflow.experiments.run import IMAGE_METRICS

pytestmark = pytest.mark.usefixtures("small_images")
MEAN = ImageCell("table2", "mnist", 0.3, "mean", {}, seed=0)


def test_images_are_scaled_and_hidden_pixel_by_pixel():
    for dataset in ("mnist", "cifar10"):
        train, test = prepare(replace(MEAN, dataset=dataset))
        assert (len(train.pixels), len(test.pixels)) == (200, 80)
        for part in (train, test):
            x = part.holes()
            assert x.dtype == np.float32
            assert part.missing.shape == x.shape[:3]
            assert abs(part.missing.mean() - 0.3) < 0.02
            seen = ~part.missing
            np.testing.assert_array_equal(x[seen], part.pixels[seen].astype(np.float32) / 255)
            assert np.isnan(x[part.missing]).all()


def test_holes_come_from_the_seed_and_grow_with_the_rate():
    (low, low_test), (high, high_test) = prepare(MEAN), prepare(replace(MEAN, rate=0.6))
    assert not (low.missing & ~high.missing).any()
    np.testing.assert_array_equal(low.missing, prepare(MEAN)[0].missing)
    assert (low.missing != prepare(replace(MEAN, seed=1))[0].missing).any()
    assert (low.missing[:80] != low_test.missing).any()
    np.testing.assert_array_equal(prepare(replace(MEAN, rate=0.6, max_train=20))[1].missing, high_test.missing)


def test_max_train_and_max_test_draw_images_with_their_labels():
    train, test = prepare(replace(MEAN, max_train=30, max_test=7))
    assert (len(train.pixels), len(test.pixels), len(test.missing)) == (30, 7, 7)
    whole = prepare(MEAN)[1]
    for pixels, label in zip(test.pixels, test.labels, strict=True):
        (place,) = np.flatnonzero((whole.pixels == pixels).all((1, 2)))
        assert whole.labels[place] == label


def test_bytes_and_back():
    pixels = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(to_bytes(scaled(pixels)), pixels)
    np.testing.assert_array_equal(to_bytes(np.array([-0.2, 1.3, 0.5019], np.float32)), [0, 255, 128])


def test_measurements(tmp_path):
    """The error is that of hidden values in units of [0, 1], not of what is rounded to whole grey levels."""
    result = run_image_cell(MEAN, 60.0, tmp_path)
    train, test = prepare(MEAN)
    means = np.nanmean(train.holes().astype(np.float64), axis=0)
    error = (means - test.pixels / 255)[test.missing]
    assert result["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
    assert result["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert set(IMAGE_METRICS) <= set(result)
    assert result["accuracy"] is None
    assert (result["train_rows"], result["test_rows"], result["timed_out"]) == (200, 80, False)
    assert json.loads(json.dumps(result)) == result


def test_a_colour_counts_as_three_values(tmp_path):
    cell = replace(MEAN, dataset="cifar10")
    train, test = prepare(cell)
    means = np.nanmean(train.holes().astype(np.float64), axis=0)
    error = (means - test.pixels / 255)[test.missing]
    assert error.shape == (test.missing.sum(), 3)
    assert run_image_cell(cell, 60.0, tmp_path)["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_first_images_are_kept(tmp_path, dataset):
    cell = replace(MEAN, dataset=dataset, method="nearest")
    run_image_cell(cell, 60.0, tmp_path)
    with np.load(tmp_path / cell.picture) as kept:
        truth, missing, filled = (kept[name] for name in ("truth", "missing", "filled"))
    test = prepare(cell)[1]
    np.testing.assert_array_equal(truth, test.pixels[:KEPT])
    np.testing.assert_array_equal(missing, test.missing[:KEPT])
    assert filled.dtype == np.uint8
    np.testing.assert_array_equal(filled[~missing], truth[~missing])
    assert (filled[missing] != truth[missing]).any()
    assert [path.name for path in (tmp_path / "images").iterdir()] == [cell.picture.split("/")[1]]


def test_completed_images_are_classified_where_it_is_wanted(tmp_path, monkeypatch):
    seen = []

    def accuracy(images, labels):
        seen.append((images, labels))
        return 0.75

    def classifier(dataset):
        assert dataset == "cifar10"
        return SimpleNamespace(accuracy=accuracy, test_accuracy=0.9)

    monkeypatch.setattr("emflow.experiments.classify.classifier", classifier)
    cell = replace(MEAN, dataset="cifar10", with_accuracy=True)
    result = run_image_cell(cell, 60.0, tmp_path)
    assert (result["accuracy"], result["clean_accuracy"]) == (0.75, 0.9)
    ((images, labels),) = seen
    test = prepare(cell)[1]
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images[~test.missing], test.pixels[~test.missing])
    assert (images[test.missing] != test.pixels[test.missing]).any()
    np.testing.assert_array_equal(labels, test.labels)


class Halving:
    """Stands in for a fitted EMFlow: every stage halves what it has, the initial imputation is 1."""

    def fit(self, X, *, missing):
        assert np.isnan(X[missing]).all()
        epoch = {"l1": -3.0, "l2": 7.0, "frobenius": 2.0, "reconstruction": 1.0, "retries": 0, "seconds": 1.0}
        epochs = [{"iteration": i, "epoch": 1} | epoch for i in (1, 2)]
        self.stages_, self.history_, self.timed_out_ = [0.5, 0.5], {"epochs": epochs, "iterations": []}, True
        return self

    def transform(self, X, *, missing):
        return np.where(missing, np.float32(np.prod(self.stages_)), X)


def test_history_by_epoch_and_by_outer_iteration_from_the_start_on(tmp_path, monkeypatch):
    monkeypatch.setattr(image_cell, "build", lambda *_: Halving())
    result = run_image_cell(replace(MEAN, with_history=True), 60.0, tmp_path)
    history = result["history"]
    assert [epoch["iteration"] for epoch in history["epochs"]] == [1, 2]
    assert set(history["epochs"][0]) == {"iteration", "epoch", "l1", "l2", "frobenius"}
    test = prepare(MEAN)[1]
    truth = test.pixels[test.missing] / 255
    expected = [np.sqrt(((value - truth) ** 2).mean()) for value in (1, 0.5, 0.25)]
    np.testing.assert_allclose(history["rmse"], expected, rtol=1e-5)
    assert history["rmse"][-1] == result["rmse"]
    assert result["timed_out"]


def test_a_pixel_that_is_never_seen_has_the_mean_of_all():
    X = np.array([[[0.0, 0.5]], [[1.0, 0.5]], [[0.5, 0.3]]], np.float32)
    missing = np.array([[[False, True]], [[False, True]], [[True, True]]])
    X[missing] = np.nan
    filled = PixelMean().fit(X, missing=missing).transform(X, missing=missing)
    np.testing.assert_allclose(filled, [[[0.0, 0.5]], [[1.0, 0.5]], [[0.5, 0.5]]])
    assert filled.dtype == np.float32


def test_the_nearest_pixel():
    X = np.array([[[[0.2, 0.4], [np.nan, np.nan], [np.nan, np.nan], [np.nan, np.nan], [0.6, 0.8]]]], np.float32)
    missing = np.array([[[False, True, True, True, False]]])
    filled = NearestPixel().fit(X, missing=missing).transform(X, missing=missing)
    np.testing.assert_array_equal(filled[0, 0, [1, 3]], X[0, 0, [0, 4]])
    assert not np.isnan(filled).any()


def test_every_method_of_table_2_is_built_with_the_parameters_of_the_plan():
    experiment = ImageExperiment.load("table2")
    assert set(experiment.methods) == set(METHODS)
    for method in set(METHODS) - {"mean", "nearest"}:
        for quick in (False, True):
            (cell,) = experiment.cells("cifar10", 0.5, method, quick)
            found = build(method, cell.parameters, 3, 7.0).get_params()
            assert {name: found[name] for name in cell.parameters} == cell.parameters
            assert found["random_state"] == 3
            assert found.get("max_time") == (7.0 if method in STOP_THEMSELVES else None)


def test_emflow_is_ours_and_the_one_of_the_paper_has_its_settings():
    ours, theirs = (build(method, {}, 0, 7.0).get_params() for method in ("emflow", "emflow_paper"))
    assert (theirs["reconstruction_weight"], theirs["batch_size"], theirs["learning_rate"]) == (5e8, 512, 1e-3)
    assert ours != theirs


def test_an_unknown_method():
    with pytest.raises(ParameterError, match="no method 'knn' for images: choose one of mean, nearest"):
        build("knn", {}, 0, 1.0)
