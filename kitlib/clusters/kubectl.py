"""kubectl: where it is, and running it."""

import os
import shlex
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kitlib.clusters.machine import call
from kitlib.display.progress import progress
from kitlib.display.tables import Text
from kitlib.errors import BadInput, CommandFailed
from kitlib.k8s.api_errors import rbac_hint


def find_kubectl() -> list[str]:
    """Find the kubectl on PATH, or else the kit's own, which is downloaded first."""
    path = shutil.which("kubectl")
    if path is not None:
        return [path]
    with progress("kubectl") as line:
        return call("kubectl", report=line.update)


def run_kubectl(kubectl: Sequence[str], command: str, *, kubeconfig: Path, cluster: str) -> Text:
    """Run a kubectl command line, with or without the word ``kubectl``, and return its output."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(
            f"the command line cannot be parsed: {error}", about=command, fix="close its quotes"
        ) from error
    words = words[1:] if words[:1] == ["kubectl"] else words
    completed = subprocess.run(
        [*kubectl, *words],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if completed.returncode:
        output = (completed.stderr or completed.stdout).strip()
        helps = f"see the message; kubectl {words[0] if words else ''} --help lists the options"
        what = output or f"exit status {completed.returncode}"
        fix = rbac_hint(output) if "forbidden" in output else helps
        raise CommandFailed(what, about=f'kubectl {shlex.join(words)}, in cluster "{cluster}"', fix=fix)
    return Text(completed.stdout or completed.stderr)


@contextmanager
def forward_port(kubectl: Sequence[str], target: str, port: int, *, kubeconfig: Path) -> Iterator[str]:
    """Forward a free port of this machine to a ready pod or Service, and yield its address."""
    words = ["port-forward", target, f":{port}"]
    with subprocess.Popen(
        [*kubectl, *words],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout, "it is a pipe"
        try:
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:40123 -> 5000
            if not line.startswith("Forwarding"):
                what = (line + process.stdout.read()).strip() or "it ended at once"
                absent = f"kubectl get {target} shows whether it exists and is ready"
                fix = rbac_hint(what) if "forbidden" in what else absent
                raise CommandFailed(what, about=f"kubectl {' '.join(words)}", fix=fix)
            # It writes a line for each connection, and blocks if they are not read.
            reader = threading.Thread(target=deque, args=(process.stdout, 0), name="port-forward")
            reader.start()
            try:
                yield line.split()[2]
            finally:
                process.terminate()
                reader.join()
        finally:
            process.terminate()
