"""Whose a thing at a cloud is: the kit's tags, as each cloud writes them. Pure.

Found and deleted is by these tags alone, from any machine. A name proves nothing: a cluster of the same
name may be somebody else's.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kitlib.k8s import names

PREFIX = "trainyard"
KIT, CLUSTER, OWNER, WORKSHOP, EXPIRES = (
    f"{PREFIX}:{word}" for word in ("kit", "cluster", "owner", "workshop", "expires")
)
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Tags:
    """What is written on all that belongs to one cluster.

    Attributes:
        cluster: Its name.
        owner: Who made it: a DNS label.
        workshop: What for: a DNS label.
        expires: When it is deleted by the cloud itself; None for a thing that has no end of its own.
    """

    cluster: str
    owner: str
    workshop: str
    expires: datetime | None = None

    @property
    def end(self) -> datetime:
        """When the cloud deletes what has an end: all that is planned."""
        assert self.expires is not None
        return self.expires

    def amazon(self) -> dict[str, str]:
        """Return them as tags of AWS: ``trainyard:cluster`` and so on."""
        until = {} if self.expires is None else {EXPIRES: write_time(self.expires)}
        return {KIT: "true", CLUSTER: self.cluster, OWNER: self.owner, WORKSHOP: self.workshop, **until}

    def google(self) -> dict[str, str]:
        """Return them as labels of Google Cloud, which have no colon and no capital letter."""
        return {key.replace(":", "-"): value.lower() for key, value in self.amazon().items()}


def write_time(when: datetime) -> str:
    """Write a time as tags have it: ``20261122T130000Z``."""
    return when.astimezone(UTC).strftime(_TIME)


def read_time(word: str) -> datetime | None:
    """Read a time of a tag; None if it is none."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(word.upper(), _TIME).replace(tzinfo=UTC)
    return None


def read(raw: Mapping[str, str]) -> Tags | None:
    """Return the kit's tags among a thing's, in either writing; None if the kit did not make it.

    A thing whose tags somebody has spoiled is still the kit's: what cannot be read is empty.
    """
    plain = {key.replace("-", ":", 1): value for key, value in raw.items() if key.startswith(PREFIX)}
    if plain.get(KIT) != "true":
        return None
    expires = read_time(plain.get(EXPIRES, ""))
    owner, workshop = (names.slug(plain.get(key, "")) for key in (OWNER, WORKSHOP))
    return Tags(plain.get(CLUSTER, ""), owner, workshop, expires)
