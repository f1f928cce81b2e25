"""Check .ci/run with shellcheck and GitHub's workflows with actionlint.

No Python package contains actionlint, so Go builds it once. If that is not possible, the workflows are not
checked, with a message, unless ``TRAINYARD_NEEDS_ACTIONLINT`` is set, as in continuous integration.
Shellcheck is skipped in conda environments and on arm64, for which there is no package.
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
    script_passes = True
    if SHELLCHECK.exists():
        command: list[str | Path] = [SHELLCHECK, "--severity=warning", root / ".ci" / "run"]
        script_passes = subprocess.run(command, check=False).returncode == 0
    actionlint = obtain_actionlint(BIN)
    if actionlint is None:
        print(f"No actionlint {VERSION} is available: GitHub's workflows are not checked", file=sys.stderr)
        return script_passes and not os.environ.get("TRAINYARD_NEEDS_ACTIONLINT")
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    command = [actionlint, "-shellcheck", SHELLCHECK if SHELLCHECK.exists() else "", *workflows]
    return subprocess.run(command, cwd=root, check=False).returncode == 0 and script_passes


if __name__ == "__main__":
    sys.exit(not check(ROOT))
