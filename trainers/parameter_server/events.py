"""Events: one JSON object per line on stdout, with ``event``, ``time``, ``rank``, ``role``."""

import json
import logging
import sys
import time


class EventLogger:
    """Write events of one process.

    Args:
        role: ``master``, ``ps`` or ``worker``.
        index: Its number, logged as ``rank``.
        world_size: The requested number of workers.
    """

    def __init__(self, role: str, index: int, world_size: int) -> None:
        self._labels = {"rank": index, "world_size": world_size, "role": role}

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event as a single line and flush it: the notebook reads it from the pod's log."""
        line = {"event": event, "time": time.time()} | self._labels | fields
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def set_up_log(level: str) -> None:
    """Also log readable lines from a level on to stdout; programs skip them, as they are not JSON."""
    form = "[%(asctime)s] [%(levelname)s] %(message)s"
    logging.basicConfig(stream=sys.stdout, level=level, format=form)
