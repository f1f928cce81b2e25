"""A watch as a cell's output: a widget if the notebook has a front end, otherwise a picture and a table.

With a front end, the picture is added to the output when the watch has ended, for the saved notebook. Without
one (papermill, nbclient, nbval), where a widget would leave nothing in the executed notebook, the picture and
the table are updated after each cell. Nothing is displayed from a thread.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from kitlib.display.progress import in_notebook

WIDGET = "application/vnd.jupyter.widget-view+json"


def has_frontend() -> bool:
    """Whether the running cell has a front end: only front ends support requests for input."""
    if not in_notebook():
        return False
    from IPython import get_ipython

    return bool(getattr(get_ipython().kernel, "_allow_stdin", False))


class Displayed(Protocol):
    """The interface of `kitlib.widgets.watch.Watch` that its display uses: that module imports this one."""

    @property
    def is_live(self) -> bool: ...

    @property
    def finished(self) -> bool: ...

    def state(self) -> object: ...

    def static_view(self) -> list[dict[str, str]]: ...

    def widget(self) -> Any: ...

    def catch_up(self) -> object: ...

    def when_finished(self, call: Callable[[], None], /) -> object: ...


class NotebookDisplay:
    """One output of a `kitlib.widgets.watch.Watch`, updated until the watch has ended."""

    def __init__(self, watch: Displayed) -> None:
        from IPython import get_ipython
        from IPython.display import display

        self.watch = watch
        self.live: bool = watch.is_live and has_frontend()
        self.cells: int = 0
        self.drawn: object = None
        self.shell = get_ipython()
        if self.live:
            self.handles = [display(self._widget(), raw=True, display_id=True)]
            with contextlib.suppress(RuntimeError):  # no event loop: the next cell completes it
                watch.when_finished(_later(asyncio.get_running_loop(), self.complete))
        else:
            self.drawn = watch.state()
            self.handles = [display(picture, raw=True, display_id=True) for picture in watch.static_view()]
        self.shell.events.register("post_run_cell", self._after_cell)

    def complete(self) -> None:
        """Show the last state if the watch has ended."""
        if self.shell is None or not self.watch.finished:
            return
        self._update()
        self.shell.events.unregister("post_run_cell", self._after_cell)
        self.shell = None

    def _after_cell(self, *_: object) -> None:
        self.cells += 1
        if self.cells == 1 and not self.watch.finished:  # the cell that displays it
            return
        if not self.live:
            self.watch.catch_up()
            if not self.watch.finished and self.watch.state() != self.drawn:
                self._update()
        self.complete()

    def _update(self) -> None:
        self.drawn = self.watch.state()
        picture, *others = self.watch.static_view()
        bundles = [picture | self._widget(), *others] if self.live else [picture, *others]
        for handle, bundle in zip(self.handles, bundles, strict=False):
            handle.update(bundle, raw=True)

    def _widget(self) -> dict[str, object]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.watch.widget().model_id}
        return {WIDGET: view, "text/plain": repr(self.watch)}


def _later(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> Callable[[], None]:
    def schedule() -> None:
        with contextlib.suppress(RuntimeError):  # the kernel has ended
            loop.call_soon_threadsafe(call)

    return schedule
