"""The widget in the browser: one model for all live pictures, whose whole state is in its traits.

The front end is JavaScript without a build step: `static/*.js` behind uPlot (MIT), sent
as one text, so nothing is fetched from anywhere. What is drawn comes ready: this only carries it.
"""

from functools import cache
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from kitlib.widgets import palette

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("uPlot.iife.min.js", "parts.js", "chart.js", "run.js", "cluster.js", "timeline.js")
SCRIPTS += ("workshop.js", "view.js")
STYLES = ("uPlot.min.css", "view.css")


@cache
def bundle(names: tuple[str, ...]) -> str:
    """Return files of the front end as one text."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def _colours() -> dict[str, object]:
    themes = {"light": palette.LIGHT, "dark": palette.DARK}
    styles = [palette.style(index) for index in range(64)]
    return {name: vars(theme) for name, theme in themes.items()} | {"styles": styles}


class LiveView(anywidget.AnyWidget):
    """What a browser shows of a watch.

    Attributes:
        kind: ``run``, ``cluster``, ``timeline`` or ``workshop``.
        frame: Curves, row after row of float32, little-endian.
        layout: What the rows of the frame are: ``{"rows": [[name, number], …], "columns": 120}``.
        facts: Title, phase, figures: what is said in words.
        tables: Rows of each table, by name.
        lines: The end of the merged log: rank, time, text.
        summary: What is to be seen, in a sentence, for screen readers.
    """

    _esm = bundle(SCRIPTS)
    _css = bundle(STYLES)

    kind = traitlets.Unicode("run").tag(sync=True)
    palette = traitlets.Dict(_colours()).tag(sync=True)
    frame = traitlets.Bytes(b"").tag(sync=True)
    layout_of_frame = traitlets.Dict().tag(sync=True)
    facts = traitlets.Dict().tag(sync=True)
    tables = traitlets.Dict().tag(sync=True)
    lines = traitlets.List().tag(sync=True)
    summary = traitlets.Unicode("").tag(sync=True)

    def show(self, rows: list[tuple[str, int, np.ndarray]] | None = None, **traits: object) -> int:
        """Bring the browser up to date in one message, with what has changed; return about how many bytes."""
        before = {name: getattr(self, name) for name in traits}
        size = 0
        with self.hold_sync():
            if rows is not None:
                frame = b"".join(np.asarray(values, dtype="<f4").tobytes() for _, _, values in rows)
                columns = len(rows[0][2]) if rows else 0
                layout = {"rows": [[name, number] for name, number, _ in rows], "columns": columns}
                size += len(frame) if frame != self.frame else 0
                self.frame, self.layout_of_frame = frame, layout
            for name, value in traits.items():
                if value != before[name]:
                    setattr(self, name, value)
                    size += len(repr(value))
        return size
