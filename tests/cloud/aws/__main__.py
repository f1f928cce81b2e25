"""The fake as a process: ``python -m tests.cloud.aws --port 5000 --speed 60``; control it at ``/_fake/…``.

Prints its address, and ends when its standard input does.
"""

import argparse
import sys

from . import FakeAmazon


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.cloud.aws")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--speed", type=float, default=0.0, help="simulated seconds in a real one; 0: stands still"
    )
    options = parser.parse_args()
    with FakeAmazon(options.port) as amazon:
        if options.speed:
            amazon.clock.run(options.speed)
        print(amazon.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
