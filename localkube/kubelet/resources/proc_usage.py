"""What containers use of CPU and memory, read from /proc.

A container is the tree of its first process: whatever it leaves behind falls to that one. Time that ended
children have used is in the account of the parent that waited for them, so the sum over the tree keeps it.
Memory is what the processes have for themselves, anonymous and shared, each shared page by the share that
they have in it; files in the page cache do not count, as they can go at any time.

Not here: control groups (``cgroups.py``), which know better where there are some.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# To have started at all takes this much; less is not measured, and readers take zero for an error.
LEAST_CPU_SECONDS = 0.001
LEAST_MEMORY_BYTES = 4096
OWN_MEMORY = (b"Pss_Anon:", b"Pss_Shmem:")


@dataclass(frozen=True)
class Usage:
    """What a container has used so far (``cpu``, seconds) and holds now (``memory``, bytes)."""

    cpu: float
    memory: int


class ProcessTable:
    """All processes that can be seen, at one moment.

    Args:
        read: Called with a path below /proc; returns its bytes, none when the process has just ended.
        pids: Those to look at; by default all.
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
        """Return a process and all that descend from it; nothing when it has ended."""
        found = [pid] if pid in self._seconds else []
        for each in found:
            found += self._children.get(each, [])
        return found

    def usage(self, pid: int) -> Usage | None:
        """Return what the container whose first process is ``pid`` uses; None when it has ended."""
        tree = self.tree(pid)
        if not tree:
            return None
        cpu = max(LEAST_CPU_SECONDS, sum(self._seconds[each] for each in tree))
        return Usage(cpu, max(LEAST_MEMORY_BYTES, sum(map(self.memory, tree))))

    def memory(self, pid: int) -> int:
        """Return the bytes of one process."""
        lines = (line.split() for line in self._read(f"/proc/{pid}/smaps_rollup").splitlines())
        return sum(int(words[1]) * 1024 for words in lines if words[0] in OWN_MEMORY)


class MonotonicCounter:
    """A sum that never falls, of a reading that may: a process that nobody waits for takes its time along."""

    def __init__(self) -> None:
        self._before = self._lost = 0.0

    def take(self, reading: float) -> float:
        """Return the sum, now that ``reading`` is the newest.

        Example:
            >>> counter = MonotonicCounter()
            >>> counter.take(3.0), counter.take(2.0), counter.take(2.5)
            (3.0, 3.0, 3.5)
        """
        self._lost += max(0.0, self._before - reading)
        self._before = reading
        return self._lost + reading


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536)
    except OSError:
        return b""
