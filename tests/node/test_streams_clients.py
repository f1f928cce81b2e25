"""Exec, attach and port-forward by others than kubectl: the official Python client, and bare WebSockets."""

import base64
import json
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest
from kubernetes.stream import portforward, stream

from .clusters import PATIENCE, eventually, pod, python

# Answers on two ports of localhost with its port and the path, or as many bytes as the path says; the end of
# an answer is that of its connection.
SERVER = """
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        word = self.path[1:]
        self.wfile.write(b"x" * int(word) if word.isdigit() else f"{self.server.server_port} {word}".encode())
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) for port in (7001, 7002)]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
print("listening", flush=True)
"""
TEXT = "grüße, 日本 🚂\n"
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


@pytest.fixture(scope="module")
def target(cluster):
    """The name of a pod for commands, with servers on its localhost."""
    cluster.core.create_namespaced_pod("default", pod(name="clients", main=python(SERVER)))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/clients", f"--timeout={PATIENCE}s")
    eventually(lambda: cluster.kubectl("logs", "clients"), expected="listening\n")
    yield "clients"
    cluster.kubectl("delete", "pod", "clients", "--now")


def execute(cluster, name, *command, **options):
    """Start a command by the official Python client."""
    options = {"stdin": True, "stdout": True, "stderr": True, "tty": False} | options
    method = cluster.core.connect_get_namespaced_pod_exec
    return stream(method, name, "default", command=list(command), _preload_content=False, **options)


def forward(cluster, name, *ports):
    words = ",".join(map(str, ports))
    return portforward(cluster.core.connect_get_namespaced_pod_portforward, name, "default", ports=words)


def test_strings_reach_a_command_as_utf_8_and_its_exit_code_comes_back(cluster, target):
    texts = ["one\ntwo\n", "\n", TEXT, "a line without an end"]
    command = execute(cluster, target, "sh", "-c", "cat; echo problem >&2; exit 3")
    for piece in texts:
        command.write_stdin(piece)
    command.close_channel(0)
    command.run_forever(timeout=PATIENCE)
    assert command.read_stdout() == "".join(texts)
    assert (command.read_stderr(), command.returncode) == ("problem\n", 3)


def test_bytes_that_are_cut_within_a_character_arrive_as_they_are(cluster, target):
    command = execute(cluster, target, "cat", binary=True)
    for piece in ("ü\n".encode()[:1], "ü\n".encode()[1:], b"\xff\n"):
        command.write_stdin(piece)
    command.close_channel(0)
    command.run_forever(timeout=PATIENCE)
    assert command.read_stdout() == "ü\n".encode() + b"\xff\n"


def test_answers_that_end_with_their_connections_come_through_two_ports(cluster, target):
    forwarded = forward(cluster, target, 7001, 7002)
    for port in (7001, 7002):
        forwarded.socket(port).sendall(f"GET /{port} HTTP/1.0\r\n\r\n".encode())
    answers = {port: forwarded.socket(port).makefile("rb").read() for port in (7001, 7002)}
    assert {port: answer.split(b"\r\n\r\n")[1] for port, answer in answers.items()} == {
        port: b"x" * port for port in (7001, 7002)
    }


@asynccontextmanager
async def bare(cluster, name, *protocols, path="exec", **query):
    """Yield a WebSocket of the API server's, for frames that no client library sends."""
    settings = cluster.core.api_client.configuration
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    tls.load_cert_chain(settings.cert_file, settings.key_file)
    url = f"{settings.host}/api/v1/namespaces/default/pods/{name}/{path}"
    options = {"protocols": protocols, "params": query, "ssl": tls, "max_msg_size": 0}
    async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as sock:
        yield sock


def command(*words, **query):
    return {"command": words, "stdin": "1", "stdout": "1", "stderr": "1", **query}


async def heard(sock):
    """Return what comes on each channel until the end, channels by their first byte or character."""
    channels = {}
    async for message in sock:
        first = message.data[:1]
        channels[first] = channels.get(first, message.data[:0]) + message.data[1:]
    return channels


async def test_messages_that_mean_nothing_are_left_out(cluster, target):
    async with bare(cluster, target, V5, **command("cat")) as sock:
        for text in (
            "",
            "\0",
            "\x09unknown",
            "\x01no input",
            "\x04",
            "\x04{}",
            '\x04{"Width": 1e999, "Height": -1}',
        ):
            await sock.send_str(text)
        for data in (b"", b"\x00", b"\xfe\xff", b"\xff", b"\xff\x09"):
            await sock.send_bytes(data)
        await sock.send_str("\0" + TEXT)
        await sock.send_bytes(b"\xff\x00")
        channels = await heard(sock)
    assert channels[b"\x01"] == TEXT.encode()
    assert json.loads(channels[b"\x03"])["status"] == "Success"


