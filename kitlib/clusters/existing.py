"""The provider ``existing``: any cluster that a kubeconfig reaches; the kit never creates or deletes it."""

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kitlib import config, plugins
from kitlib.clusters import cleanup, kubeconfigs
from kitlib.clusters.base import Cluster, Rows
from kitlib.clusters.kubectl import find_kubectl
from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput, ClusterUnreachable, KitError
from kitlib.k8s import names
from kitlib.k8s.api_errors import unreached
from kitlib.k8s.client import Kube
from kitlib.k8s.kubeconfig import choose, files, keep, search_path, write_whole

Options = dict[str, str | None]
_thread = threading.local()  # connections of a thread, by name: two notebooks may run in one process
_process: dict[str, Options] = {}
log: logging.Logger = logging.getLogger(__name__)
OPTIONS = {
    "kubeconfig": "path of a file, or of several; by default $KUBECONFIG, or else ~/.kube/config",
    "context": "one of the file's contexts; by default its current one",
    "namespace": "where the kit works; by default the context's",
}


class ExistingCluster(Cluster):
    """A cluster that is managed outside the kit."""

    provider = "existing"

    def __init__(
        self,
        name: str,
        *,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        super().__init__(name)
        self._source = str(kubeconfig or search_path())
        if not files(self._source):
            fix = "give one that exists, with `kubeconfig=` or in the variable KUBECONFIG"
            if _memory(name).exists():
                fix += f'; "rm {_memory(name)}" lets the kit forget this cluster'
            raise BadInput("there is no such kubeconfig", about=self._source, fix=fix)
        self.context = context
        self._content = choose(self._source, context=context, namespace=namespace, cluster=name)
        self.kube = Kube(self.kubeconfig, cluster=name, source=self._source, explain=self.explain)

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "ExistingCluster":
        """Connect to the cluster; its shape does not change.

        Without options it uses the context and the namespace that this name had before, if the
        kubeconfig is the same.
        """
        shape.check_options(OPTIONS, cls.provider)
        if recreate:
            what = "the kit does not recreate a cluster that it did not create"
            raise BadInput(what, about=f'cluster "{name}"', fix="leave recreate out")
        options, before = shape.options, _connected(name) or _stored(name)
        if not options and before and before["kubeconfig"] == _absolute(search_path()):
            options = {key: before[key] for key in OPTIONS}
        cluster = cls(name, **options)
        cluster.kube.version()
        return cluster.remembered()

    @classmethod
    def credentials(cls, environment: Mapping[str, str], home: Path) -> tuple[str, str]:
        """Find the kubeconfig that would be used."""
        path = search_path(environment, home)
        origin = "KUBECONFIG" if environment.get("KUBECONFIG") else "kubectl's own file"
        if not files(path):
            fix = '`kit.create_cluster("existing", kubeconfig="FILE")`'
            return f"no kubeconfig: {origin}, {path}, does not exist", fix
        return f"{origin}: {path}", '`kit.create_cluster("existing")`, and look at its nodes'

    @classmethod
    def find(cls, name: str) -> "ExistingCluster | None":
        """Find the cluster that was used before under this name."""
        options = _connected(name) or _stored(name)
        if options is None:
            return None
        # The context that was current then, even if the file's current context has changed.
        options = options | {"context": options.get("current") or options["context"]}
        cluster = cls(name, **{key: options[key] for key in OPTIONS})
        _announce(cluster.kube)
        return cluster

    @classmethod
    def list(cls) -> Rows:
        """List the clusters that were used before, without contacting them."""
        return [
            cls._row(path.stem, "used before; not contacted")
            for path in sorted(_memory("any").parent.glob("*.json"))
        ]

    def remembered(self) -> "ExistingCluster":
        """Store the connection's options, so that a new kernel finds the cluster by its name.

        This process keeps its own connection, even if another process stores the same name.
        """
        options: Options = {
            "kubeconfig": _absolute(self._source),
            "context": self.context,
            "namespace": self.kube.namespace,
            "current": self._content["current-context"],
        }
        before, path = _stored(self.name), _memory(self.name)
        if before and before != options and _connected(self.name) is None:
            log.warning(
                'the name "%s" has led to namespace "%s" by %s: from now on the command line and new kernels '
                'find "%s" by it. Give each its own name=',
                *(self.name, before["namespace"], before["kubeconfig"], self.kube.namespace),
            )
        write_whole(path, json.dumps(options))
        _thread.options = getattr(_thread, "options", {}) | {self.name: options}
        _process[self.name] = options
        _announce(self.kube)
        return self

    @property
    def kubeconfig(self) -> Path:
        """A file with only this connection: its server, user, context and namespace."""
        return keep(self._content)

    def kubectl_command(self) -> Sequence[str]:
        """The kubectl on PATH, or the kit's own."""
        return find_kubectl()

    def delete(self) -> None:
        """Delete what the kit created in it, and its stored connection; the cluster itself stays."""
        cleanup.delete_all(self.kube)
        self.forget()

    def forget(self) -> None:
        """Delete this machine's kubeconfigs and stored connection of the cluster."""
        cleanup.delete_kubeconfigs(self.name)
        kubeconfigs.remove(self.name)
        _memory(self.name).unlink(missing_ok=True)
        _forget_here(self.name)

    def explain(self, message: str) -> KitError:
        """Build the error for an API server that does not answer."""
        what, fix = unreached(message)
        return ClusterUnreachable(what, about=f'cluster "{self.name}", as {self._source} has it', fix=fix)


def _connected(name: str) -> Options | None:
    """Find the options that this thread, or else another of this process, has used for a name."""
    by_name: dict[str, Options] = getattr(_thread, "options", {})
    return by_name.get(name) or _process.get(name)


def _forget_here(name: str) -> None:
    getattr(_thread, "options", {}).pop(name, None)
    _process.pop(name, None)


def _stored(name: str) -> Options | None:
    try:
        options: Options = json.loads(_memory(name).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return options


def _absolute(paths: str) -> str:
    absolute = (str(Path(path).expanduser().absolute()) for path in paths.split(os.pathsep) if path)
    return os.pathsep.join(absolute)


def _memory(name: str) -> Path:
    return config.state_folder() / "existing" / f"{names.validate_name(name, kind='cluster')}.json"


def _announce(kube: Kube) -> None:
    """Call the hooks of installed packages for a new connection (entry points ``kitlib.connected``)."""
    for follow in plugins.load_all("kitlib.connected"):
        follow(kube)
