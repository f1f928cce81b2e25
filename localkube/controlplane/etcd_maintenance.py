"""Keep etcd's database within its quota: defragment it, and end the alarm that refuses every write.

When the quota is used up, etcd raises the alarm NOSPACE and accepts only deletions, also when much has been
deleted since: the API server, which compacts otherwise, cannot write that it has. What was deleted is free in
the file only after a compaction, and outside of it after a defragmentation, during
which etcd does not answer.
"""

import asyncio
import base64
import contextlib
import logging
from pathlib import Path
from typing import Any

import aiohttp

from localkube.controlplane import ETCD_QUOTA_BYTES
from localkube.errors import LocalClusterError
from localkube.runtime.client import short_name

log = logging.getLogger(__name__)

PERIOD_SECONDS, TIMEOUT_SECONDS = 60.0, 120.0
# A defragmentation pays when half of a database is free, and that is more than etcd reserves at its start.
MIN_BYTES, USED_SHARE = 64 << 20, 0.5
COMMIT_SECONDS, COMMITS = 0.2, 10  # etcd commits ten times a second, where the disk keeps up
ALARM, ENOUGH_SHARE = "NOSPACE", 0.9


async def maintain_etcd(path: str) -> None:
    """Compact and defragment etcd, through its HTTP gateway."""
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        try:
            async with EtcdMaintenance(path) as etcd:
                await etcd.reclaim_space()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("etcd cannot be maintained: %s", error or type(error).__name__)


def delete_key(path: Path, key: str) -> None:
    """Delete a key from etcd itself, which listens on the socket ``path``.

    Raises:
        LocalClusterError: There is no such key.
    """

    async def delete() -> dict[str, Any]:
        with short_name(path) as name:
            async with EtcdMaintenance(name) as etcd:
                return await etcd.call("kv/deleterange", key=base64.b64encode(key.encode()).decode())

    if asyncio.run(delete()).get("deleted") != "1":
        raise LocalClusterError("etcd does not have this key", about=key, fix="report it as a bug")


class EtcdMaintenance:
    """Requests to one etcd; an async context manager.

    Args:
        path: etcd's socket for clients.
        quota: Bytes; etcd's ``--quota-backend-bytes``.
    """

    def __init__(self, path: str, *, quota: int = ETCD_QUOTA_BYTES) -> None:
        self._path, self._quota = path, quota
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "EtcdMaintenance":
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._path), timeout=timeout)
        self._session = await self._stack.enter_async_context(session)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def reclaim_space(self) -> None:
        """Defragment the database if that pays; end the alarm if there is space again."""
        status = await self.call("maintenance/status")
        alarmed = any(ALARM in error for error in status.get("errors", ()))
        if alarmed:
            log.warning("etcd has used up its quota of %d bytes", self._quota)
            await self._compact(int(status["header"]["revision"]))
            status = await self._committed()
        size, used = int(status["dbSize"]), int(status["dbSizeInUse"])
        pays = size > MIN_BYTES and used < USED_SHARE * size
        if pays or (alarmed and used < ENOUGH_SHARE * self._quota):
            await self.call("maintenance/defragment")
            log.info("etcd's database was defragmented: %d of %d bytes were used", used, size)
            size = int((await self.call("maintenance/status"))["dbSize"])
        if alarmed and size < ENOUGH_SHARE * self._quota:
            for alarm in (await self.call("maintenance/alarm", action="GET")).get("alarms", ()):
                if alarm["alarm"] == ALARM:
                    await self.call("maintenance/alarm", action="DEACTIVATE", **alarm)
            log.info("etcd accepts writes again: its database has %d bytes", size)

    async def _committed(self) -> dict[str, Any]:
        """Read the status after a compaction, whose end etcd reports before it commits it."""
        for _ in range(COMMITS):
            status = await self.call("maintenance/status")
            if int(status["dbSizeInUse"]) < ENOUGH_SHARE * self._quota:
                break
            await asyncio.sleep(COMMIT_SECONDS)
        return status

    async def _compact(self, revision: int) -> None:
        """Forget what was overwritten and deleted; harmless when it was compacted already."""
        with contextlib.suppress(aiohttp.ClientResponseError):
            await self.call("kv/compaction", revision=str(revision), physical=True)

    async def call(self, method: str, **request: Any) -> dict[str, Any]:
        """Call a method of etcd's API, such as ``kv/compaction``."""
        async with self._session.post(f"http://etcd/v3/{method}", json=request) as answer:
            answer.raise_for_status()
            return await answer.json()
