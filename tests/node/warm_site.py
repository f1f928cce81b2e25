"""Be the site of one container: run a command by the warm parent and the real sandbox, print its outcome.

Run as PID 1 of new namespaces: ``warm_site.py SCRATCH SCRIPTS COMMAND…``.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from warm_pair import PYTHON, REPOSITORY, Pair, Process

from localkube.kubelet.containers.container_spec import Host, order
from localkube.runtime import messages
from localkube.runtime.forkserver.command import plan
from localkube.runtime.netlink import Netlink


def start(
    sock: socket.socket, argv: list[str], env: dict[str, str], *, scratch: str, scripts: str
) -> Process:
    """Send the order that the runtime would send."""
    mounts = [{"kind": "bind", "source": scripts, "target": "/scripts", "read_only": True}]
    host = Host(hide=(), python=PYTHON)
    container = {"name": "main", "workingDir": "/scripts"}
    sent = order(container, identity="1", pod="1", argv=argv, environment=env, mounts=mounts, host=host) | {
        "scratch": scratch,
        "warm": plan(argv, env, python=PYTHON, path=env["PATH"]),
    }
    pipes = [os.pipe(), os.pipe()]
    fds = {name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("net", "uts", "ipc")}
    fds |= {"stdin": os.open(os.devnull, os.O_RDONLY), "stdout": pipes[0][1], "stderr": pipes[1][1]}
    messages.send(sock, sent | {"fds": list(fds)}, list(fds.values()))
    answer, _ = messages.receive(sock)
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
