"""Queueing disciplines of an interface: HTB classes with a rate, selected by u32 filters on the destination.

Standard library only, for ``init.py``. Layouts: linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h; the
requests are those of ``tc qdisc``, ``tc class`` and ``tc filter``.
"""

import contextlib
import errno
import socket
import struct
from collections.abc import Sequence
from typing import Any

from localkube.runtime.container import ContainerStartError
from localkube.runtime.links.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Netlink,
    attribute,
    attributes,
)

RTM_NEWQDISC, RTM_DELQDISC, RTM_NEWTCLASS, RTM_GETTCLASS, RTM_NEWTFILTER = 36, 37, 40, 42, 44
TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STATS_BASIC = 1, 2, 7, 1
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64, TCA_NETEM_LATENCY64 = 1, 2, 6, 7, 10
TCA_U32_CLASSID, TCA_U32_SEL, U32_TERMINAL, DESTINATION_OFFSET = 1, 5, 1, 16
ROOT, HTB, WHOLE, DEFAULT, FIRST = 0xFFFFFFFF, 0x10000, 1, 2, 3
LINKLAYER_ETHERNET, ETH_P_IP = 1, 0x0800
TICK_NANOSECONDS, BURST_SECONDS, QUEUE_SECONDS, MIN_QUEUE = 64, 0.01, 0.05, 128 << 10
QUANTUM, MIN_RATE, PACKET = 65536, 1000, 1500

Shape = dict[str, Any]


def shape(netlink: Netlink, name: str, requested: Shape, before: Shape | None) -> None:
    """Limit the egress traffic of an interface.

    Args:
        requested: The total ``rate`` in bytes per second, 0 for no limit; ``latency`` in nanoseconds; and
            ``classes``, each with ``rate``, ``latency`` and ``to``, pairs of a network's address and length.
        before: The previous shape; if only rates change, no packet is lost.

    Raises:
        ContainerStartError: The kernel lacks a queueing discipline.
    """
    index = socket.if_nametoindex(name)
    if before is None or _structure(before) != _structure(requested):
        with contextlib.suppress(FileNotFoundError):
            netlink.request(RTM_DELQDISC, 0, _header(index, 0, ROOT))
        default = DEFAULT if requested["rate"] else 0
        glob = attribute(TCA_HTB_INIT, struct.pack("=5I", 3, 10, default, 0, 0))
        _add(netlink, RTM_NEWQDISC, _header(index, HTB, ROOT), "htb", glob)
        flags, new = NLM_F_CREATE | NLM_F_EXCL, True
    else:
        flags, new = NLM_F_CREATE | NLM_F_REPLACE, False
    total, parent = requested["rate"], HTB
    if total:
        parent = HTB | WHOLE
        _class(netlink, index, WHOLE, HTB, (total, total), flags)
        _class(netlink, index, DEFAULT, parent, (total, total), flags)
        _leaf(netlink, index, DEFAULT, requested, new=new)
    for number, part in enumerate(requested["classes"], FIRST):
        # HTB grants a class its assured rate even if their sum exceeds the parent's: so it is minimal here.
        rates = (MIN_RATE if total else part["rate"], part["rate"])
        _class(netlink, index, number, parent, rates, flags)
        _leaf(netlink, index, number, part, new=new)
        for address, length in part["to"] if new else ():
            _filter(netlink, index, number, address, length)


def transmitted(netlink: Netlink, name: str) -> dict[int, int]:
    """Read how many bytes each class of an interface has sent, by the class's number."""
    counters = {}
    for message in netlink.dump(RTM_GETTCLASS, _header(socket.if_nametoindex(name), 0, 0)):
        (handle,) = struct.unpack_from("=I", message, 8)
        statistics = attributes(attributes(message[20:]).get(TCA_STATS2, b"")).get(TCA_STATS_BASIC, bytes(8))
        (counters[handle & 0xFFFF],) = struct.unpack_from("=Q", statistics)
    return counters


def _structure(requested: Shape) -> object:
    """Return the parts of a shape that only a new tree of classes can change."""
    networks = [(part["to"], bool(part["latency"])) for part in requested["classes"]]
    return bool(requested["rate"]), bool(requested["latency"]), networks


def _class(netlink: Netlink, index: int, number: int, parent: int, rates: Sequence[int], flags: int) -> None:
    assured, ceiling = rates
    ticks = int(BURST_SECONDS * 1e9 / TICK_NANOSECONDS)
    specs = b"".join(
        struct.pack("=BBHhHI", 0, LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF)) for rate in rates
    )
    options = attribute(TCA_HTB_PARMS, specs + struct.pack("=5I", ticks, ticks, QUANTUM, 0, 0))
    options += attribute(TCA_HTB_RATE64, struct.pack("=Q", assured))
    options += attribute(TCA_HTB_CEIL64, struct.pack("=Q", ceiling))
    header = _header(index, HTB | number, parent)
    body = header + attribute(TCA_KIND, b"htb\0") + attribute(TCA_OPTIONS, options)
    _send(netlink, RTM_NEWTCLASS, flags, body, "htb")


def _leaf(netlink: Netlink, index: int, number: int, part: Shape, *, new: bool) -> None:
    """Give a class its queue, with its latency: a short one, because a full queue delays every packet."""
    header = _header(index, (number + 16) << 16, HTB | number)
    limit = max(MIN_QUEUE, int(QUEUE_SECONDS * part["rate"]))
    if part["latency"]:
        packets = (limit + int(part["rate"] * part["latency"] / 1e9)) // PACKET
        fields = struct.pack("=6I", part["latency"] // TICK_NANOSECONDS, packets, 0, 0, 0, 0)
        delay = fields + attribute(TCA_NETEM_LATENCY64, struct.pack("=q", part["latency"]))
        _add(netlink, RTM_NEWQDISC, header, "netem", delay, new=new)
    else:
        _add(netlink, RTM_NEWQDISC, header, "bfifo", struct.pack("=I", limit), new=new)


def _filter(netlink: Netlink, index: int, number: int, address: str, length: int) -> None:
    mask, value = struct.pack(">I", 0xFFFFFFFF << (32 - length) & 0xFFFFFFFF), socket.inet_aton(address)
    selector = struct.pack("=BBBxHHhhI", U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0)
    selector += mask + value + struct.pack("=ii", DESTINATION_OFFSET, 0)
    options = attribute(TCA_U32_CLASSID, struct.pack("=I", HTB | number)) + attribute(TCA_U32_SEL, selector)
    header = _header(index, 0, HTB, info=1 << 16 | socket.htons(ETH_P_IP))
    _add(netlink, RTM_NEWTFILTER, header, "u32", options)


def _add(
    netlink: Netlink, message: int, header: bytes, kind: str, options: bytes, *, new: bool = True
) -> None:
    flags = NLM_F_CREATE | (NLM_F_EXCL if new else NLM_F_REPLACE)
    named = attribute(TCA_KIND, kind.encode() + b"\0")
    _send(netlink, message, flags, header + named + attribute(TCA_OPTIONS, options), kind)


def _send(netlink: Netlink, message: int, flags: int, body: bytes, kind: str) -> None:
    try:
        netlink.request(message, flags, body)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
            raise
        module = f"{'cls' if kind == 'u32' else 'sch'}_{kind}"
        raise ContainerStartError(
            "sandbox", f"this machine's kernel has no {kind} (its module is {module}): {error.strerror}"
        ) from error


def _header(index: int, handle: int, parent: int, *, info: int = 0) -> bytes:
    return struct.pack("=BxxxiIII", socket.AF_UNSPEC, index, handle, parent, info)
