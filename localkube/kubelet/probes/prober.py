"""Schedule a container's probes, and apply their thresholds.

One prober per run of a container, as in the kubelet: startup first, then readiness and liveness side by side.
Consequences are the container's business (``pods/container_worker.py``), running a probe is in
``handlers.py``.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-probes
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from localkube.kubelet.probes.handlers import HandlerError, ProbeResult
from localkube.tasks import start_task

Object = Mapping[str, Any]
ATTEMPTS = 3
# The kubelet asks for readiness whenever it looks at a pod that is not ready: again a second after its start.
SECOND_LOOK = 1.0
KINDS = {"startup": "startupProbe", "readiness": "readinessProbe", "liveness": "livenessProbe"}


class Prober:
    """The probes of one run of a container.

    Args:
        ask: Carries out a v1.Probe's action once.
        began: When the run began, in seconds since the epoch.
        started: It has passed its startup probe already, under a previous kubelet.
        ready: The same of its readiness probe.
        changed: Called when ``started`` or ``ready`` has changed.
        failed: Called with ``liveness`` or ``startup`` when the container must end.
        event: Records a Warning: a reason and a message.
    """

    def __init__(
        self,
        container: Object,
        *,
        run_probe: Callable[[Object], Awaitable[ProbeResult]],
        began: float,
        started: bool = False,
        ready: bool = False,
        changed: Callable[[], None],
        failed: Callable[[str], object],
        event: Callable[[str, str], None],
    ) -> None:
        self._specs = {kind: container[key] for kind, key in KINDS.items() if container.get(key)}
        self._run_probe, self._began = run_probe, began
        self._changed, self._failed, self._event = changed, failed, event
        self.started = started or "startup" not in self._specs
        self._passes = ready or "readiness" not in self._specs
        self._startup_over = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def ready(self) -> bool:
        return self.started and self._passes

    def start(self) -> None:
        if self.started:
            self._startup_over.set()
        for kind, spec in self._specs.items():
            if kind != "startup" or not self.started:
                self._tasks[kind] = start_task(self._keep_asking(kind, spec), name=f"{kind} probe")

    def stop(self, *kinds: str) -> None:
        """Stop probing: ``kinds``, or all."""
        for kind in kinds or KINDS:
            if task := self._tasks.pop(kind, None):
                task.cancel()

    async def _keep_asking(self, kind: str, spec: Object) -> None:
        period = spec.get("periodSeconds", 10)
        await self._first(kind, spec, period)
        last, row = None, 0
        while True:
            start = asyncio.get_running_loop().time()
            healthy = await self._try(kind, spec)
            if healthy is not None:
                row = row + 1 if healthy == last else 1
                last = healthy
                needed = spec.get("successThreshold", 1) if healthy else spec.get("failureThreshold", 3)
                if row >= needed and self._conclude(kind, healthy):
                    return
            wait = period
            if kind == "readiness" and not self._passes and time.time() < self._began + SECOND_LOOK:
                wait = min(period, SECOND_LOOK)
            await asyncio.sleep(max(0.0, start + wait - asyncio.get_running_loop().time()))

    async def _first(self, kind: str, spec: Object, period: float) -> None:
        """Wait for the first probe: readiness is probed at once, the others after a period."""
        delay = spec.get("initialDelaySeconds", 0)
        if kind != "readiness":
            delay = max(delay, period)
        if kind != "startup":
            await self._startup_over.wait()
        await asyncio.sleep(max(0.0, self._began + delay - time.time()))

    def _conclude(self, kind: str, healthy: bool) -> bool:
        """Apply a result that has reached its threshold; True when this probe is finished."""
        if kind == "readiness":
            if self._passes != healthy:
                self._passes = healthy
                self._changed()
            return False
        if not healthy:
            self._failed(kind)
            return True
        if kind == "startup":
            self.started = True
            self._startup_over.set()
            self._changed()
            return True
        return False

    async def _try(self, kind: str, spec: Object) -> bool | None:
        """Probe, with retries; None when the handler could not be run."""
        name = kind.capitalize()
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._run_probe(spec)
                break
            except HandlerError as error:
                if attempt == ATTEMPTS - 1:
                    self._event("Unhealthy", f"{name} probe errored and resulted in unknown state: {error}")
                    return None
        if answer.warning:
            self._event("ProbeWarning", f"{name} probe warning: {answer.output}")
        elif not answer.healthy:
            self._event("Unhealthy", f"{name} probe failed: {answer.output}")
        return answer.healthy
