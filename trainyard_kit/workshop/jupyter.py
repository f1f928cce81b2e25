"""JupyterLab in a pod of an attendee's namespace, protected by a token, for attendees without own machines.

It is reached with ``kubectl port-forward`` and the attendee's kubeconfig, or through an Ingress if there is a
controller. Then each JupyterLab has its own host name, and so its own origin: with a shared one, one
attendee's page could act as another attendee in their browser. The controller terminates TLS with its default
certificate, because an attendee could read a private key in their namespace. Pods of a local cluster have the
kit and its Python; other clusters need an image with the course's environment and a clone of the kit in
``/kit``.
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
API_SERVER = "https://kubernetes.default.svc"  # from inside the cluster
OWN_CLUSTER = """
There, provider = "local" creates your own cluster in that pod: you are its administrator.
"""
TOKEN = re.compile(r"[-\w]{16,128}", re.ASCII)  # of `secrets.token_urlsafe`
CA_CONFIG_MAP = "kube-root-ca.crt"  # in every namespace


@dataclass(frozen=True)
class Jupyter:
    """JupyterLab in a pod for each attendee.

    Attributes:
        image: With the course's environment, and a clone of the kit in ``/kit``; a local cluster needs none.
        host: DNS domain whose subdomains resolve to the cluster's Ingress controller: ``ada.HOST`` is ada's
            JupyterLab. Without it, attendees use ``kubectl port-forward``.
        own_cluster: Whether the pod has resources for a local cluster, which its attendee administers, for
            the notebooks that need more than a namespace. The image then needs the package of
            ``make wheel``.
    """

    image: str | None = None
    host: str | None = None
    own_cluster: bool = False

    def check(self, cluster: Cluster) -> None:
        """Raise BadInput if the cluster needs an image and none is given."""
        if self.image is None and not isinstance(cluster, LocalCluster):
            raise BadInput(
                "JupyterLab in pods needs an image with JupyterLab and the kit",
                about=f'cluster "{cluster.name}"',
                fix='`kit.workshop.Jupyter(image="…")`; or let attendees use their own machines',
            )

    def apply(self, kube: Kube, attendee: Attendee) -> None:
        """Create the JupyterLab of one attendee; idempotent, keeps the token."""
        for item in self.objects(kube, attendee):
            put(kube, item)

    def objects(self, kube: Kube, attendee: Attendee) -> list[Object]:
        """Build Secret, Service and Deployment; with a host also Ingress and NetworkPolicy."""
        files = ("secret", "service", "deployment", *(["ingress", "networkpolicy"] if self.host else []))
        items = [manifests.read(settings.manifests("attendee", NAME, f"{file}.yaml"))[0] for file in files]
        secret, _, deployment = items[:3]
        secret["stringData"] = {
            "token": token_of(kube) or secrets.token_urlsafe(24),
            "kubeconfig": json.dumps(_pod_kubeconfig(kube, attendee), indent=2),
        }
        env = {"TRAINYARD_PROVIDER": "existing"} | ({} if self.image else _local_environment())
        container = {
            "name": NAME,
            "image": self.image or settings.read().image or settings.DEFAULT_IMAGE,
            "env": [{"name": key, "value": value} for key, value in env.items()],
        }
        spec = {"containers": [container], "tolerations": list(settings.read().tolerations) or None}
        items[2] = merge(deployment, {"spec": {"template": {"spec": spec}}})
        if self.own_cluster:
            (patch,) = manifests.read(settings.manifests("attendee", NAME, "own-cluster.yaml"))
            items[2] = merge(items[2], patch)
        if self.host:
            (rule,) = items[3]["spec"]["rules"]
            rule["host"] = self.host_of(attendee)
            items[3]["spec"]["tls"] = [{"hosts": [rule["host"]]}]
        return items

    def host_of(self, attendee: Attendee) -> str:
        """The DNS name of an attendee's JupyterLab."""
        return f"{attendee.name}.{self.host}"

    def instructions(self, kube: Kube, attendee: Attendee) -> str:
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
    """Read the token of the JupyterLab in a namespace; empty if there is no valid one."""
    secret = kube.find("Secret", NAME) or {}
    token = base64.b64decode((secret.get("data") or {}).get("token") or "").decode("ascii", "replace")
    return token if TOKEN.fullmatch(token) else ""  # the attendee can change it


def _local_environment() -> dict[str, str]:
    """Environment variables for pods of a local cluster: the kit, and the cache of downloaded programs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"KIT": str(settings.ROOT), "KIT_CACHE": str(cache / "trainyard")}


def _pod_kubeconfig(kube: Kube, attendee: Attendee) -> Object:
    """The attendee's kubeconfig, with the API server's address inside the cluster."""
    config = yaml.safe_load(attendee.kubeconfig.read_text(encoding="utf-8"))
    authority = kube.get("ConfigMap", CA_CONFIG_MAP)["data"]["ca.crt"].encode()
    server = {"server": API_SERVER, "certificate-authority-data": base64.b64encode(authority).decode()}
    config["clusters"][0]["cluster"] = server
    return config
