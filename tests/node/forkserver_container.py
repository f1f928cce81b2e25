"""Be the runtime of one container: run a command by the forkserver in real namespaces, print its outcome.

Run as PID 1 of new namespaces: ``forkserver_container.py SCRATCH SCRIPTS COMMAND…``.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from forkserver_pair import PYTHON, REPOSITORY, Pair, Process, send_request

from localkube.cluster.preparation import covered, environment
from localkube.kubelet.pods.container_spec import devices, root_mounts
from localkube.runtime import messages
from localkube.runtime.container_spec import (
    ContainerSpec,
    LinuxSpec,
    MountSpec,
    ProcessSpec,
    StartRequest,
)
from localkube.runtime.forkserver.command import plan
from localkube.runtime.netlink import Netlink
from localkube.runtime.syscalls import DEFAULT_CAPABILITIES


def start(
    sock: socket.socket, argv: list[str], env: dict[str, str], *, scratch: str, scripts: str
) -> Process:
    """Send the request that the runtime would send."""
    variables = tuple(f"{name}={value}" for name, value in env.items())
    spec = ContainerSpec(
        ProcessSpec(tuple(argv), variables, "/scripts", capabilities=DEFAULT_CAPABILITIES),
        mounts=(
            MountSpec("/tmp", "tmpfs", options=("mode=1777",)),
            *root_mounts(environment(), covered(environment())),
            MountSpec("/scripts", source=scripts, options=("ro",)),
        ),
        linux=LinuxSpec(devices=devices()),
    )
    request = StartRequest(spec, fork_plan=plan(argv, env, python=PYTHON, path=env["PATH"]))
    sent = asdict(request) | {"scratch": scratch}
    pipes = [os.pipe(), os.pipe()]
    fds = {name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("net", "uts", "ipc")}
    fds |= {"stdin": os.open(os.devnull, os.O_RDONLY), "stdout": pipes[0][1], "stderr": pipes[1][1]}
    answer = send_request(sock, sent | {"fds": list(fds)}, list(fds.values()))
    for descriptor in fds.values():
        os.close(descriptor)
    assert "pid" in answer, answer
    return Process(answer["pid"], pipes[0][0], pipes[1][0])


def main() -> None:
    scratch, scripts, *argv = sys.argv[1:]
    Netlink().set_up("lo")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(REPOSITORY),
        "FD_0": str(theirs.fileno()),
    }
    parent = subprocess.Popen(
        [PYTHON, "-m", "localkube.runtime.forkserver.server"], pass_fds=[theirs.fileno()], env=env, cwd="/"
    )
    theirs.close()
    messages.receive(ours)
    outcome = start(ours, argv, Pair().environment(), scratch=scratch, scripts=scripts).finish()
    ours.close()
    parent.wait(timeout=120)
    json.dump({"stdout": outcome.stdout, "stderr": outcome.stderr, "code": outcome.code}, sys.stdout)


if __name__ == "__main__":
    main()
