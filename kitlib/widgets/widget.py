"""The browser's widget: one anywidget model for all live views, with all state in its traits.

The front end is JavaScript without a build step: uPlot (MIT) and `static/*.js`, sent as one text, so that the
browser downloads nothing.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from kitlib.display.tables import Table
from kitlib.widgets.plots import DARK, LIGHT, style

STATIC = Path(__file__).parent / "static"
SCRIPTS = (
    "uPlot.iife.min.js",
    "parts.js",
    "chart.js",
    "run.js",
    "cluster.js",
    "timeline.js",
    "workshop.js",
    "view.js",
)
STYLES = ("uPlot.min.css", "view.css")


@cache
def bundle(names: tuple[str, ...]) -> str:
    """Concatenate files of the front end."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def _colours() -> dict[str, object]:
    themes = {"light": LIGHT, "dark": DARK}
    styles = [style(index) for index in range(64)]
    return {name: vars(theme) for name, theme in themes.items()} | {"styles": styles}


class LiveView(anywidget.AnyWidget):
    """The live view of a watch.

    Attributes:
        kind: ``run``, ``cluster``, ``timeline`` or ``workshop``.
        frame: Curves: rows of little-endian float32.
        layout_of_frame: The rows of the frame: ``{"rows": [[name, number], …], "columns": 120}``.
        facts: Title, phase, and values.
        tables: By name, each ``{"columns": […], "rows": [[…], …], "empty": "no pods yet"}``.
        lines: The end of the merged log: rank, time, text.
        summary: One line for screen readers.
    """

    _esm = bundle(SCRIPTS)
    _css = bundle(STYLES)

    kind = traitlets.Unicode("run").tag(sync=True)
    palette = traitlets.Dict(_colours()).tag(sync=True)
    frame = traitlets.Bytes(b"").tag(sync=True)
    layout_of_frame = traitlets.Dict().tag(sync=True)
    facts = traitlets.Dict().tag(sync=True)
    tables = traitlets.Dict().tag(sync=True)
    lines: traitlets.List[list[object]] = traitlets.List().tag(sync=True)
    summary = traitlets.Unicode("").tag(sync=True)

    def show(
        self,
        rows: list[tuple[str, int, np.ndarray]] | None = None,
        *,
        tables: Mapping[str, Table],
        **traits: object,
    ) -> int:
        """Send all changes in one message; return the approximate number of bytes."""
        traits["tables"] = {
            name: {"columns": [*table.columns], "rows": [[*row] for row in table.rows], "empty": table.empty}
            for name, table in tables.items()
        }
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
