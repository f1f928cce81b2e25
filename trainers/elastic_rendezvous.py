"""Repeated rendezvous of the workers through a store that runs outside all of them.

torch's ``DynamicRendezvousHandler`` (used by torchrun) keeps a small record of a run in a c10d ``TCPStore``
or in etcd: the number of the round, its members, the waiting workers, and the time of their last heartbeats.
torchrun runs the handler in an agent process; here the training process runs it itself, so that a membership
change needs a new process group but not a new process.

This module adds three things to torch's handler, in its own record and with its own compare-and-set:

- *A failed round is over for all.* torch waits for the heartbeats of dead workers to expire before it closes
  a round. But a process group cannot be repaired, so any worker that sees a broken connection may declare the
  round over. It also records how many workers are expected next, so that no last call is needed for them.
- *A lost record is not fatal.* A restarted store is empty; the handler is then created again.
- *Silence is measured by the worker that listens.* torch compares the times of other clocks with its own, so
  its limit must be longer than they differ; here a heartbeat is missed if the record has not changed.

Process groups, state and training are in ``elastic.py``. This module does not use models.
"""

import json
import math
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters, dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousGracefulExitError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
    _Action,
    _RendezvousExitOp,
    _RendezvousJoinOp,
)
from torch.distributed.elastic.rendezvous.utils import _delay, parse_rendezvous_endpoint

# All timeouts are in seconds; ``--rdzv_conf name=value,…`` changes them. docs/elastic.md explains each.
TIMEOUTS = {
    "join_timeout": 600,  # how long a worker waits for enough others
    "last_call_timeout": 2,  # after the minimum has joined: workers within this time join the same round
    "close_timeout": 10,  # to mark the run as ended
    "heartbeat_timeout": 5,  # of one heartbeat
    "keep_alive_interval": 0.5,  # between two heartbeats
    "keep_alive_max_attempt": 3,  # missed heartbeats until a worker counts as lost
    "read_timeout": 10,  # of one request to the store
    "connect_timeout": 300,  # for the store's name to resolve and its port to answer
    "group_timeout": 15,  # to form a process group once the round is complete
    "collective_timeout": 30,  # of one collective: for a peer with heartbeats whose training hangs
}
REPORT_SECONDS = 15
MAX_DELAY, MIN_DELAY = 1.0, 0.02  # seconds between two readings of the record while a round is formed
WATCH_SECONDS = 0.25  # between two readings of the record during a round
STATUS_SECONDS = 0.2  # during a round, the record is at most this old
MAX_PATIENCE = 4  # a worker counts as lost after at most this many times the configured silence
BACKENDS = {"c10d": "c10d", "etcd": "etcd-v2", "etcd-v2": "etcd-v2"}
PORTS = {"c10d": 29400, "etcd-v2": 2379}


class StoreError(Exception):
    """The rendezvous store cannot be used, and a retry will not help."""


class RunEnded(Exception):
    """The run was closed by the workers that finished it."""


@dataclass(frozen=True)
class RendezvousSettings:
    """The rendezvous settings of a run; each process is a node here.

    Example:
        >>> RendezvousSettings("digits", "c10d", "localhost:29400", 1, 4).timeout("last_call_timeout")
        2.0
    """

    run_id: str
    backend: str
    endpoint: str
    min_nodes: int
    max_nodes: int
    conf: dict[str, str] = field(default_factory=dict)

    def timeout(self, name: str) -> float:
        """Return one of the ``TIMEOUTS``, as configured."""
        return float(self.conf.get(name, TIMEOUTS[name]))

    @classmethod
    def from_json(cls, text: str) -> "RendezvousSettings":
        """Parse the launcher's JSON."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Serialise the settings for a child's environment."""
        return json.dumps(self.__dict__)


@dataclass(frozen=True)
class Round:
    """One round: it lasts until a member leaves or is lost, or a new worker is admitted."""

    number: int
    rank: int
    world_size: int
    store: Any
    handler: Any


@dataclass(frozen=True)
class RoundStatus:
    """The state of the record during a round.

    Attributes:
        waiting: The number of workers that want to join.
        over: The round is no longer this one, or this worker is no longer in it.
        silent: The heartbeats of a member of the round have stopped.
    """

    waiting: int = 0
    over: bool = False
    silent: bool = False


