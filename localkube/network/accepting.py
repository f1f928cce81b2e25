"""Accept TCP connections for as long as the process lives, from this user and root alone.

A port of the loopback is open to every user of the machine. The kernel knows to whom the socket at the other
end belongs, so another user's connection is closed before anything is read from it or opened for it.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from localkube.runtime.links.netlink import Netlink
from localkube.tasks import start_task

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
RESET = struct.pack("ii", 1, 0)
MAX_CONNECTIONS, OTHER_DESCRIPTORS = 4096, 64

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
# Parts of struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h).
REQUEST, UID_AND_INODE = struct.Struct("=BBBBI"), struct.Struct("=II")
UID_OFFSET = 64
ANY_STATE, NO_COOKIE = 0xFFFFFFFF, b"\xff" * 8


async def accept(
    listener: socket.socket,
    handle: Callable[[socket.socket], Coroutine[Any, Any, None]],
    *,
    limit: int,
    admit: Callable[[socket.socket], bool] = lambda client: True,
) -> None:
    """Handle each connection in a task; when descriptors run out, wait until some are free.

    Args:
        handle: Serves a connected socket, closes it, and returns.
        limit: Connections at a time; others wait in the kernel's backlog.
        admit: Decides by the socket whether a connection is accepted; others are reset.
    """
    loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(limit)
    listener.setblocking(False)
    while True:
        await slots.acquire()
        try:
            client, _ = await loop.sock_accept(listener)
        except OSError as error:
            slots.release()
            if not isinstance(error, ConnectionAbortedError):
                log.warning("cannot accept connections for now: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
            continue
        if admit(client):
            task = start_task(handle(client), name="connection")
            task.add_done_callback(lambda _: slots.release())
        else:
            reset(client)
            slots.release()


def reset(client: socket.socket) -> None:
    """Close a connection so that its peer sees an error, not the end of data."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


def use_all_descriptors() -> int:
    """Raise the limit of open files to the hard limit; return how many connections to serve at a time."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, min(MAX_CONNECTIONS, (hard - OTHER_DESCRIPTORS) // 2))


def is_ours(client: socket.socket) -> bool:
    """Check whether the other end of a loopback connection is a socket of this user, or of root."""
    try:
        return owner(client.getpeername(), client.getsockname()) in (os.geteuid(), 0)
    except OSError:  # it was reset before it was accepted
        return False


def owner(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Find the user whose IPv4 TCP socket is bound to ``local`` and connected to ``remote``.

    Returns:
        The uid in this process's user namespace, where all unmapped ids are the overflow uid; None for a
        socket that its process has closed, which the kernel ascribes to root.
    """
    try:
        return _owner_by_diag(local, remote)
    except OSError:  # no such socket, or a kernel without CONFIG_INET_DIAG
        return _owner_by_proc(local, remote)


def _owner_by_diag(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Look one socket up by its addresses: with a hundred thousand connections as fast as with one."""
    ports = struct.pack("!HH", local[1], remote[1])
    addresses = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (local, remote))
    request = REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ANY_STATE)
    request += ports + addresses + bytes(4) + NO_COOKIE
    with contextlib.closing(Netlink(NETLINK_SOCK_DIAG)) as kernel:
        (answer,) = kernel.request(SOCK_DIAG_BY_FAMILY, 0, request)
    uid, inode = UID_AND_INODE.unpack_from(answer, UID_OFFSET)
    return uid if inode else None


def _owner_by_proc(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    for table, mapped in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        ends = [f"{mapped}{_hexadecimal(host)}:{port:04X}" for host, port in (local, remote)]
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as rows:
            for row in rows:
                fields = row.split()
                if fields[1:3] == ends:
                    return int(fields[7]) if fields[9] != "0" else None
    return None


def _hexadecimal(host: str) -> str:
    """Write an IPv4 address as /proc/net/tcp does: as a number in the machine's byte order."""
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}"
