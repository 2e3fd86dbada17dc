"""The systems that the paper compares with, under the same contract as our imputers."""

from emflow.baselines.gain import GAINImputer
from emflow.baselines.mcflow import MCFlowImputer
from emflow.baselines.misgan import MisGANImputer

__all__ = ["GAINImputer", "MCFlowImputer", "MisGANImputer"]
