"""Every parameter does something, refuses nonsense by name, and waits for `fit` to be looked at."""

import inspect
import re

import pytest

from emflow import DataError, EMFlowImputer, GaussianImputer, ParameterError
from emflow.limits import SETTINGS

NAN, INF = float("nan"), float("inf")
EVERY_PARAMETER = [
    pytest.param(cls, name, id=f"{cls.__name__}-{name}")
    for cls in (EMFlowImputer, GaussianImputer)
    for name in inspect.signature(cls).parameters
]


@pytest.fixture
def make_by_class(make_emflow, make_gaussian):
    return {EMFlowImputer: make_emflow, GaussianImputer: make_gaussian}


# --- every parameter changes something


def in_model(value, **others):
    """The parameter, set to `value`, changes what the model answers; `others` are set in either case."""

    def effect(make, name, x, tmp_path, capsys):
        for parameters in (others, {**others, name: value}):
            model = make(**parameters).fit(x)
            yield model.n_iter_, model.transform(x).tobytes(), str(model.sample(200))

    return effect


def in_images(value, **others):
    """The same for a parameter that only matters to images."""

    def effect(make, name, x, tmp_path, capsys):
        settings = {"initial_fill": "nearest", **others}
        return in_model(value, **settings)(make, name, x.reshape(-1, 2, 2), tmp_path, capsys)

    return effect


def in_folder(make, name, x, tmp_path, capsys):
    for parameters in ({}, {name: tmp_path}):
        make(**parameters).fit(x)
        yield list(tmp_path.iterdir())


def on_screen(make, name, x, tmp_path, capsys):
    for value in (False, True):
        make(**{name: value}).fit(x)
        yield capsys.readouterr().err


def on_device(make, name, x, tmp_path, capsys):
    """Without a second device to compute on: the one of torch that holds no numbers cannot be used."""
    yield make().fit(x).stages_[0].gaussian.mean.device.type
    with pytest.raises((NotImplementedError, ParameterError)):
        make(**{name: "meta"}).fit(x)
    yield "meta"


# the identity in place of a flow, and small steps from a bad start: the error falls by two per cent per iteration
SLOW_EM = {"n_couplings": 0, "step_scale": 0.1, "reinit": False, "initial_fill": "draw", "covariance_inflation": 0.0}
SLOW_EM |= {"n_iterations": 3, "n_epochs": 1, "patience": 1, "random_state": 1}


def at_a_new_category(make, name, x, tmp_path, capsys):
    """The parameter says what becomes of a category that `fit` did not see."""
    new = x.round()
    new[0, 0] = 77
    for parameters in ({}, {name: "missing"}):
        model = make(kinds={0: "nominal"}, **parameters).fit(x.round())
        try:
            yield 77 in model.transform(new)
        except DataError:
            yield "error"


def with_an_empty_column(make, name, x, tmp_path, capsys):
    """The parameter says what becomes of a column without any value."""
    x[:, 2] = float("nan")
    for value in (False, True):
        try:
            yield make(**{name: value}).fit(x).transform(x).shape
        except DataError:
            yield "error"


def in_width(make, name, x, tmp_path, capsys):
    for value in (False, True):
        yield make(**{name: value}).fit(x).transform(x).shape


OF_COLUMNS = {
    "kinds": in_model({0: "integer"}),
    "bounds": in_model({0: (-0.1, 0.1)}),
    "unseen": at_a_new_category,
    "add_indicator": in_width,
    "keep_empty_features": with_an_empty_column,
}

REFINED = {"refine": "on", "refine_steps": 3, "validation_fraction": 0}

