"""The published pages, kept as data: their blocks of YAML and of expected output, in their order."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
# kubectl of the kit in the stead of one on PATH.
KUBECTL = 'kubectl() { trainyard kubectl "$@"; }\n'


def shell_in(folder: Path, cluster: str, **variables: str) -> Callable[[str], str]:
    """Make what runs lines in a shell in a folder, with the kit's commands, and returns what they write."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TRAINYARD_CLUSTER": cluster, **variables}

    def run(lines: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", KUBECTL + lines]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def blocks(page: str, language: str = "yaml") -> list[str]:
    """List the blocks of a language, without the page's indentation; ``""`` are blocks of output."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    fences = re.compile(r"^( *)``` ?(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    matches = [(at, name, body) for at, name, body in fences.findall(text) if name == language]
    return [re.sub(rf"^{at}", "", body, flags=re.MULTILINE) for at, _, body in matches]


def manifest(page: str, *words: str) -> str:
    """Return the YAML that the one block with these words shows, from its first apiVersion on."""
    candidates = [block for name in ("yaml", "") for block in blocks(page, name) if "apiVersion: " in block]
    (match,) = [block for block in candidates if all(word in block for word in words)]
    return match[match.index("apiVersion: ") :]


def commands(page: str, start: str) -> list[str]:
    """List the page's commands that begin so, in their order; a continued line is one."""
    shell = "\n".join(block for name in ("bash", "") for block in blocks(page, name))
    lines = re.sub(r"\\\n *", "", shell).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(start)]


def printed(page: str, pattern: str) -> list[str]:
    """List the lines of the page that a regular expression matches."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if re.search(pattern, line)]
