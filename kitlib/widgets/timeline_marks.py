"""What a picture of a timeline shows, in seconds from its beginning: marks, pauses, lanes, world size. Pure.

The static picture and the live one both draw what is made here.
"""

from dataclasses import dataclass

from kitlib.metrics.timeline import Row, Timeline

LEVELS = 9  # rows of labels above the strips; what finds no room has its mark alone


@dataclass(frozen=True)
class Mark:
    """A change, and where its label stands.

    Attributes:
        time: Seconds from the beginning.
        label: What happened, and to whom; empty where there is no room to say it.
        level: How far up the label is, so that no label and no line crosses another label.
        begin: Where it begins, in seconds.
    """

    time: float
    label: str
    level: int
    begin: float


def labelled(timeline: Timeline, letters: int) -> tuple[list[Mark], int]:
    """Return the marks, and how many levels their labels need.

    Args:
        timeline: The run's.
        letters: How many fit beside each other in the picture's width.
    """
    letter = max(1.0, timeline.now - timeline.began) / letters  # in seconds
    marks: list[Mark] = []
    for row in reversed(timeline.rows):  # from the right: what begins later stays below
        time, label = row.time - timeline.began, label_of(row)
        begin = max(0.0, min(time, letter * (letters - len(label))))
        end = begin + letter * (len(label) + 2)
        level = 1 + max((each.level for each in marks if each.begin < end or each.time < end), default=-1)
        if level < LEVELS:
            marks.append(Mark(time, label, level, begin))
        else:
            marks.append(Mark(time, "", 0, time))
    return marks[::-1], 1 + max((each.level for each in marks), default=0)


def label_of(row: Row) -> str:
    """Return a change in a few words: ``killed lab-2 (rank 1)``."""
    who = row.worker or row.node
    rank = "" if row.rank is None or not row.worker else f" (rank {row.rank})"
    return f"{row.what} {who}{rank}".strip()


def pauses(timeline: Timeline) -> list[tuple[float, float, str]]:
    """Return when nobody trained, until the first step of each round; with the seconds since the change."""
    found = []
    for row in timeline.rows:
        if row.round is None or row.steps_lost is None:  # a round's first row alone
            continue
        end = row.time + row.seconds if row.seconds is not None else timeline.now
        before = max((each.time for each in timeline.steps if each.time < end), default=row.time)
        begin = max(row.time, before)  # who is asked to join lets the others train on for a while
        words = f"{row.seconds:.1f} s" if row.seconds is not None else "…"
        found.append((begin - timeline.began, end - timeline.began, words))
    return found


def lanes(timeline: Timeline) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Return each worker with what it did: kind, begin, end."""
    return [
        (worker, [(each.kind, each.begin - timeline.began, each.end - timeline.began) for each in spans])
        for worker, spans in timeline.spans.items()
    ]


def world(timeline: Timeline) -> tuple[list[float], list[int]]:
    """Return the world size over time: when it changed, and to what; its last value at the end again."""
    times = [0.0, *(each.time - timeline.began for each in timeline.rounds), timeline.now - timeline.began]
    sizes = [0, *timeline.world_sizes]
    return times, [*sizes, sizes[-1]]
