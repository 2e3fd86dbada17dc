"""Classifiers of images: trained once, kept, taken up again where killed. On small stand-ins for the images."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from emflow import datasets, files
from emflow.errors import DataError, DivergedError, FileError, ParameterError
from emflow.experiments import classify
from emflow.experiments.classify import RECIPES, Recipe, build, classifier, one_cycle, windows

TINY = Recipe(
    blocks=((4, 4), (8,)), kernel=3, hidden=(6,), n_epochs=4, batch_size=16, learning_rate=0.05, momentum=0.9,
    weight_decay=1e-4, label_smoothing=0.1, shift=1, mirror=True, seed=3,
)  # fmt: skip


def stripes(n, colour, seed):
    """Return noisy images of horizontal (0), vertical (1) and no stripes (2), uint8, with their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n).astype(np.uint8)
    wave = np.where(np.arange(9) % 2, 60, -60)
    patterns = np.stack([np.tile(wave[:, None], (1, 9)), np.tile(wave, (9, 1)), np.zeros((9, 9))])
    x = 128 + patterns[labels] + rng.normal(0, 20, (n, 9, 9))
    x = np.stack([x, 255 - x, 0 * x + 7], axis=3) if colour else x
    return x.round().clip(0, 255).astype(np.uint8), labels


@pytest.fixture
def loads(monkeypatch, tmp_path):
    """Put an empty cache, images and a tiny recipe in place; return the list of sets that were loaded."""
    loaded = []

    def load_images(name):
        loaded.append(name)
        train, test = (stripes(n, name == "cifar10", seed) for n, seed in ((120, 0), (60, 1)))
        return datasets.Images(name, *train, *test, note="")

    monkeypatch.setenv("EMFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "load_images", load_images)
    for name in ("mnist", "cifar10"):
        monkeypatch.setitem(RECIPES, name, TINY)
    return loaded


def the_file(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()  # nothing is left beside it
    return path


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_learns_what_can_be_told_apart(loads, monkeypatch, name):
    monkeypatch.setitem(RECIPES, name, replace(TINY, n_epochs=8))
    model = classifier(name)
    images, labels = stripes(300, name == "cifar10", seed=2)
    assert model.accuracy(images, labels) > 0.95
    assert model.accuracy(images.astype(float), labels) == model.accuracy(images, labels)
    test_images, test_labels = stripes(60, name == "cifar10", seed=1)
    assert model.test_accuracy == model.accuracy(test_images, test_labels) > 0.95
    assert model.seconds > 0


def test_the_second_call_reads_what_the_first_one_trained(loads, tmp_path):
    first = classifier("mnist")
    written = the_file(tmp_path).read_bytes()
    second = classifier("mnist")
    assert loads == ["mnist"]
    assert the_file(tmp_path).read_bytes() == written
    assert (second.test_accuracy, second.seconds) == (first.test_accuracy, first.seconds)
    images, _ = stripes(50, False, seed=2)
    np.testing.assert_array_equal(second.predict(images), first.predict(images))


OTHER = {
    "blocks": ((4,), (8,)), "kernel": 5, "hidden": (), "n_epochs": 1, "batch_size": 30, "learning_rate": 0.1,
    "momentum": 0.5, "weight_decay": 0.1, "label_smoothing": 0.0, "shift": 0, "mirror": False, "seed": 4,
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(Recipe)])
def test_a_changed_recipe_trains_another_network(loads, monkeypatch, field):
    monkeypatch.setitem(RECIPES, "mnist", replace(TINY, n_epochs=2))
    first = classifier("mnist").network.state_dict()
    monkeypatch.setitem(RECIPES, "mnist", replace(TINY, **{"n_epochs": 2, field: OTHER[field]}))
    second = classifier("mnist").network.state_dict()
    assert loads == ["mnist", "mnist"]
    assert not same(first, second)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_the_seed_decides_and_nothing_global(loads, tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = classifier("cifar10").network.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    the_file(tmp_path).unlink()
    torch.manual_seed(1)
    assert same(first, classifier("cifar10").network.state_dict())


class KilledError(Exception):
    pass


def die_at_the_end(*_):
    raise KilledError


@pytest.mark.parametrize("epochs", [1, 3, 4])
def test_killed_and_resumed_equals_uninterrupted(loads, tmp_path, monkeypatch, epochs):
    """Killed in the epoch after these; after the last one, before the final file is written."""
    whole = classifier("cifar10").network.state_dict()
    the_file(tmp_path).unlink()

    def die(self, rows):
        if self.epoch == epochs:
            raise KilledError
        drawn.append(self.epoch)
        return draw(self, rows)

    draw, drawn = classify._Training._draw, []
    with monkeypatch.context() as patch:
        patch.setattr(classify._Training, "_draw", die)
        patch.setattr(classify.Classifier, "accuracy", die_at_the_end)
        with pytest.raises(KilledError):
            classifier("cifar10")
    assert set(drawn) == set(range(epochs))

    def note(self, rows):
        drawn.append(self.epoch)
        return draw(self, rows)

    drawn.clear()
    monkeypatch.setattr(classify._Training, "_draw", note)
    resumed = classifier("cifar10")
    assert set(drawn) == set(range(epochs, TINY.n_epochs))
    assert same(whole, resumed.network.state_dict())
    the_file(tmp_path)


def test_accuracy_is_the_share_of_right_answers(loads):
    model = classifier("mnist")
    images, _ = stripes(40, False, seed=2)
    labels = model.predict(images)
    assert labels.shape == (40,)
    assert model.accuracy(images, labels) == 1
    labels[:10] = (labels[:10] + 1) % 3
    assert model.accuracy(images, labels) == 0.75


def test_a_prediction_depends_on_its_image_alone(loads, monkeypatch):
    model = classifier("cifar10")
    images, _ = stripes(30, True, seed=2)
    images = np.random.default_rng(0).permuted(images, axis=1)  # near the borders between the classes
    together = model.predict(images)
    assert len(np.unique(together)) > 1
    monkeypatch.setattr(classify, "PREDICT_BATCH", 7)
    np.testing.assert_array_equal(model.predict(images), together)
    np.testing.assert_array_equal(model.predict(images[:, :, ::-1]), together)  # mirror images count alike


@pytest.mark.parametrize(
    ("images", "n_labels", "message"),
    [
        (np.zeros((5, 9, 8)), 5, r"should be of shape \(n, 9, 9\), but are of shape \(5, 9, 8\)"),
        (np.full((5, 9, 9), np.nan), 5, "missing or infinite"),
        (np.zeros((5, 9, 9)), 4, "labels should be of shape"),
        (np.zeros((0, 9, 9)), 0, "at least one"),
    ],
)
def test_images_that_cannot_be_classified(loads, images, n_labels, message):
    with pytest.raises(DataError, match=message):
        classifier("mnist").accuracy(images, np.zeros(n_labels, dtype=int))


def damage(path):
    path.write_bytes(path.read_bytes()[:-50])


def replace_by_other(path):
    tensors, header = files.read(path)
    files.write(path, tensors, header | {"recipe": "another"})


def replace_by_foreign(path):
    files.write(path, {"x": torch.zeros(1)}, {"kind": "model"})


@pytest.mark.parametrize("spoil", [damage, replace_by_other, replace_by_foreign])
@pytest.mark.parametrize("half_way", [False, True])
def test_a_spoiled_file_is_named_and_to_be_deleted(loads, tmp_path, monkeypatch, spoil, half_way):
    if half_way:
        with monkeypatch.context() as patch:
            patch.setattr(classify.Classifier, "accuracy", die_at_the_end)
            with pytest.raises(KilledError):
                classifier("mnist")
    else:
        classifier("mnist")
    path = the_file(tmp_path)
    spoil(path)
    with pytest.raises(FileError, match=rf"{path.name}.*delete it"):
        classifier("mnist")


def test_a_loss_that_is_not_finite(loads, monkeypatch):
    monkeypatch.setitem(RECIPES, "mnist", replace(TINY, learning_rate=1e30))
    with pytest.raises(DivergedError, match="lower learning_rate"):
        classifier("mnist")


def test_a_set_without_recipe():
    with pytest.raises(ParameterError, match="'letter'; there are mnist, cifar10"):
        classifier("letter")


def test_windows_are_shifted_images_with_reflected_borders():
    images = np.arange(2 * 3 * 4 * 2, dtype=np.uint8).reshape(2, 3, 4, 2)
    view = windows(images, 1)
    assert view.shape == (2, 3, 3, 2, 3, 4)
    channels_first = images.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(view[:, 1, 1], channels_first)
    down = view[:, 0, 1]  # the image moved down by a row
    np.testing.assert_array_equal(down[..., 1:, :], channels_first[..., :-1, :])
    np.testing.assert_array_equal(down[..., 0, :], channels_first[..., 1, :])
    np.testing.assert_array_equal(view[:, 1, 2][..., :-1], channels_first[..., 1:])


def test_one_cycle_rises_and_falls_to_zero():
    rates = [one_cycle(progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize(("name", "shape"), [("mnist", (28, 28, 1)), ("cifar10", (32, 32, 3))])
def test_the_networks_of_the_recipes(name, shape):
    network = build(RECIPES[name], shape, 10, torch.Generator().manual_seed(0))
    images = 255 * torch.rand(2, shape[2], *shape[:2], generator=torch.Generator().manual_seed(0))
    logits = network(images)
    assert logits.shape == (2, 10)
    assert 0.1 < logits.std() < 3  # nothing dies out or explodes on the way


def test_real_digits_are_learnt_within_seconds():
    if "EMFLOW_DATA" not in os.environ or not (Path(os.environ["EMFLOW_DATA"]) / "mnist.npz").is_file():
        pytest.skip("set EMFLOW_DATA to a folder that holds mnist.npz")
    images = datasets.load_images("mnist")
    recipe = replace(RECIPES["mnist"], blocks=((8,), (16,)), hidden=(32,), n_epochs=1, batch_size=32, shift=0)
    training = classify._Training(recipe, images.x_train[:3000], images.y_train[:3000])
    training.run_epoch()
    model = classify.Classifier(training.network, recipe, (28, 28), np.nan, training.seconds)
    assert model.accuracy(images.x_test[:1000], images.y_test[:1000]) > 0.9


def test_importing_it_imports_nothing_heavy_beyond_what_emflow_does():
    code = (
        "import sys, emflow; before = set(sys.modules)\n"
        "import emflow.experiments.classify; new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "sys.exit(', '.join(new & {'matplotlib', 'sklearn', 'pandas', 'torchvision'}) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""
