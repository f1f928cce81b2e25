"""Links between nodes that are slower than this machine: of one node, or between two racks, zones or nodes.

They are stored in a file of the cluster, so that they survive its restart. ``runtime/links`` configures the
kernel: nodes that share a link are a group with a bridge of their own. Only the cluster's user, who has the
control socket, can change them; pods and attendees cannot.
"""

import asyncio
import json
import re
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localkube.errors import LocalClusterError
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.paths import unwritable, write_private
from localkube.runtime.client import RuntimeCallError, RuntimeClient
from localkube.runtime.links.traffic_control import FIRST, WHOLE
from localkube.runtime.pod_network import BRIDGE

MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SECONDS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MIN_BANDWIDTH, MAX_BANDWIDTH = 64_000, 400 * 10**9
MAX_LATENCY = 10 * 10**9
# A frame with a payload of 1,448 bytes has 1,514: the bandwidth of a link is that of the payload.
FRAME = 1514 / 1448
SAMPLE_SECONDS = 0.5

Nodes = frozenset[str]
Ends = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Link:
    """A limit on the traffic of a node with all others, or between two groups of nodes.

    Attributes:
        ends: The requested names, one or two.
        nodes: The nodes of each end.
        bandwidth: Bits per second that programs get, in each direction.
        latency: Nanoseconds, one way.
    """

    ends: tuple[str, ...]
    nodes: Ends
    bandwidth: int
    latency: int = 0

    @property
    def name(self) -> str:
        return " to ".join(self.ends)

    def limits(self) -> dict[str, int]:
        """Build the limits, in the units of ``traffic_control.shape``."""
        return {"rate": round(self.bandwidth / 8 * FRAME), "latency": self.latency}


