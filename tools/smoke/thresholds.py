"""The thresholds of a run: minimum accuracy, images per second or bandwidth.

The figures are those of cells tagged ``result-…``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

FIGURES = {
    "accuracy": "accuracy, from 0 to 1",
    "images_per_s": "images/s of training, all ranks together",
    "allreduce_mb_per_s": "bandwidth of an all-reduce, in MB/s",
}


@dataclass(frozen=True)
class Threshold:
    """The minimum for one notebook, or for all that report the figure.

    Attributes:
        figure: One of ``FIGURES``.
        minimum: In the figure's unit.
        notebook: Its number or the beginning of its name; None for all notebooks with the figure.
    """

    figure: str
    minimum: float
    notebook: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a threshold: notebook, minimum, and measured value (None: not reported)."""

    figure: str
    notebook: str | None
    wanted: float
    measured: float | None

    @property
    def held(self) -> bool:
        """Whether the threshold was reached."""
        return self.measured is not None and self.measured >= self.wanted

    @property
    def title(self) -> str:
        """Describe the measured value."""
        return FIGURES[self.figure]

    def __str__(self) -> str:
        scope = f" in {self.notebook}" if self.notebook else ""
        measured = "not reported" if self.measured is None else f"{self.measured:g}"
        return f"{self.figure}{scope}: {measured}, expected at least {self.wanted:g}"

    def as_dict(self) -> dict[str, object]:
        """Convert it for ``result.json``."""
        return asdict(self) | {"held": self.held}


def parse(figure: str, text: str) -> list[Threshold]:
    """Return the thresholds in a setting: one number for all, or one for each notebook.

    Example:
        >>> parse("accuracy", "05=0.97 10=0.5")[0]
        Threshold(figure='accuracy', least=0.97, notebook='05')

    Raises:
        ValueError: The text has another form.
    """
    thresholds = []
    for item in re.split(r"[\s,]+", text.strip()):
        notebook, _, number = item.rpartition("=")
        try:
            thresholds.append(Threshold(figure, float(number), notebook or None))
        except ValueError as error:
            raise ValueError(
                f"{item!r} is not a threshold of {figure}: use 0.97, or 05=0.97 06=0.5"
            ) from error
    return thresholds


def evaluate(thresholds: Iterable[Threshold], figures: Mapping[str, Mapping[str, float]]) -> list[Verdict]:
    """Return the outcome of each threshold; ``figures`` are those of each executed notebook.

    A threshold whose figure was not reported is missed, so that a renamed tag is noticed.
    """
    verdicts = []
    for threshold in thresholds:
        reported = {
            name: values[threshold.figure]
            for name, values in figures.items()
            if threshold.figure in values and name.startswith(threshold.notebook or "")
        }
        verdicts += [
            Verdict(threshold.figure, name, threshold.minimum, value) for name, value in reported.items()
        ] or [Verdict(threshold.figure, threshold.notebook, threshold.minimum, None)]
    return verdicts
