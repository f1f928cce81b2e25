"""nftables rules by netlink: the subset that NetworkPolicies and Services need, without the program ``nft``.

A table is replaced as a whole in one transaction. Layouts: linux/netfilter/nf_tables.h, nfnetlink.h.

Example:
    >>> table = NftTable("policy")
    >>> table.chain("in", Hook("filter", LOCAL_IN, 0))
    >>> table.rule("in", [*protocol_is("TCP"), *port_in(80, 80), verdict(DROP)])
    >>> table.replace(sock)  # doctest: +SKIP
"""

import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from localkube.runtime.links.netlink import attribute

SUBSYSTEM, BATCH_BEGIN, BATCH_END = 10, 16, 17
NEWTABLE, DELTABLE, NEWCHAIN, NEWRULE, NEWSET, NEWSETELEM = 0, 2, 3, 6, 9, 12
REQUEST, ACK, CREATE, APPEND = 0x1, 0x4, 0x400, 0x800
NESTED = 0x8000
NETLINK_NETFILTER = 12
NFPROTO_INET, NFPROTO_IPV4, NFPROTO_BRIDGE = 1, 2, 7
LOCAL_IN, FORWARD, LOCAL_OUT = 1, 2, 3
DROP, ACCEPT = 0, 1
PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}
NETWORK, TRANSPORT = 1, 2
SOURCE, DESTINATION = 12, 16
EQUAL, NOT_EQUAL = 0, 1
META_PROTOCOL, META_IIF, META_OIF, META_NFPROTO, META_L4PROTO = 1, 4, 5, 15, 16
ETH_P_IP = 0x0800
LOOPBACK_INDEX = 1
ESTABLISHED_OR_RELATED = 0x2 | 0x4
TCP_FLAGS, SYN, SYN_ACK = 13, 0x02, 0x12
SET_ANONYMOUS, SET_CONSTANT, SET_TIMEOUT, SET_EVAL = 0x1, 0x2, 0x10, 0x20
LIMIT_INVERT = 0x1
METERED, METER_MILLISECONDS = 65536, 60_000
BUFFER = 1 << 20

Expression = bytes


@dataclass(frozen=True)
class Hook:
    """Where a chain is called from: its type, the hook's number and the priority among its chains."""

    type: str
    number: int
    priority: int


@dataclass
class NftTable:
    """A table for IPv4 and IPv6, as the messages that create it.

    Attributes:
        family: ``NFPROTO_BRIDGE`` for packets that a bridge of the namespace forwards.
    """

    name: str
    family: int = NFPROTO_INET
    _messages: list[bytes] = field(default_factory=list)
    _sets: int = 0

    def chain(self, name: str, hook: Hook) -> None:
        """Add a chain with the policy accept."""
        where = _u32(1, hook.number) + _u32(2, hook.priority)
        self._add(
            NEWCHAIN,
            _text(1, self.name) + _text(3, name) + _nest(4, where) + _u32(5, ACCEPT) + _text(7, hook.type),
        )

    def rule(self, chain: str, expressions: Sequence[Expression]) -> None:
        listed = b"".join(_nest(1, expression) for expression in expressions)
        self._add(NEWRULE, _text(1, self.name) + _text(2, chain) + _nest(4, listed), APPEND)

    def address_set(self, addresses: Sequence[str]) -> Expression:
        """Add a set of IPv4 addresses; returns the expression that looks register 1 up in it."""
        self._sets += 1
        name, number = "__set%d", self._sets
        flags = SET_ANONYMOUS | SET_CONSTANT
        definition = _u32(3, flags) + _u32(4, 7) + _u32(5, 4) + _u32(10, number)
        self._add(NEWSET, _text(1, self.name) + _text(2, name) + definition)
        elements = b"".join(
            _nest(1, _nest(1, attribute(1, socket.inet_aton(address))))
            for address in dict.fromkeys(addresses)
        )
        self._add(NEWSETELEM, _text(1, self.name) + _text(2, name) + _u32(4, number) + _nest(3, elements))
        return _expression("lookup", _text(1, name) + _u32(2, 1) + _u32(4, number))

    def above_rate(self, each_second: int, *, burst: int) -> list[Expression]:
        """Add a meter for each IPv4 address; returns expressions that match sources above this rate."""
        self._sets += 1
        name = f"meter{self._sets}"
        definition = _u32(3, SET_TIMEOUT | SET_EVAL) + _u32(4, 7) + _u32(5, 4) + _u32(10, self._sets)
        definition += _nest(9, _u32(1, METERED)) + _u64(11, METER_MILLISECONDS)
        self._add(NEWSET, _text(1, self.name) + _text(2, name) + definition)
        limit = _u64(1, each_second) + _u64(2, 1) + _u32(3, burst) + _u32(4, 0) + _u32(5, LIMIT_INVERT)
        update = _text(1, name) + _u32(2, self._sets) + _u32(3, 1) + _u32(4, 1)
        update += _u64(6, METER_MILLISECONDS) + _nest(7, _expression("limit", limit))
        return [address(SOURCE), _expression("dynset", update)]

    def replace(self, sock: socket.socket) -> None:
        """Replace the table of this name by this one.

        Args:
            sock: A netlink socket of the network namespace, for netfilter.

        Raises:
            OSError: The kernel refuses; nothing has changed.
        """
        named = _text(1, self.name)
        kinds = (NEWTABLE, DELTABLE, NEWTABLE)
        start = [_message(kind, named, family=self.family) for kind in kinds]
        _send(sock, [*start, *self._messages])

    def delete(self, sock: socket.socket) -> None:
        """Remove the table of this name, if there is one."""
        named = _text(1, self.name)
        _send(sock, [_message(kind, named, family=self.family) for kind in (NEWTABLE, DELTABLE)])

    def _add(self, kind: int, body: bytes, flags: int = 0) -> None:
        self._messages.append(_message(kind, body, flags, family=self.family))


