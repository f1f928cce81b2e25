"""Clusters on this machine: a real control plane, and nodes whose containers are processes.

The package `localkube` makes them. It is started as a program that answers in JSON lines, and never
imported: the kit would work with another one that has the same verbs.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from kitlib.clusters.base import Cluster, Shape
from kitlib.config import ROOT
from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.errors import (
    BadInput,
    ClusterBroken,
    ClusterNotFound,
    ClusterUnreachable,
    Interrupted,
    KitError,
    ProviderFailed,
)
from kitlib.k8s import names

LONGEST_NAME = 40
MODES = ("auto", "namespaces", "plain")
OPTIONS = {
    "port": "of the API on 127.0.0.1; by default a free one",
    "labels": "a dict of labels for every node",
    "simulated_nodes": "how many nodes to add whose pods only report that they run",
    "warm": "False starts every container's Python afresh",
    "mode": "namespaces or plain; by default as well as the machine allows",
}
STOP_SECONDS = 90  # the program ends what it has begun, and kills what does not end
BROUGHT = {
    "metrics-server": "every local cluster runs it beside its API server",
    "nvidia-device-plugin": "local nodes tell by themselves how many GPUs they have",
}


class LocalCluster(Cluster):
    """A cluster on this machine.

    Args:
        name: Its name.
        status: What ``python -m localkube status`` said; asked for when it is needed, by default.
    """

    provider = "local"

    def __init__(self, name: str, status: dict | None = None) -> None:
        super().__init__(name)
        if status is not None:
            self.status = status

    @cached_property
    def status(self) -> dict:
        """What is known of it: state, version, files."""
        return ask("status", self.name)

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "LocalCluster":
        """Start a cluster, or return the healthy one of this name and shape, with all its nodes switched on.

        Raises:
            BadInput: The name or an option cannot be used; nothing was started.
            ClusterBroken: There is one that does not answer.
            ProviderFailed: It could not be started; the error says why.
        """
        names.validate_name(name, kind="cluster", longest=LONGEST_NAME)
        arguments = _arguments(shape)
        with progress(f"cluster {name}") as line:
            if recreate:
                line.update("deleting the old one")
                ask("delete", name, report=line.update)
            try:
                status = ask("create", name, *arguments, report=line.update)
            except ProviderFailed as error:
                now = ask("status", name)
                if now["state"] == "broken":
                    raise broken(name, now) from error
                raise
            except KeyboardInterrupt as error:
                raise Interrupted(
                    "stopped; what was begun of the cluster is removed",
                    about=f'cluster "{name}"',
                    fix="call create_cluster again",
                ) from error
            line.done(f"{status['nodes']} nodes are Ready, Kubernetes {status['version']}")
        cluster = cls(name, status)
        if (simulated := shape.options.get("simulated_nodes")) is not None:
            cluster.simulate_nodes(simulated)
        return cluster

    @classmethod
    def find(cls, name: str) -> "LocalCluster | None":
        """Return the cluster of this name, in whatever state, or None."""
        names.validate_name(name, kind="cluster", longest=LONGEST_NAME)
        status = ask("status", name)
        return None if status["state"] == "absent" else cls(name, status)

    @classmethod
    def existing(cls) -> list[dict[str, object]]:
        """Return a row for each cluster of this machine."""
        return [
            {
                "cluster": each["name"],
                "provider": cls.provider,
                "state": each["state"],
                "nodes": each.get("nodes"),
                "version": each.get("version"),
                "why": each.get("reason"),
            }
            for each in ask("list")
        ]

    def start(self) -> "LocalCluster":
        """Start it again, as it was; one that runs is fine."""
        with progress(f"cluster {self.name}") as line:
            self.status = ask("start", self.name, report=line.update)
            line.done(f"{self.status['nodes']} nodes are Ready, Kubernetes {self.status['version']}")
        return self

    def stop(self) -> None:
        """End all its processes, and keep its objects and volumes; one that has stopped is fine."""
        with progress(f"cluster {self.name}") as line:
            line.update("stopping it")
            self.status = ask("stop", self.name, report=line.update)
            line.done("stopped")

    def check_running(self) -> "LocalCluster":
        """Return it, if it runs.

        Raises:
            ClusterBroken: It does not; the error says why, and how to get it back.
        """
        if self.status["state"] != "running":
            raise broken(self.name, self.status)
        return self

    @property
    def kubeconfig(self) -> Path:
        """Its own file; no other is ever written."""
        return Path(self._known("kubeconfig"))

    def kubectl_command(self) -> list[str]:
        """Return the kubectl that came with the control plane."""
        return list(self._known("kubectl"))

    def delete(self) -> None:
        """End all its processes and remove its files; one that is gone is fine."""
        with progress(f"cluster {self.name}") as line:
            line.update("deleting it")
            ask("delete", self.name, report=line.update)
            line.done("deleted")

    def _switch(self, verb: str, node: str) -> None:
        ask("node", verb, self.name, node)

    def _simulate(self, count: int) -> None:
        with progress(f"cluster {self.name}") as line:
            line.update(f"making {count} simulated nodes")
            ask("simulate", self.name, str(count))
            line.done(f"{count} simulated nodes")

    def brings(self, operator: str) -> str:
        """Return in what form every local cluster has an operator anyway; empty if it has not."""
        return BROUGHT.get(operator, "")

    def operator_manifests(self, program: str) -> Path | None:
        """Return the manifests beside an operator's program, which is built first if it is not here yet."""
        (found,) = get_images(program)
        return Path(found["folder"]) / "manifests"

    def explain(self, words: str) -> KitError:
        """Return why it does not answer, as its files and processes tell."""
        now = ask("status", self.name)
        if now["state"] == "running":
            return ClusterUnreachable(
                f"its API server does not answer: {words}",
                about=f'cluster "{self.name}"',
                fix="try again: its supervisor runs, and restarts what died",
            )
        if now["state"] == "absent":
            return not_found(self.name)
        return broken(self.name, now)

    def _known(self, what: str):
        if what not in self.status:
            raise not_found(self.name) if self.status["state"] == "absent" else broken(self.name, self.status)
        return self.status[what]


