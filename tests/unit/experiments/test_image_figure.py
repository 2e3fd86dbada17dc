"""Figures about images from results made by hand: files of both kinds, and the summary in words."""

import numpy as np
import pytest

from emflow.errors import EMFlowError
from emflow.experiments.figure import figure
from emflow.experiments.image_cell import Part, keep
from emflow.experiments.image_figure import GAP, HOLE, contact_sheet, draw_samples
from emflow.experiments.image_plan import ImageExperiment
from emflow.experiments.results import Results


def check(paths):
    png, svg = paths
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 10_000
    assert "</svg>" in svg.read_text()


def images(shape):
    """Return three images (3, *shape), a hole in each, and what fills it."""
    pixels = np.random.default_rng(0).integers(0, 100, (3, *shape)).astype(np.uint8)
    missing = np.zeros(pixels.shape[:3], dtype=bool)
    missing[:, 1, 2] = True
    filled = pixels.astype(np.float32) / 255
    filled[missing] = 1.0
    return Part(pixels, np.zeros(3, int), missing), filled


@pytest.fixture
def folder(write, image_record):
    """Two panels: one of two methods, a third of which only the line was handed on, and one of colours."""
    places = [("mnist", "nearest", 0.5), ("mnist", "emflow", 0.5), ("cifar10", "emflow", 0.9), ("mnist", "mcflow", 0.5)]
    folder = write("table2", [image_record("samples", *place, rmse=0.05) for place in places])
    for dataset, method, rate in places[:3]:
        (cell,) = ImageExperiment.load("samples").cells(dataset, rate, method)
        keep(folder / cell.picture, *images((5, 4, 3) if dataset == "cifar10" else (5, 4)))
    return folder


def test_samples(folder, tmp_path):
    paths, summary = figure("samples", folder, tmp_path / "new")
    check(paths)
    words = paths[1].read_text()
    for name in ("complete", "observed", "nearest pixel", "EMFlow", "MNIST, missing rate 0.5"):
        assert f"<!-- {name} -->" in words
    assert "MCFlow" not in words
    assert summary.splitlines() == [
        "MNIST, missing rate 0.5, test RMSE: nearest pixel 0.0500, MCFlow 0.0500, EMFlow 0.0500",
        "CIFAR-10, missing rate 0.9, test RMSE: EMFlow 0.0500",
    ]


def test_a_panel_holds_truth_observed_and_completed_in_this_order(folder):
    experiment = ImageExperiment.load("samples")
    drawn, _ = draw_samples(experiment, Results(folder, "table2", cell_type=experiment.cell_type), quick=False)
    grey, colour = (axis.get_images()[0].get_array() for axis in drawn.axes)
    assert grey.shape == (4 * (5 + GAP), 3 * (4 + GAP))
    assert colour.shape == (3 * (5 + GAP), 3 * (4 + GAP), 3)
    pixels = images((5, 4))[0].pixels
    np.testing.assert_array_equal(grey[:5, :4], pixels[0])
    hole = grey[1 :: 5 + GAP, 4 + GAP + 2]  # in the second column of images
    assert hole.tolist() == [pixels[1, 1, 2], HOLE, 255, 255]


def test_contact_sheet():
    lines = [np.full((2, 1, 2), value, np.uint8) for value in (10, 20)]
    sheet = contact_sheet(lines)
    assert sheet.shape == (2 * (1 + GAP), 2 * (2 + GAP))
    assert sheet[0].tolist() == [10, 10, *[255] * GAP] * 2
    assert set(sheet[1].tolist()) == {255}


def history(start):
    epochs = [{"iteration": i, "epoch": e, "l1": -i, "l2": e, "frobenius": i + e} for i in (1, 2) for e in (1, 2)]
    return {"epochs": epochs, "rmse": [start, 0.11, 0.1]}


def test_initial(write, image_record, tmp_path):
    records = [
        image_record("initial", "mnist14", "emflow_paper", 0.5, configuration=n, history=history(0.2 + n))
        | {"timed_out": n == 1}
        for n in range(2)
    ]
    paths, summary = figure("initial", write("initial", records), tmp_path)
    check(paths)
    words = paths[1].read_text()
    for name in ("nearest pixel", "zero", "outer iteration", "Frobenius norm of the covariance"):
        assert f"<!-- {name} -->" in words
    assert summary.splitlines() == [
        "rate 0.5, nearest pixel: RMSE from the start on 0.2000, 0.1100, 0.1000",
        "rate 0.5, zero: RMSE from the start on 1.2000, 0.1100, 0.1000; stopped by budget",
    ]


@pytest.mark.parametrize("name", ["samples", "initial"])
def test_without_results_there_is_nothing_to_draw(name, tmp_path):
    with pytest.raises(EMFlowError, match=f"emflow experiments run {name} --quick"):
        figure(name, tmp_path, tmp_path / "figures", quick=True)
    assert not (tmp_path / "figures").exists()
