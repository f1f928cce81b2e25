"""A JupyterLab in a pod for each attendee who has no machine of their own: behind a token, in a namespace.

They come to it by ``kubectl port-forward``, which needs no more than their kubeconfig, or through an Ingress
where the cluster has a controller for it. TLS is the controller's, with its default certificate: a key in
each namespace would be everybody's to read. A local cluster's pods have the kit and its Python anyway;
elsewhere it takes an image with the course's environment and a clone of the kit in ``/kit``.
"""

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml

from kitlib import config as settings
from kitlib.clusters import Cluster
from kitlib.clusters.local import LocalCluster
from kitlib.errors import BadInput
from kitlib.k8s import manifests
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object, merge
from workshop.attendees import Attendee

NAME, PORT = "jupyter", 8888
INSIDE = "https://kubernetes.default.svc"  # the API server, as pods call it
AUTHORITY = "kube-root-ca.crt"  # a ConfigMap of every namespace


@dataclass(frozen=True)
class Jupyter:
    """How everybody's JupyterLab is run on the cluster.

    Attributes:
        image: Has the course's environment, and a clone of the kit in ``/kit``; a local cluster needs none.
        host: A name that leads to the cluster's Ingress controller; without it, kubectl forwards a port.
    """

    image: str | None = None
    host: str | None = None

    def check(self, cluster: Cluster) -> None:
        """Refuse a cluster on which there would be nothing to run."""
        if self.image is None and not isinstance(cluster, LocalCluster):
            raise BadInput(
                "JupyterLab in pods takes an image that has it, with the kit",
                about=f'cluster "{cluster.name}"',
                fix='kit.workshop.Jupyter(image="…"); or let attendees use machines of their own',
            )

    def apply(self, kube: Kube, attendee: Attendee) -> None:
        """Have the JupyterLab of one attendee; repeated, it keeps its token."""
        for item in self.objects(kube, attendee):
            kube.apply(item)

    def objects(self, kube: Kube, attendee: Attendee) -> list[Object]:
        """Return Secret, Service, Deployment; and where there is a host, the Ingress, and that it gets in."""
        files = ("secret", "service", "deployment", *(["ingress", "networkpolicy"] if self.host else []))
        every = [manifests.read(settings.manifests("attendee", NAME, f"{each}.yaml"))[0] for each in files]
        secret, _, deployment = every[:3]
        secret["stringData"] = {
            "token": token_of(kube) or secrets.token_urlsafe(24),
            "kubeconfig": yaml.safe_dump(_inside(kube, attendee)),
        }
        env = {"BASE": self.base(attendee)} | ({} if self.image else _local())
        container = {
            "name": NAME,
            "image": self.image or settings.read().image,
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "readinessProbe": {"httpGet": {"path": f"{self.base(attendee)}api"}},
        }
        spec = {"containers": [container], "tolerations": list(settings.read().tolerations) or None}
        every[2] = merge(deployment, {"spec": {"template": {"spec": spec}}})
        if self.host:
            (rule,) = every[3]["spec"]["rules"]
            rule["host"] = self.host
            rule["http"]["paths"][0]["path"] = self.base(attendee).rstrip("/")
            every[3]["spec"]["tls"] = [{"hosts": [self.host]}]
        return every

    def base(self, attendee: Attendee) -> str:
        """Return the path under which the JupyterLab of an attendee is, with a slash at its end."""
        return f"/{attendee.name}/" if self.host else "/"

    def lines(self, kube: Kube, attendee: Attendee) -> str:
        """Return what an attendee has to do to see it."""
        query = f"lab?token={token_of(kube)}"
        if self.host:
            return f"\nYour JupyterLab: https://{self.host}{self.base(attendee)}{query}\n"
        return (
            "\nYour JupyterLab runs on the cluster. In a terminal, with kubectl:\n\n"
            f"    kubectl --kubeconfig kubeconfig port-forward service/{NAME} {PORT}\n\n"
            f"and in a browser: http://127.0.0.1:{PORT}/{query}\n"
        )


def token_of(kube: Kube) -> str:
    """Return the token that opens the JupyterLab of a namespace; empty if there is none yet."""
    found = kube.find("Secret", NAME)
    return base64.b64decode(found["data"]["token"]).decode() if found else ""


def _local() -> dict[str, str]:
    """Return where a local cluster's pods find the kit, and the programs that it has fetched: as we do."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"KIT": str(settings.ROOT), "XDG_CACHE_HOME": cache}


def _inside(kube: Kube, attendee: Attendee) -> Object:
    """Return the attendee's kubeconfig, with the API server as pods reach it."""
    config = yaml.safe_load(attendee.kubeconfig.read_text(encoding="utf-8"))
    authority = kube.get("ConfigMap", AUTHORITY)["data"]["ca.crt"].encode()
    server = {"server": INSIDE, "certificate-authority-data": base64.b64encode(authority).decode()}
    config["clusters"][0]["cluster"] = server
    return config