def broken(name: str, status: dict) -> ClusterBroken:
    """Return the error for a cluster that is there and cannot be used."""
    if status["state"] == "stopped":
        fix = f'kit.connect("{name}", start=True), or in a terminal: kit cluster start {name}'
    else:
        shape = f'name="{name}", nodes={status.get("nodes", 4)}'
        fix = f'kit.create_cluster("local", {shape}, recreate=True) makes it anew'
    return ClusterBroken(
        f"the cluster is {status['state']}: {status.get('reason') or 'no reason is known'}",
        about=f'cluster "{name}"',
        fix=fix,
    )


def not_found(name: str) -> ClusterNotFound:
    """Return the error for a name that no cluster has."""
    known = ", ".join(str(each["cluster"]) for each in LocalCluster.existing())
    return ClusterNotFound(
        "there is no such cluster",
        about=f'cluster "{name}"',
        fix=f'kit.create_cluster("local", name="{name}")'
        + (f", or take one that there is: {known}" if known else ""),
    )


def images(*, wide: bool = False) -> Table:
    """List the known container images: what stands in for each on local nodes, and whether it is here.

    Args:
        wide: Add what each stand-in cannot do.
    """
    columns = ("image", "tags", "stand_in", "state") + (("cannot",) if wide else ())
    rows = [tuple(each[column] for column in columns) for each in ask("images")]
    return Table(tuple(column.replace("_", " ") for column in columns), rows)


def get_images(*names: str) -> list[dict[str, str]]:
    """Obtain the programs that images run on this machine's nodes, such as ``training-operator``.

    Returns:
        For each its name, version and folder; the folder has the program and, for an operator, ``manifests``.

    Raises:
        ProviderFailed: There is no such program, or it cannot be obtained; the error says why.
    """
    with progress("images") as line:
        found = ask("get-images", *names, report=line.update)
        line.done(", ".join(f"{each['name']} {each['version']}" for each in found))
    return found


