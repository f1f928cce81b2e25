"""Pods that start go first: Events and the removal of files wait for them, and not for ever."""

import asyncio

from localkube.kubelet.events import EventRecorder
from localkube.kubelet.pods import starts
from localkube.kubelet.pods.starts import StartingPods

POD = {"metadata": {"uid": "u", "name": "pod", "namespace": "default"}, "spec": {"nodeName": "node-0"}}


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_give_way_waits_until_the_last_pod_has_started():
    starting = StartingPods()
    await starting.wait_until_idle()
    starting.begin("a")
    starting.begin("b")
    waiting = asyncio.create_task(starting.wait_until_idle())
    starting.end("a")
    starting.end("a")
    await turns()
    assert not waiting.done()
    starting.end("b")
    await waiting


async def test_a_pod_that_does_not_start_holds_nothing_up_for_long(monkeypatch):
    monkeypatch.setattr(starts, "LONGEST_SECONDS", 0.01)
    starting = StartingPods()
    starting.begin("stuck")
    await starting.wait_until_idle()


class Server:
    def __init__(self):
        self.posted = asyncio.Event()

    async def post(self, path, body):
        self.posted.set()


async def test_events_are_posted_when_no_pod_starts(monkeypatch):
    monkeypatch.setattr("localkube.kubelet.events.SETTLE_SECONDS", 0)
    server, starting = Server(), StartingPods()
    events = EventRecorder(server, wait_until_idle=starting.wait_until_idle)
    starting.begin("u")
    events.record(POD, "Started", "Container main started")
    posting = asyncio.create_task(events.run())
    await turns()
    assert not server.posted.is_set()
    starting.end("u")
    await server.posted.wait()
    posting.cancel()
