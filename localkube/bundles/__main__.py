"""``python -m localkube.bundles use FILE``, before anything is installed; later ``localkube bundle``."""

import argparse
import functools
import sys
from pathlib import Path

from localkube.bundles.pack import create_bundle
from localkube.bundles.unpack import use_bundle
from localkube.errors import LocalClusterError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localkube.bundles", description=__doc__)
    parser.add_argument("verb", choices=("create", "use"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--without-wheels", action="store_true")
    parser.add_argument("--image", action="append", default=[], metavar="REFERENCE")
    options = parser.parse_args()

    say = functools.partial(print, flush=True)
    try:
        if options.verb == "use":
            use_bundle(options.file, report=say)
        else:
            with_wheels = not options.without_wheels
            create_bundle(options.file, with_wheels=with_wheels, images=options.image, report=say)
    except LocalClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was changed\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
