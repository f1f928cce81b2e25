"""The fake as a process: ``python -m tests.cloud.google --speed 60``; control it at ``/_fake/…``.

Prints its variables as JSON, and ends when its standard input does.
"""

import argparse
import json
import sys
from datetime import UTC, datetime

from .fake import FakeGoogle


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.cloud.google")
    parser.add_argument("--speed", type=float, default=0.0, help="simulated seconds in a real one")
    options = parser.parse_args()
    with FakeGoogle(speed=options.speed) as google:
        google.clock.begin_at(datetime.now(UTC))
        print(json.dumps(dict(google.endpoints)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
