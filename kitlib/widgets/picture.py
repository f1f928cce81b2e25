"""A picture that a notebook shows, a script saves, and a terminal describes in a line."""

import io
from pathlib import Path

from matplotlib.figure import Figure


class Picture:
    """A drawn figure with words for where it cannot be seen.

    Args:
        figure: Drawn, and not registered anywhere: it needs no closing.
        words: What is to be seen, in a line.
    """

    def __init__(self, figure: Figure, words: str) -> None:
        self.figure = figure
        self.words = words

    def save(self, path: str | Path) -> Path:
        """Write it as PNG, SVG or PDF, by the path's ending."""
        self.figure.savefig(path, bbox_inches="tight")
        return Path(path)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    def __repr__(self) -> str:
        return self.words
