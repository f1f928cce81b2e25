"""One message on a Unix SEQPACKET socket: a JSON object and file descriptors.

Standard library only. An object that is too large for a packet (a ConfigMap in the environment may have a
megabyte) travels as a memory file, whose descriptor comes first.
"""

import array
import json
import os
import socket
from collections.abc import Iterable
from typing import Any

PACKET = 64 * 1024
MAX_DESCRIPTORS = 16
IN_MEMORY = b"memory"


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def send(sock: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    """Send one message, waiting for room; dataclasses in it become objects."""
    packet, memory = json.dumps(message, default=vars).encode(), None
    if len(packet) > PACKET:
        memory = os.memfd_create("message", os.MFD_CLOEXEC)
        with open(memory, "wb", closefd=False) as file:
            file.write(packet)
        packet, fds = IN_MEMORY, [memory, *fds]
    try:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sock.sendmsg([packet], ancillary)
    finally:
        if memory is not None:
            os.close(memory)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one message; None when the peer has closed. Its descriptors are closed on exec."""
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    packet, ancillary, _, _ = sock.recvmsg(PACKET + 1024, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not packet:
        return None
    if packet == IN_MEMORY:
        with open(fds.pop(0), "rb") as file:
            file.seek(0)
            packet = file.read()
    return json.loads(packet), list(fds)