class Heartbeats:
    """The peers' heartbeats as one worker sees them change, timed by its own monotonic clock.

    A peer is silent after ``limit`` without a change, or after twice the longest pause between two heartbeats
    so far: they are longer on a busy machine. Time in which this worker did not run itself does not count.

    Args:
        limit: Seconds; at most `MAX_PATIENCE` times as long if the machine is busy.

    Example:
        >>> heartbeats = Heartbeats(limit=1.5)
        >>> [len(heartbeats.silent({"peer": 7}, now=reading / 4)) for reading in range(8)]
        [0, 0, 0, 0, 0, 0, 0, 1]
    """

    def __init__(self, limit: float) -> None:
        self._limit, self._longest = limit, 0.0
        self._read_at: float | None = None
        self._last: dict[Any, Any] = {}
        self._pauses: dict[Any, float] = {}

    def restart(self) -> None:
        """Begin a round: nobody is silent yet."""
        self._read_at = None
        self._last, self._pauses = {}, {}

    def silent(self, heartbeats: Mapping[Any, Any], *, now: float) -> set[Any]:
        """Return the peers that are silent, given the last heartbeat of each.

        Args:
            heartbeats: By peer; only compared with those of the call before.
            now: Seconds of a monotonic clock.
        """
        passed = 0.0 if self._read_at is None else min(now - self._read_at, 2 * WATCH_SECONDS)
        self._read_at = now
        for peer, heartbeat in heartbeats.items():
            pause = self._pauses.get(peer, 0.0) + passed
            if self._last.get(peer) != heartbeat:
                self._longest = max(self._longest, pause if peer in self._last else 0.0)
                pause = 0.0
            self._last[peer], self._pauses[peer] = heartbeat, pause
        limit = min(max(self._limit, 2 * self._longest), MAX_PATIENCE * self._limit)
        return {peer for peer in heartbeats if self._pauses[peer] > limit}


def wait_for_store(settings: RendezvousSettings, timeout: float | None = None) -> None:
    """Wait until the endpoint resolves and answers, and check that it is the expected kind of store.

    Args:
        settings: They contain the endpoint.
        timeout: Seconds; ``connect_timeout`` by default.

    Raises:
        StoreError: It did not answer in time, or it is an etcd without the v2 API.
    """
    backend = BACKENDS[settings.backend]
    host, port = parse_rendezvous_endpoint(settings.endpoint, PORTS[backend])
    timeout = settings.timeout("connect_timeout") if timeout is None else timeout
    began, reported_at = time.monotonic(), 0.0
    while True:
        try:
            with socket.create_connection((host, port), timeout=5):
                break
        except socket.gaierror as error:  # the DNS record of a Service may appear after its pods start
            problem = f"the name {host!r} of the rendezvous endpoint does not resolve ({error.strerror})"
        except OSError as error:
            problem = f"nothing answers at the rendezvous endpoint {host}:{port} ({error})"
        waited = time.monotonic() - began
        if waited > timeout:
            advice = "is its pod running, and does --rdzv_endpoint (PET_RDZV_ENDPOINT) name its Service?"
            raise StoreError(f"{problem}, for {timeout:g} s now; {advice}")
        if waited - reported_at > REPORT_SECONDS:
            print(
                f"elastic: waiting for the store: {problem}, for {waited:.0f} s now",
                file=sys.stderr,
                flush=True,
            )
            reported_at = waited
        time.sleep(0.2)
    if backend == "etcd-v2":
        _require_v2(host, port, settings.conf.get("protocol", "http"))


def _require_v2(host: str, port: int, protocol: str) -> None:
    base, version = f"{protocol}://{host}:{port}", "of an unknown version"
    if protocol != "http":
        return  # the client checks the certificates and reports errors
    url = f"{base}/version"
    with suppress(OSError, ValueError, LookupError), urllib.request.urlopen(url, timeout=5) as response:
        version = json.load(response)["etcdserver"]
    try:
        with urllib.request.urlopen(f"{base}/v2/keys/", timeout=5):
            return
    except urllib.error.HTTPError as error:
        raise StoreError(
            f"the etcd at {host}:{port} ({version}) does not serve the v2 API ({error.code} for /v2/keys/), "
            "which torch's rendezvous needs; use etcd 3.5 or older with --enable-v2, or --rdzv_backend c10d"
        ) from error
    except OSError as error:
        raise StoreError(f"the server at {host}:{port} is not etcd ({error})") from error


def _method_name(depth: int = 2) -> str:
    """Return the caller's name for torch's event log, like its own function.

    torch's function reads the source files of all loaded modules: with torch loaded this takes a tenth of a
    second of CPU time, at every heartbeat and at every action in a rendezvous.
    """
    return sys._getframe(depth).f_code.co_name