EFFECTS = {
    EMFlowImputer: {
        "n_iterations": in_model(2),
        "n_epochs": in_model(3),
        "batch_size": in_model(16),
        "learning_rate": in_model(1e-2),
        "reconstruction_weight": in_model(1.0),
        "step_scale": in_model(0.5),
        "step_exponent": in_model(0.6, batch_size=16),
        "covariance_inflation": in_model((0.1, 0.0)),
        "super_batch_size": in_model(0),
        "flow": in_images("dense", refine="off"),
        "n_couplings": in_model(2),
        "hidden_width": in_model(7),
        "reinit": in_model(False, n_iterations=2, validation_fraction=0),
        "initial_fill": in_model("draw"),
        "refine": in_model("off", **REFINED),
        "refine_steps": in_model(2, **REFINED),
        "store_rows": in_model(20, **REFINED),
        **OF_COLUMNS,
        "clip": in_model(False),
        "validation_fraction": in_model(0.4),
        "tol": in_model(0.99, **SLOW_EM),
        "patience": in_model(1, n_iterations=3, tol=0.99),
        "max_time": in_model(1e-9),
        "checkpoint": in_folder,
        "dtype": in_model("float64"),
        "device": on_device,
        "random_state": in_model(1),
        "verbose": on_screen,
    },
    GaussianImputer: {
        "n_iterations": in_model(1),
        "tol": in_model(0.5),
        "covariance_inflation": in_model(0.1),
        **OF_COLUMNS,
        "clip": in_model(False),
        "max_time": in_model(1e-9),
        "device": on_device,
        "random_state": in_model(1),
        "verbose": on_screen,
    },
}


@pytest.mark.parametrize(("cls", "name"), EVERY_PARAMETER)
def test_every_parameter_changes_something(cls, name, make_by_class, x, tmp_path, capsys):
    before, after = EFFECTS[cls][name](make_by_class[cls], name, x, tmp_path, capsys)
    assert before != after


# --- out of range

COUNT = (0, -1, 1.5, "2", None, True)
BOOLEAN = (1, None, "yes")
BETA = (-0.1, NAN, INF, "much", None, True)
DEVICE = ("nowhere", None, 1.5, "cuda:99")
SEED = (-1, "seed", 1.5)
COLUMNS = {
    "kinds": (3, "nominal", {0: "number"}, {0: 3}, {0: []}, [0]),
    "bounds": (3, (0, 1), {0: 1}, {0: (1,)}, {0: ("a", None)}, {0: (NAN, 1)}, {0: (0, INF)}),
    "unseen": (None, "fill", True),
    "add_indicator": BOOLEAN,
    "keep_empty_features": BOOLEAN,
}

OUT_OF_RANGE = {
    EMFlowImputer: {
        "n_iterations": (-1, 1.5, "2", True),
        "n_epochs": (0, -1, 1.5, "2", True),
        "batch_size": COUNT,
        "learning_rate": (0, -1e-3, NAN, INF, "fast", None, True),
        "reconstruction_weight": (-1, NAN, INF, None),
        "step_scale": (0, 1.1, NAN, None),
        "step_exponent": (-0.1, 1.1, NAN, None),
        "covariance_inflation": (*BETA, (0.1, -0.1), (0.1, NAN), [[0.1]], ("a",)),
        "super_batch_size": (-1, 0.5, None, True),
        "n_couplings": (-1, 0.5, None, True),
        "hidden_width": (0, -1, 1.5, "wide", True),
        "reinit": BOOLEAN,
        "initial_fill": ("mode", None, 0, ["draw"]),
        "flow": ("conv", None, True),
        "refine": (1, None, "yes", True, []),
        "refine_steps": (0, -1, 1.5, "2", True),
        "store_rows": (0, 1, -1, 2.5, "2", None),
        **COLUMNS,
        "clip": BOOLEAN,
        "validation_fraction": (-0.1, 0.6, NAN, None),
        "tol": (-0.1, 1, NAN, None),
        "patience": COUNT,
        "max_time": (0, -1, NAN, INF, "soon"),
        "checkpoint": ("", 3),
        "dtype": ("float16", None, float),
        "device": DEVICE,
        "random_state": SEED,
        "verbose": BOOLEAN,
    },
    GaussianImputer: {
        "n_iterations": COUNT,
        "tol": (-0.1, NAN, INF, None),
        "covariance_inflation": (*BETA, (0.1,)),
        **COLUMNS,
        "clip": BOOLEAN,
        "max_time": (0, -1, NAN, INF, "soon"),
        "device": DEVICE,
        "random_state": SEED,
        "verbose": BOOLEAN,
    },
}


