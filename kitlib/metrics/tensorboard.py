"""Scalars of TensorBoard's event files, read with the TensorBoard package."""

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
    """Read the scalars below a folder: a ``step`` event for each step, with the tags as fields.

    A tag with the word loss is also the field ``loss``. The rank is the number at the end of the host name in
    a file's name, as pods of an Indexed Job have it.

    Raises:
        BadInput: There are no event files, or TensorBoard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        what, fix = "TensorBoard is not installed", "install trainyard-kit with its extra [tensorboard]"
        raise BadInput(what, about=str(folder), fix=fix) from error
    files = sorted(Path(folder).expanduser().rglob("events.out.tfevents.*"))
    if not files:
        fix = 'download them first: `volume.download(f"runs/{run.name}", "here")`'
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
    match = _HOST.search(file.name)
    number = re.search(r"-(\d+)$", match["host"]) if match else None
    return int(number[1]) if number else 0