class _PollDelay:
    """Replace torch's delay of a second between two readings of the record.

    The record changes within tenths of a second at the start of a rendezvous, or much later. Delays start
    short and grow to a second, so that a waiting worker loads the store no more than torch does.
    """

    def __init__(self) -> None:
        self._next = MAX_DELAY

    def restart(self) -> None:
        """Start a rendezvous."""
        self._next = MIN_DELAY

    def __call__(self, seconds: float | tuple[float, float]) -> None:
        if seconds != MAX_DELAY:  # after a conflicting write
            _delay(seconds)
            return
        _delay(self._next)
        self._next = min(MAX_DELAY, self._next * 1.25)


def _join(context: Any, deadline: float) -> _Action:
    """Join as torch does, but complete the round as soon as all expected workers have joined."""
    state = context.state
    if context.node in state.participants and not state.complete and not state.closed:
        enough = max(getattr(state, "expected", 0), context.settings.min_nodes)
        if getattr(state, "expected", 0) and len(state.participants) >= enough:
            return _Action.MARK_RENDEZVOUS_COMPLETE
    return _RendezvousJoinOp()(context, deadline)


def _end(state: Any, *, leaving: int = 0) -> bool:
    """End a round in the record; False if it is not complete, or has ended already."""
    if not state.complete:
        return False
    for node in state.participants:
        state.last_heartbeats.pop(node, None)
    state.expected = len(state.participants) + len(state.wait_list) - leaving
    state.participants.clear()
    state.complete, state.round = False, state.round + 1
    return True


