"""What is to be run on images: experiments as their TOML files describe them, and the cells they consist of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from emflow import datasets
from emflow.experiments.plan import choose, points, read

TABLES, FIGURES = ("table2", "table3"), ("samples", "initial")
NAMES = TABLES + FIGURES
HALVED = {"mnist14": "mnist"}  # sets of images of half the side: each pixel is the mean of four


@dataclass(frozen=True)
class ImageCell:
    """One fit to images and its test error: the key of a line of results, as `Cell` is for tables.

    Attributes
    ----------
    experiment : str
        The experiment whose results hold the cell.
    rate : float
        Probability with which a pixel is missing.
    parameters : dict
        What the method is given beyond its defaults; JSON values.
    max_train, max_test : int or None
        Images drawn from the training and the test set; None takes all of them.
    with_accuracy : bool
        Whether the completed test images are classified.
    with_history : bool
        Whether loss, covariance and test RMSE over the outer iterations are wanted.
    """

    experiment: str
    dataset: str
    rate: float
    method: str
    parameters: dict[str, Any]
    seed: int
    max_train: int | None = None
    max_test: int | None = None
    with_accuracy: bool = False
    with_history: bool = False

    @property
    def key(self) -> str:
        """The cell as JSON, the same for equal cells."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def picture(self) -> str:
        """The file that keeps some of its images, within the folder of the results."""
        return f"images/{hashlib.sha256(self.key.encode()).hexdigest()[:12]}.npz"

    def __str__(self) -> str:
        return f"{self.dataset}, rate {self.rate:g}, {self.method}"


@dataclass(frozen=True)
class ImageMethod:
    """A line of a table.

    Attributes
    ----------
    label : str
        Its name there.
    parameters, sets, quick : dict
        Parameters everywhere, those beyond or instead of them on single sets, and those of quick runs.
    max_train : dict
        Set -> images to train on, where not all of them are affordable.
    budget : float
        Minutes per cell.
    """

    label: str
    parameters: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    max_train: dict[str, int] = field(default_factory=dict)
    budget: float = 60.0


@dataclass(frozen=True)
class ImageExperiment:
    """A table or figure of the paper about images, as its TOML file describes it.

    Attributes
    ----------
    name : str
        The table or figure.
    cells_of : str
        The experiment whose cells these are, and whose results hold them; mostly its own name.
    value : str
        The metric that is shown, with so many `digits`.
    quick : dict
        `max_train`, `max_test` and `rates` of quick runs.
    published : dict
        Set -> method -> a number for each rate.
    classified : list of str
        Methods whose completed images are classified, but for quick runs.
    sweep : dict
        Hyperparameter -> values.
    with_history : bool
        Whether its cells keep their history.
    with_pictures : bool
        Whether a cell is finished only if its images are there: they are not kept as long as the results.
    """

    name: str
    cells_of: str
    title: str
    value: str
    sets: list[str]
    rates: list[float]
    seed: int
    methods: dict[str, ImageMethod]
    quick: dict[str, Any]
    published: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    digits: int = 4
    higher_is_better: bool = False
    classified: list[str] = field(default_factory=list)
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    with_history: bool = False
    with_pictures: bool = False
    notes: list[str] = field(default_factory=list)
    cell_type: ClassVar[type[ImageCell]] = ImageCell
    shared: ClassVar[tuple[str, ...]] = ("seed", "rates", "sets", "methods", "quick", "classified", "with_history")

    @classmethod
    def load(cls, name: str) -> ImageExperiment:
        """Read the experiment from its TOML file; its methods come in the order of `only`, if it has that."""
        entries = read(name, cls.shared)
        methods = entries["methods"]
        entries["methods"] = {key: ImageMethod(**methods[key]) for key in entries.pop("only", methods)}
        return cls(name=name, **entries)

    def select(
        self, sets: Sequence[str] | None, methods: Sequence[str] | None, rates: Sequence[float] | None, quick: bool
    ) -> tuple[list[str], list[str], list[float]]:
        """Return the sets, methods and rates asked for, None for all of a kind."""
        few = [rate for rate in self.rates if rate in self.quick["rates"]]
        return (
            choose("set", sets, self.sets, self.name),
            choose("method", methods, self.methods, self.name),
            choose("rate", rates, few if quick else self.rates, self.name),
        )

    def look_up(self, dataset: str) -> dict[str, Any]:
        """Load a set, or raise why it cannot be had; return its training images, values in each, and its note."""
        loaded = load_images(dataset)
        return {"rows": len(loaded.x_train), "columns": loaded.x_train[0].size, "note": loaded.note}

    def cells(self, dataset: str, rate: float, method: str, quick: bool = False) -> Iterable[ImageCell]:
        """Yield the cells of a set, rate and method: one, or one for each point of the sweep."""
        spec = self.methods[method]
        base = spec.parameters | spec.sets.get(dataset, {}) | (spec.quick if quick else {})
        for parameters in points(base, self.sweep):
            yield ImageCell(
                experiment=self.cells_of, dataset=dataset, rate=rate, method=method, parameters=parameters,
                seed=self.seed,
                max_train=self.quick["max_train"] if quick else spec.max_train.get(dataset),
                max_test=self.quick["max_test"] if quick else None,
                with_accuracy=method in self.classified and not quick,
                with_history=self.with_history,
            )  # fmt: skip


def load_images(dataset: str) -> datasets.Images:
    """Return the images of a set that is in the data, or halved."""
    images = datasets.load_images(HALVED.get(dataset, dataset))
    if dataset not in HALVED:
        return images
    return replace(images, name=dataset, x_train=halve(images.x_train), x_test=halve(images.x_test))


def halve(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images (n, h, w), of even height and width, of half the side."""
    n, height, width = pixels.shape
    squares = pixels.reshape(n, height // 2, 2, width // 2, 2)
    return np.rint(squares.mean((2, 4), dtype=np.float32)).astype(np.uint8)
