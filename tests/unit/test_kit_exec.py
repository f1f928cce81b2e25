"""A command in a pod whose connection breaks ends in an error of the kit, as any other request does."""

import base64
import hashlib
import json
import socket
import threading

import pytest

from kitlib.errors import ClusterUnreachable
from kitlib.k8s.client import Kube

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


CLOSE = b"\x88\x00"  # a frame


@pytest.fixture(params=[b"", CLOSE], ids=["broken", "closed"])
def server(request):
    """Yield the URL of an API server that accepts a WebSocket and ends its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            client, _ = listener.accept()
            with client, client.makefile("rb") as lines:
                key = next(line for line in lines if line.lower().startswith(b"sec-websocket-key"))
                accept = base64.b64encode(hashlib.sha1(key.split()[1] + MAGIC).digest())
                client.sendall(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
                    b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + request.param
                )

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_connection_that_ends_early_says_that_the_cluster_does_not_answer(server, tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    content = {
        "clusters": [{"name": "lab", "cluster": {"server": server}}],
        "users": [{"name": "ada", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "ada"}}],
        "current-context": "lab",
    }
    kubeconfig.write_text(json.dumps(content))
    with pytest.raises(ClusterUnreachable, match="does not answer"):
        Kube(kubeconfig, cluster="lab").execute("worker", ["true"], container="main")
