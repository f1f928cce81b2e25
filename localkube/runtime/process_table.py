"""What the runtime knows of each process that it has started."""

import socket
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Entry:
    """A process that was started here and whose end has not yet been acknowledged.

    ``pipes`` are kept for an agent that starts anew, and with them the journal of what was taken from them
    (``logs/journal.py``); ``context`` is kept for commands that join a container. A process of owner ``exec``
    belongs to the client that ordered it, and ends with the connection.
    """

    identity: str
    owner: str
    pid: int
    started: float
    pipes: dict[str, int] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    client: socket.socket | None = None
    container: str = ""
    mounts: int | None = None
    status: int | None = None
    ended: float | None = None
    forgotten: bool = False

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.identity,
            "owner": self.owner,
            "pid": self.pid,
            "started": self.started,
            "status": self.status,
            "ended": self.ended,
            "streams": list(self.pipes),
        }
