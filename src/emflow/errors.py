"""What can go wrong, as types: catch `EMFlowError` for all of it, or the built-in error each one also is."""

from __future__ import annotations


class EMFlowError(Exception):
    """Any error that emflow raises on purpose."""


class DataError(EMFlowError, ValueError):
    """The data cannot be used; the message names the column or row and says what to do."""


class ParameterError(EMFlowError, ValueError):
    """A hyperparameter is out of range."""


class FileError(EMFlowError, ValueError):
    """A model or checkpoint file is truncated, foreign, newer than this version, or made from other data."""


class DatasetError(EMFlowError, OSError):
    """A data set cannot be had: not found, not downloaded, or not the one it should be; says where to put it."""


class DivergedError(EMFlowError, ArithmeticError):
    """Training left the range of finite numbers."""
