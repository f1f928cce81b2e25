"""Run Go's tests and fuzzing on the gateway, whose package gets ``fuzz_test.go`` by an overlay."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from localkube.controlplane import build

HERE = Path(__file__).resolve().parent
MODULE = HERE.parents[2] / "localkube" / "controlplane"
TARGETS = ("FuzzFrame", "FuzzQuestion", "FuzzPack")


def go_test(*arguments: str, package: str = "gateway") -> subprocess.CompletedProcess:
    """Run ``go test`` with these arguments on a package, with the ``fuzz_test.go`` of its folder here."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as overlay:
        beside = MODULE / package / "fuzz_test.go"
        json.dump({"Replace": {str(beside): str(HERE.parent / package / "fuzz_test.go")}}, overlay)
        overlay.flush()
        env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        command = ["go", "test", *build.COMPILING, "-overlay", overlay.name, *arguments, f"./{package}/"]
        return subprocess.run(command, cwd=MODULE, env=env, check=False)
