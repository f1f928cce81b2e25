"""Create and start local clusters: verbs of ``python -m localkube``; `removal` has those that end them.

A cluster is one directory and one process tree: its supervisor runs everything from then on.
"""

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from localkube import host
from localkube.cluster.discovery import STOP_SECONDS, check_name, end_processes, read_record, request, status
from localkube.cluster.preparation import ClusterFiles
from localkube.cluster.removal import remove, stop
from localkube.cluster.startup import Startup
from localkube.cluster.supervisor_process import SupervisorProcess
from localkube.config import ClusterSpec
from localkube.controlplane import binaries, etcd_snapshot, progress_deadline
from localkube.controlplane.lock import Report, locked
from localkube.errors import LocalClusterError
from localkube.network.addresses import reserve_octet
from localkube.paths import ClusterPaths, no_room, private_dir, read_json, unwritable
from localkube.runtime import preload

RESTORE_VERBS = {"stopped": "start", "isolated": "reconnect"}


def create(
    name: str,
    *,
    spec: ClusterSpec,
    report: Report,
    progress_seconds: float = progress_deadline.SECONDS,
    supervisor: SupervisorProcess | None = None,
) -> dict[str, Any]:
    """Start a cluster, or return the running one of this name.

    A stopped cluster is started again with the objects that it had, and so are nodes that were stopped
    or isolated.

    Args:
        progress_seconds: It is given up when it has made no progress for so long.
        supervisor: The cluster's, if it was started already.
    """
    check_name(name)
    paths = ClusterPaths(name)
    if not os.path.exists(paths.root) and (problem := host.disk_problem()):
        raise no_room(paths.root.parent, problem)
    private_dir(paths.root.parent)
    with locked(paths, report) as report:
        now = status(name)
        if now["state"] == "running":
            return _restore_nodes(paths, _check_shape(now, spec))
        if now["state"] == "broken":
            raise _unusable(name, f"the cluster does not answer: {now['reason']}")
        with supervisor or SupervisorProcess(paths) as supervisor:
            fresh = now["state"] == "absent"
            return _start(paths, spec, report, progress_seconds, supervisor, fresh=fresh)


def start(
    name: str, *, report: Report, progress_seconds: float = progress_deadline.SECONDS
) -> dict[str, Any]:
    """Start a stopped cluster in its former shape; a running one is left alone."""
    paths = ClusterPaths(name)
    now = status(name)
    if now["state"] == "absent":
        raise _not_found(name)
    shape = read_record(paths).get("shape")
    if shape is None:
        raise _unusable(name, f"its shape is not known: {now['reason']}")
    return create(name, spec=ClusterSpec(**shape), report=report, progress_seconds=progress_seconds)


def scale(name: str, nodes: int, *, report: Report) -> dict[str, Any]:
    """Restart a cluster with another number of nodes: it keeps objects and volumes, and pods start again."""
    paths = ClusterPaths(name)
    now = status(name)
    shape = read_record(paths).get("shape")
    if shape is None:
        raise _not_found(name)
    spec = ClusterSpec(**shape | {"nodes": nodes})
    if now["state"] == "running" and shape["nodes"] == nodes:
        return _restore_nodes(paths, now)
    report("stopping it")
    stop(name)
    return create(name, spec=spec, report=report)


def _not_found(name: str) -> LocalClusterError:
    fix = f"`python -m localkube create {name}`"
    return LocalClusterError("there is no such cluster", about=name, fix=fix)


def _unusable(name: str, problem: str) -> LocalClusterError:
    fix = f"delete it (`python -m localkube delete {name}`) and create it again"
    return LocalClusterError(problem, about=name, fix=fix)


def _start(
    paths: ClusterPaths,
    spec: ClusterSpec,
    report: Report,
    progress_seconds: float,
    supervisor: SupervisorProcess,
    *,
    fresh: bool,
) -> dict[str, Any]:
    here = host.inspect_host()
    mode = host.choose_mode(here, spec.mode)
    control_plane = binaries.obtain(report=report)
    octet, library, sockets = 0, Path(), list[socket.socket]()
    if mode == "plain":
        library = preload.obtain(report)
        octet, reservation = reserve_octet(paths.name, read_record(paths).get("octet"))
        sockets.append(reservation)
    sockets.insert(0, _listener(paths, spec.port))
    port = sockets[0].getsockname()[1]
    try:
        report("creating certificates and settings")
        files = ClusterFiles(paths, spec, control_plane, here, port, mode, octet, library)
        nodes = files.write()
        if not fresh:  # it has pods, which start with the kubelet
            files.copy_kit()
        if fresh and (snapshot := etcd_snapshot.obtain(control_plane, report=report)):
            etcd_snapshot.restore(snapshot, paths.etcd)
            paths.known_roles.touch(mode=0o600)
        report("starting the control plane")
        supervisor.begin(*sockets)
        startup = Startup(
            paths,
            port=port,
            nodes=len(nodes),
            supervisor=supervisor.process,
            seconds=progress_seconds,
            report=report,
        )
        if fresh:
            files.copy_kit()  # beside the API server's start
        startup.wait()
    except BaseException as error:
        supervisor.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what has not ended is killed below
            supervisor.process.wait(STOP_SECONDS)
        end_processes(paths)
        if fresh:
            with contextlib.suppress(OSError):  # the cause is raised below
                remove(paths.root)
        if isinstance(error, OSError):
            raise unwritable(paths.root, error) from error
        raise
    finally:
        for sock in sockets:
            sock.close()
    return status(paths.name)


def _listener(paths: ClusterPaths, port: int) -> socket.socket:
    """Open the API's socket on the host: on the requested port, the former one, or a free one."""
    former = read_record(paths).get("api_port", 0)
    if port or not former:
        return host_socket(port)
    try:
        return host_socket(former)
    except LocalClusterError:
        return host_socket(0)


def host_socket(port: int) -> socket.socket:
    """Listen on 127.0.0.1; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise LocalClusterError(
            f"the port cannot be used: {getattr(error, 'strerror', None) or error}",
            about=f"127.0.0.1:{port}",
            fix="choose another with --port, or leave it out and take a free one",
        ) from error
    listener.listen(128)
    return listener


def _check_shape(now: dict[str, Any], spec: ClusterSpec) -> dict[str, Any]:
    differing = [
        key for key, value in spec.as_dict().items() if now["shape"].get(key) != value and key != "port"
    ]
    if differing:
        name = now["name"]
        former = ", ".join(f"{key}={now['shape'].get(key)!r}" for key in differing)
        raise LocalClusterError(
            f"a cluster of this name runs already, with {former}",
            about=now["name"],
            fix=f"use that shape, choose another name, or delete it: `python -m localkube delete {name}`",
        )
    return now


def _restore_nodes(paths: ClusterPaths, now: dict[str, Any]) -> dict[str, Any]:
    """Restart the nodes that were stopped, and reconnect isolated ones."""
    for node, state in read_json(paths.node_states).items():
        request(paths.name, {"verb": RESTORE_VERBS[state], "node": node})
    return now
