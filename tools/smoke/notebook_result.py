"""What is known of an executed notebook; ``report.py`` reads it from the file."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A picture of a cell tagged ``result-picture``, with its alternative text."""

    data: str
    text: str


@dataclass(frozen=True)
class CellFailure:
    """The failed cell: its number in the stored notebook, its first line, the last line of the error.

    ``traceback`` is Python's whole output for a terminal; empty if the cell did not finish.
    """

    cell: int
    source: str
    error: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"cell {self.cell} (`{self.source}`): {self.error}"


@dataclass(frozen=True)
class NotebookResult:
    """The results of an executed notebook."""

    name: str
    title: str
    goal: str
    seconds: float
    figures: dict[str, float]
    synthetic: bool
    failure: CellFailure | None
    finished: bool
    pictures: tuple[Picture, ...]
    data: Mapping[str, str]  # real or synthetic, by data set

    @property
    def verdict(self) -> str:
        """Return ``passed``, ``failed`` or ``not finished``."""
        return "failed" if self.failure else "passed" if self.finished else "not finished"

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy from 0 to 1, or None."""
        return self.figures.get("accuracy")
