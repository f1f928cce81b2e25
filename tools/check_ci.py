"""Check .ci/run with shellcheck and GitHub's workflows with actionlint.

No Python package has actionlint: Go builds it once. Where there is neither the program nor a way to get it, a
line says so and the workflows stay unchecked, unless ``TRAINYARD_NEEDS_ACTIONLINT`` is set, as in continuous
integration. Conda has no shellcheck of that name, and Linux on arm64 no wheel of it: they go without.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "1.7.12"
MODULE = f"github.com/rhysd/actionlint/cmd/actionlint@v{VERSION}"
BIN = Path(sys.executable).parent
SHELLCHECK = BIN / "shellcheck"


def obtain_actionlint(folder: Path) -> Path | None:
    """Return the program of this version, building it if it is missing; None if that fails."""
    program = folder / f"actionlint-{VERSION}"
    if program.exists():
        return program
    if go := shutil.which("go"):
        command, environment = [go, "install", MODULE], os.environ | {"GOBIN": str(folder), "GOFLAGS": ""}
        if subprocess.run(command, env=environment, check=False).returncode == 0:
            return (folder / "actionlint").rename(program)
    return None


def check(root: Path) -> bool:
    """Check the script and workflows of a repository; return whether they pass."""
    passed = True
    if SHELLCHECK.exists():
        command: list[str | Path] = [SHELLCHECK, "--severity=warning", root / ".ci" / "run"]
        passed = subprocess.run(command, check=False).returncode == 0
    actionlint = obtain_actionlint(BIN)
    if actionlint is None:
        print(f"No actionlint {VERSION} can be had here: GitHub's workflows stay unchecked", file=sys.stderr)
        return passed and not os.environ.get("TRAINYARD_NEEDS_ACTIONLINT")
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    command = [actionlint, "-shellcheck", SHELLCHECK if SHELLCHECK.exists() else "", *workflows]
    return subprocess.run(command, cwd=root, check=False).returncode == 0 and passed


if __name__ == "__main__":
    sys.exit(not check(ROOT))
