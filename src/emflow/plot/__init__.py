"""Pictures to judge an imputation by: they take and return matplotlib's axes.

They need matplotlib: `pip install "emflow-impute[plot]"`.
"""

from emflow.plot.coverage import calibration
from emflow.plot.distribution import density
from emflow.plot.history import convergence
from emflow.plot.patterns import missing_patterns

__all__ = ["calibration", "convergence", "density", "missing_patterns"]