class LinkManager:
    """The links of a cluster."""

    def __init__(self, path: Path, nodes: Mapping[str, VirtualNode], client: RuntimeClient) -> None:
        self._path, self._nodes, self._client = path, nodes, client
        self._lock = asyncio.Lock()
        self._links: dict[Ends, Link] = {}
        for row in json.loads(path.read_text()) if path.exists() else ():
            ends = tuple(tuple(end) for end in row["nodes"])
            if all(name in nodes for end in ends for name in end):  # it may have been scaled down
                self._links[ends] = Link(tuple(row["ends"]), ends, row["bandwidth"], row["latency"])

    async def restore(self) -> None:
        """Apply the stored links to a runtime that has just started."""
        if self._links:
            await self._apply(self._links)

    async def change(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Handle a request for ``ends``: ``remove``, or set ``bandwidth`` and ``latency``, or only list."""
        if request["remove"]:
            return await self._remove(request["ends"])
        if request["bandwidth"]:
            return await self._set(request["ends"], request["bandwidth"], request["latency"])
        return await self.rows()

    async def _set(self, ends: Sequence[str], bandwidth: str, latency: str) -> list[dict[str, Any]]:
        """Add a link, or change the one of these ends; return all.

        Raises:
            LocalClusterError: An end is no node, rack or zone; a quantity cannot be parsed; the ends overlap
                with one another or, in part, with those of another link; the kernel or mode lacks support.
        """
        if len(ends) not in (1, 2):
            raise LocalClusterError(
                "a link has one end, a node, or two: nodes, racks or zones",
                about=", ".join(ends) or "no end",
                fix="name a node, or two ends",
            )
        names = sorted(ends, key=self._resolve)
        nodes = tuple(map(self._resolve, names))
        link = Link(tuple(names), nodes, _bandwidth(bandwidth), _latency(latency))
        if len(nodes) == 2 and {*nodes[0]} & {*nodes[1]}:
            common = ", ".join(sorted({*nodes[0]} & {*nodes[1]}))
            raise LocalClusterError(
                "a link is between different nodes", about=link.name, fix=f"{common} would be at both ends"
            )
        return await self._change(self._links | {nodes: link}, about=link.name)

    async def _remove(self, ends: Sequence[str]) -> list[dict[str, Any]]:
        """Remove the link of these ends, or without ends all links; return those that remain."""
        key = tuple(sorted(map(self._resolve, ends)))
        if ends and key not in self._links:
            names = ", ".join(link.name for link in self._links.values()) or "none"
            raise LocalClusterError(
                "there is no such link", about=" to ".join(ends), fix=f"the links are: {names}"
            )
        remaining = {known: link for known, link in self._links.items() if ends and known != key}
        return await self._change(remaining, about=" to ".join(ends))

    async def rows(self) -> list[dict[str, Any]]:
        """Describe the links, with their current bits per second, in the busier direction."""
        if not self._links:
            return []
        before, start = await self._transmitted(), time.monotonic()
        await asyncio.sleep(SAMPLE_SECONDS)
        after, seconds = await self._transmitted(), time.monotonic() - start
        rows = []
        for link in sorted(self._links.values(), key=lambda link: link.name):
            moved = [new - old for new, old in zip(after[link.nodes], before[link.nodes], strict=True)]
            flows = 8e-6 * max(moved) / seconds / FRAME
            row = {
                "link": link.name,
                "bandwidth": f"{link.bandwidth / 1e6:g} Mbit/s",
                "latency": f"{link.latency / 1e6:g} ms",
                "flows": f"{flows:.1f} Mbit/s",
            }
            rows.append(row | {"nodes": link.nodes})
        return rows

    async def metrics(self, node: str) -> str:
        """Format the node's links in Prometheus's text format: bytes of each direction, and the limit."""
        links = [link for link in self._links.values() if any(node in end for end in link.nodes)]
        if not links:
            return ""
        counters, lines = await self._transmitted(), ["# TYPE trainyard_link_bytes_total counter"]
        for link in links:
            for direction, sent in zip(("there", "back"), counters[link.nodes], strict=True):
                labels = f'link="{link.name}",direction="{direction}",limit="{link.bandwidth}"'
                lines.append(f"trainyard_link_bytes_total{{{labels}}} {round(sent / FRAME)}")
        return "\n".join(lines) + "\n"

    async def _change(self, links: dict[Ends, Link], *, about: str) -> list[dict[str, Any]]:
        async with self._lock:
            try:
                await self._apply(links)
                write_private(self._path, json.dumps([asdict(link) for link in links.values()]))
            except RuntimeCallError as error:
                if "plain mode" not in error.message:
                    await self._apply(self._links)
                raise LocalClusterError(
                    error.message,
                    about=f"link {about}",
                    fix="leave `latency=` out, or load the module"
                    if "sch_netem" in error.message
                    else "use a machine that allows namespaces: `python -m localkube doctor`",
                ) from error
            except OSError as error:
                await self._apply(self._links)
                raise unwritable(self._path, error) from error
            self._links = links
        return await self.rows()

    async def _apply(self, links: Mapping[Ends, Link]) -> None:
        groups, bridges = plan(links.values(), {name: node.settings for name, node in self._nodes.items()})
        await self._client.call("links", groups=groups, bridges=bridges)

    async def _transmitted(self) -> dict[Ends, tuple[int, int]]:
        """Read the bytes that each link has carried, in both directions."""
        answer, _ = await self._client.call("link_counters")
        classes = {nodes: counted_by(link, self._links.values()) for nodes, link in self._links.items()}
        sent = {
            nodes: [answer["counters"].get(end, {}).get(str(number), 0) for end, number in counted]
            for nodes, counted in classes.items()
        }
        return {nodes: (forth, back) for nodes, (forth, back) in sent.items()}

    def _resolve(self, end: str) -> tuple[str, ...]:
        """Resolve a name to nodes: a node's own name, or a topology label's value, such as a rack's."""
        if end in self._nodes:
            return (end,)
        places: dict[str, list[str]] = {}
        for name, node in self._nodes.items():
            labels = dict(node.settings.labels) | (
                (node.object or {}).get("metadata", {}).get("labels") or {}
            )
            for value in {value for key, value in labels.items() if "topology" in key}:
                places.setdefault(value, []).append(name)
        if end not in places:
            known = ", ".join([*self._nodes, *sorted(places)])
            raise LocalClusterError(
                "no node, rack or zone has this name", about=end, fix=f"choose from: {known}"
            )
        return tuple(sorted(places[end]))


def plan(links: Collection[Link], settings: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Plan the groups of nodes, outer ones first, and each node's bridge (``groups.NodeLinks.replace``).

    Raises:
        LocalClusterError: Two groups have some nodes in common, and neither contains the other.
    """
    groups = sorted({frozenset(end) for link in links for end in link.nodes}, key=lambda nodes: -len(nodes))
    around: dict[Nodes, str] = {}
    bridges: dict[str, str] = {}
    for number, nodes in enumerate(groups):
        around[nodes] = BRIDGE
        for outer in groups[:number]:
            if nodes & outer and not nodes <= outer:
                raise LocalClusterError(
                    "the ends of two links share some of their nodes, and neither contains the other",
                    about=f"{', '.join(sorted(nodes))} and {', '.join(sorted(outer))}",
                    fix="remove one of them: `cluster.unlink()`",
                )
            if nodes <= outer:
                around[nodes] = bridge_name(outer)  # the smallest is the last
        for name in nodes:
            bridges[settings[name].address] = bridges[settings[name].pods] = bridge_name(nodes)
    whole: dict[str, Any] = {"rate": 0, "latency": 0}
    planned: list[dict[str, Any]] = []
    for nodes in groups:
        own = next((link.limits() for link in links if link.nodes == (tuple(sorted(nodes)),)), whole)
        parts = [link.limits() | {"to": _networks(end, settings)} for link, end in _leaving(nodes, links)]
        group = {"bridge": bridge_name(nodes), "parent": around[nodes]}
        planned.append(group | {"up": own | {"classes": parts}, "down": own | {"classes": []}})
    return planned, bridges


def counted_by(link: Link, links: Collection[Link]) -> list[tuple[str, int]]:
    """Return the interfaces and classes that count a link's bytes, for both directions."""
    bridges = [bridge_name(frozenset(end)) for end in link.nodes]
    if len(bridges) == 1:
        return [(bridges[0] + end, WHOLE) for end in ("up", "down")]
    numbers = ([other for other, _ in _leaving(frozenset(end), links)].index(link) for end in link.nodes)
    return [(bridge + "up", FIRST + number) for bridge, number in zip(bridges, numbers, strict=True)]


def _leaving(nodes: Nodes, links: Collection[Link]) -> list[tuple[Link, tuple[str, ...]]]:
    """List the links from a group to another one, with the nodes of the other one."""
    return [
        (link, link.nodes[1 - side])
        for link in links
        if len(link.nodes) == 2
        for side in (0, 1)
        if frozenset(link.nodes[side]) == nodes
    ]


def bridge_name(nodes: Nodes) -> str:
    """Name a group's bridge; the name depends only on its nodes."""
    return f"ln{zlib.crc32(','.join(sorted(nodes)).encode()):08x}"


def _networks(nodes: Sequence[str], settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    pods = [(settings[name].pods + "0", 24) for name in nodes]
    return [*pods, *((settings[name].address, 32) for name in nodes)]


def _bandwidth(text: str) -> int:
    """Parse a bandwidth such as ``100Mbit`` into bits per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?)(?:bit|bit/s|bps)?", text.strip(), re.IGNORECASE)
    bits = round(float(match[1]) * MULTIPLES[match[2].lower()]) if match else 0
    if not MIN_BANDWIDTH <= bits <= MAX_BANDWIDTH:
        raise LocalClusterError(
            "a bandwidth is in bits per second, from 64kbit to 400Gbit",
            about=text,
            fix="write it like 100Mbit",
        )
    return bits


def _latency(text: str) -> int:
    """Parse a latency such as ``2ms`` into nanoseconds; empty means 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(us|ms|s)", text.strip(), re.IGNORECASE)
    latency = round(float(match[1]) * SECONDS[match[2].lower()]) if match else 0
    if text and not match or latency > MAX_LATENCY:
        raise LocalClusterError(
            "a latency is a time of at most ten seconds", about=text, fix="write it like 2ms"
        )
    return latency
