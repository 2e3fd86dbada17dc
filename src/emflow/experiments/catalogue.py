"""All experiments by name: those on tables and those on images."""

from __future__ import annotations

from emflow.errors import ParameterError
from emflow.experiments import image_plan, plan

AnyCell = plan.Cell | image_plan.ImageCell
AnyExperiment = plan.Experiment | image_plan.ImageExperiment

TABLES = plan.TABLES + image_plan.TABLES
FIGURES = plan.FIGURES + image_plan.FIGURES
NAMES = TABLES + FIGURES


def load(name: str) -> AnyExperiment:
    """Read an experiment from its TOML file."""
    if name not in NAMES:
        raise ParameterError(f"there is no experiment {name!r}: choose one of {', '.join(NAMES)}")
    if name in image_plan.NAMES:
        return image_plan.ImageExperiment.load(name)
    return plan.Experiment.load(name)