# Expressions: each tests a packet, or ends the rule with a verdict.


def verdict(code: int) -> Expression:
    return _expression("immediate", _u32(1, 0) + _nest(2, _nest(2, _u32(1, code))))


def established() -> list[Expression]:
    """Match packets of a connection that was allowed."""
    state = struct.pack("=I", ESTABLISHED_OR_RELATED)
    return [
        _expression("ct", _u32(1, 1) + _u32(2, 0)),
        _bitwise(state),
        _compare(NOT_EQUAL, bytes(4)),
    ]


def later_segment() -> list[Expression]:
    """Match TCP segments that do not open a connection."""
    return _opens(NOT_EQUAL)


def first_segment() -> list[Expression]:
    """Match TCP segments that open a connection."""
    return _opens(EQUAL)


def _opens(operator: int) -> list[Expression]:
    flags = _expression("payload", _u32(1, 1) + _u32(2, TRANSPORT) + _u32(3, TCP_FLAGS) + _u32(4, 1))
    return [*protocol_is("TCP"), flags, _bitwise(bytes([SYN_ACK])), _compare(operator, bytes([SYN]))]


def on_loopback(*, incoming: bool) -> list[Expression]:
    return [_meta(META_IIF if incoming else META_OIF), _compare(EQUAL, struct.pack("=I", LOOPBACK_INDEX))]


def is_ipv4() -> list[Expression]:
    return [_meta(META_NFPROTO), _compare(EQUAL, bytes([NFPROTO_IPV4]))]


def output_interface(interface: int) -> list[Expression]:
    """Match IPv4 packets that leave by the interface with this index; for tables of a bridge as well."""
    protocol = [_meta(META_PROTOCOL), _compare(EQUAL, struct.pack(">H", ETH_P_IP))]
    return [_meta(META_OIF), _compare(EQUAL, struct.pack("=I", interface)), *protocol]


def protocol_is(protocol: str) -> list[Expression]:
    return [_meta(META_L4PROTO), _compare(EQUAL, bytes([PROTOCOLS[protocol]]))]


def port_in(first: int, last: int) -> list[Expression]:
    """Match destination ports in a range; only after ``protocol_is``."""
    load = _expression("payload", _u32(1, 1) + _u32(2, TRANSPORT) + _u32(3, 2) + _u32(4, 2))
    if first == last:
        return [load, _compare(EQUAL, struct.pack(">H", first))]
    ends = (_nest(number, attribute(1, struct.pack(">H", end))) for number, end in ((3, first), (4, last)))
    return [load, _expression("range", _u32(1, 1) + _u32(2, EQUAL) + b"".join(ends))]


