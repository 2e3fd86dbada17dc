"""emflow: fill missing values by EM in the latent space of a normalising flow."""

from importlib.metadata import version

from emflow.errors import DataError, DivergedError, EMFlowError, FileError, ParameterError
from emflow.evaluation import Evaluation, Score, evaluate
from emflow.gaussian_imputer import GaussianImputer
from emflow.imputer import EMFlowImputer
from emflow.pool import Pooled, pool

__version__ = version("emflow-impute")

__all__ = [
    "DataError",
    "DivergedError",
    "EMFlowError",
    "EMFlowImputer",
    "Evaluation",
    "FileError",
    "GaussianImputer",
    "ParameterError",
    "Pooled",
    "Score",
    "__version__",
    "evaluate",
    "pool",
]
