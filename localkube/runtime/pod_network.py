"""The network of a cluster and of its pods: a bridge, a veth pair for each pod, and one for egress traffic.

Standard library only, for ``init.py``. The egress gateway is a process outside of the namespaces.
"""

import array
import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from localkube.runtime.container import ContainerStartError
from localkube.runtime.container_spec import LinuxIdMapping
from localkube.runtime.links.netlink import Netlink, hardware_address
from localkube.runtime.messages import close_all
from localkube.runtime.namespaces import share_processes
from localkube.runtime.syscalls import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUTS, setns, unshare
from localkube.runtime.user_namespace import new_user_namespace

SIOCETHTOOL, ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO = 0x8946, 0x17, 0x1F, 0x24
NETLINK_NETFILTER = 12
SOL_PACKET, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 23, 3
SHAREABLE = {"net": CLONE_NEWNET, "ipc": CLONE_NEWIPC}
BRIDGE, GATE = "trainyard0", ("gate-in", "gate-out")


def make_network(netlink: Netlink, settings: dict[str, Any]) -> None:
    """Set up the bridge, its addresses and the egress link, a veth pair whose far end ``open_gate`` opens.

    The egress link has no checksum offload: nothing behind the packet socket would compute them.
    """
    netlink.set_up("lo")
    netlink.add_bridge(BRIDGE, hardware=hardware_address(settings["address"]))
    netlink.add_address(BRIDGE, settings["address"], settings["prefix"])
    netlink.set_up(BRIDGE)
    netlink.add_local_range(settings["services"], settings["services_prefix"])
    netlink.add_veth(GATE[0], peer=GATE[1], peer_pid=os.getpid(), master=socket.if_nametoindex(BRIDGE))
    without_offload(GATE[0])
    for name in GATE:
        netlink.set_up(name, arp=False)  # whoever has the packet socket answers
    netlink.add_route("0.0.0.0", 0, name=BRIDGE, gateway=settings["gateway"])


def make_node(netlink: Netlink, settings: dict[str, Any], address: str) -> int:
    """Create the network namespace of a node, with its address, and open it.

    Its kubelet's servers and pods with ``hostNetwork`` are in it: two nodes can use the same port.
    """
    original = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    bridge = socket.if_nametoindex(BRIDGE)
    try:
        unshare(CLONE_NEWNET)
        _connect(netlink, settings | {"router": settings["address"], "address": address}, bridge)
        # For hostNetwork pods, whose root has no privileges in this namespace.
        write_sysctl("net.ipv4.ip_unprivileged_port_start", "0")
        with contextlib.suppress(OSError):  # an unprivileged user's namespace maps a single group
            write_sysctl("net.ipv4.ping_group_range", "0 2147483647")
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        setns(original)
        os.close(original)


def open_gate() -> int:
    """Open a packet socket that receives the bridge's egress traffic, for one gateway.

    Not a tap device, because users often may not open /dev/net/tun. Each gateway needs a new socket, as the
    kernel allows the set-up once.
    """
    gate = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.htons(ETH_P_ALL))
    gate.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    gate.bind((GATE[1], ETH_P_ALL))
    return gate.detach()


def without_offload(name: str) -> None:
    """Switch off an interface's checksum and segmentation offload for sending (ethtool's ioctl)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in (ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO):
            value = array.array("I", [command, 0])
            address, _ = value.buffer_info()
            fcntl.ioctl(sock, SIOCETHTOOL, struct.pack("16sP", name.encode(), address))


def unplug_node(netlink: Netlink, request: dict[str, Any], pods: list[str]) -> None:
    """Disconnect a node from the network: it and its pods reach only each other, on a bridge of their own.

    Idempotent.

    Args:
        request: ``address`` of the node, and ``bridge``, the name of that bridge.
    """
    with _ignoring_errno(errno.EEXIST):
        netlink.add_bridge(request["bridge"])
    netlink.set_up(request["bridge"], arp=False)
    for address in (request["address"], *pods):
        move_pod(netlink, address, request["bridge"])


def plug_node(netlink: Netlink, request: dict[str, Any], pods: list[str], bridge: str) -> None:
    """Undo ``unplug_node``; idempotent."""
    for address in (request["address"], *pods):
        move_pod(netlink, address, bridge)
    with _ignoring_errno(errno.ENODEV):
        netlink.delete_link(request["bridge"])


def move_pod(netlink: Netlink, address: str, bridge: str) -> None:
    """Make a pod's or a node's interface a port of another bridge."""
    with _ignoring_errno(errno.ENODEV):  # the kernel may have freed its namespace already
        netlink.set_up(_interface(address), master=socket.if_nametoindex(bridge))


@contextlib.contextmanager
def _ignoring_errno(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _interface(address: str) -> str:
    """Name a pod's or a node's interface by its address's last two bytes, so that no two have the same."""
    return "pod" + "-".join(address.split(".")[2:])


