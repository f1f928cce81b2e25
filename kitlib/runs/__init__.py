"""A run: one launched job, followed by its label from any kernel."""

from kitlib.runs.run import Run

__all__ = ["Run"]
