"""Obtain the control plane and say how: ``python -m localkube.controlplane``.

It needs nothing but Python, so that it can run while the packages of the kit are being installed.
"""

import sys

from localkube.controlplane.binaries import obtain
from localkube.errors import LocalClusterError


def main() -> int:
    """Obtain the control plane; return the exit status."""

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        obtain(report=say)
    except LocalClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what is whole is kept, and the next run goes on from there\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
