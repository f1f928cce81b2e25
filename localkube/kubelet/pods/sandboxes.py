"""The sandbox of a pod: the namespaces that its containers share, with their network and its files."""

import asyncio
from dataclasses import dataclass, replace

from localkube.api_path import Object
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.kubelet.pods import admission, network_files
from localkube.kubelet.pods.network_files import Resolver, of_machine
from localkube.kubelet.pods.pod_files import PodFiles
from localkube.network.addresses import NETWORK, Addresses
from localkube.network.fair_shares import PodNamespaces
from localkube.network.policy_enforcer import PolicyEnforcer
from localkube.runtime.client import RuntimeClient


@dataclass(frozen=True)
class Sandboxes:
    """Creates and removes sandboxes.

    Attributes:
        namespaces: Those of the pods' addresses, for what all of them share.
    """

    client: RuntimeClient
    addresses: Addresses
    namespaces: PodNamespaces
    policies: PolicyEnforcer
    files: PodFiles

    async def create(self, pod: Object, *, node: VirtualNode, address: str, fresh: bool) -> None:
        """Create a pod's namespaces, with its policies in force, and its files; idempotent.

        Args:
            fresh: No earlier kubelet has made them.
        """
        hostname, full = network_files.hostname(pod, node=node.name)
        if not pod["spec"].get("hostNetwork"):
            reachable, _ = self.addresses.reach(address, 0)
            self.namespaces.add(reachable, pod["metadata"]["namespace"])

        # The request is on its way while the files are written.
        running = self._run(pod, address, hostname, fresh=fresh)
        await asyncio.gather(running, self._write_files(pod, node, address, hostname, full))

    async def _run(self, pod: Object, address: str, hostname: str, *, fresh: bool) -> None:
        uid, ids = pod["metadata"]["uid"], self.files.ids
        request = NETWORK.pod_network() | {"hostname": hostname, "address": address, "ids": ids.of(uid)}
        request["share_processes"] = bool(pod["spec"].get("shareProcessNamespace"))
        request["sysctls"] = admission.sysctls(pod)
        request["host"] = ids.shared_with_node(pod)
        await self.client.call("run_sandbox", pod=uid, **request)
        await self.policies.prepare(pod, address, fresh=fresh)

    async def _write_files(
        self, pod: Object, node: VirtualNode, address: str, hostname: str, full: str
    ) -> None:
        of_node, in_node = Resolver(), pod["spec"].get("hostNetwork")
        if in_node or pod["spec"].get("dnsPolicy") == "Default":
            # The servers are often on the machine's loopback, which no pod reaches: the gateway asks them.
            of_node = replace(Resolver.parse(of_machine("resolv.conf")), servers=(NETWORK.gateway,))
        resolver, left_out = network_files.resolver(pod, cluster=NETWORK.address, of_node=of_node)
        for message in left_out:
            node.events.record(pod, "DNSConfigForming", message, warning=True)
        of_node_hosts = of_machine("hosts") if in_node else ""
        hosts = network_files.hosts(pod, name=hostname, full=full, addresses=[address], of_node=of_node_hosts)
        files = {"hosts": hosts, "hostname": f"{hostname}\n", "resolv.conf": resolver.text()}
        uid = pod["metadata"]["uid"]
        for path in network_files.write(self.files.network_files(uid), files):
            self.files.ids.chown_to_pod(path, uid)

    async def remove(self, uid: str) -> None:
        await self.client.call("remove_sandbox", pod=uid)