def manifests_here(program: str) -> Path | None:
    """Return the manifests beside an operator's program, if that is on this machine; nothing is obtained."""
    with contextlib.suppress(KitError):  # no machine for local clusters, and so without their programs
        for found in ask("get-images", "--here", program):
            return Path(found["folder"]) / "manifests"
    return None


def create_bundle(file: str, *, wheels: bool = True) -> dict:
    """Put all that is fetched or built for local clusters into one file.

    Args:
        file: Where.
        wheels: With the Python packages of the course, about 3 GB.

    Returns:
        The ``file``, its ``bytes``, and what it ``holds``.

    Raises:
        ProviderFailed: Something cannot be obtained, or the disk is full.
    """
    with progress("bundle") as line:
        made = ask(
            "bundle",
            "create",
            str(Path(file).absolute()),
            *([] if wheels else ["--without-wheels"]),
            report=line.update,
        )
        line.done(f"{made['bytes'] / 1e6:,.0f} MB")
    return made


def use_bundle(file: str) -> dict:
    """Unpack a bundle, so that this machine makes clusters without a network.

    Raises:
        ProviderFailed: It is cut, damaged or for other machines, or the disk is too small.
    """
    with progress("bundle") as line:
        used = ask("bundle", "use", str(Path(file).absolute()), report=line.update)
        line.done("unpacked")
    return used


def machine() -> dict[str, object]:
    """Return the facts about this machine that matter for a local cluster."""
    return ask("doctor")


def ask(*arguments: str, report: Callable[[str], None] = lambda text: None):
    """Carry out one verb of the local cluster and return its result.

    Raises:
        ProviderFailed: It could not; the error has its words.
    """
    command = [sys.executable, "-m", "localkube", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # a Ctrl-C comes to us alone, and is passed on below
    ) as process:
        try:
            answer = {}
            for line in process.stdout:
                answer = _message(line)
                if "progress" in answer:
                    report(answer["progress"])
            said = process.stderr.read()
        except BaseException:
            _interrupt(process)
            raise
    if "error" in answer:
        error = answer["error"]
        raise ProviderFailed(error["what"], about=error["about"], fix=error["fix"])
    if "result" not in answer:
        raise ProviderFailed(
            f"the local cluster's program ended with status {process.returncode}, without an answer\n"
            + said[-2000:].strip(),
            about=f"python -m localkube {' '.join(arguments)}",
            fix="try again; if it stays, run: kit doctor",
        )
    return answer["result"]


def _interrupt(process: subprocess.Popen) -> None:
    """Press Ctrl-C for the program and what it has started, and give it time to undo what it had begun."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _message(line: str) -> dict:
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


def _arguments(shape: Shape) -> list[str]:
    shape.check_options(OPTIONS, "local")
    given = {
        "nodes": shape.nodes,
        "cpus": shape.cpus,
        "memory": shape.memory,
        "gpus": shape.gpus,
        "port": _port(shape.options.get("port")),
        "mode": _mode(shape.options.get("mode")),
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    labels = shape.options.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadInput("labels are a dict", about=f"labels={labels!r}", fix='labels={"zone": "a"}')
    words += [f"--label={key}={value}" for key, value in labels.items()]
    return words + (["--no-warm"] if shape.options.get("warm") is False else [])


def _mode(mode: object) -> str | None:
    if mode not in (None, *MODES):
        raise BadInput(
            f"a mode is one of {', '.join(MODES)}", about=f"mode={mode!r}", fix="leave it out, or correct it"
        )
    return mode


def _port(port: object) -> int | None:
    usable = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536
    if port is not None and not usable:
        raise BadInput(
            "a port is a whole number from 1 to 65535",
            about=f"port={port!r}",
            fix="leave it out, and a free one is taken",
        )
    return port
