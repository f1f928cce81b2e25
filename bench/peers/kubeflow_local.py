"""Train by the Kubeflow SDK's LocalProcessBackend; run with the Python of an environment that has the SDK.

The SDK makes a new virtual environment for the job, installs what the trainer imports into it by pip, and
runs a function there by torchrun; the function runs our trainer's file. What the job wrote is printed at the
end, and before it one line of our own: when the job was asked for, and when its torchrun was started.

    python kubeflow_local.py TRAINER '{"epochs": 1}' torch==2.15.0 numpy …
"""

import json
import os
import sys
import time
from typing import Any

from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient

LIMIT_SECONDS = 1800


def train(parameters: dict[str, Any]) -> None:
    """Run the trainer; the SDK copies this function's source into a file of its own, so it stands alone."""
    import json
    import os
    import runpy
    import sys
    import time
    from pathlib import Path

    started = float(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    torchrun = time.time() - since_boot + started / os.sysconf("SC_CLK_TCK")
    print(json.dumps({"torchrun": torchrun}), flush=True)
    sys.argv = [parameters["path"], *parameters["flags"]]
    runpy.run_path(parameters["path"], run_name="__main__")


def main() -> int:
    """Train once and print what the job said."""
    trainer, flags, *packages = sys.argv[1:]
    client = TrainerClient(backend_config=LocalProcessBackendConfig())
    words = [f"--{name}={value}" for name, value in json.loads(flags).items()]
    custom = CustomTrainer(
        func=train,
        func_args={"path": trainer, "flags": words},
        packages_to_install=packages,
        env=dict(os.environ),
    )
    print(json.dumps({"submitted": time.time()}))
    job = client.train(runtime=client.get_runtime("torch-distributed"), trainer=custom)
    found = client.wait_for_job_status(
        job, status={"Complete", "Failed"}, timeout=LIMIT_SECONDS, polling_interval=1
    )
    print("\n".join(client.get_job_logs(job)))
    return int(found.status != "Complete")


if __name__ == "__main__":
    sys.exit(main())
