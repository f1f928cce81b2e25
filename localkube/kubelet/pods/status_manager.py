"""Report a pod's status to the API: soon, batched, and retried.

A container's exit is acknowledged to the runtime only after the API has it, so that none is lost with the
kubelet.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from localkube.api_client import Api
from localkube.errors import ApiError
from localkube.kubelet.pods.mirror_pods import is_static
from localkube.kubelet.status.pod_status import status_patch
from localkube.runtime.client import RuntimeClient
from localkube.tasks import start_task

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 5.0


class StatusManager:
    """Reports the status of one pod.

    Args:
        client: Forgets the containers whose ends are reported.
        turns: Limits how many pods report at the same time.
        pod: Returns the newest object known.
        status: Returns the PodStatus of this moment.
        answered: Called with the object that the API has after a report.
    """

    def __init__(
        self,
        api: Api,
        *,
        client: RuntimeClient,
        turns: asyncio.Semaphore,
        path: str,
        pod: Callable[[], Mapping[str, Any]],
        status: Callable[[], dict[str, Any]],
        answered: Callable[[dict[str, Any]], None],
    ) -> None:
        self._api, self._client, self._turns, self._path = api, client, turns, path
        self._pod, self._status, self._answered = pod, status, answered
        self._ended: list[str] = []
        self._dirty = False
        self._gone = False
        self._task: asyncio.Task[None] | None = None

    def soon(self, *, ended: str | None = None) -> None:
        """Report the status, with all changes until it is sent; ``ended`` names an exited container."""
        if self._gone:
            return
        if ended:
            self._ended.append(ended)
        self._dirty = True
        if self._task is None or self._task.done():
            self._task = start_task(self._run(), name=f"status {self._path}")

    def gone(self) -> None:
        """Report nothing from now on: the API has no such pod any more."""
        self._gone = True

    async def sent(self) -> None:
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
                    log.info("status of %s: %s", self._path, error)
                    return
                self._dirty = True
                await asyncio.sleep(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    async def _send(self) -> None:
        async with self._turns:
            if self._gone:
                self._dirty = False
                return
            # Computed late: what happens to a pod that waits here is reported together.
            self._dirty = False
            ended = list(self._ended)
            patch = status_patch(self._pod(), self._status())
            if patch and is_static(self._pod()):
                del patch["metadata"]  # its mirror has another uid
            if patch:
                answer = await self._api.patch(self._path + "/status", patch)
                # Somebody may have changed it since, and the watch have said so before this answer came.
                if _version(answer) >= _version(self._pod()):
                    self._answered(answer)
        for identity in ended:
            await self._client.call("delete", id=identity)
            self._ended.remove(identity)


def _version(pod: Mapping[str, Any]) -> int:
    """The resourceVersion; larger ones are later.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    """
    return int(pod["metadata"].get("resourceVersion") or 0)


def is_final(error: ApiError) -> bool:
    """Check whether a retry is useless: the pod is gone or replaced, or the status is invalid.

    Other conflicts pass: under load, others update the same pod at the same moment.
    """
    return error.status in (404, 422) or (error.status == 409 and "UID" in error.message)
