"""A picture that a notebook shows, a script saves, and a terminal describes in a line."""

import base64
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

    def bundle(self) -> dict[str, str]:
        """Return it as a mimebundle, for a display that is brought up to date."""
        return {"image/png": base64.b64encode(self._repr_png_()).decode(), "text/plain": self.words}

    def __repr__(self) -> str:
        return self.words
