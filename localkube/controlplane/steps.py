"""What the ways to the control plane share: versions, this machine's kind, and how a way is passed over."""

import platform
from collections.abc import Callable

KUBERNETES = "v1.36.3"
ETCD = "v3.6.8"
Report = Callable[[str], None]

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class Skipped(Exception):
    """This way to the control plane is closed; the text says why, and the next one is tried."""


def target() -> tuple[str, str]:
    """Return this machine's operating system and architecture as Go names them."""
    machine = platform.machine().lower()
    return platform.system().lower(), _ARCHITECTURES.get(machine, machine)


def duration(seconds: float) -> str:
    """Return a length of time for people.

    Example:
        >>> duration(330)
        '5 min 30 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
