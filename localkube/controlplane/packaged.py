"""Programs that came as the Python package ``trainyard-controlplane``: a workshop's machines then need no Go.

``make wheel`` makes it (``tools/wheel.py``). It says of each program from which sources it was built, and is
passed over where those are not ours: a cluster must not run what nobody tested with it.
"""

import importlib.util
import json
import os
from pathlib import Path

from localkube.controlplane.steps import Skipped

PACKAGE = "trainyard_controlplane"
CONTENTS = "contents.json"


def find(program: str, fingerprint: str) -> Path:
    """Return a program of the package.

    Args:
        program: Its file's name.
        fingerprint: Of the sources that it must have been built from.

    Raises:
        Skipped: The package is not installed, or has another program than this.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        raise Skipped("the Python package trainyard-controlplane is not installed")
    folder = Path(spec.origin).parent / "binaries"
    try:
        contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Skipped(f"{folder / CONTENTS} cannot be read: {error}") from error
    if program not in contents:
        raise Skipped(f"the package trainyard-controlplane has no {program}")
    if contents[program] != fingerprint:
        raise Skipped(
            f"{program} of the package trainyard-controlplane was built from other sources "
            f"({contents[program]}) than these ({fingerprint}): install the wheel of this version"
        )
    if not os.access(folder / program, os.X_OK):
        raise Skipped(f"{folder / program} cannot be executed")
    return folder / program
