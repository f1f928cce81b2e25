"""Bridges of groups of nodes between the cluster's bridge and their pods, and the limits of their uplinks.

A group, such as a rack, has a bridge, which a veth pair connects to the bridge of the group around it.
Traffic from its nodes leaves by one end of the pair, traffic to them by the other: both are shaped.
Standard library only, for ``init.py``.
"""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localkube.runtime.links.netlink import Netlink
from localkube.runtime.links.traffic_control import shape, transmitted
from localkube.runtime.pod_network import BRIDGE, move_pod

Group = dict[str, Any]


class NodeLinks:
    """The current groups, and the bridge that each node is connected to."""

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink
        self._groups: dict[str, Group] = {}
        self._bridges: Mapping[str, str] = {}

    def bridge(self, address: str) -> str:
        """Name the bridge of a node's or a pod's address, while its node is on the network."""
        prefix = address.rpartition(".")[0] + "."
        return self._bridges.get(address) or self._bridges.get(prefix) or BRIDGE

    def replace(self, groups: Sequence[Group], bridges: Mapping[str, str], addresses: Iterable[str]) -> None:
        """Replace the groups; unchanged groups keep their connections.

        Args:
            groups: Outer ones first: ``bridge``, ``parent``, the bridge around it, and the shapes of its
                uplink, ``up`` and ``down``.
            bridges: The bridge of each node, by its address and by the prefix of its pods' addresses.
            addresses: The addresses of the nodes and pods that are on the network.
        """
        for group in groups:
            before = self._groups.get(group["bridge"])
            if before is None or before["parent"] != group["parent"]:
                self._connect(group, new=before is None)
            state = self._groups[group["bridge"]]
            for end in ("up", "down"):
                # Removed first: after an error its state is unknown.
                shape(self._netlink, group["bridge"] + end, group[end], state.pop(end, None))
                state[end] = group[end]
        self._bridges = bridges
        for address in addresses:
            move_pod(self._netlink, address, self.bridge(address))
        names = {group["bridge"] for group in groups}
        for name in [name for name in self._groups if name not in names]:
            self._netlink.delete_link(name + "up")
            self._netlink.delete_link(name)
            del self._groups[name]

    def _connect(self, group: Group, *, new: bool) -> None:
        name, netlink = group["bridge"], self._netlink
        if new:
            netlink.add_bridge(name)
            netlink.set_up(name, arp=False)
        else:
            netlink.delete_link(name + "up")
        parent = socket.if_nametoindex(group["parent"])
        netlink.add_veth(name + "down", peer=name + "up", peer_pid=os.getpid(), master=parent)
        netlink.set_up(name + "up", master=socket.if_nametoindex(name))
        netlink.set_up(name + "down")
        self._groups[name] = {"parent": group["parent"]}

    def counters(self) -> dict[str, dict[int, int]]:
        """Read the bytes that each class of each uplink's end has sent."""
        return {
            name + end: transmitted(self._netlink, name + end)
            for name in self._groups
            for end in ("up", "down")
        }
