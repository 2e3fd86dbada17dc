"""A report on a table: what is missing, how well it can be filled, and what of it not to trust."""

from emflow.report.write import write_report

__all__ = ["write_report"]