@pytest.mark.parametrize(("cls", "name"), EVERY_PARAMETER)
def test_every_parameter_has_values_to_refuse(cls, name):
    assert OUT_OF_RANGE[cls][name]


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [(cls, name, value) for cls, names in OUT_OF_RANGE.items() for name, values in names.items() for value in values],
)
def test_out_of_range_is_refused_by_name(cls, name, value, x):
    with pytest.raises(ParameterError, match=rf"^{name}\b.* must be .*{re.escape(repr(value))}"):
        cls(**{name: value}).fit(x)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("value", [-1, "2", None, True, NAN])
def test_settings_out_of_range_are_refused_by_name(name, value, x):
    with pytest.raises(ParameterError, match=rf"^{name} of refine must be .*{re.escape(repr(value))}"):
        EMFlowImputer(refine={name: value}).fit(x)


def test_an_unknown_setting_is_refused_by_name(x):
    with pytest.raises(ParameterError, match=r"^refine has no 'depth'; it has batch_size, .*n_trees, forest_share$"):
        EMFlowImputer(refine={"depth": 3, "width": 8}).fit(x)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("covariance_inflation", 0),
        ("covariance_inflation", ()),
        ("covariance_inflation", [0.1, 0.2]),
        ("step_exponent", 0),
        ("step_scale", 1),
        ("super_batch_size", 1),
        ("n_couplings", 0),
        ("n_couplings", 3),
        ("hidden_width", 1),
        ("batch_size", 10**6),
        ("validation_fraction", 0.5),
        ("max_time", 1e9),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(make_emflow, x, name, value):
    assert make_emflow(**{name: value}).fit(x).n_iter_ == 1


# --- the constructor and the paper's values


@pytest.mark.parametrize("cls", EFFECTS)
def test_the_constructor_only_assigns(cls):
    given = {name: object() for name in inspect.signature(cls).parameters}
    assert vars(cls(**given)) == given


@pytest.mark.parametrize("cls", EFFECTS)
def test_parameters_are_given_by_name(cls):
    with pytest.raises(TypeError, match="positional"):
        cls(3)


PAPER = {
    "step_scale": 0.99,
    "step_exponent": 0.8,
    "n_couplings": 6,
    "reinit": True,
    "flow": "dense",
    "refine": "off",
    "validation_fraction": 0,
    "covariance_inflation": 0,
}
PAPER_BY_KIND = {
    "tabular": {
        "reconstruction_weight": 1e6, "batch_size": 256, "learning_rate": 1e-4, "super_batch_size": 0,
        "initial_fill": "draw",
    },
    "image": {
        "reconstruction_weight": 5e8, "batch_size": 512, "learning_rate": 1e-3, "super_batch_size": 3000,
        "initial_fill": "nearest",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", PAPER_BY_KIND)
def test_the_papers_values(kind):
    expected = PAPER | PAPER_BY_KIND[kind]
    parameters = EMFlowImputer.paper(kind).get_params()
    assert {name: parameters[name] for name in expected} == expected


def test_the_paper_without_a_kind_is_about_tables():
    assert EMFlowImputer.paper().get_params() == EMFlowImputer.paper("tabular").get_params()


def test_the_papers_values_can_be_overridden():
    imputer = EMFlowImputer.paper("image", reconstruction_weight=1e6, random_state=3)
    assert (imputer.reconstruction_weight, imputer.random_state, imputer.batch_size) == (1e6, 3, 512)


@pytest.mark.parametrize("kind", ["table", None])
def test_the_paper_has_no_other_kind(kind):
    with pytest.raises(ParameterError, match=r"kind.*tabular.*image"):
        EMFlowImputer.paper(kind)


def test_an_override_that_is_no_parameter_is_refused():
    with pytest.raises(TypeError, match="epochs"):
        EMFlowImputer.paper(epochs=3)
