"""The provider ``local``: clusters on this machine, with a real control plane, and processes as nodes."""

import hashlib
import logging
import os
import shutil
import site
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.clusters import cleanup, kubeconfigs
from kitlib.clusters.base import Rows, ScalableCluster
from kitlib.clusters.machine import Unfinished, call, get_images, load_images
from kitlib.clusters.shape import Shape
from kitlib.display.progress import progress
from kitlib.display.signatures import checked_class
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
from kitlib.k8s.pod_security import PodSecurity
from kitlib.k8s.quantities import format_bytes

log: logging.Logger = logging.getLogger(__name__)
LONGEST_NAME = 40
KEPT_SECONDS = 30 * 24 * 3600  # for which copied sources are kept
CHOICES = {"mode": ("auto", "namespaces", "plain"), "images": ("auto", "pull", "stand-in")}
OPTIONS = {
    "port": "of the API on 127.0.0.1; by default a free one",
    "labels": "a dict of labels for every node",
    "racks": "number of racks over which the nodes are distributed: rack-a, rack-b",
    "warm": "False starts a new Python process for every container",
    "mode": "namespaces or plain; by default namespaces if the machine allows them",
    "images": "pull or stand-in, for containers' images; by default only the kit's own have a stand-in",
}
BUILT_IN = {
    "metrics-server": "every local cluster runs it beside its API server",
    "nvidia-device-plugin": "local nodes report their own number of GPUs",
}


