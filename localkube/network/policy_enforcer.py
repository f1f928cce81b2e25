"""Enforce NetworkPolicies, by nftables tables in the network namespace of each pod.

Rules are at the pod's own end: forbidden ingress is dropped on input, forbidden egress on output, and
connections are tracked there, so that replies need no rules. The pod's root cannot change them: the namespace
belongs to the runtime.

While any policy exists, a pod's TCP connections to ClusterIPs are redirected to endpoints in its own
namespace (DNAT), so that both ends see each other's addresses. All other traffic through the Service proxy is
checked there, by ``permits``. Traffic from the cluster's own address, such as probes, is always accepted.

Limits: IPv4 only, and IPv6 is dropped where a direction is restricted; established connections stay when a
policy is added; pods in their node's network are neither selected nor restricted. In plain mode, and on a
kernel without nf_tables, nothing is enforced, and an Event on each policy says so.
"""

import asyncio
import logging
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

from localkube.api_client import Api, Informer
from localkube.api_path import Object, api_path
from localkube.network import nftables
from localkube.network.addresses import NETWORK
from localkube.network.network_policy import UNRESTRICTED, AllowRule, Peer, PodRules, peer, pod_rules
from localkube.network.nftables import ACCEPT, DESTINATION, DROP, SOURCE, Hook, NftTable, verdict
from localkube.network.node_listeners import Front
from localkube.network.relay import Backend
from localkube.runtime.client import RuntimeCallError, RuntimeClient, RuntimeExited

log = logging.getLogger(__name__)

SETTLE_SECONDS, SHARE = 0.05, 5
TABLE = "trainyard"
DNAT_PRIORITY = -100
NOT_ENFORCED = "NetworkPolicyNotEnforced"

Targets = Mapping[Front, tuple[Backend, ...]]
# The endpoints of ClusterIPs for a client, and whether it keeps to one of them.
Find = Callable[[str], Mapping[Front, tuple[Sequence[Backend], bool]]]


