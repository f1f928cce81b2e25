"""Metrics that a run's program reported, as a table and a picture: from its log or TensorBoard's files."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib import plugins
from kitlib.display.signatures import checked_class
from kitlib.display.tracebacks import Line
from kitlib.metrics import events
from kitlib.metrics.events import Event
from kitlib.metrics.tensorboard import read_tensorboard

if TYPE_CHECKING:
    import pandas

    from kitlib.widgets.plots import Picture


@checked_class
class Reports(ABC):
    """The numbers of a run: on a cluster, or in processes of this machine."""

    name: str

    @abstractmethod
    def _logs(self) -> Mapping[int | str, Sequence[Line]]:
        """Read the lines of each rank."""

    def metrics(
        self, event: str | None = None, *, pattern: str | None = None, tensorboard: str | Path | None = None
    ) -> "pandas.DataFrame":
        """Read the reported metrics as a pandas DataFrame: a row for each JSON line, or matching line.

        Args:
            event: Only lines of this kind: ``step``, ``epoch``, ``eval`` …
            pattern: A regular expression with named groups, for a program that prints no JSON; each line
                that matches is a ``step``. By default, of such a program, the losses: those of the training
                are ``step`` events, those of the validation ``eval`` events.
            tensorboard: A folder on this machine with event files of TensorBoard, to read instead.

        Returns:
            Columns event, time, rank, world_size, and those of the program: ``loss``, ``accuracy`` …

        Raises:
            BadInput: The pattern is no regular expression, or the folder has no event files.

        Example:
            >>> run.metrics(pattern=r"epoch (?P<epoch>\\d+): top-1 (?P<accuracy>[\\d.]+)")
        """
        import pandas  # half a second, and seldom needed

        columns = ["event", "time", "rank", "world_size"]
        frame = pandas.DataFrame(events.rows(self.reports(pattern=pattern, tensorboard=tensorboard), event))
        return frame if len(frame) else pandas.DataFrame(columns=columns)

    def plot(self, *, pattern: str | None = None, tensorboard: str | Path | None = None) -> "Picture":
        """Draw the loss by rank.

        Args:
            pattern: As for :meth:`metrics`, with a group ``loss``: ``r"loss[=: ]+(?P<loss>\\S+)"``.
            tensorboard: As for :meth:`metrics`; the tag with the word loss is drawn.
        """
        from kitlib.widgets.plots import plot_loss  # matplotlib takes half a second

        return plot_loss(self.reports(pattern=pattern, tensorboard=tensorboard), title=self.name)

    def reports(self, *, pattern: str | None = None, tensorboard: str | Path | None = None) -> list[Event]:
        """Parse what the program reported, of all ranks; the arguments are those of :meth:`metrics`."""
        if tensorboard:
            return read_tensorboard(tensorboard)
        logs, reported = self._logs(), []
        if pattern is None:
            parsed = (events.parse_line(line.text) for lines in logs.values() for line in lines)
            reported = [event for event in parsed if event is not None]
        return reported or [*plugins.find("kitlib.output", "events")(logs, pattern)]
