"""The kubelet's clients of the API: one for each node, and one for each part that serves all nodes.

A node is ``system:node:NAME``: it reads only objects that its pods reference, no other pod's Secrets, claims
or tokens (the Node authorizer), and writes only its own (NodeRestriction). The other parts have the roles of
``manifests/identities.yaml``. As an administrator the kubelet only applies ``manifests/`` when it starts.

A pod may reference a thousand objects: requests for one namespace's pods get half of a node's connections, so
that other namespaces and the node's own reports do not wait for all of them.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import TypedDict

from localkube.api_client import CONNECTIONS, Api, NodeApi
from localkube.controlplane.client_credentials import node_file
from localkube.kubelet.kubelet_config import KubeletConfig
from localkube.kubelet.work_pools import Turns

MIN_CONNECTIONS = 4


class ApiClients:
    """All clients; an async context manager.

    Attributes:
        nodes: The nodes' own clients, by the nodes' names.
        informers: Watches the objects that all nodes need.
        provisioner: Creates volumes for claims.
        admin: Applies the cluster's own objects.
    """

    def __init__(self, config: KubeletConfig) -> None:
        self._stack = contextlib.AsyncExitStack()
        connections = max(MIN_CONNECTIONS, CONNECTIONS // len(config.nodes))
        self.nodes: dict[str, NodeApi] = {
            node.name: NodeApi(
                config.server,
                **files(config.pki, node_file(node.name)),
                connections=connections,
                turn=Turns(connections // 2).of_pods,
            )
            for node in config.nodes
        }
        self.informers, self.provisioner, self.admin = (
            Api(config.server, **files(config.pki, name)) for name in ("informers", "provisioner", "admin")
        )

    @property
    def _all(self) -> list[Api]:
        return [self.informers, self.provisioner, self.admin, *self.nodes.values()]

    async def __aenter__(self) -> "ApiClients":
        for api in self._all:
            await self._stack.enter_async_context(api)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def follow_renewals(self) -> None:
        """Load each renewed certificate."""
        await asyncio.gather(*(api.follow_renewals() for api in self._all))


class CertificateFiles(TypedDict):
    """The files of a client's certificate, as ``Api`` takes them."""

    ca_file: Path
    cert_file: Path
    key_file: Path


def files(pki: Path, name: str) -> CertificateFiles:
    """Return the files of a client's certificate, as arguments of ``Api``."""
    return {"ca_file": pki / "ca.crt", "cert_file": pki / f"{name}.crt", "key_file": pki / f"{name}.key"}
