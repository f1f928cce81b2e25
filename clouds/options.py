"""What may be asked of a cluster at a cloud, whichever: its options, checked before anything is started."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from kitlib.clusters.base import Shape
from kitlib.errors import BadInput

HOURS, MOST_HOURS, DISK_GB = 4, 336, 100
COMMON_OPTIONS = {
    "hours": f"after which the cloud itself deletes it; by default {HOURS}",
    "disk_gb": f"of each training node; by default {DISK_GB}",
    "confirm": "True agrees to the price beforehand",
    "admins": "who administers it beside you: a list of what cluster.add_admin takes",
    "budget": "dollars that all clusters there may cost; by default TRAINYARD_BUDGET",
}


def no_words(shape: Shape, words: Sequence[str], *, about: str, cloud: str, fix: str) -> None:
    """Refuse what a machine at a cloud has by its type."""
    for word in words:
        if getattr(shape, word) is not None:
            raise BadInput(
                f"{word} of a machine at {cloud} come with its type",
                about=f'create_cluster("{about}", {word}=…)',
                fix=fix,
            )


def other_machines(has: str, title: str) -> BadInput:
    """Return the error for a cluster that is there, and is asked for with other machines."""
    return BadInput(
        f"it is there already, with other machines: {has}",
        about=title,
        fix="ask for these, take another name, or delete it first; cluster.scale(n) changes how many",
    )


def admins_of(given: object) -> tuple[str, ...]:
    """Return the administrators that were asked for."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(dict.fromkeys(map(str, given)))
    if given is None:
        return ()
    raise BadInput("admins are a list", about=f"admins={given!r}", fix=f"admins=[{given!r}]")


def until_of(hours: object) -> datetime:
    """Convert hours from now to a time."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours_of(hours))


def hours_of(hours: object) -> float:
    """Return a number of hours that a cluster can live for."""
    usable = isinstance(hours, int | float) and not isinstance(hours, bool) and 0.5 <= hours <= MOST_HOURS
    if not usable:
        raise BadInput(
            f"hours are a number from 0.5 to {MOST_HOURS}", about=f"hours={hours!r}", fix=f"hours={HOURS}"
        )
    return float(hours)
