"""What every process says: one JSON object a line on stdout, with ``event``, ``time``, ``rank``, ``role``."""

import json
import sys
import time


class Teller:
    """Write events of one process.

    Args:
        role: ``master``, ``ps`` or ``worker``.
        index: Which one of them; it is said as ``rank``.
        world_size: How many workers the job was asked for.
    """

    def __init__(self, role: str, index: int, world_size: int) -> None:
        self._who = {"rank": index, "world_size": world_size, "role": role}

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event, in one piece, at once: pod logs are how the notebook sees it."""
        line = {"event": event, "time": time.time()} | self._who | fields
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
