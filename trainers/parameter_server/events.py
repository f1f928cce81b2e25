"""Events: one JSON object per line on stdout, with ``event``, ``time``, ``rank``, ``role``."""

import json
import sys
import time


class Teller:
    """Write events of one process.

    Args:
        role: ``master``, ``ps`` or ``worker``.
        index: Its number, logged as ``rank``.
        world_size: The requested number of workers.
    """

    def __init__(self, role: str, index: int, world_size: int) -> None:
        self._who = {"rank": index, "world_size": world_size, "role": role}

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event as a single line and flush it: the notebook reads it from the pod's log."""
        line = {"event": event, "time": time.time()} | self._who | fields
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
