"""What a watch passes over unread is what it was told to, and nothing else."""

import asyncio
import json

import pytest

from localkube import api_client
from localkube.api_client import is_on_simulated_node
from localkube.errors import ApiError

HERE, THERE = {"nodeName": "node-1"}, {"nodeName": "simulated-1"}
SAID = {"name": "PATH", "value": json.dumps(THERE)}


def line(spec, **metadata):
    pod = {"metadata": {"name": "a", **metadata}, "spec": spec}
    return json.dumps({"type": "ADDED", "object": pod}, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize(
    ("event", "passed_over"),
    [
        (line(THERE), True),
        (line(HERE), False),
        (line(HERE | {"env": [SAID]}), False),
        (line(THERE | {"env": [SAID]}), True),
        (line(HERE, labels=THERE), False),
        (line(HERE | {"nominated": "simulated-1"}), False),
        (b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"5"}}}\n', False),
    ],
)
def test_a_pod_of_a_simulated_node_is_known_without_reading_its_json(event, passed_over):
    assert is_on_simulated_node(event) == passed_over


class ForbiddingApi:
    """An API that lists, and refuses to watch."""

    async def get(self, path, **params):
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}

    async def lines(self, path, params):
        raise ApiError(403, "Forbidden", "not yet")
        yield b""


async def test_an_informer_waits_longer_between_watches_that_end_at_once(monkeypatch, caplog):
    delays = []

    async def record(seconds):
        delays.append(seconds)
        if len(delays) == 8:
            raise asyncio.CancelledError

    monkeypatch.setattr(api_client.asyncio, "sleep", record)
    with pytest.raises(asyncio.CancelledError):
        await api_client.Informer(ForbiddingApi(), "/pods").run()
    assert delays == [*api_client.RETRY_SECONDS, 2.0, 2.0]
    assert [entry.levelname for entry in caplog.records] == ["WARNING"] * (8 - api_client.WARN_AFTER)
