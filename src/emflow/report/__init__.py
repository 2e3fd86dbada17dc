"""A report on a table: what is missing, how well it can be filled, and what of it not to trust."""

from emflow.report.write import FIT_SECONDS, write_report

__all__ = ["FIT_SECONDS", "write_report"]
