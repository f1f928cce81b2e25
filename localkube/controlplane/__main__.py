"""Obtain the control plane and say how: ``python -m localkube.controlplane [--operators] [--background]``.

It needs nothing but Python, so that it can run while the packages of the kit are being installed.
"""

import argparse
import functools
import os
import signal
import sys

from localkube.controlplane import binaries, programs
from localkube.controlplane.recipes import RECIPES
from localkube.errors import LocalClusterError
from localkube.runtime.syscalls import die_with_parent

# Beside three lanes of notebooks, a build at 19 came to a quarter of an operator in five minutes.
LOW_PRIORITY = 5


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m localkube.controlplane", description=__doc__)
    parser.add_argument("--operators", action="store_true", help="then the programs that known images run")
    parser.add_argument(
        "--background",
        action="store_true",
        help="at low priority, and end with the process that began it",
    )
    options = parser.parse_args(arguments)

    say = functools.partial(print, flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: go ends its compilers, too
    if options.background:
        die_with_parent(signal.SIGTERM)
        os.nice(LOW_PRIORITY)
    try:
        binaries.obtain(report=say)
        for name in RECIPES if options.operators else ():
            try:
                programs.obtain([name], report=say)
            except (
                LocalClusterError
            ) as error:  # the next command that needs it retries, and reports the failure
                say(f"warning: {error}")
    except LocalClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what is complete is kept, and the next run continues from there\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