def address(register: int) -> Expression:
    """Load the IPv4 ``SOURCE`` or ``DESTINATION``; only after ``is_ipv4``."""
    return _expression("payload", _u32(1, 1) + _u32(2, NETWORK) + _u32(3, register) + _u32(4, 4))


def in_network(register: int, cidr: str, *, inside: bool = True) -> list[Expression]:
    network = ipaddress.ip_network(cidr, strict=False)
    masked = [] if network.prefixlen == 32 else [_bitwise(network.netmask.packed)]
    return [
        address(register),
        *masked,
        _compare(EQUAL if inside else NOT_EQUAL, network.network_address.packed),
    ]


def random_fraction(count: int) -> list[Expression]:
    """Match at random, one packet in ``count``."""
    number = _expression("numgen", _u32(1, 1) + _u32(2, count) + _u32(3, 1) + _u32(4, 0))
    return [number, _compare(EQUAL, bytes(4))]


def dnat_to(host: str, port: int) -> list[Expression]:
    """Change the destination of a connection, by its first packet."""
    where = (
        _expression("immediate", _u32(1, 1) + _nest(2, attribute(1, socket.inet_aton(host)))),
        _expression("immediate", _u32(1, 2) + _nest(2, attribute(1, struct.pack(">H", port)))),
    )
    target = _u32(1, 1) + _u32(2, NFPROTO_IPV4) + _u32(3, 1) + _u32(5, 2)
    return [*where, _expression("nat", target)]


def _meta(key: int) -> Expression:
    return _expression("meta", _u32(1, 1) + _u32(2, key))


def _compare(operator: int, value: bytes) -> Expression:
    return _expression("cmp", _u32(1, 1) + _u32(2, operator) + _nest(3, attribute(1, value)))


def _bitwise(mask: bytes) -> Expression:
    size = len(mask)
    zero = _nest(5, attribute(1, bytes(size)))
    return _expression(
        "bitwise", _u32(1, 1) + _u32(2, 1) + _u32(3, size) + _nest(4, attribute(1, mask)) + zero
    )


def _expression(name: str, data: bytes) -> Expression:
    return _text(1, name) + _nest(2, data)


# Messages.


def _message(kind: int, body: bytes, flags: int = 0, *, family: int) -> bytes:
    generic = struct.pack(">BBH", family, 0, 0)
    return (
        struct.pack("=HH", SUBSYSTEM << 8 | kind, REQUEST | CREATE * (kind != DELTABLE) | flags)
        + generic
        + body
    )


def _send(sock: socket.socket, messages: Sequence[bytes]) -> None:
    edge = struct.pack(">BBH", 0, 0, SUBSYSTEM)
    batch = [struct.pack("=HH", BATCH_BEGIN, REQUEST) + edge, *messages]
    batch.append(struct.pack("=HH", BATCH_END, REQUEST) + edge)
    packed = bytearray()
    for number, message in enumerate(batch):
        kind, flags = struct.unpack_from("=HH", message)
        # The acknowledgement of the last message confirms the whole batch.
        flags |= ACK if number == len(batch) - 2 else 0
        packed += struct.pack("=IHHII", 12 + len(message), kind, flags, number + 1, 0) + message[4:]
        packed += bytes(-len(packed) % 4)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    sock.setblocking(False)
    sock.send(packed)
    code = _answer(sock, last=len(batch) - 1)
    if code:
        raise OSError(code, os.strerror(code))


def _answer(sock: socket.socket, *, last: int) -> int:
    """Read the kernel's answers, which are already there; returns the first error, or 0."""
    while True:
        received, offset = sock.recv(1 << 16), 0
        while offset < len(received):
            length, kind, _, sequence, _ = struct.unpack_from("=IHHII", received, offset)
            (code,) = struct.unpack_from("=i", received, offset + 16)
            if kind == 2 and (code or sequence == last):
                return -code
            offset += length + -length % 4


def _nest(kind: int, value: bytes) -> bytes:
    return attribute(kind | NESTED, value)


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">i", value) if value < 0 else struct.pack(">I", value))


def _u64(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">Q", value))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")
