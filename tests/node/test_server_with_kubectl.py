"""``kubectl logs`` reaches the kubelet through the real API server."""

import asyncio
import signal
import subprocess
import time

import pytest

from localkube.kubelet.http_server import KubeletServer
from localkube.kubelet.logs.log_reader import LogFiles

NODE = "logs-node"


class View:
    """Pods as the API server has them, with log files in a directory of the test's."""

    def __init__(self, directory):
        self.pods = {}
        self.directory = directory
        self.starts = {}

    def pod(self, namespace, name):
        return self.pods.get((namespace, name))

    def path(self, name, number):
        return self.directory / name / f"{number}.log"

    def log_path(self, pod, container, *, previous):
        name = pod["metadata"]["name"]
        number = self.starts.get(name, 0) - 1 - previous
        return self.path(name, number) if number >= 0 else None

    def waiting_reason(self, pod, container):
        return "ContainerCreating"


class Node:
    """A node whose kubelet is the server under test."""

    def __init__(self, control_plane, directory):
        self.control_plane = control_plane
        self.view = View(directory)
        self.files = LogFiles()

    async def run(self, name):
        """Create a pod on this node."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "trainer", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
            },
        }
        async with self.control_plane.api() as api:
            self.view.pods["default", name] = await api.post("/api/v1/namespaces/default/pods", pod)

    def start(self, name):
        """Start its container, once more."""
        number = self.view.starts.get(name, 0)
        self.view.starts[name] = number + 1
        return self.files.open(self.view.path(name, number))

    async def kubectl(self, *arguments):
        process = await self.spawn(*arguments)
        out, errors = await asyncio.wait_for(process.communicate(), 30)
        return out + errors

    async def spawn(self, *arguments):
        return await asyncio.create_subprocess_exec(
            *self.control_plane.kubectl, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


@pytest.fixture
async def node(bare_control_plane, tmp_path):
    node = Node(bare_control_plane, tmp_path)
    pki = bare_control_plane.paths.pki
    async with KubeletServer(
        node.view,
        files=node.files,
        cert_file=pki / "kubelet-serving.crt",
        key_file=pki / "kubelet-serving.key",
        client_ca_file=pki / "ca.crt",
    ) as server:
        port = await server.listen("127.0.0.1", 0)
        async with bare_control_plane.api() as api:
            metadata = {"name": NODE}
            await api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }
            await api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status}, kind="merge")
            yield node
            for _, name in node.view.pods:
                await api.delete(f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})
            await api.delete(f"/api/v1/nodes/{NODE}")


async def test_kubectl_logs_prints_what_the_container_wrote(node):
    await node.run("whole")
    writer = node.start("whole")
    writer.feed("stdout", b"epoch 1\n\xff\x00 progress\r")
    writer.feed("stderr", b"no newline at the end")
    assert await node.kubectl("logs", "whole") == b"epoch 1\n\xff\x00 progress\rno newline at the end"
    assert await node.kubectl("logs", "whole", "--tail=1") == b"\xff\x00 progress\rno newline at the end"
    assert await node.kubectl("logs", "whole", "--limit-bytes=5") == b"epoch"
    assert await node.kubectl("logs", "whole", "--since-time=2999-01-01T00:00:00Z") == b""
    assert (await node.kubectl("logs", "whole", "--since=1h")).startswith(b"epoch 1\n")
    stamped = await node.kubectl("logs", "whole", "--timestamps", "--tail=2")
    assert stamped.startswith(b"20") and stamped.count(b"Z ") == 2


async def test_kubectl_says_why_there_is_no_log_yet(node):
    await node.run("waiting")
    expected = b'(BadRequest): container "trainer" in pod "waiting" is waiting to start: ContainerCreating\n'
    assert (await node.kubectl("logs", "waiting")).endswith(expected)
    node.start("waiting")
    expected = b'(BadRequest): previous terminated container "trainer" in pod "waiting" not found\n'
    assert (await node.kubectl("logs", "waiting", "--previous")).endswith(expected)


async def test_kubectl_logs_previous_prints_the_run_before(node):
    await node.run("twice")
    for text in (b"first\n", b"second\n"):
        writer = node.start("twice")
        writer.feed("stdout", text)
        writer.close()
    assert await node.kubectl("logs", "twice", "--previous") == b"first\n"
    assert await node.kubectl("logs", "twice") == b"second\n"


async def test_kubectl_logs_follow_prints_at_once_and_ends_with_the_container(node):
    await node.run("followed")
    writer = node.start("followed")
    writer.feed("stdout", b"0\n")
    kubectl = await node.spawn("logs", "-f", "followed")
    assert await asyncio.wait_for(kubectl.stdout.readline(), 20) == b"0\n"
    delays = []
    for number in range(1, 20):
        begun = time.monotonic()
        writer.feed("stdout", b"%d\n" % number)
        assert await asyncio.wait_for(kubectl.stdout.readline(), 30) == b"%d\n" % number
        delays.append(time.monotonic() - begun)
    assert sorted(delays)[len(delays) // 2] < 0.4, "who asked once a second would need half of one"
    writer.close()
    assert await asyncio.wait_for(kubectl.wait(), 30) == 0


async def test_an_interrupted_kubectl_leaves_no_follower_behind(node):
    await node.run("left")
    writer = node.start("left")
    writer.feed("stdout", b"0\n")
    kubectl = await node.spawn("logs", "-f", "left")
    await asyncio.wait_for(kubectl.stdout.readline(), 20)
    assert node.files._followers
    kubectl.send_signal(signal.SIGINT)
    await kubectl.wait()
    for _ in range(500):
        if not node.files._followers:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the follower is still there")
