"""JupyterLab in a pod of their namespace, behind a token, for attendees who have no machine of their own.

They reach it by ``kubectl port-forward``, which needs no more than their kubeconfig, or through an Ingress
where the cluster has a controller for it. There each JupyterLab has a host name of its own, and so an origin:
under one name, a page of one attendee could act as another in that one's browser. TLS ends at the controller,
with its default certificate: a private key in each namespace could be read by its attendee. Pods of a local
cluster have the kit and its Python; other clusters need an image with the course's environment and a clone of
the kit in ``/kit``.
"""

import base64
import json
import os
import re
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
from trainyard_kit.workshop.attendees import Attendee, put

NAME, PORT = "jupyter", 8888
INSIDE = "https://kubernetes.default.svc"  # the API server, from inside the cluster
OWN_CLUSTER = """
There, provider = "local" makes a cluster of your own in that pod: you are its administrator.
"""
TOKEN = re.compile(r"[-\w]{16,128}", re.ASCII)  # of `secrets.token_urlsafe`
AUTHORITY = "kube-root-ca.crt"  # a ConfigMap in every namespace


@dataclass(frozen=True)
class Jupyter:
    """JupyterLab in a pod for each attendee.

    Attributes:
        image: With the course's environment, and a clone of the kit in ``/kit``; a local cluster needs none.
        host: DNS name below which all names lead to the cluster's Ingress controller: ``ada.HOST`` is the
            JupyterLab of ada. Without it, kubectl forwards a port.
        own_cluster: Room for a local cluster in the pod, which its attendee administers: for the notebooks
            that need more than a namespace. An image needs the package of ``make wheel`` for that.
    """

    image: str | None = None
    host: str | None = None
    own_cluster: bool = False

    def check(self, cluster: Cluster) -> None:
        """Raise BadInput for a cluster that needs an image where none is given."""
        if self.image is None and not isinstance(cluster, LocalCluster):
            raise BadInput(
                "JupyterLab in pods takes an image that has it, with the kit",
                about=f'cluster "{cluster.name}"',
                fix='`kit.workshop.Jupyter(image="…")`; or let attendees use machines of their own',
            )

    def apply(self, kube: Kube, attendee: Attendee) -> None:
        """Create the JupyterLab of one attendee; idempotent, and keeps the token."""
        for item in self.objects(kube, attendee):
            put(kube, item)

    def objects(self, kube: Kube, attendee: Attendee) -> list[Object]:
        """Build Secret, Service and Deployment; with a host also Ingress and NetworkPolicy."""
        files = ("secret", "service", "deployment", *(["ingress", "networkpolicy"] if self.host else []))
        items = [manifests.read(settings.manifests("attendee", NAME, f"{file}.yaml"))[0] for file in files]
        secret, _, deployment = items[:3]
        secret["stringData"] = {
            "token": token_of(kube) or secrets.token_urlsafe(24),
            "kubeconfig": json.dumps(_inside(kube, attendee), indent=2),
        }
        env = {"TRAINYARD_PROVIDER": "existing"} | ({} if self.image else _local())
        container = {
            "name": NAME,
            "image": self.image or settings.read().image or settings.DEFAULT_IMAGE,
            "env": [{"name": key, "value": value} for key, value in env.items()],
        }
        spec = {"containers": [container], "tolerations": list(settings.read().tolerations) or None}
        items[2] = merge(deployment, {"spec": {"template": {"spec": spec}}})
        if self.own_cluster:
            (more,) = manifests.read(settings.manifests("attendee", NAME, "own-cluster.yaml"))
            items[2] = merge(items[2], more)
        if self.host:
            (rule,) = items[3]["spec"]["rules"]
            rule["host"] = self.host_of(attendee)
            items[3]["spec"]["tls"] = [{"hosts": [rule["host"]]}]
        return items

    def host_of(self, attendee: Attendee) -> str:
        """The DNS name of an attendee's JupyterLab."""
        return f"{attendee.name}.{self.host}"

    def lines(self, kube: Kube, attendee: Attendee) -> str:
        """Instructions for an attendee to open it."""
        query = f"lab?token={token_of(kube)}"
        own_line = OWN_CLUSTER if self.own_cluster else ""
        if self.host:
            return f"\nYour JupyterLab: https://{self.host_of(attendee)}/{query}\n{own_line}"
        return (
            "\nYour JupyterLab runs on the cluster. In a terminal, with kubectl:\n\n"
            f"    kubectl --kubeconfig kubeconfig port-forward service/{NAME} {PORT}\n\n"
            f"and in a browser: http://127.0.0.1:{PORT}/{query}\n{own_line}"
        )


def token_of(kube: Kube) -> str:
    """Read the token of the JupyterLab in a namespace; empty if there is none that can be used."""
    secret = kube.find("Secret", NAME) or {}
    token = base64.b64decode((secret.get("data") or {}).get("token") or "").decode("ascii", "replace")
    return token if TOKEN.fullmatch(token) else ""  # an attendee may have written another


def _local() -> dict[str, str]:
    """Environment variables for pods of a local cluster: the kit, and the cache of fetched programs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"KIT": str(settings.ROOT), "KIT_CACHE": str(cache / "trainyard")}


def _inside(kube: Kube, attendee: Attendee) -> Object:
    """The attendee's kubeconfig, with the API server's address inside the cluster."""
    config = yaml.safe_load(attendee.kubeconfig.read_text(encoding="utf-8"))
    authority = kube.get("ConfigMap", AUTHORITY)["data"]["ca.crt"].encode()
    server = {"server": INSIDE, "certificate-authority-data": base64.b64encode(authority).decode()}
    config["clusters"][0]["cluster"] = server
    return config