def make_pod(netlink: Netlink, request: dict[str, Any], *, node: int) -> dict[str, int]:
    """Create a pod's user, network, UTS and IPC namespaces.

    The last three belong to the runtime's user namespace: a container's root cannot change interfaces.

    Args:
        request: ``hostname``, ``address``, ``prefix``, ``router`` (to ``services``), ``gateway`` (out), and
            ``ids``, a ``LinuxIdMapping``; with ``share_processes`` its containers share a PID namespace
            as well. ``sysctls`` are parameters of these namespaces, by name. ``host`` names the namespaces
            that it shares with its node: ``net``, ``ipc``, ``pid``; all nodes share the last two.
        node: The network namespace of its node.

    Returns:
        Descriptors: ``user``, ``net``, ``uts``, ``ipc``, and those of ``share_processes``.
    """
    bridge, ids = socket.if_nametoindex(BRIDGE), LinuxIdMapping(**request["ids"])
    original, created = _namespaces(), {}
    try:
        # This process itself enters and leaves them: a fork would take longer than all other steps together.
        shared = request.get("host", ())
        unshare(CLONE_NEWUTS | sum(flag for name, flag in SHAREABLE.items() if name not in shared))
        if "net" in shared:
            setns(node)
        created = _namespaces()
        socket.sethostname(request["hostname"])
        if "net" not in shared:
            _connect(netlink, request, bridge)
            _allow_without_privileges(ids)
        if "pid" in shared:
            created["pid"] = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        for name, value in request.get("sysctls", {}).items():
            write_sysctl(name, value)
        created["user"] = new_user_namespace(ids, of_pod=True)
        if request.get("share_processes"):
            created |= share_processes()
        return created
    except (OSError, ContainerStartError) as error:
        close_all(created.values())
        raise ContainerStartError("sandbox", str(error)) from error
    finally:
        for descriptor in original.values():
            setns(descriptor)
        close_all(original.values())


def _allow_without_privileges(ids: LinuxIdMapping) -> None:
    """Let every process of the pod listen on ports below 1024 and send pings, as containerd does."""
    write_sysctl("net.ipv4.ip_unprivileged_port_start", "0")
    write_sysctl("net.ipv4.ping_group_range", f"{ids.host_id} {ids.host_id + ids.size - 1}")


def write_sysctl(name: str, value: str) -> None:
    """Set a parameter of the caller's network or IPC namespace."""
    with open(f"/proc/sys/{name.replace('.', '/')}", "w") as file:
        file.write(value)


def _namespaces() -> dict[str, int]:
    """Open those namespaces of this process that each pod has of its own."""
    return {
        name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("net", "uts", "ipc")
    }


def socket_in(namespace: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """Create a socket in a pod's or a node's network namespace; any process may use it."""
    original = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    setns(namespace)
    try:
        return socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    finally:
        setns(original)
        os.close(original)


def _connect(netlink: Netlink, request: dict[str, Any], bridge: int) -> None:
    """Connect the network namespace that the caller is in to the bridge."""
    outside = _interface(request["address"])
    hardware = hardware_address(request["address"])
    netlink.add_veth(outside, peer="eth0", peer_pid=os.getpid(), master=bridge, hardware=hardware)
    with contextlib.closing(Netlink()) as inside:
        inside.set_up("lo")
        inside.add_address("eth0", request["address"], request["prefix"])
        inside.set_up("eth0")
        inside.add_route("0.0.0.0", 0, name="eth0", gateway=request["gateway"])
        inside.add_route(
            request["services"], request["services_prefix"], name="eth0", gateway=request["router"]
        )
    netlink.set_up(outside)