async def test_a_text_of_version_4_is_input(cluster, target):
    async with bare(cluster, target, V4, **command("sh", "-c", "head -n 1; exit 4")) as sock:
        await sock.send_str("\0" + TEXT)
        channels = await heard(sock)
    assert channels[b"\x01"] == TEXT.encode()
    assert json.loads(channels[b"\x03"])["details"]["causes"] == [{"reason": "ExitCode", "message": "4"}]


@pytest.mark.parametrize(("version", "send"), [("v4.", "send_str"), ("", "send_bytes")])
async def test_web_consoles_are_served_by_base64(cluster, target, version, send):
    async with bare(
        cluster, target, f"{version}base64.channel.k8s.io", **command("sh", "-c", "head -n 1; exit 4")
    ) as sock:
        for text in ("0!broken", "0", "0" + base64.b64encode(TEXT.encode()).decode()):
            await getattr(sock, send)(text if send == "send_str" else text.encode())
        channels = await heard(sock)
    assert base64.b64decode(channels["1"]) == TEXT.encode()
    status = base64.b64decode(channels["3"]).decode()
    message = json.loads(status)["message"] if version else status
    assert message == "command terminated with non-zero exit code: exit status 4"


async def test_a_client_without_a_protocol_gets_bytes_and_errors_as_they_are(cluster, target):
    async with bare(cluster, target, **command("echo", "hello")) as sock:
        assert await heard(sock) == {b"\x01": b"hello\n"}
    async with bare(cluster, target, **command("false")) as sock:
        assert b"exit status 1" in (await heard(sock))[b"\x03"]


@pytest.mark.parametrize("path", ["exec", "portforward"])
async def test_a_client_whose_protocols_are_unknown_is_refused(cluster, target, path):
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with bare(cluster, target, "v9.channel.k8s.io", path=path, ports="7001", **command("true")):
            pass
    assert refused.value.status == 403


@pytest.mark.parametrize("ports", ["0", ",".join(map(str, range(1, 130)))])
async def test_ports_that_cannot_be_forwarded_are_refused(cluster, target, ports):
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with bare(cluster, target, V4, path="portforward", ports=ports):
            pass
    assert refused.value.status == 400


async def test_a_message_may_have_megabytes_but_not_fill_the_nodes_memory(cluster, target):
    async with bare(cluster, target, V5, **command("wc", "-c")) as sock:
        await sock.send_bytes(bytes(20_000_001))
        await sock.send_bytes(b"\xff\x00")
        assert (await heard(sock))[b"\x01"] == b"20000000\n"
    async with bare(cluster, target, V5, **command("wc", "-c")) as sock:
        try:
            await sock.send_bytes(bytes(40_000_000))
            channels = await heard(sock)
        except ConnectionError:  # it was closed while the message was on its way
            channels = {}
    assert b"\x03" not in channels


async def test_data_sent_to_a_port_without_a_server_is_not_buffered(cluster, target):
    kubelet = cluster.process("localkube.kubelet")
    async with bare(cluster, target, V4, path="portforward", ports="7999,7001") as sock:
        while b"refused" not in await sock.receive_bytes():
            pass
        before = kubelet.memory_info().rss
        for _ in range(200):
            await sock.send_bytes(b"\x00" + bytes(1_000_000))
        await sock.send_bytes(b"\x02GET /hello HTTP/1.0\r\n\r\n")
        assert (await heard(sock))[b"\x02"].endswith(b"7001 hello")
        assert kubelet.memory_info().rss - before < 100_000_000


async def test_texts_and_base64_are_forwarded_to_a_port(cluster, target):
    request = "GET /hello HTTP/1.0\r\n\r\n"
    async with bare(cluster, target, V4, path="portforward", ports="7001") as sock:
        await sock.send_str("\x01not for the port")
        await sock.send_str("\0" + request)
        channels = await heard(sock)
    assert channels[b"\x00"].startswith(b"\x59\x1bHTTP/1.0 200 ")
    assert channels[b"\x00"].endswith(b"\r\n\r\n7001 hello")
    assert channels[b"\x01"] == b"\x59\x1b"
    async with bare(cluster, target, "v4.base64.channel.k8s.io", path="portforward", ports="7001") as sock:
        await sock.send_str("0" + base64.b64encode(request.encode()).decode())
        messages = [message.data async for message in sock]
    assert b"".join(base64.b64decode(text[1:]) for text in messages if text[0] == "0").endswith(b"7001 hello")
