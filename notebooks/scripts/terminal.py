"""Play what a section of a notebook lets you type into a terminal: line by line, in one bash."""

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

FAILS = "# an error"  # of a line that may end with one


def typed(notebook: Path, section: str) -> list[str]:
    """List the commands in a section's blocks of bash; one that goes on after a backslash is one."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    part = re.search(rf"^##+ {re.escape(section)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    if part is None:
        raise ValueError(f"{notebook.name} has no section {section!r}")
    blocks = "\n".join(re.findall(r"^```bash\n(.*?)^```", part[1], re.MULTILINE | re.DOTALL))
    return [line for line in re.split(r"(?<!\\)\n", blocks) if line.strip()]


class Terminal:
    """One bash in the folder of the course: what a line sets, later ones know.

    Args:
        notebook: Whose sections it plays.
        variables: For its environment, such as TRAINYARD_CLUSTER.
    """

    def __init__(self, notebook: str, **variables: str) -> None:
        self.notebook = Path(notebook).resolve()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash"], cwd=self.notebook.parents[1], env=os.environ | {"PATH": path} | variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def play(self, section: str) -> None:
        """Type the commands of a section, one after the other.

        Raises:
            RuntimeError: One failed, and its line does not say that it may.
        """
        for command in typed(self.notebook, section):
            print(f"$ {command}")
            status = self._type(command)
            if status and FAILS not in command:
                raise RuntimeError(f"{command!r} ended with status {status}")

    def _type(self, command: str) -> int:
        """Type a command and print what it writes; return its status."""
        end = f"end-{secrets.token_hex(8)}"
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\necho {end} $?\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            text, mark, status = line.partition(end)
            print(text, end="")
            if mark:
                return int(status)
        raise RuntimeError(f"bash has ended in {command!r}")
