"""The systems that the paper compares with, under the same contract as our imputers."""

from emflow.baselines.gain import GAINImputer
from emflow.baselines.mcflow import MCFlowImputer

__all__ = ["GAINImputer", "MCFlowImputer"]
