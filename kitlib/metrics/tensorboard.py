"""Scalars of TensorBoard's event files, read by TensorBoard, which a program that writes them needs as well.

Its own reader is the thin way: the format is one of records with checksums and protobuf messages.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib.errors import BadInput
from kitlib.metrics.events import Event

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

_HOST = re.compile(
    r"tfevents\.\d+\.(?P<host>.{1,253}?)\.\d+\.\d+$"
)  # of events.out.tfevents.TIME.HOST.PID.NUMBER


def read_tensorboard(folder: str | Path) -> list[Event]:
    """Read the scalars below a folder: a ``step`` event for each step, whose fields are the tags.

    A tag with the word loss is the field ``loss`` as well. The rank is the number with which the name of the
    machine that wrote a file ends, as those of pods of an Indexed Job do.

    Raises:
        BadInput: There are no event files, or TensorBoard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        what = "TensorBoard, which reads its event files, is not installed"
        raise BadInput(
            what, about=str(folder), fix="install trainyard-kit with its extra [tensorboard]"
        ) from error
    files = sorted(Path(folder).expanduser().rglob("events.out.tfevents.*"))
    if not files:
        fix = 'fetch them first: `volume.download(f"runs/{run.name}", "here")`'
        raise BadInput("there are no event files of TensorBoard", about=str(folder), fix=fix)
    ranks = [_rank(file) for file in files]
    world = max(ranks) + 1
    events = []
    for file, rank in zip(files, ranks, strict=True):
        reader = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
        reader.Reload()
        events += _events(reader, rank=rank, world=world)
    return events


def _events(reader: "EventAccumulator", *, rank: int, world: int) -> list[Event]:
    tags = reader.Tags()["scalars"]
    loss = next((tag for tag in tags if _is_loss(tag)), None)
    steps: dict[int, dict[str, object]] = {}
    times: dict[int, float] = {}
    for tag in tags:
        for scalar in reader.Scalars(tag):
            fields = steps.setdefault(scalar.step, {"step": scalar.step})
            fields[tag] = scalar.value
            if tag == loss:
                fields["loss"] = scalar.value
            times[scalar.step] = scalar.wall_time
    return [Event("step", times[step], rank, world, fields) for step, fields in sorted(steps.items())]


def _is_loss(tag: str) -> bool:
    words = re.split(r"[^a-z]+", tag.lower())
    return "loss" in words and not {"test", "val", "valid", "validation", "eval"} & set(words)


def _rank(file: Path) -> int:
    named = _HOST.search(file.name)
    number = re.search(r"-(\d+)$", named["host"]) if named else None
    return int(number[1]) if number else 0