@checked_class
class LocalCluster(ScalableCluster):
    """A cluster on this machine; ``status`` is the result of ``python -m localkube status``, if known."""

    provider = "local"
    _shown: tuple[object, ...] = ()  # the state of this process's path that its pods know

    def __init__(self, name: str, status: dict[str, Any] | None = None) -> None:
        super().__init__(name)
        if status is not None:
            self.status = status

    @cached_property
    def status(self) -> dict[str, Any]:
        """State, version and files of the cluster."""
        return call("status", self.name)

    def overload(self) -> tuple[str, ...]:
        """List the resources that this machine lacks for its nodes: memory, disk, processes, time."""
        causes = call("status", self.name)["overload"]
        machine = (f"{item['resource']}: {item['what']}; {item['fix']}" for item in causes)
        return (*super().overload(), *machine)

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "LocalCluster":
        """Start a cluster, or return the healthy one of this name and shape, with all nodes switched on."""
        names.validate_name(name, kind="cluster", longest=LONGEST_NAME)
        arguments = _arguments(shape)
        # The import takes a third of a second, and is needed next.
        threading.Thread(target=import_module, args=("kubernetes.config",), daemon=True).start()
        with progress(f"cluster {name}") as line:
            if recreate:
                line.update("deleting the old one")
                cleanup.delete_kubeconfigs(name)
                call("delete", name, report=line.update)
            try:
                status = call("create", name, *arguments, report=line.update)
            except ProviderFailed as error:
                now = call("status", name)
                if now["state"] == "broken":
                    raise broken(name, now) from error
                raise
            except Unfinished as error:
                fix = f'`kit.clusters.find("{name}").delete()`'
                what = "stopped before it was removed; parts of the cluster remain"
                raise Interrupted(what, about=f'cluster "{name}"', fix=fix) from error
            except KeyboardInterrupt as error:
                fix = f'`kit.create_cluster("local", name="{name}")`'
                what = "stopped; the unfinished cluster is removed"
                raise Interrupted(what, about=f'cluster "{name}"', fix=fix) from error
            line.done(f"{status['nodes']} nodes are Ready, Kubernetes {status['version']}")
        cluster = cls(name, status)
        if recreate and kubeconfigs.is_merged(name):
            kubeconfigs.merge(cluster)
        return cluster

    @classmethod
    def find(cls, name: str) -> "LocalCluster | None":
        """Find a cluster of this machine, in any state."""
        names.validate_name(name, kind="cluster", longest=LONGEST_NAME)
        # Reads localkube's record itself: starting its program would take a fifth of a deletion's time.
        return cls(name) if (config.state_folder() / "clusters" / name / "cluster.json").exists() else None

    @classmethod
    def list(cls) -> Rows:
        """List the clusters of this machine."""
        known = ("state", "nodes", "version")
        return [
            cls._row(cluster["name"], cluster.get("reason"), **{key: cluster.get(key) for key in known})
            for cluster in call("list")
        ]

    def start(self) -> "LocalCluster":
        """Start the cluster again with its objects and volumes; idempotent."""
        with progress(f"cluster {self.name}") as line:
            self.status = call("start", self.name, report=line.update)
            line.done(f"{self.status['nodes']} nodes are Ready, Kubernetes {self.status['version']}")
        return self

    def scale(self, nodes: int, *, confirm: bool = False, budget: float | None = None) -> Table:
        """Change the number of nodes: it restarts with its objects and volumes, and its pods start again.

        Args:
            nodes: Number of nodes.
            confirm: Only for clusters at a cloud, whose nodes cost money.
            budget: Only for clusters at a cloud.

        Raises:
            ProviderFailed: The machine cannot run so many, or the cluster did not start.

        Example:
            >>> cluster.scale(4)
        """
        with progress(f"cluster {self.name}") as line:
            self.status = call("scale", self.name, str(nodes), report=line.update)
            remaining = [f"node-{number}" for number in range(nodes)]
            for node in self.nodes():
                if node["node"].startswith("node-") and node["node"] not in remaining:
                    self.kube.delete("Node", node["node"])
            line.done(f"{self.status['nodes']} nodes are Ready")
        return self.nodes()

    def stop(self) -> None:
        """Stop all its processes, and keep its objects and volumes; idempotent."""
        with progress(f"cluster {self.name}") as line:
            line.update("stopping it")
            self.status = call("stop", self.name, report=line.update)
            line.done("stopped")

    def check_running(self) -> "LocalCluster":
        """Return the cluster if it runs; raise ClusterBroken, with the reason, if it does not."""
        if self.status["state"] != "running":
            raise broken(self.name, self.status)
        return self

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own file; the kit writes no other."""
        return Path(self._known("kubeconfig"))

    @property
    def is_plain(self) -> bool:
        """Whether pods run as plain processes of this user, without isolation."""
        return bool(self._known("mode") == "plain")

    def kubectl_command(self) -> Sequence[str]:
        """The kubectl of the control plane."""
        return list(self._known("kubectl"))

    def delete(self) -> None:
        """Stop all its processes and remove its files; idempotent."""
        with progress(f"cluster {self.name}") as line:
            line.update("deleting it")
            cleanup.delete_kubeconfigs(self.name)
            kubeconfigs.remove(self.name)
            call("delete", self.name, report=line.update)
            line.done("deleted")

    def _switch(self, verb: str, node: str) -> None:
        call("node", verb, self.name, node)

    def _shape_links(self, *words: str) -> Table:
        links, columns = call("link", self.name, *words), ("link", "bandwidth", "latency", "flows")
        return Table(
            columns, [[link[name] for name in columns] for link in links], empty="no link is limited"
        )

    def load_images(self, archive: Path) -> bool:
        """Put the images of an archive into this machine's store, from which its clusters run."""
        if self.is_plain:
            return False
        load_images(str(archive))
        return True

    def show_packages(self) -> None:
        """Let pods import the packages of this process: those outside the environment at their own paths."""
        own = (Path.cwd(), Path(getattr(sys.modules["__main__"], "__file__", "")).parent.absolute())
        entries = [path for path in map(Path, sys.path) if path.is_absolute() and path not in own]
        packages = [place for place in (*entries, *map(Path, site.getsitepackages())) if place.exists()]
        state = *sys.path, *(place.stat().st_mtime_ns for place in packages)
        if state == self._shown:
            return
        refused = call("show", self.name, *map(str, entries))["refused"]
        self._shown = state
        for place, why in refused.items():
            fix = "install the project that is there with pip, or move it to a folder of its own"
            log.warning("pods cannot import from %s: %s; %s", place, why, fix)

    def image_notice(self, image: str) -> str:
        """Describe the stand-in of an image that is not in this machine's store."""
        shown = call("stand-in", image)
        fix = "trainyard image load FILE adds it to the store"
        message = f'image "{image}" is not in this machine\'s store; if no registry has it either'
        return f"{message}, {shown} runs in its place ({fix})" if shown else ""

    def share_files(self, files: Mapping[str, str | bytes], modes: Mapping[str, int]) -> dict[str, object]:
        """Copy files into the cache, named by a digest of their content; delete copies older than a month."""
        digest = hashlib.sha256(repr((sorted(files.items()), sorted(modes.items()))).encode()).hexdigest()
        top = config.cache_folder() / "sources"
        for old in top.glob("*") if top.is_dir() else ():
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
        place, aside = top / digest[:24], top / f"{digest[:24]}.{os.getpid()}"
        size = sum(len(content) for content in files.values())
        with progress(f"copying {len(files):,} files, {format_bytes(size)}") as line:
            if not place.exists():
                for name, content in files.items():
                    file = aside / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content.encode() if isinstance(content, str) else content)
                    file.chmod(modes.get(name, 0o644))
                for folder in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
                    folder.chmod(0o755)
                aside.rename(place)
            place.touch()
            line.done("the nodes see them")
        return {"hostPath": {"path": str(place), "type": "Directory"}}

    def pod_security(self, user: int | None = None) -> PodSecurity:
        """The default security context; in plain mode none, as every process runs as this user."""
        return PodSecurity(None, restricted=False) if self.is_plain else PodSecurity.of(user)

    def built_in(self, operator: str) -> str:
        return BUILT_IN.get(operator, "")

    def operator_manifests(self, program: str) -> Path | None:
        """Folder of the manifests beside an operator's program, which is built first if need be."""
        (folder,) = get_images(program)
        return Path(folder["folder"]) / "manifests"

    def explain(self, message: str) -> KitError:
        """Build the error for an API server that does not answer, from its files and processes."""
        now = call("status", self.name)
        if now["state"] == "running":
            return ClusterUnreachable(
                f"its API server does not answer: {message}",
                about=f'cluster "{self.name}"',
                fix="try again: its supervisor is restarting failed components",
            )
        if now["state"] == "absent":
            return not_found(self.name)
        return broken(self.name, now)

    def _known(self, what: str) -> Any:
        if what not in self.status:
            raise not_found(self.name) if self.status["state"] == "absent" else broken(self.name, self.status)
        return self.status[what]


