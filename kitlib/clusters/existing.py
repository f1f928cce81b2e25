"""The provider ``existing``: any cluster that a kubeconfig reaches; the kit never creates or deletes it."""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from kitlib import config, plugins
from kitlib.clusters import cleanup, kubeconfigs
from kitlib.clusters.base import Cluster, Rows
from kitlib.clusters.kubectl import find_kubectl
from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput, ClusterUnreachable, KitError
from kitlib.k8s import names
from kitlib.k8s.api_errors import unreached
from kitlib.k8s.client import Kube

OPTIONS = {
    "kubeconfig": "path of the file; by default $KUBECONFIG, or else ~/.kube/config",
    "context": "one of the file's contexts; by default its current one",
    "namespace": "where the kit works; by default the context's",
}


class ExistingCluster(Cluster):
    """A cluster that somebody else manages."""

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
        self._kubeconfig = Path(kubeconfig or kubeconfigs.user_file()).expanduser()
        if not self._kubeconfig.is_file():
            fix = "give one that exists, with kubeconfig= or in the variable KUBECONFIG"
            if _memory(name).exists():
                fix += f'; "rm {_memory(name)}" lets the kit forget this cluster'
            raise BadInput("there is no such kubeconfig", about=str(self._kubeconfig), fix=fix)
        self.context = context
        self.kube = Kube(
            self._kubeconfig, cluster=name, context=context, namespace=namespace, explain=self.explain
        )

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "ExistingCluster":
        """Connect to the cluster; its shape stays as it is.

        Without options it is in the context and the namespace that were used by this name before, if the
        kubeconfig is the same.
        """
        shape.check_options(OPTIONS, cls.provider)
        if recreate:
            raise BadInput(
                "the kit does not recreate a cluster that it did not make",
                about=f'cluster "{name}"',
                fix="leave recreate out",
            )
        options, before = shape.options, _remembered(name)
        if not options and before and before["kubeconfig"] == str(kubeconfigs.user_file()):
            options = before
        cluster = cls(name, **options)
        cluster.kube.version()
        return cluster.remembered()

    @classmethod
    def credentials(cls, environment: Mapping[str, str], home: Path) -> tuple[str, str]:
        """Find the kubeconfig that would be used."""
        path = kubeconfigs.user_file(environment, home)
        how = "KUBECONFIG" if environment.get("KUBECONFIG") else "kubectl's own file"
        if not path.is_file():
            return (
                f"no kubeconfig: {how}, {path}, does not exist",
                'give one: create_cluster(…, kubeconfig="…")',
            )
        return f"{how}: {path}", 'kit.create_cluster("existing"), and look at its nodes'

    @classmethod
    def find(cls, name: str) -> "ExistingCluster | None":
        """Find the cluster that was used by this name before."""
        given = _remembered(name)
        if given is None:
            return None
        found = cls(name, **given)
        _announce(found.kube)
        return found

    @classmethod
    def list(cls) -> Rows:
        """List the clusters that were used before; none of them is contacted."""
        return [
            cls._row(path.stem, f"used before; see kit.connect({path.stem!r})")
            for path in sorted(_memory("any").parent.glob("*.json"))
        ]

    def remembered(self) -> "ExistingCluster":
        """Keep the kubeconfig's path, so that a fresh kernel finds the cluster by its name."""
        path = _memory(self.name)
        given = {"kubeconfig": str(self._kubeconfig.absolute()), "context": self.context}
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(given | {"namespace": self.kube.namespace}), encoding="utf-8")
        _announce(self.kube)
        return self

    @property
    def kubeconfig(self) -> Path:
        """The file that was given."""
        return self._kubeconfig

    def kubectl_command(self) -> Sequence[str]:
        """The kubectl command line, with context and namespace.

        They come from a second kubeconfig, which has no credentials: with ``--namespace`` kubectl would
        refuse objects that name another one, as those of an operator do.
        """
        found = find_kubectl()
        choice = _memory(self.name).with_suffix(".context")
        choice.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = choice.with_suffix(f".{secrets.token_hex(4)}")  # threads of one kernel ask at the same moment
        aside.write_text(json.dumps(self._choice(), indent=2), encoding="utf-8")
        aside.replace(choice)
        return ["env", f"KUBECONFIG={choice}{os.pathsep}{self._kubeconfig.absolute()}", *found]

    def _choice(self) -> dict[str, object]:
        """Build a kubeconfig with one context of the given one, and the namespace of this cluster."""
        given = yaml.safe_load(self._kubeconfig.read_text(encoding="utf-8"))
        name = self.context or given["current-context"]
        there = next(context["context"] for context in given["contexts"] if context["name"] == name)
        chosen = {"name": name, "context": there | {"namespace": self.kube.namespace}}
        return {"apiVersion": "v1", "kind": "Config", "contexts": [chosen], "current-context": name}

    def delete(self) -> None:
        """Delete what the kit created in it, and forget it; the cluster itself stays."""
        cleanup.delete_all(self.kube)
        self.forget()

    def forget(self) -> None:
        """Delete what this machine keeps of it."""
        cleanup.delete_kubeconfigs(self.name)
        kubeconfigs.remove(self.name)
        for path in (_memory(self.name), _memory(self.name).with_suffix(".context")):
            path.unlink(missing_ok=True)

    def explain(self, words: str) -> KitError:
        """Build the error for an API server that does not answer."""
        what, fix = unreached(words)
        return ClusterUnreachable(what, about=f'cluster "{self.name}", as {self._kubeconfig} has it', fix=fix)


def _remembered(name: str) -> dict[str, str | None] | None:
    """Read the options that were used by a name before, or None."""
    try:
        return json.loads(_memory(name).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _memory(name: str) -> Path:
    return config.state_folder() / "existing" / f"{names.validate_name(name, kind='cluster')}.json"


def _announce(kube: Kube) -> None:
    """Call what other packages do when a kubeconfig has been connected to; those not installed do nothing."""
    for entry in filter(plugins.is_installed, plugins.entries("kitlib.connected").values()):
        plugins.load(entry)(kube)
