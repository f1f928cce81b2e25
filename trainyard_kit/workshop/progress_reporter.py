"""The progress of an attendee's notebook, reported to the instructor: which cell is running, which failed.

The kernel writes it to the ConfigMap ``notebook-progress`` in the attendee's namespace, which the workshop
creates; without that ConfigMap nothing is reported. It contains the notebook's name, the number of the cell
and the first line of an error, but neither code nor output. A thread writes at most once a second; its errors
never reach the notebook. The instructor's table is in `attendee_status`.
"""

import atexit
import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib import config
from kitlib.display.progress import in_notebook
from kitlib.errors import KitError, Rejected
from kitlib.k8s.client import Kube

if TYPE_CHECKING:
    from IPython.core.events import EventManager
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult

CONFIG_MAP = "notebook-progress"
NAMESPACES = "attendee-"  # the prefix of attendees' namespaces
SESSION = "JPY_SESSION_NAME"  # Jupyter's variable for the file that a kernel serves
RUNNING, DONE, FAILED = "running", "done", "failed"
INTERVAL_SECONDS, CLOSE_SECONDS = 1.0, 1.0
LONGEST = 200  # characters of an error
UNKNOWN = "another"  # a notebook outside the course
log = logging.getLogger("trainyard")

Course = Mapping[str, list[tuple[str, int, int]]]  # a cell's source -> notebook, number, total of cells


@dataclass(frozen=True)
class NotebookPosition:
    """The progress of one notebook.

    Attributes:
        notebook: Its name, without suffix.
        cell: The number of the code cell, from 1; 0 outside the course.
        of: The number of code cells of the notebook.
        state: ``running``, ``done`` or ``failed``.
        error: The first line of the error.
        at: When the state began, in UTC.
    """

    notebook: str
    cell: int = 0
    of: int = 0
    state: str = RUNNING
    error: str = ""
    at: str = ""


@cache
def cells() -> Course:
    """Index the code cells of the course by their source."""
    by_source: dict[str, list[tuple[str, int, int]]] = {}
    for path in sorted((config.DATA / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        all_cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]).strip() for cell in all_cells if cell["cell_type"] == "code"]
        for number, source in enumerate(code, 1):
            by_source.setdefault(source, []).append((path.stem, number, len(code)))
    return by_source


def follow(kube: Kube) -> None:
    """Start reporting the progress of this notebook if it is an attendee's."""
    if not kube.namespace.startswith(NAMESPACES) or not in_notebook():
        return
    from IPython import get_ipython

    events = get_ipython().events
    for call in list(events.callbacks["post_run_cell"]):
        reporter = getattr(call, "__self__", None)
        if isinstance(reporter, ProgressReporter):
            if reporter.kube.namespace == kube.namespace and not reporter.ended:
                return
            reporter.unregister(events)
    ProgressReporter(kube).register(events)


class ProgressReporter:
    """Reports the progress of one kernel each time a cell starts or finishes."""

    def __init__(self, kube: Kube, course: Callable[[], Course] = cells) -> None:
        self.kube = kube
        self.ended = False
        self._course = course
        self._last = NotebookPosition(Path(os.environ.get(SESSION, "")).stem or UNKNOWN)
        self._queue: deque[tuple[str, str, str]] = deque()
        self._wakeup, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def register(self, events: "EventManager") -> None:
        """Register with IPython for the start and the end of each cell."""
        events.register("pre_run_cell", self.cell_started)
        events.register("post_run_cell", self.cell_finished)
        atexit.register(self.close)

    def unregister(self, events: "EventManager") -> None:
        """Undo `register`, and close."""
        events.unregister("pre_run_cell", self.cell_started)
        events.unregister("post_run_cell", self.cell_finished)
        self.close()

    def cell_started(self, info: "ExecutionInfo") -> None:
        """Queue that a cell has started."""
        self._enqueue(info.raw_cell, RUNNING, "")

    def cell_finished(self, result: "ExecutionResult") -> None:
        """Queue the result of a cell."""
        error = result.error_before_exec or result.error_in_exec
        source = getattr(result.info, "raw_cell", None)
        if error is None or isinstance(error, KeyboardInterrupt):
            self._enqueue(source, DONE, "")
        else:
            self._enqueue(source, FAILED, first_line(error))

    def close(self) -> None:
        """Write what is queued, for a second at most."""
        self._stopping.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _enqueue(self, source: object, state: str, error: str) -> None:
        if self.ended or not isinstance(source, str):
            return
        self._queue.append((source, state, error))
        self._wakeup.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="progress-reporter", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self.ended:
                self._wakeup.wait()
                self._wakeup.clear()
                self._write()
                if self._stopping.wait(INTERVAL_SECONDS):
                    self._write()
                    return
        except Exception:  # noqa: BLE001 - it must not affect the notebook
            log.debug("the progress of this notebook cannot be reported", exc_info=True)
        self.ended = True

    def _write(self) -> None:
        """Write the last queued state of each notebook."""
        queued = [self._queue.popleft() for _ in range(len(self._queue))]
        entries: dict[str, str] = {}
        for source, state, error in queued:
            position = locate(source, self._last, self._course())
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._last = replace(position, state=state, error=error, at=now)
            entry = asdict(self._last)
            entries[key(entry.pop("notebook"))] = json.dumps(entry)
        if not entries:
            return
        try:
            self.kube.patch("ConfigMap", CONFIG_MAP, {"data": entries})
        except Rejected as error:
            self.ended = error.status in (403, 404)  # the ConfigMap does not exist
        except KitError as error:
            log.debug("the progress of this notebook was not reported: %s", error.what)


def locate(source: str, last: NotebookPosition, course: Course) -> NotebookPosition:
    """Find a cell of the course by its source; for any other cell return the last position. Pure.

    Cells such as ``import kitlib as kit`` are in many notebooks: the last notebook takes precedence.
    """
    candidates = course.get(source.strip(), [])
    matches = [row for row in candidates if row[0] == last.notebook]
    if matches or len(candidates) == 1:
        return NotebookPosition(*(matches or candidates)[0])
    return last


def first_line(error: BaseException) -> str:
    """Format an error as its class and the first line of its message."""
    message = error.what if isinstance(error, KitError) else str(error)
    return f"{type(error).__name__}: {message.strip().partition(chr(10))[0]}"[:LONGEST]


def key(notebook: str) -> str:
    """Convert a notebook's name to a valid key of a ConfigMap."""
    return re.sub(r"[^-._a-zA-Z0-9]+", "-", notebook)[:100].strip("-.") or UNKNOWN


def is_of_course(notebook: str) -> bool:
    """Whether the course has a notebook of this name."""
    return any(notebook == name for rows in cells().values() for name, *_ in rows)
