"""Report a pod's status to the API, with batching and retries.

A container's exit is acknowledged to the runtime only after the API has it, so that none is lost with the
kubelet.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from localkube.errors import ApiError
from localkube.kubelet.pods.mirror_pods import is_static
from localkube.kubelet.pods.pod.driver import PodDriver
from localkube.kubelet.status.pod_status import status_patch
from localkube.tasks import start_task

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 5.0


class StatusManager:
    """Reports the status of one pod; ``turns`` limits how many pods report at the same time."""

    def __init__(self, pod: PodDriver, *, turns: asyncio.Semaphore) -> None:
        self._pod, self._turns = pod, turns
        self._ended: list[str] = []
        self._dirty = False
        self._task: asyncio.Task[None] | None = None

    def schedule(self, *, ended: str | None = None) -> None:
        """Schedule a report, with all changes until it is sent; ``ended`` names an exited container."""
        if self._pod.record.is_gone:
            return
        if ended:
            self._ended.append(ended)
        self._dirty = True
        if self._task is None or self._task.done():
            self._task = start_task(self._run(), name=f"status {self._pod.path}")

    async def wait_until_sent(self) -> None:
        """Wait until nothing is left to report."""
        if self._task:
            await asyncio.wait([self._task])

    def abandon(self) -> None:
        if self._task:
            self._task.cancel()

    async def _run(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while self._dirty:
            try:
                await self._send()
            except ApiError as error:
                if is_final(error):
                    log.info("status of %s: %s", self._pod.path, error)
                    return
                self._dirty = True
                await asyncio.sleep(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    async def _send(self) -> None:
        async with self._turns:
            # Computed late: what happens to a pod that waits here is reported together.
            self._dirty = False
            if self._pod.record.is_gone:
                return
            ended = list(self._ended)
            patch = status_patch(self._pod.record.pod, self._pod.status())
            if patch and is_static(self._pod.record.pod):
                del patch["metadata"]  # its mirror has another uid
            if patch:
                answer = await self._pod.node.api.patch(self._pod.path + "/status", patch)
                # Another change may have come through the watch before this answer.
                if _version(answer) >= _version(self._pod.record.pod):
                    self._pod.apply_newer(answer)
        for identity in ended:
            await self._pod.runtime.client.call("delete", id=identity)
            self._ended.remove(identity)


def _version(pod: Mapping[str, Any]) -> int:
    """Parse the resourceVersion; larger ones are later.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    """
    return int(pod["metadata"].get("resourceVersion") or 0)


def is_final(error: ApiError) -> bool:
    """Check whether a retry is useless: the pod is gone or replaced, or the status is invalid.

    Other conflicts pass: under load, others update the same pod at the same moment.
    """
    return error.status in (404, 422) or (error.status == 409 and "UID" in error.message)
