"""The kit's wheel, built from what git tracks."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(folder: Path, *, release: bool = False) -> Path:
    """Build the kit's and localkube's wheels into a folder, and return the kit's; a release's names all."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as source:
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (Path(source) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, Path(source) / name)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        environment = os.environ | ({"TRAINYARD_RELEASE": "1"} if release else {})
        command = [*pip, "--wheel-dir", folder, source, f"{source}/localkube"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("trainyard_kit-*.whl")
    return wheel
