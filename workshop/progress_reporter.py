"""Where a notebook is, told to the instructor of a workshop: which cell runs, which failed, in a few words.

The kernel of an attendee's notebook writes it into the ConfigMap ``whereabouts`` of the attendee's namespace,
which the workshop has put there; where there is none, or it was deleted, nothing is told. Neither code nor
output is: the notebook's name, the number of the cell, and the first line of an error. A thread writes, once
a second at most; what goes wrong with it is nobody's trouble. What the instructor sees is in `roster`.
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

from kitlib import config
from kitlib.display.progress import in_notebook
from kitlib.errors import KitError, Rejected
from kitlib.k8s.client import Kube

PLACE = "whereabouts"
NAMESPACES = "attendee-"  # how those begin in which there may be the place
SESSION = "JPY_SESSION_NAME"  # Jupyter says by it which file a kernel serves
RUNNING, DONE, FAILED = "running", "done", "failed"
PAUSE_SECONDS, LAST_SECONDS = 1.0, 1.0
LONGEST = 200  # characters of an error
UNKNOWN = "another"  # a notebook that is none of the course's
log = logging.getLogger("trainyard")

Course = Mapping[str, list[tuple[str, int, int]]]  # a cell's source -> notebook, number, how many it has


@dataclass(frozen=True)
class Whereabouts:
    """Where a notebook is.

    Attributes:
        notebook: Its name, without the ending.
        cell: The number of the cell among those with code, from 1; 0 if it is none of the course's.
        of: How many the notebook has.
        state: ``running``, ``done`` or ``failed``.
        error: The first line of it.
        at: Since when, in UTC.
    """

    notebook: str
    cell: int = 0
    of: int = 0
    state: str = RUNNING
    error: str = ""
    at: str = ""


def follow(kube: Kube) -> None:
    """Tell from now on where this notebook is, if it is an attendee's; anywhere else do nothing."""
    if not kube.namespace.startswith(NAMESPACES) or not in_notebook():
        return
    from IPython import get_ipython

    events = get_ipython().events
    for call in list(events.callbacks["post_run_cell"]):
        teller = getattr(call, "__self__", None)
        if isinstance(teller, Teller):
            if teller.kube.namespace == kube.namespace and not teller.ended:
                return
            teller.leave(events)
    Teller(kube).join(events)


class Teller:
    """Tells where one kernel is, each time a cell begins or ends.

    Args:
        kube: The attendee's.
        course: Returns the cells of the course.
    """

    def __init__(self, kube: Kube, course: Callable[[], Course] | None = None) -> None:
        self.kube = kube
        self.ended = False
        self._course = course or cells
        self._last = Whereabouts(Path(os.environ.get(SESSION, "")).stem or UNKNOWN)
        self._told: deque[tuple[str, str, str]] = deque()
        self._something, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, events) -> None:
        """Be called by IPython at the begin and the end of each cell."""
        events.register("pre_run_cell", self.begins)
        events.register("post_run_cell", self.ends)
        atexit.register(self.close)

    def leave(self, events) -> None:
        """Be called no more."""
        events.unregister("pre_run_cell", self.begins)
        events.unregister("post_run_cell", self.ends)
        self.close()

    def begins(self, info) -> None:
        """Note that a cell begins."""
        self._note(info.raw_cell, RUNNING, "")

    def ends(self, result) -> None:
        """Note how a cell has ended."""
        error = result.error_before_exec or result.error_in_exec
        failed = error is not None and not isinstance(error, KeyboardInterrupt)
        source = getattr(result.info, "raw_cell", None)
        self._note(source, FAILED if failed else DONE, first_line(error) if failed else "")

    def close(self) -> None:
        """Tell what is left to be told, for a moment at most."""
        self._stopping.set()
        self._something.set()
        if self._thread is not None:
            self._thread.join(LAST_SECONDS)

    def _note(self, source: object, state: str, error: str) -> None:
        if self.ended or not isinstance(source, str):
            return
        self._told.append((source, state, error))
        self._something.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self.ended:
                self._something.wait()
                self._something.clear()
                self._write()
                if self._stopping.wait(PAUSE_SECONDS):
                    self._write()
                    return
        except Exception:  # noqa: BLE001 - nobody's notebook shall end for this
            log.debug("where this notebook is cannot be told", exc_info=True)
        self.ended = True

    def _write(self) -> None:
        """Write where each notebook is of which something is new; the last word on each."""
        told = [self._told.popleft() for _ in range(len(self._told))]
        new: dict[str, str] = {}
        for source, state, error in told:
            found = locate(source, self._last, self._course())
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._last = replace(found, state=state, error=error, at=now)
            words = asdict(self._last)
            new[key(words.pop("notebook"))] = json.dumps(words)
        if not new:
            return
        try:
            self.kube.patch("ConfigMap", PLACE, {"data": new})
        except Rejected as error:
            self.ended = error.status in (403, 404)  # nobody wants to know
        except KitError as error:
            log.debug("where this notebook is was not told: %s", error.what)


def locate(source: str, last: Whereabouts, course: Course) -> Whereabouts:
    """Return which cell of the course this is; one that is none of it leaves the notebook where it was. Pure.

    Cells such as ``import kitlib as kit`` are in many notebooks: then it is the one that was there before.
    """
    found = course.get(source.strip(), [])
    here = [each for each in found if each[0] == last.notebook]
    if here or len(found) == 1:
        return Whereabouts(*(here or found)[0])
    return last


def first_line(error: BaseException) -> str:
    """Return an error's class and the first line of its words."""
    words = error.what if isinstance(error, KitError) else str(error)
    return f"{type(error).__name__}: {words.strip().partition(chr(10))[0]}"[:LONGEST]


def key(notebook: str) -> str:
    """Return a notebook's name as a ConfigMap can have it."""
    return re.sub(r"[^-._a-zA-Z0-9]+", "-", notebook)[:100].strip("-.") or UNKNOWN


@cache
def cells() -> Course:
    """Return where each cell with code stands in the course."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for path in sorted((config.ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        every = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(each["source"]).strip() for each in every if each["cell_type"] == "code"]
        for number, source in enumerate(code, 1):
            found.setdefault(source, []).append((path.stem, number, len(code)))
    return found