class ElasticRendezvous:
    """One worker's membership in the record of a run.

    Args:
        settings: The endpoint and the number of workers.
        replaces: PID of the process on this machine whose place this worker takes; 0 for none.

    Attributes:
        port: The port of the store.
        is_volatile: Whether a restarted store has lost the record.

    Raises:
        StoreError: The store cannot be used.
    """

    def __init__(self, settings: RendezvousSettings, *, replaces: int = 0) -> None:
        self.settings, self._replaces = settings, replaces
        self.is_volatile = settings.backend == "c10d"
        self.port = parse_rendezvous_endpoint(settings.endpoint, PORTS[BACKENDS[settings.backend]])[1]
        dynamic_rendezvous.get_method_name = _method_name
        dynamic_rendezvous._delay = self._poll_delay = _PollDelay()
        interval, missed = settings.timeout("keep_alive_interval"), settings.timeout("keep_alive_max_attempt")
        self._heartbeats, self._silent = Heartbeats(interval * missed), set[Any]()
        self._handler: Any = None
        self._store: Any = None
        self._connect()

    def _connect(self, timeout: float | None = None) -> None:
        settings, backend = self.settings, BACKENDS[self.settings.backend]
        wait_for_store(settings, timeout)
        # The launcher or a separate pod hosts the store, not the process that torch would choose.
        conf = {name: str(value) for name, value in TIMEOUTS.items()} | {"is_host": "false"} | settings.conf
        parameters = RendezvousParameters(
            backend,
            settings.endpoint,
            settings.run_id,
            settings.min_nodes,
            settings.max_nodes,
            **conf,
        )
        client: RendezvousBackend
        if backend == "c10d":
            from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend

            client, store = create_backend(parameters)
        else:
            from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import (
                create_backend as create_etcd,
            )

            client, store = create_etcd(parameters)
        store.set_timeout(timedelta(seconds=settings.timeout("read_timeout")))
        self._handler, self._store = self._create_handler(store, client), store

    def _create_handler(self, store: Any, client: RendezvousBackend) -> DynamicRendezvousHandler:
        """Do what torch's ``create_handler`` does, which takes whole seconds for the interval only."""
        names = ("join", "last_call", "close", "heartbeat")
        seconds = {name: timedelta(seconds=self.settings.timeout(f"{name}_timeout")) for name in names}
        return DynamicRendezvousHandler.from_backend(
            self.settings.run_id,
            store,
            client,
            self.settings.min_nodes,
            self.settings.max_nodes,
            socket.gethostname(),  # otherwise torch queries DNS, which may be slow
            RendezvousTimeout(**seconds),
            # Seconds, which it makes a timedelta of; its annotation says int.
            keep_alive_interval=self.settings.timeout("keep_alive_interval"),  # type: ignore[arg-type]
            keep_alive_max_attempt=MAX_PATIENCE * math.ceil(self.settings.timeout("keep_alive_max_attempt")),
        )

    def reconnect(self) -> bool:
        """Try once to reconnect to the store; return True on success."""
        try:
            self._stop_heartbeats()
            self._connect(timeout=0)
        except (StoreError, RendezvousError, RuntimeError):
            return False
        return True

    def next(self) -> Round:
        """Join the next round; wait until it is complete.

        Raises:
            RunEnded: Other workers have finished the run.
            RendezvousError: Too few workers joined, or the store was lost.
        """
        handler = self._handler
        deadline = handler._get_deadline(handler.settings.timeout.join)
        handler._stop_heartbeats()
        handler._state_holder._cache_duration = 0
        self._poll_delay.restart()
        self._end_predecessors_round()
        try:  # like its next_rendezvous(), but without a store on rank 0 and the wait for its address
            handler._op_executor.run(_RendezvousExitOp(), deadline)
            handler._op_executor.run(_join, deadline, handler._get_deadline)
        except (RendezvousClosedError, RendezvousGracefulExitError) as error:
            raise RunEnded from error
        handler._state_holder._cache_duration = STATUS_SECONDS
        handler._start_heartbeats()
        self._heartbeats.restart()
        self._silent = set()
        rank, world_size = handler._get_world()
        number = handler._state_holder.state.round
        # A separate connection: each handles one request at a time, and while a group waits for its members
        # on it, no heartbeat would get through. etcd's client opens as many as it needs.
        try:
            store = self._store.clone() if isinstance(self._store, dist.TCPStore) else self._store
        except RuntimeError as error:
            raise RendezvousError(f"the store is unavailable: {error}") from error
        store = dist.PrefixStore(f"torch.rendezvous.{self.settings.run_id}.{number}", store)
        return Round(number, rank, world_size, store, handler)

    def status(self, now: Round) -> RoundStatus:
        """Read the record; cheap, and at most `STATUS_SECONDS` old.

        Raises:
            RendezvousError: The store does not answer.
        """
        waiting = self._handler.num_nodes_waiting()
        state, me = self._handler._state_holder.state, self._handler._this_node
        if state.round != now.number or me not in state.participants:
            return RoundStatus(waiting, over=True)
        peers = {
            node: heartbeat
            for node, heartbeat in state.last_heartbeats.items()
            if node in state.participants and node != me
        }
        self._silent = self._heartbeats.silent(peers, now=time.monotonic())
        return RoundStatus(waiting, silent=bool(self._silent) or len(state.participants) < now.world_size)

    def declare_over(self, now: Round, *, leaving: int = 0) -> bool:
        """End a round for all its members; does nothing if another worker already has.

        Args:
            now: The round.
            leaving: The number of its members that will not join the next.

        Returns:
            True if the others have completed another round since, without this worker.
        """
        if now.handler is not self._handler:
            return False  # the store was restarted and counts from 0 again

        def end(state: Any) -> bool:
            silent = len(self._silent & state.participants.keys())
            return state.round == now.number and _end(state, leaving=leaving + silent)

        self._change(end)
        state = self._handler._state_holder.state
        return state.complete and state.round > now.number

    def _end_predecessors_round(self) -> None:
        """Declare the round over in which the process died that this one replaces.

        The others may not have noticed yet. If this worker only waited to join, the next round would expect
        both processes, and would stay open for a last call.
        """
        predecessor, self._replaces = self._replaces, 0
        host = socket.gethostname()

        def end(state: Any) -> bool:
            replaced = any((node.addr, node.pid) == (host, predecessor) for node in state.participants)
            return replaced and _end(state)

        if predecessor:
            self._handler._state_holder.sync()
            self._change(end)

    def withdraw(self) -> None:
        """Remove this worker from the record."""
        me = self._handler._this_node

        def remove(state: Any) -> bool:
            listed = me in state.participants or me in state.wait_list or me in state.redundancy_list
            state.participants.pop(me, None)
            state.wait_list.discard(me)
            state.redundancy_list.discard(me)
            state.last_heartbeats.pop(me, None)
            if state.complete and not state.participants:
                state.complete, state.round = False, state.round + 1
            elif not state.complete and len(state.participants) < self.settings.min_nodes:
                state.deadline = None
            return listed

        self._change(remove)

    def _change(self, change: Any) -> None:
        """Change the shared record; if another write came first, return the newer record."""
        holder = self._handler._state_holder
        self._handler._stop_heartbeats()
        with self._handler._heartbeat_lock:
            while change(holder.state):
                holder.mark_dirty()
                if holder.sync():
                    return

    def close(self) -> None:
        """Mark the run as completed for waiting and later workers."""
        with suppress(RendezvousError):
            self._handler.shutdown()

    def _stop_heartbeats(self) -> None:
        with suppress(Exception):
            self._handler._stop_heartbeats()
