"""The kit's tags on cloud resources, in each cloud's syntax. Pure.

Resources are found and deleted by these tags alone, from any machine. A name proves nothing: a cluster of
the same name may belong to somebody else.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kitlib.k8s import names

PREFIX = "trainyard"
KIT, CLUSTER, OWNER, WORKSHOP, EXPIRES = (
    f"{PREFIX}:{key}" for key in ("kit", "cluster", "owner", "workshop", "expires")
)
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Tags:
    """The tags of all resources of one cluster.

    Attributes:
        cluster: Its name.
        owner: Who created it: a DNS label.
        workshop: What for: a DNS label.
        expires: When the cloud deletes it; None for a resource without its own expiry.
    """

    cluster: str
    owner: str
    workshop: str
    expires: datetime | None = None

    @property
    def end(self) -> datetime:
        """The expiry of a planned cluster, which always has one."""
        assert self.expires is not None
        return self.expires

    def amazon(self) -> dict[str, str]:
        """Return AWS tags: ``trainyard:cluster`` and so on."""
        expiry = {} if self.expires is None else {EXPIRES: write_time(self.expires)}
        return {KIT: "true", CLUSTER: self.cluster, OWNER: self.owner, WORKSHOP: self.workshop, **expiry}

    def google(self) -> dict[str, str]:
        """Return Google Cloud labels, which have no colon and no capital letter."""
        return {key.replace(":", "-"): value.lower() for key, value in self.amazon().items()}


def write_time(when: datetime) -> str:
    """Format a time for a tag: ``20261122T130000Z``."""
    return when.astimezone(UTC).strftime(_TIME)


def read_time(value: str) -> datetime | None:
    """Parse a tag's time; None if it is invalid."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(value.upper(), _TIME).replace(tzinfo=UTC)
    return None


def read(raw: Mapping[str, str]) -> Tags | None:
    """Parse the kit's tags of a resource, in either syntax; None if the kit did not create it.

    Damaged tags do not change that: a value that cannot be parsed is empty.
    """
    plain = {key.replace("-", ":", 1): value for key, value in raw.items() if key.startswith(PREFIX)}
    if plain.get(KIT) != "true":
        return None
    expires = read_time(plain.get(EXPIRES, ""))
    owner, workshop = (names.slug(plain.get(key, "")) for key in (OWNER, WORKSHOP))
    return Tags(plain.get(CLUSTER, ""), owner, workshop, expires)
