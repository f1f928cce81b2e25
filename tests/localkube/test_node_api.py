"""A watch that ends at once is begun again with longer and longer pauses."""

import asyncio

import pytest

from localkube import api_client
from localkube.errors import ApiError


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
