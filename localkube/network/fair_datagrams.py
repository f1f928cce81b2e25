"""A UDP server in which no client can fill the receive queue of all others.

One socket has one queue, which a single client can keep full, so that the kernel drops the others' datagrams.
Here the kernel spreads clients over sockets by their addresses, sockets are read in turn, and a filter in the
kernel drops the datagrams of a client whose namespace has used up its time, at no cost to this process.

Source: socket(7), https://docs.kernel.org/networking/filter.html
"""

import asyncio
import ctypes
import logging
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from localkube.network.fair_shares import Allowances

log = logging.getLogger(__name__)

Address = tuple[str, int]
Handle = Callable[[bytes, Address, Callable[[bytes], None]], None]
# A prime, so that neighbouring addresses have different queues, and the same ones of other nodes as well.
QUEUES = 61 if sys.platform == "linux" else 1
LARGEST = 4096
BLOCKED_SECONDS = 1.0
MAX_BLOCKED = 500
# asm-generic/socket.h
SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF = 26, 51
# linux/bpf_common.h, linux/filter.h: the sender's address in the IP header, wherever the data begins.
LOAD_SENDER = (0x20, 0, 0, 0xFFF00000 + 12)
RETURN, RETURN_ACCUMULATOR, JUMP_IF_EQUAL, MODULO = 0x06, 0x16, 0x15, 0x94
ALL_BYTES = 0xFFFFFFFF


class FairDatagrams:
    """Receives datagrams for ``handle(data, client, reply)``.

    Args:
        allowances: The time that the clients' namespaces may take.
    """

    def __init__(self, host: str, port: int, *, handle: Handle, allowances: Allowances) -> None:
        self._handle, self._allowances = handle, allowances
        self._loop = asyncio.get_running_loop()
        self._blocked: dict[socket.socket, set[str]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._sockets = _bound(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        for queue in self._sockets:
            self._loop.add_reader(queue, self._read, queue)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for queue in self._sockets:
            self._loop.remove_reader(queue)
        _close(self._sockets)

    def _read(self, queue: socket.socket) -> None:
        try:
            data, client = queue.recvfrom(LARGEST)
        except OSError as error:
            log.debug("a client is unreachable: %s", error)
            return
        started = time.thread_time()  # not the time of other processes
        self._handle(data, client, lambda packet: _send(queue, packet, client))
        if not self._allowances.spend(client[0], time.thread_time() - started):
            self._block(queue, client[0])

    def _block(self, queue: socket.socket, client: str) -> None:
        blocked = self._blocked.setdefault(queue, set())
        if client in blocked or len(blocked) >= MAX_BLOCKED:
            return
        blocked.add(client)
        _filter(queue, blocked)
        timer: asyncio.TimerHandle = self._loop.call_later(
            BLOCKED_SECONDS, lambda: self._unblock(queue, client, timer)
        )
        self._timers.add(timer)

    def _unblock(self, queue: socket.socket, client: str, timer: asyncio.TimerHandle) -> None:
        self._timers.discard(timer)
        self._blocked[queue].discard(client)
        _filter(queue, self._blocked[queue])


def _bound(host: str, port: int) -> list[socket.socket]:
    """Bind the queues to one address; a single one where the kernel cannot spread clients."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(QUEUES):
            queue = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sockets.append(queue)
            queue.setblocking(False)
            queue.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            queue.bind((host, port))
            port = queue.getsockname()[1]
    except OSError:
        _close(sockets)
        raise
    spread = [LOAD_SENDER, (MODULO, 0, 0, QUEUES), (RETURN_ACCUMULATOR, 0, 0, 0)]
    try:
        _attach(sockets[0], SO_ATTACH_REUSEPORT_CBPF, spread)
    except OSError as error:
        log.warning("clients of %s:%d share one queue: %s", host, port, error)
        _close(sockets[1:])
        return sockets[:1]
    return sockets


def _close(queues: Iterable[socket.socket]) -> None:
    for queue in queues:
        queue.close()


def _filter(queue: socket.socket, blocked: set[str]) -> None:
    """Drop the datagrams of these clients before they enter the queue."""
    program = [LOAD_SENDER]
    for client in blocked:
        (number,) = struct.unpack("!I", socket.inet_aton(client))
        program += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, 0)]
    try:
        _attach(queue, SO_ATTACH_FILTER, [*program, (RETURN, 0, 0, ALL_BYTES)])
    except OSError as error:  # the kernel has no memory for it: the clients are only slowed down
        log.warning("clients over their allowance are not dropped: %s", error)


def _attach(queue: socket.socket, option: int, program: Sequence[tuple[int, int, int, int]]) -> None:
    text = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(text, len(text))
    queue.setsockopt(socket.SOL_SOCKET, option, struct.pack("@HP", len(program), ctypes.addressof(buffer)))


def _send(queue: socket.socket, packet: bytes, client: Address) -> None:
    if queue.fileno() >= 0:
        try:
            queue.sendto(packet, client)
        except OSError as error:
            log.debug("an answer to %s:%d is lost: %s", *client, error)
