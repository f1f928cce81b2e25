"""Monitor the record of a run during a round, and interrupt collectives that wait for a lost peer.

A killed peer's connections break at once. A peer that hangs or is disconnected leaves them open, and gloo
waits on them until ``collective_timeout``, which must be longer than the slowest step. Heartbeats come from a
separate thread, however slow a step is, so they detect this sooner. gloo's ``abort`` does not wake a rank
that already waits for a peer (tested with torch 2.15); shutting down the connection from this side does.
"""

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

from elastic_rendezvous import WATCH_SECONDS, ElasticRendezvous, Round
from torch.distributed.elastic.rendezvous import RendezvousError


class PeerWatch(threading.Thread):
    """Monitor one round.

    Args:
        rendezvous: The record to read.
        now: The round.
        sockets: Its connections, as ``open_sockets`` names them.

    Attributes:
        ended: The round is over: a connection was closed, or the record says so.
        waiting: A worker wants to join.
        silent: A peer's heartbeats have stopped.
        store_lost: The store was restarted and has lost the record.
    """

    def __init__(self, rendezvous: ElasticRendezvous, now: Round, sockets: set[str]) -> None:
        super().__init__(name="elastic-watch", daemon=True)
        self.ended = self.waiting = self.silent = self.store_lost = False
        self._rendezvous, self._round = rendezvous, now
        # A thread may have opened another connection to the store meanwhile, which is not the group's.
        self._sockets = {
            name
            for number, name in open_sockets().items()
            if name in sockets and _peer(number) != rendezvous.port
        }
        self._done = threading.Event()

    def run(self) -> None:
        """Check the record four times a second."""
        while not self._done.wait(WATCH_SECONDS):
            if not self._sockets <= set(open_sockets().values()):  # gloo closes a dead peer's connections
                self.ended = True
            try:
                status = self._rendezvous.status(self._round)
            except RendezvousError:  # a restarted c10d store is empty; etcd keeps its record
                self.store_lost = self._rendezvous.is_volatile and self._rendezvous.reconnect()
                if self.store_lost:
                    return
                continue
            self.waiting = status.waiting > 0
            if status.over or status.silent:
                self.silent = status.silent
                self.ended = True
                with suppress(RendezvousError):
                    # Before others see a closed connection, so that the next round expects no silent worker.
                    self._rendezvous.declare_over(self._round)
                self._cut()
                return

    def _cut(self) -> None:
        for number, name in open_sockets().items():
            if name in self._sockets and not self._done.is_set():
                with suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
                    # gloo's thread does not survive the shutdown of its listening socket.
                    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        sock.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Stop, even if the store does not answer."""
        self._done.set()
        self.join(timeout=15)


def _peer(number: int) -> int | None:
    """Return the port at a connection's other end."""
    with suppress(OSError, IndexError), socket.socket(fileno=os.dup(number)) as sock:
        return int(sock.getpeername()[1])
    return None


def open_sockets() -> dict[int, str]:
    """Return this process's sockets by descriptor, with the kernel's name for each."""
    sockets = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor used for the listing is closed by now
            name = str(descriptor.readlink())
            if name.startswith("socket:"):
                sockets[int(descriptor.name)] = name
    return sockets
