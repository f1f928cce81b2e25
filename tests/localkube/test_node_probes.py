"""Prober: when a container is asked, and after how many answers something follows."""

import asyncio
import time

import pytest

from localkube.kubelet.probes.handlers import HandlerError, ProbeResult, port_number
from localkube.kubelet.probes.prober import Prober
from localkube.kubelet.status.container_state import ContainerRecord

FINE, BAD = ProbeResult(True), ProbeResult(False, "no good")
QUICK = {"periodSeconds": 0.01}


class Watched:
    """A container that answers as it is told to, and remembers what followed."""

    def __init__(self, answers, container):
        self.answers, self.asked = iter(answers), 0
        self.failed, self.events, self.seen = [], [], []
        self.over = asyncio.Event()
        started = "startupProbe" not in container
        run = ContainerRecord("main", "running", started_at=time.time(), started=started)
        self.probes = Prober(container, run, owner=self)

    def probed(self, *, started, ready):
        self.seen.append((started, ready))

    def unhealthy(self, kind):
        self.failed.append(kind)

    def event(self, reason, message, *, warning):
        self.events.append(message)

    async def probe(self, spec):
        try:
            answer = next(self.answers)
        except StopIteration:
            self.over.set()
            return await asyncio.Future()
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run(self):
        """Ask until there are no answers left, or nobody asks any more."""
        self.probes.start()
        try:
            async with asyncio.timeout(0.5):
                await self.over.wait()
        except TimeoutError:
            pass
        self.probes.stop()
        return self


async def test_liveness_fails_after_so_many_failures_in_a_row_and_is_asked_no_more():
    answers = [BAD, BAD, FINE, BAD, BAD, BAD, FINE]
    watched = await Watched(answers, {"livenessProbe": QUICK | {"failureThreshold": 3}}).run()
    assert (watched.failed, watched.asked) == (["liveness"], 6)
    assert watched.events[0] == "Liveness probe failed: no good"


async def test_readiness_comes_and_goes_by_its_thresholds():
    spec = QUICK | {"failureThreshold": 2, "successThreshold": 2}
    watched = await Watched([FINE, BAD, FINE, FINE, BAD, FINE, BAD, BAD], {"readinessProbe": spec}).run()
    assert watched.seen == [(True, True), (True, False)]
    assert watched.failed == []


async def test_nothing_else_is_asked_before_the_startup_probe_has_passed():
    spec = QUICK | {"failureThreshold": 3}
    container = {"startupProbe": spec, "livenessProbe": QUICK, "readinessProbe": QUICK}
    watched = await Watched([BAD, BAD, FINE], container).run()
    assert watched.seen[0] == (True, False)
    assert set(watched.events) == {"Startup probe failed: no good"}


async def test_a_probe_that_cannot_be_asked_counts_for_nothing():
    broken = [HandlerError("port web not found")] * 3
    watched = await Watched([*broken, FINE], {"livenessProbe": QUICK | {"failureThreshold": 1}}).run()
    assert watched.failed == []
    assert watched.events == ["Liveness probe errored and resulted in unknown state: port web not found"]


def test_a_port_may_be_given_by_name_and_a_missing_one_is_named():
    container = {"ports": [{"name": "web", "containerPort": 8080}]}
    assert [port_number(port, container) for port in ("web", "81", 82)] == [8080, 81, 82]
    with pytest.raises(HandlerError, match="port other not found"):
        port_number("other", container)
