"""Which kubectl is started for clusters that bring none of their own: that on PATH, or else the kit's."""

import shutil

from kitlib.clusters import local
from kitlib.display.progress import progress


def kubectl() -> list[str]:
    """Return how kubectl is started, without arguments; the kit's own is obtained if need be.

    Raises:
        ProviderFailed: There is none on PATH, and the kit's own cannot be had either.
    """
    found = shutil.which("kubectl")
    if found is not None:
        return [found]
    with progress("kubectl") as line:
        return local.ask("kubectl", report=line.update)
