"""``python -m tests.kubelet``: what ``make test-kubelet`` runs, as root.

A first process makes what takes long, and starts a second one in namespaces of its own, which has the
cluster and runs the notebooks on it. With the second process, its namespaces end, and in them all processes,
mounts and addresses; the first deletes the files and the cgroups. What is kept is in ``reports/kubelet``.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from localkube.controlplane import binaries
from localkube.controlplane.lock import cache_lock
from localkube.errors import LocalClusterError

from ..node import bare_control_plane
from . import environments, images, namespaces, node, program, services

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = tuple(f"0{number}" for number in range(10))
COMPONENTS = (*bare_control_plane.COMPONENTS, "kube-scheduler", "metrics-server")
KEPT = REPOSITORY / "reports" / "kubelet"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make test-kubelet", description=__doc__)
    parser.add_argument("notebooks", nargs="*", default=NOTEBOOKS, help="numbers or names")
    parser.add_argument("--output", type=Path, default=KEPT, help="for the report and the logs")
    parser.add_argument("--command", help="run this shell command on the cluster instead of the notebooks")
    parser.add_argument("--nodes", type=int, default=1, help="each with a kubelet of its own")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    """Run the notebooks; the exit status is theirs."""
    options = parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _inside(options) if options.inside else _outside(options)
    except LocalClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _say(line: str) -> None:
    print(line, flush=True)


def _outside(options: argparse.Namespace) -> int:
    if os.getuid():
        raise LocalClusterError("runc and the kubelet need root", about="this user", fix="run it as root")
    node.check_programs()
    program.obtain(report=_say)
    binaries.obtain(report=_say)
    with (
        cache_lock(_say, making="test-kubelet"),  # two would each restore the other's settings of the kernel
        tempfile.TemporaryDirectory(prefix="kubelet-") as scratch,
        namespaces.sysctls_kept(),
        namespaces.cgroups(*_groups(Path(scratch), options.nodes)),
    ):
        with images.registry(Path(scratch), report=_say):
            pass  # filled, while there is a network
        command = [*namespaces.NEW, sys.executable, "-m", __package__, *sys.argv[1:], "--inside", scratch]
        with subprocess.Popen(command, cwd=REPOSITORY) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # On Ctrl-C the second process has had the signal, too, and cleans up; on SIGTERM it has not.
                _end(process)
                raise


def _end(process: subprocess.Popen) -> None:
    try:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        process.wait()
    finally:
        process.kill()  # a second signal ends the cleaning up, and with this process its namespaces end
        process.wait()


def _groups(folder: Path, nodes: int) -> list[str]:
    return [folder.name, *(f"{folder.name}/node-{number}" for number in range(nodes))]


def _inside(options: argparse.Namespace) -> int:
    folder = options.inside
    namespaces.make_network()
    mounts = environments.make(folder / "environments")
    control_plane = binaries.obtain(report=_say)
    with contextlib.ExitStack() as stack:
        stack.callback(_keep, folder, options.output / "logs")
        mirror = stack.enter_context(images.registry(folder, report=_say))
        namespaces.cover(folder)
        plane = stack.enter_context(
            bare_control_plane.bare(
                folder / "plane", control_plane, components=COMPONENTS, addresses=node.LISTEN
            )
        )
        (folder / "volumes").mkdir()
        stack.enter_context(services.running(plane, volumes=folder / "volumes"))
        kubelet = program.obtain(report=_say)
        for number, group in enumerate(_groups(folder, options.nodes)[1:]):
            place = folder / f"node-{number}"
            place.mkdir()
            created = node.Node(place, kubelet, plane, mirror, f"/{group}", mounts, number)
            stack.enter_context(created.running())
            _say(f"node {created.name} is Ready")
        return _use(plane, folder, options)


def _use(plane: bare_control_plane.BareControlPlane, folder: Path, options: argparse.Namespace) -> int:
    tools = folder / "bin"
    tools.mkdir()
    (tools / "kubectl").write_text(f'#!/bin/sh\nexec {" ".join(plane.kubectl[:2])} "$@"\n')
    (tools / "kubectl").chmod(0o755)
    environment = {
        f"XDG_{kind}_HOME": str(folder / "home" / kind.lower()) for kind in ("STATE", "CONFIG", "DATA")
    }
    environment |= {"KUBECONFIG": str(plane.paths.kubeconfig), "PATH": f"{tools}:{os.environ['PATH']}"}
    if options.command:
        environment["TRAINYARD_REAL_KUBELET"] = node.NAME
        command = ["bash", "-c", options.command]
    else:
        command = [
            sys.executable,
            "tools/run_notebooks.py",
            "--provider",
            "existing",
            "--output",
            str(options.output),
        ]
        command += ["--kubeconfig", environment["KUBECONFIG"], *options.notebooks]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=os.environ | environment, start_new_session=True
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


def _keep(folder: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for log in [*folder.glob("node-*/*.log"), *folder.glob("plane/logs/*.log")]:
        shutil.copy(
            log, target / (log.name if log.parent.name == "logs" else f"{log.parent.name}-{log.name}")
        )


def _interrupt(number: int, frame: object) -> None:
    signal.signal(
        number, signal.SIG_IGN
    )  # what sends it to a process group sends it twice to the second process
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
