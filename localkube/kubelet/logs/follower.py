"""What a follower of a log is handed straight from the writer, once it has caught up with the file.

A container that writes fast would otherwise have each line written to the file, read back and stripped of
its time for every ``kubectl logs -f``. A follower that falls behind goes back to the file, so what waits here
is bounded, and nobody holds the container back.
"""

import asyncio

# A file's inode, and an offset in it.
Place = tuple[int, int]
MOST_BYTES = 1024 * 1024


class Follower:
    """One who follows a log; made by ``LogFiles.follow``."""

    def __init__(self) -> None:
        self.listens = False
        self._behind = False
        self._changed = asyncio.Event()
        self._texts: list[bytes] = []
        self._size = 0
        self._end: Place | None = None

    def listen(self) -> None:
        """Take text from now on. The caller has read all that is in the file."""
        self.listens, self._behind, self._end = True, False, None
        self._changed.clear()

    def hear(self, text: bytes, end: Place | None) -> None:
        """Learn what was written; ``end`` is where it ends in the file, None if not all of it is there."""
        self._changed.set()
        if not self.listens or self._behind:
            return
        if end is None or self._size > MOST_BYTES:
            self._behind = True
        else:
            self._texts.append(text)
            self._size += len(text)
            self._end = end

    def take(self) -> tuple[bytes, Place | None]:
        """Return what was handed over since the last time, and where it ends in the file.

        The place is that of the last text since ``listen``, None before the first. ``listens`` tells
        afterwards whether more will be handed over.
        """
        text = b"".join(self._texts)
        self._texts.clear()
        self._size = 0
        self._changed.clear()
        self.listens = not self._behind
        return text, self._end

    def clear(self) -> None:
        """Let ``wait`` wait for what comes from now on."""
        self._changed.clear()

    async def wait(self) -> None:
        """Return when the log has grown or ended since ``clear``, ``listen`` or ``take``."""
        await self._changed.wait()
