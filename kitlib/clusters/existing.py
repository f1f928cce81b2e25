"""Any cluster that a kubeconfig leads to: it is used, and never made or unmade, by the kit."""

import os
import shutil
from pathlib import Path

from kitlib import ownership
from kitlib.clusters.base import Cluster, Shape
from kitlib.errors import BadInput, ClusterUnreachable, KitError
from kitlib.kube import Kube

OPTIONS = {
    "kubeconfig": "path of the file; by default $KUBECONFIG, or else ~/.kube/config",
    "context": "one of the file's contexts; by default its current one",
    "namespace": "where the kit works; by default the context's",
}


class ExistingCluster(Cluster):
    """A cluster that somebody else looks after.

    Args:
        name: What the kit calls it.
        kubeconfig: Read, and never written.
        context: One of its contexts.
        namespace: Where the kit works.
    """

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
        default = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config"
        self._kubeconfig = Path(kubeconfig or default).expanduser()
        if not self._kubeconfig.is_file():
            raise BadInput(
                "there is no such kubeconfig",
                about=str(self._kubeconfig),
                fix="give one that exists, with kubeconfig= or in the variable KUBECONFIG",
            )
        self.context = context
        self.kube = Kube(
            self._kubeconfig, cluster=name, context=context, namespace=namespace, explain=self.explain
        )

    @classmethod
    def create(cls, name: str, shape: Shape, *, recreate: bool = False) -> "ExistingCluster":
        """Return the cluster, once it has answered; its shape is what it is."""
        shape.check_options(OPTIONS, cls.provider)
        if recreate:
            raise BadInput(
                "the kit does not recreate a cluster that it did not make",
                about=f'cluster "{name}"',
                fix="leave recreate out",
            )
        cluster = cls(name, **shape.options)
        cluster.kube.version()
        return cluster

    @classmethod
    def find(cls, name: str) -> None:
        """Return None: the kit keeps no list of these."""
        return

    @classmethod
    def existing(cls) -> list[dict[str, object]]:
        """Return nothing: the kit keeps no list of these."""
        return []

    @property
    def kubeconfig(self) -> Path:
        """The file that was given."""
        return self._kubeconfig

    def kubectl_command(self) -> list[str]:
        """Return the kubectl on PATH, with the chosen context and namespace.

        Raises:
            BadInput: There is none.
        """
        found = shutil.which("kubectl")
        if found is None:
            raise BadInput(
                "there is no kubectl here", about="PATH", fix="install kubectl, or use the kit's own verbs"
            )
        return [
            found,
            f"--namespace={self.kube.namespace}",
            *([f"--context={self.context}"] if self.context else []),
        ]

    def delete(self) -> None:
        """Delete what the kit made in it; the cluster itself stays."""
        ownership.delete_runs(self.kube)

    def explain(self, words: str) -> KitError:
        """Return why it does not answer, as far as can be told from here."""
        return ClusterUnreachable(
            f"its API server does not answer: {words}",
            about=f'cluster "{self.name}"',
            fix=f"see that it runs, and that {self._kubeconfig} is meant for it",
        )
