"""Hold containers to their memory limits where no control group does: look, and end the one that is over.

A container's memory is what its processes have for themselves, anonymous and shared; files in the page
cache do not count. The cheap figure counts pages that a fork still shares in every process, so a container
that seems to be over is weighed again by proportional shares before it is ended.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


class MemoryWatch:
    """Looks at the containers that have limits, twice a second while there are any.

    Args:
        end: Called with the identity of a container that must end.
    """

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        self._limits: dict[str, tuple[int, int]] = {}
        self._some = asyncio.Event()

    def add(self, identity: str, *, pid: int, limit: int) -> None:
        """Hold the container whose first process is ``pid`` to ``limit`` bytes."""
        self._limits[identity] = (pid, limit)
        self._some.set()

    def remove(self, identity: str) -> None:
        self._limits.pop(identity, None)
        if not self._limits:
            self._some.clear()

    async def run(self) -> None:
        """Watch, for ever."""
        while True:
            await self._some.wait()
            for identity, (pid, limit) in list(self._limits.items()):
                if resident(tree(pid)) > limit and proportional(tree(pid)) > limit:
                    log.info("%s has more than its %d bytes", identity, limit)
                    self.remove(identity)
                    self._end(identity)
            await asyncio.sleep(LOOK_SECONDS)


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it: orphans of a container fall to its first process."""
    found, at = [pid], 0
    while at < len(found):
        for path in Path(f"/proc/{found[at]}/task").glob("*/children"):
            found += [int(child) for child in _read(path).split()]
        at += 1
    return found


def resident(pids: Iterable[int]) -> int:
    """Return the bytes of anonymous and shared memory of processes, shared pages counted in each."""
    return sum(_sum(_read(Path(f"/proc/{pid}/status")), ("RssAnon:", "RssShmem:")) for pid in pids)


def proportional(pids: Iterable[int]) -> int:
    """Return the same with each shared page counted by the share that the process has in it."""
    names = ("Pss_Anon:", "Pss_Shmem:")
    return sum(_sum(_read(Path(f"/proc/{pid}/smaps_rollup")), names) for pid in pids)


def _sum(text: str, names: tuple[str, ...]) -> int:
    lines = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in names)


def _read(path: Path) -> str:
    """Return what a file in /proc says; nothing when its process has just ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
