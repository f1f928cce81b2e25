"""``python -m localkube.kubelet SETTINGS.json``: run the kubelet, as the supervisor does.

``TRAINYARD_LOG_LEVEL=DEBUG``, in the environment in which the cluster is created, makes its log verbose.
"""

import gc

gc.disable()  # collections take a tenth of the time of the imports, and find nothing

# ruff: noqa: E402
import asyncio
import logging
import os
import sys
from pathlib import Path

from localkube.kubelet.kubelet import run_kubelet
from localkube.kubelet.kubelet_config import KubeletConfig


def main() -> None:
    gc.freeze()
    gc.enable()
    level = logging.getLevelNamesMapping().get(os.environ.get("TRAINYARD_LOG_LEVEL", "INFO"), logging.INFO)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(run_kubelet(KubeletConfig.read(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
