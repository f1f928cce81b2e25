"""The kubelet's interface answers the API server, over TLS, with the kubelet's own sentences."""

import asyncio
import contextlib
import ssl

import aiohttp
import pytest

from localkube.kubelet.http_server import server as kubelet_server
from localkube.kubelet.http_server.server import KubeletServer, stream_shares
from localkube.kubelet.logs.log_reader import LogFiles

from .tls import Authority


class OnePod:
    """A node with one pod, ``default/train`` with container ``trainer``, and what a test says of it."""

    def __init__(self, directory):
        self.object = {
            "metadata": {"namespace": "default", "name": "train"},
            "spec": {"containers": [{"name": "trainer"}], "initContainers": [{"name": "fetch"}]},
        }
        self.directory = directory
        self.paths = []
        self.reason = "ContainerCreating"

    def pod(self, namespace, name):
        return self.object if (namespace, name) == ("default", "train") else None

    def log_path(self, pod, container, *, previous):
        runs = self.paths[: -1 if previous else None]
        return runs[-1] if runs else None

    def waiting_reason(self, pod, container):
        return self.reason

    def started(self, times):
        self.paths = [self.directory / f"{number}.log" for number in range(times)]
        return self.paths[-1]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "ca")


@pytest.fixture
def view(tmp_path):
    return OnePod(tmp_path / "logs")


@pytest.fixture
def files():
    return LogFiles()


@pytest.fixture
async def server(view, files, authority):
    serving = authority.issue("node")
    async with KubeletServer(
        view, files=files, cert_file=serving.cert, key_file=serving.key, client_ca_file=authority.cert
    ) as server:
        yield f"https://127.0.0.1:{await server.listen('127.0.0.1', 0)}"


def session(authority, client):
    tls = ssl.create_default_context(cafile=authority.cert)
    if client:
        tls.load_cert_chain(client.cert, client.key)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))


@pytest.fixture
async def client(authority):
    async with session(authority, authority.issue("kube-apiserver-kubelet-client")) as client:
        yield client


async def answer(client, url, **query):
    async with client.get(url, params=query) as response:
        return response.status, await response.read()


async def eventually(condition):
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen within five seconds")


LOGS = "/containerLogs/default/train/trainer"
NEGATIVE = b"tailLines: Invalid value: -1: must be greater than or equal to 0"


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        (LOGS, {}, (400, b'container "trainer" in pod "train" is waiting to start: ContainerCreating')),
        (LOGS, {"tailLines": "-1"}, (422, NEGATIVE)),
        ("/containerLogs/default/other/trainer", {}, (404, b'pod "other" does not exist')),
        ("/containerLogs/default/train/other", {}, (404, b'container "other" not found in pod "train"')),
    ],
)
async def test_a_log_that_cannot_be_read_says_why(server, client, path, query, expected):
    assert await answer(client, server + path, **query) == expected


@pytest.fixture
def few_streams(monkeypatch):
    monkeypatch.setattr(kubelet_server, "MAX_STREAMS", 128)
    monkeypatch.setattr(kubelet_server, "NEW_STREAMS", 1000)


@pytest.mark.timeout(60)
async def test_followers_of_one_namespace_leave_streams_to_others(few_streams, server, client, view, files):
    """A follower of its own log; the others' pods are unknown here, and the answer is about them."""
    path = view.started(1)
    path.parent.mkdir()
    files.open(path)
    async with contextlib.AsyncExitStack() as followed:
        statuses = []
        while 429 not in statuses:
            response = await followed.enter_async_context(
                client.get(server + LOGS, params={"follow": "true"})
            )
            statuses.append(response.status)
        assert len(statuses) == stream_shares().of_client + 1
        assert "too many streams in namespace default" in await response.text()
        assert (await answer(client, server + "/containerLogs/other/train/trainer"))[0] == 404
    await eventually(lambda: not files._followers)
    assert (await answer(client, server + LOGS))[0] == 200


async def test_only_the_api_server_may_call(server, authority, tmp_path):
    async with session(authority, authority.issue("a-pod")) as client:
        status, text = await answer(client, server + "/healthz")
        assert (status, text) == (403, b"Forbidden (user=a-pod, verb=get, resource=nodes)")
    async with session(authority, None) as client:
        with pytest.raises(aiohttp.ClientError):
            await answer(client, server + "/healthz")
    stranger = Authority(tmp_path, "stranger").issue("kube-apiserver-kubelet-client")
    async with session(authority, stranger) as client:
        with pytest.raises(aiohttp.ClientError):
            await answer(client, server + "/healthz")


async def test_an_endpoint_that_is_not_implemented_says_so(server, client):
    async with client.post(server + "/run/default/train/trainer", params={"cmd": "ls"}) as response:
        assert response.status == 501
        assert "does not offer run" in await response.text()
    assert await answer(client, server + "/healthz") == (200, b"ok")


async def test_shutting_down_does_not_wait_for_followers(view, files, authority):
    serving = authority.issue("node")
    async with contextlib.AsyncExitStack() as stack:
        server = KubeletServer(
            view, files=files, cert_file=serving.cert, key_file=serving.key, client_ca_file=authority.cert
        )
        await stack.enter_async_context(server)
        port = await server.listen("127.0.0.1", 0)
        client = await stack.enter_async_context(
            session(authority, authority.issue("kube-apiserver-kubelet-client"))
        )
        files.open(view.started(1))
        await client.get(f"https://127.0.0.1:{port}{LOGS}", params={"follow": "true"})
        await server.__aexit__()
