"""What is to be run: an experiment as its TOML file describes it, and the cells it consists of."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any, ClassVar, TypeVar

from emflow import datasets
from emflow.errors import ParameterError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
TABLES, FIGURES = ("table1", "congeniality", "accuracy"), ("convergence", "hyperparameters")  # of data that is a table
NAMES = TABLES + FIGURES
WITH_CURVE = ("emflow", "mcflow")  # the methods that the paper races
N_FOLDS = 5
LARGE = 10_000  # rows from which on only two of the five folds are run, unless asked for
LABELS = {"ctg": "CTG", "mnist": "MNIST", "mnist14": "MNIST, 14 x 14", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Cell:
    """One fit and its test error: the key of a line of results. Two cells with equal fields are the same work.

    No field has the name of something measured: both stand side by side in the line.

    Attributes
    ----------
    experiment : str
        The experiment whose results hold the cell.
    rate : float
        Share of missing values: of all cells under MCAR, of the last 30 % of the columns under MAR.
    parameters : dict
        What the method is given beyond its defaults; JSON values.
    fold : int
        Which of the five folds is the test set, counted from 0.
    max_rows : int or None
        Rows drawn from the set; None takes all of them.
    regression : {"linear", "logistic"} or None
        Which regression measures congeniality, if it is wanted.
    with_curve : bool
        Whether loss and test RMSE over time are wanted.
    """

    experiment: str
    dataset: str
    mechanism: str
    rate: float
    method: str
    parameters: dict[str, Any]
    fold: int
    seed: int
    max_rows: int | None = None
    regression: str | None = None
    with_curve: bool = False

    @property
    def key(self) -> str:
        """The cell as JSON, the same for equal cells."""
        return json.dumps(asdict(self), sort_keys=True)

    def __str__(self) -> str:
        return f"{self.dataset}, {self.mechanism}, {self.method}, fold {self.fold + 1}"


@dataclass(frozen=True)
class Method:
    """A column of a table: a method, its parameters under MAR and in quick runs where they differ, minutes per cell.

    `imputer` names the one it is where two columns have the same with other parameters; else the column's name does.
    `mechanisms` are those it is run on, all if empty.
    """

    label: str
    imputer: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    mar: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    budget: float = 20.0
    mechanisms: Sequence[str] = ()

    def runs_on(self, mechanism: str) -> bool:
        """Return whether it has cells for a mechanism."""
        return mechanism in (self.mechanisms or [mechanism])


Published = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # mechanism -> set -> method -> (mean, sd)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper about tables of numbers, as its TOML file describes it.

    Attributes
    ----------
    name : str
        The table or figure.
    cells_of : str
        The experiment whose cells these are, and whose results hold them; mostly its own name.
    value : str
        The metric that is shown, with so many `digits`; the published ones have `published_digits`.
    folds : int or None
        Folds that are run; None runs all five of a small set and two of a large one.
    seeds : list of int
        Seeds of mask and split; where there are any, they take the place of folds, and the first fold is the test set.
    rates, sets_of : dict
        Mechanism -> its rate and its sets, where they are not those of all others; "mcar40" is MCAR with another rate.
    sweep : dict
        Hyperparameter -> values. Each moves alone.
    curves : list of str
        Sets on which loss and test RMSE over time are wanted, of EMFlow and MCFlow under MCAR.
    """

    name: str
    cells_of: str
    title: str
    value: str
    sets: list[str]
    mechanisms: list[str]
    mcar_rate: float
    seed: int
    methods: dict[str, Method]
    quick: dict[str, int]
    published: Published = field(default_factory=dict)
    digits: int = 4
    published_digits: int = 3
    folds: int | None = None
    seeds: list[int] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    sets_of: dict[str, list[str]] = field(default_factory=dict)
    sweep: dict[str, list[float]] = field(default_factory=dict)
    curves: list[str] = field(default_factory=list)
    congeniality: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cell_type: ClassVar[type[Cell]] = Cell
    shared: ClassVar[tuple[str, ...]] = ("mcar_rate", "seed", "methods", "quick", "folds", "congeniality", "curves")

    @classmethod
    def load(cls, name: str) -> Experiment:
        """Read the experiment from its TOML file."""
        entries = read(name, cls.shared)
        if "published_in" in entries:
            entries["published"] = read(entries.pop("published_in"))["published"]
        chosen = entries.pop("only", entries["methods"])
        entries["methods"] = {
            key: Method(**{"imputer": key} | method) for key, method in entries["methods"].items() if key in chosen
        }
        return cls(name=name, **entries)

    def select(
        self, sets: Sequence[str] | None, methods: Sequence[str] | None, mechanisms: Sequence[str] | None
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the sets, methods and mechanisms asked for, None for all of a kind."""
        return (
            choose("set", sets, self.sets, self.name),
            choose("method", methods, self.methods, self.name),
            choose("mechanism", mechanisms, self.mechanisms, self.name),
        )

    def look_up(self, dataset: str) -> dict[str, Any]:
        """Load a set, or raise why it cannot be had; return its number of rows and columns and its note."""
        loaded = datasets.load(dataset, target=dataset in self.congeniality)
        rows, columns = loaded.X.shape
        return {"rows": rows, "columns": columns, "note": loaded.note}

    def n_folds(self, n_rows: int, quick: bool = False) -> int:
        """Return how many folds are run by default for a set of so many rows."""
        if quick:
            return self.quick["folds"]
        if self.seeds:
            return len(self.seeds)
        return self.folds or (N_FOLDS if n_rows < LARGE else 2)

    def cells(
        self, dataset: str, mechanism: str, method: str, folds: int = N_FOLDS, quick: bool = False
    ) -> Iterable[Cell]:
        """Yield the cells of a set, mechanism and method: one per fold, or seed, and configuration."""
        spec = self.methods[method]
        if dataset not in self.sets_of.get(mechanism, self.sets) or not spec.runs_on(mechanism):
            return
        base = spec.parameters | (spec.mar if mechanism == "mar" else {}) | (spec.quick if quick else {})
        for parameters in points(base, self.sweep):
            for fold, seed in self._splits(folds):
                yield Cell(
                    experiment=self.cells_of, dataset=dataset, mechanism=mechanism.removesuffix("40"),
                    rate=self._rate(dataset, mechanism), method=spec.imputer, parameters=parameters,
                    fold=fold, seed=seed,
                    max_rows=self.quick["max_rows"] if quick else None,
                    regression=self.congeniality.get(dataset),
                    with_curve=dataset in self.curves and mechanism == "mcar" and method in WITH_CURVE,
                )  # fmt: skip

    def _splits(self, folds: int) -> Iterable[tuple[int, int]]:
        """Return fold and seed of each split."""
        return [(0, seed) for seed in self.seeds[:folds]] or [(fold, self.seed) for fold in range(folds)]

    def _rate(self, dataset: str, mechanism: str) -> float:
        known = self.rates | {"mcar": self.mcar_rate, "mar": datasets.SPECS[dataset].mar_rate}
        rate = known[mechanism]
        assert rate is not None  # images alone have none
        return rate


def points(base: dict[str, Any], sweep: Mapping[str, Sequence[Any]]) -> Iterable[dict[str, Any]]:
    """Yield the parameters of a method: the base alone, or one dictionary for each point of the sweep."""
    seen: list[dict[str, Any]] = []
    for change in [{name: value} for name, values in sweep.items() for value in values] or [{}]:
        if base | change not in seen:  # the paper's choice is a point of every sweep
            seen.append(base | change)
            yield seen[-1]


def label(dataset: str) -> str:
    """Return the name of a set as the paper writes it."""
    return LABELS.get(dataset, dataset.capitalize())


def read(name: str, shared: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a TOML file says. What it lacks of `shared` comes from the experiment whose cells it has."""
    entries: dict[str, Any] = tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    source = entries.setdefault("cells_of", name)
    if source != name:
        entries = {key: value for key, value in read(source).items() if key in shared} | entries
    return entries


def choose(kind: str, wanted: Sequence[T] | None, known: Iterable[T], experiment: str) -> list[T]:
    """Return what is wanted, None for all that is known; anything else is an error."""
    known = list(known)
    for name in wanted or []:
        if name not in known:
            raise ParameterError(f"{experiment} has no {kind} {name!r}: choose from {', '.join(map(str, known))}")
    return known if wanted is None else list(dict.fromkeys(wanted))