class PolicyEnforcer:
    """Keeps the rules of all pods up to date.

    Args:
        client: Opens sockets in the pods' networks.
        warn: Records a Warning about a policy: the policy, a reason, a message.
        plain: In plain mode nothing can be enforced.
    """

    def __init__(
        self,
        api: Api,
        *,
        client: RuntimeClient,
        warn: Callable[[Object, str, str], None],
        plain: bool = False,
    ) -> None:
        self._policies = Informer(api, api_path("networking.k8s.io/v1/networkpolicies"))
        self._namespaces = Informer(api, api_path("v1/namespaces"))
        self._client, self._warn, self._plain = client, warn, plain
        self._pods: Callable[[], Mapping[str, Object]] = dict
        self._targets: Find = lambda _client: {}
        # By uid; a pod that is not in it may have rules from an earlier kubelet.
        self._installed: dict[str, tuple[PodRules, Targets]] = {}
        self._rules: dict[str, PodRules] = {}
        self._changed = asyncio.Event()
        self._warned: set[str] = set()

    async def run(
        self, *, pods: Callable[[], Mapping[str, Object]], targets: Find, follow: Sequence[Informer]
    ) -> None:
        """Apply each change of pods and policies.

        Args:
            pods: Returns the pods by the uids under which they run.
            targets: Returns the endpoints of the ClusterIPs for a client by its address.
            follow: The informers on which both depend.
        """
        self._pods, self._targets = pods, targets
        for informer in (self._policies, self._namespaces, *follow):
            informer.subscribe(lambda *_: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._policies.run(), name="watch networkpolicies")
            tasks.create_task(self._namespaces.run(), name="watch namespaces")
            tasks.create_task(self._follow(), name="network policies")

    async def prepare(self, pod: Object, address: str, *, fresh: bool) -> None:
        """Install the rules of a pod before its containers start.

        Args:
            fresh: Its network was created just now.
        """
        if self._plain:
            return
        await self._policies.synced.wait()
        await self._namespaces.synced.wait()
        uid = pod["metadata"]["uid"]
        if fresh and not self._policies.store:
            self._installed[uid] = UNRESTRICTED, {}
        elif known := self._peer({**pod, "status": {"podIP": address}}):
            rules = self._rules[address] = pod_rules(known, self._policies.store.values(), self._peers())
            await self._install(uid, address, rules)

    def permits(self, client: str, backend: Backend, protocol: str) -> bool:
        """Check whether a client, by its address, may connect to an endpoint by way of a Service."""
        host, port = backend
        client_rules, server_rules = (self._rules.get(address, UNRESTRICTED) for address in (client, host))
        return client_rules.opens(host, protocol, port) and (
            client == NETWORK.address or server_rules.accepts(client, protocol, port)
        )

    async def _follow(self) -> None:
        await self._policies.synced.wait()
        await self._namespaces.synced.wait()
        duration = 0.0
        while True:
            await self._changed.wait()
            # Batch simultaneous changes; in a large cluster longer, so that other tasks get their time.
            await asyncio.sleep(max(SETTLE_SECONDS, SHARE * duration))
            self._changed.clear()
            started = time.monotonic()
            try:
                await self._reconcile()
            except RuntimeExited:
                raise
            except Exception:  # one malformed policy must not end the kubelet, and with it all others
                log.exception("network policies are not up to date")
            duration = time.monotonic() - started

    async def _reconcile(self) -> None:
        policies, peers = list(self._policies.store.values()), self._peers()
        if policies and self._plain:
            self._warn_not_enforced("in plain mode pods are on this machine's own network")
            return
        known = self._pods()
        self._installed = {uid: done for uid, done in self._installed.items() if uid in known}
        rules: dict[str, PodRules] = {}
        if not policies and all(self._installed.get(uid) == (UNRESTRICTED, {}) for uid in known):
            self._rules = rules  # nothing to do, however many pods there are
            return
        for uid, pod in known.items():
            if peer := self._peer(pod):
                rules[peer.address] = pod_rules(peer, policies, peers) if policies else UNRESTRICTED
                try:
                    await self._install(uid, peer.address, rules[peer.address])
                except RuntimeCallError as error:
                    log.debug("the network of pod %s is gone: %s", uid, error.message)
        self._rules = rules

    async def _install(self, uid: str, address: str, rules: PodRules) -> None:
        """Install a pod's rules, unless they are in force."""
        state = rules, self._services(uid, address)
        if self._installed.get(uid) == state:
            return
        _, (descriptor,) = await self._client.call("socket", pod=uid, netfilter=True)
        with socket.socket(fileno=descriptor) as kernel:
            try:
                if state == (UNRESTRICTED, {}):
                    NftTable(TABLE).delete(kernel)
                else:
                    pod_table(*state, own=address).replace(kernel)
                self._installed[uid] = state
            except OSError as error:
                log.warning("the network policies of pod %s are not in force: %s", uid, error)
                self._warn_not_enforced(f"the kernel refuses rules of nftables: {error.strerror}")

    def _services(self, uid: str, address: str) -> Targets:
        """Collect the ClusterIPs that a pod's own table serves; with affinity, the pod keeps one endpoint."""
        if not self._policies.store:
            return {}
        targets = {}
        for front, (backends, affinity) in self._targets(address).items():
            steady = backends[zlib.crc32(uid.encode()) % len(backends)]
            targets[front] = (steady,) if affinity else tuple(backends)
        return targets

    def _peers(self) -> list[Peer]:
        peers = (self._peer(pod) for pod in self._pods().values())
        return [rule for rule in peers if rule] + [self._name_server()]

    def _peer(self, pod: Object) -> Peer | None:
        return peer(pod, self._labels(pod["metadata"]["namespace"]))

    def _name_server(self) -> Peer:
        """Describe the cluster's DNS as the pod that it is in other clusters, for policies that select it."""
        ports = {("dns", "UDP"): 53, ("dns-tcp", "TCP"): 53}
        labels = {"k8s-app": "kube-dns"}
        space = "kube-system"
        return Peer(space, "kube-dns", NETWORK.address, labels, self._labels(space), ports)

    def _labels(self, namespace: str) -> Mapping[str, str]:
        item = self._namespaces.store.get(("", namespace))
        return (item["metadata"].get("labels") if item else None) or {}

    def _warn_not_enforced(self, reason: str) -> None:
        for policy in self._policies.store.values():
            uid = policy["metadata"]["uid"]
            if uid not in self._warned:
                self._warned.add(uid)
                self._warn(policy, NOT_ENFORCED, f"it is stored and not enforced: {reason}")