def broken(name: str, status: dict[str, Any]) -> ClusterBroken:
    """Build the error for a cluster that cannot be used."""
    if status["state"] == "stopped":
        fix = f'`kit.connect("{name}", start=True)`'
    else:
        shape = f'name="{name}", nodes={status.get("nodes", 4)}'
        fix = f'`kit.create_cluster("local", {shape}, recreate=True)` recreates it'
    return ClusterBroken(
        f"the cluster is {status['state']}: {status.get('reason') or 'no reason is known'}",
        about=f'cluster "{name}"',
        fix=fix,
    )


def not_found(name: str) -> ClusterNotFound:
    """Build the error for a name that no cluster has."""
    known = ", ".join(str(cluster["cluster"]) for cluster in LocalCluster.list())
    return ClusterNotFound(
        "there is no such cluster",
        about=f'cluster "{name}"',
        fix=f'`kit.create_cluster("local", name="{name}")`'
        + (f", or use one of these: {known}" if known else ""),
    )


def _arguments(shape: Shape) -> list[str]:
    shape.check_options(OPTIONS, "local")
    flags = {
        "nodes": shape.nodes,
        "cpus": shape.cpus,
        "memory": shape.memory,
        "gpus": shape.gpus,
        "racks": shape.options.get("racks"),
        "port": _port(shape.options.get("port")),
        **{name: _chosen(name, shape.options.get(name)) for name in CHOICES},
    }
    words = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    labels = shape.options.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadInput("labels are a dict", about=f"labels={labels!r}", fix='`labels={"zone": "a"}`')
    words += [f"--label={key}={value}" for key, value in labels.items()]
    return words + (["--no-warm"] if shape.options.get("warm") is False else [])


def _chosen(name: str, value: object) -> str | None:
    if value not in (None, *CHOICES[name]):
        what = f"{name} is one of {', '.join(CHOICES[name])}"
        raise BadInput(what, about=f"{name}={value!r}", fix="leave it out, or correct it")
    return value


def _port(port: object) -> int | None:
    if port is not None and (type(port) is not int or not 0 < port < 65536):
        what = "a port is a whole number from 1 to 65535"
        raise BadInput(what, about=f"port={port!r}", fix="leave it out to use a free port")
    return port
