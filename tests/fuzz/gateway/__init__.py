"""Run Go's fuzzing on the gateway, whose package gets ``fuzz_test.go`` by an overlay."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULE = HERE.parents[2] / "localkube" / "controlplane"
TARGETS = ("FuzzFrame", "FuzzQuestion", "FuzzPack")


def go_test(*arguments: str) -> subprocess.CompletedProcess:
    """Run ``go test`` with these arguments on the gateway's package."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as overlay:
        beside = MODULE / "gateway" / "fuzz_test.go"
        json.dump({"Replace": {str(beside): str(HERE / "fuzz_test.go")}}, overlay)
        overlay.flush()
        env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
        command = ["go", "test", "-overlay", overlay.name, *arguments, "./gateway/"]
        return subprocess.run(command, cwd=MODULE, env=env, check=False)