def pod_table(rules: PodRules, services: Targets, *, own: str) -> NftTable:
    """Compile the table of one pod.

    Args:
        own: The pod's address.
    """
    table = NftTable(TABLE)
    if services:
        table.chain("services", Hook("nat", nftables.LOCAL_OUT, DNAT_PRIORITY))
        for front, backends in services.items():
            _redirect(table, front, backends)
    if rules.ingress is not None:
        table.chain("ingress", Hook("filter", nftables.LOCAL_IN, 0))
        _accept_established(table, "ingress", incoming=True)
        _accept(table, "ingress", nftables.in_network(SOURCE, NETWORK.address))
        for rule in rules.ingress:
            _allow(table, "ingress", rule, SOURCE)
        table.rule("ingress", [verdict(DROP)])
    if rules.egress is not None:
        table.chain("egress", Hook("filter", nftables.LOCAL_OUT, 0))
        _accept_established(table, "egress", incoming=False)
        _accept(table, "egress", nftables.in_network(DESTINATION, own))
        # Service traffic that is not redirected above goes to the proxy, which calls ``permits``.
        services_range = f"{NETWORK.services}/{NETWORK.services_prefix}"
        _accept(table, "egress", nftables.in_network(DESTINATION, services_range))
        for rule in rules.egress:
            _allow(table, "egress", rule, DESTINATION)
        table.rule("egress", [verdict(DROP)])
    return table


def _accept_established(table: NftTable, chain: str, *, incoming: bool) -> None:
    table.rule(chain, [*nftables.on_loopback(incoming=incoming), verdict(ACCEPT)])
    table.rule(chain, [*nftables.established(), verdict(ACCEPT)])
    table.rule(chain, [*nftables.later_segment(), verdict(ACCEPT)])


def _accept(table: NftTable, chain: str, where: Sequence[nftables.Expression]) -> None:
    table.rule(chain, [*nftables.is_ipv4(), *where, verdict(ACCEPT)])


def _allow(table: NftTable, chain: str, rule: AllowRule, side: int) -> None:
    hosts = [network.removesuffix("/32") for network in rule.networks if network.endswith("/32")]
    wheres = [nftables.in_network(side, network) for network in rule.networks if not network.endswith("/32")]
    if len(hosts) == 1:
        wheres.append(nftables.in_network(side, hosts[0]))
    ports = [()] if rule.ports is None else rule.ports
    for port in ports:
        narrowed_wheres = list(wheres)
        if len(hosts) > 1:  # anonymous, so that each rule has one of its own
            narrowed_wheres.append([nftables.address(side), table.address_set(hosts)])
        for where in narrowed_wheres:
            narrowed = [*where]
            for network in rule.excepted:
                narrowed += nftables.in_network(side, network, inside=False)
            if port:
                narrowed += [*nftables.protocol_is(port.protocol), *nftables.port_in(port.first, port.last)]
            _accept(table, chain, narrowed)


def _redirect(table: NftTable, front: Front, backends: Sequence[Backend]) -> None:
    for remaining, (host, port) in zip(range(len(backends), 0, -1), backends, strict=True):
        table.rule(
            "services",
            [
                *nftables.is_ipv4(),
                *nftables.in_network(DESTINATION, front.ip),
                *nftables.protocol_is(front.protocol),
                *nftables.port_in(front.port, front.port),
                *(nftables.random_fraction(remaining) if remaining > 1 else ()),
                *nftables.dnat_to(host, port),
            ],
        )
