"""CPU and memory usage of containers without control groups, read from /proc.

A container is the process tree below its first process. A parent's account includes the CPU time of children
that it has waited for, so the sum over the tree keeps it. Memory is anonymous and shared memory by
proportional share; page cache does not count.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# The minimum, which starting takes: less is not measured, and metrics-server takes zero for an error.
MIN_CPU_SECONDS = 0.001
MIN_MEMORY_BYTES = 4096


@dataclass(frozen=True)
class Usage:
    """A container's CPU time (``cpu``, seconds) and working set (``memory``, bytes)."""

    cpu: float
    memory: int


@dataclass(frozen=True)
class OwnMemory:
    """A process's proportional share of anonymous and shared memory, in bytes.

    Attributes:
        shared: Of it, the share of anonymous pages that other processes have as well, which are those from
            before a fork.
    """

    total: int
    shared: int


class ProcessTable:
    """A snapshot of all visible processes.

    Args:
        read: Called with a path below /proc; returns its bytes, none when the process has just ended.
        pids: The processes to read; by default all.
    """

    def __init__(self, *, read: Callable[[str], bytes] | None = None, pids: list[str] | None = None) -> None:
        self._read = read or _read
        self._children: dict[int, list[int]] = defaultdict(list)
        self._seconds: dict[int, float] = {}
        for name in pids if pids is not None else os.listdir("/proc"):
            if name.isdecimal():
                self._add(int(name))

    def _add(self, pid: int) -> None:
        # The name, in parentheses, may contain anything.
        fields = self._read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
        if len(fields) > 14:
            self._children[int(fields[1])].append(pid)
            self._seconds[pid] = sum(map(int, fields[11:15])) * TICK_SECONDS

    def tree(self, pid: int) -> list[int]:
        """List the process and its descendants; empty when it has ended."""
        pids = [pid] if pid in self._seconds else []
        for process in pids:
            pids += self._children.get(process, [])
        return pids

    def usage(self, pid: int) -> Usage | None:
        """Compute the usage of the container with the first process ``pid``; None when it has ended."""
        tree = self.tree(pid)
        if not tree:
            return None
        cpu = max(MIN_CPU_SECONDS, sum(self._seconds[process] for process in tree))
        memory = sum(own_memory(process, read=self._read).total for process in tree)
        return Usage(cpu, max(MIN_MEMORY_BYTES, memory))


class MonotonicCounter:
    """A counter for a reading that may decrease, as when a process that was not waited for ends."""

    def __init__(self) -> None:
        self._before = self._lost = 0.0

    def add(self, reading: float) -> float:
        """Add the newest reading and return the total.

        Example:
            >>> counter = MonotonicCounter()
            >>> counter.add(3.0), counter.add(2.0), counter.add(2.5)
            (3.0, 3.0, 3.5)
        """
        self._lost += max(0.0, self._before - reading)
        self._before = reading
        return self._lost + reading


def own_memory(pid: int, *, read: Callable[[str], bytes] | None = None) -> OwnMemory:
    """Measure a process's memory by its smaps_rollup; none is left of one that has ended."""
    lines = (line.split() for line in (read or _read)(f"/proc/{pid}/smaps_rollup").splitlines())
    rollup = {fields[0]: int(fields[1]) * 1024 for fields in lines if len(fields) == 3}
    anonymous, shmem = rollup.get(b"Pss_Anon:", 0), rollup.get(b"Pss_Shmem:", 0)
    private = rollup.get(b"Private_Dirty:", 0) - shmem
    return OwnMemory(anonymous + shmem, max(0, anonymous - max(0, private)))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536)
    except OSError:
        return b""
