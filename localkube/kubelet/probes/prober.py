"""Schedule a container's probes, and apply their thresholds.

One prober per run of a container, as in the kubelet: startup first, then readiness and liveness concurrently.
The pod acts on the results (``pods/pod/events.py``); ``handlers.py`` runs a probe.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-probes
"""

import asyncio
import time
from typing import Protocol

from localkube.api_path import Object
from localkube.kubelet.probes.handlers import HandlerError, ProbeResult
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.tasks import start_task

ATTEMPTS = 3
# The kubelet probes readiness whenever it syncs a pod that is not ready: again a second after its start.
SECOND_PROBE = 1.0
KINDS = {"startup": "startupProbe", "readiness": "readinessProbe", "liveness": "livenessProbe"}


class ProbedContainer(Protocol):
    """The run of a container, which receives the results: it must end when it is ``unhealthy``.

    A protocol, because ``pods``, the layer above this one, has the container's worker.
    """

    async def probe(self, spec: Object) -> ProbeResult: ...

    def probed(self, *, started: bool, ready: bool) -> None: ...

    def unhealthy(self, kind: str) -> None: ...

    def event(self, reason: str, message: str, *, warning: bool = False) -> None: ...


class Prober:
    """The probes of one run of a container.

    Args:
        run: The run's record: its probes may have passed under a previous kubelet.
    """

    def __init__(self, container: Object, run: ContainerRecord, *, owner: ProbedContainer) -> None:
        self._specs = {kind: container[key] for kind, key in KINDS.items() if container.get(key)}
        self._owner, self._started_at = owner, run.started_at or time.time()
        self.started = run.started
        self._passes = run.ready or "readiness" not in self._specs
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
                self._tasks[kind] = start_task(self._probe_periodically(kind, spec), name=f"{kind} probe")

    def stop(self, *kinds: str) -> None:
        for kind in kinds or KINDS:
            if task := self._tasks.pop(kind, None):
                task.cancel()

    async def _probe_periodically(self, kind: str, spec: Object) -> None:
        period = spec.get("periodSeconds", 10)
        await self._wait_for_first(kind, spec, period)
        last, consecutive = None, 0
        while True:
            start = asyncio.get_running_loop().time()
            healthy = await self._probe(kind, spec)
            if healthy is not None:
                consecutive = consecutive + 1 if healthy == last else 1
                last = healthy
                threshold = spec.get("successThreshold", 1) if healthy else spec.get("failureThreshold", 3)
                if consecutive >= threshold and self._apply_result(kind, healthy):
                    return
            wait = period
            if kind == "readiness" and not self._passes and time.time() < self._started_at + SECOND_PROBE:
                wait = min(period, SECOND_PROBE)
            await asyncio.sleep(max(0.0, start + wait - asyncio.get_running_loop().time()))

    async def _wait_for_first(self, kind: str, spec: Object, period: float) -> None:
        """Wait until the first probe is due: readiness at once, the others after a period."""
        delay = spec.get("initialDelaySeconds", 0)
        if kind != "readiness":
            delay = max(delay, period)
        if kind != "startup":
            await self._startup_over.wait()
        await asyncio.sleep(max(0.0, self._started_at + delay - time.time()))

    def _apply_result(self, kind: str, healthy: bool) -> bool:
        """Apply a result that has reached its threshold; True when this kind of probe is finished."""
        if kind == "readiness":
            if self._passes != healthy:
                self._passes = healthy
                self._owner.probed(started=self.started, ready=self.ready)
            return False
        if not healthy:
            self._owner.unhealthy(kind)
            return True
        if kind == "startup":
            self.started = True
            self._startup_over.set()
            self._owner.probed(started=self.started, ready=self.ready)
            return True
        return False

    async def _probe(self, kind: str, spec: Object) -> bool | None:
        """Probe, with retries; None when the handler could not be run."""
        name = kind.capitalize()
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._owner.probe(spec)
                break
            except HandlerError as error:
                if attempt == ATTEMPTS - 1:
                    self._owner.event(
                        "Unhealthy",
                        f"{name} probe errored and resulted in unknown state: {error}",
                        warning=True,
                    )
                    return None
        if answer.warning:
            self._owner.event("ProbeWarning", f"{name} probe warning: {answer.output}", warning=True)
        elif not answer.healthy:
            self._owner.event("Unhealthy", f"{name} probe failed: {answer.output}", warning=True)
        return answer.healthy
