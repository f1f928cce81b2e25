"""Play back what ``trainyard record`` wrote: servers that answer as the clouds did."""

import contextlib
import http.server
import json
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import grpc
from google.cloud import container_v1

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
SIGNED_FOR = re.compile(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request")

TOKEN = "ClientRequestToken"
DIGEST = re.compile(r"-[0-9a-f]{10}\b")  # of the project's id, which the recording does not have


class Replay(contextlib.ExitStack):
    """The clouds of a recording; a context manager.

    A request gets the answers to the recorded ones of its operation with the same body, or if there are none,
    to all of its operation, one after the other; the last answer is repeated.

    Args:
        file: What ``trainyard record`` wrote.

    Attributes:
        environment: Variables that lead the kit here.
        unknown: Operations that were asked for, and are not in the recording.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        self.unknown: list[str] = []
        self.environment: dict[str, str] = {}
        self._lock, self._known, self._given = threading.Lock(), defaultdict(list), set()
        self._tokens: dict[str, str] = {}
        for each in entries:
            if each["answer"]["status"] is not None:  # else the network failed
                self._known[_recorded_key(each)].append(each)
        self._services = {each["service"] for each in entries if "url" in each["request"]}
        self._project = next((each["project"] for each in entries if each["project"]), "")

    def __enter__(self) -> "Replay":
        for service in self._services:
            served = self.enter_context(
                http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, service))
            )
            self.callback(served.shutdown)
            threading.Thread(target=served.serve_forever, name=f"replay-{service}", daemon=True).start()
            address = f"http://127.0.0.1:{served.server_address[1]}"
            self.environment[f"{OVERRIDE}{service.upper()}"] = address
            self.environment["AWS_ENDPOINT_URL"] = address  # any of them: requests say what they are for
        container = grpc.server(ThreadPoolExecutor(4), handlers=[_Container(self)])
        port = container.add_insecure_port("127.0.0.1:0")
        container.start()
        self.callback(container.stop, None)
        self.environment[f"{OVERRIDE}CONTAINER"] = f"http://127.0.0.1:{port}"
        self.environment["GOOGLE_CLOUD_PROJECT"] = self._project
        return self

    def answer(self, key: tuple[str, ...], body: object) -> dict | None:
        """Find the recorded answer to a request; None if its operation was never recorded."""
        with self._lock:
            if not (known := self._known.get(key)):
                self.unknown.append(" ".join(key))
                return None
            same = [each for each in known if each["request"]["body"] == body] or known
            found = next((each for each in same if id(each) not in self._given), same[-1])
            self._given.add(id(found))
            if isinstance(body, dict) and (token := body.get(TOKEN)):
                self._tokens[found["request"]["body"][TOKEN]] = token
            return self._with_tokens(found["answer"])

    def _with_tokens(self, answer: dict) -> dict:
        """Events of CloudFormation name the token of the request, which is a new one."""
        text = json.dumps(answer)
        for recorded, token in self._tokens.items():
            text = text.replace(recorded, token)
        return json.loads(text)


def _recorded_key(entry: dict) -> tuple[str, ...]:
    sent = entry["request"]
    if "url" not in sent:
        return ("container", entry["operation"].replace("_", ""))
    place = urlsplit(sent["url"])
    bucket, dot, _ = place.netloc.partition(".s3.")
    path = f"/{bucket}{place.path}" if dot else place.path
    return _key(
        entry["service"], sent["method"], f"{path}?{place.query}", sent.get("target", ""), sent["body"]
    )


def _key(service: str, method: str, path: str, target: str, body: object) -> tuple[str, ...]:
    """What tells operations apart: a name in a header or a form, or else method and path."""
    action = target or (body.get("Action", "") if isinstance(body, dict) else "")
    while path.startswith(f"/{service}/"):  # a root that an endpoint of ours has, and Google's has not
        path = path.removeprefix(f"/{service}")
    path = re.sub(r"\bclientToken=[^&]*", "", DIGEST.sub("-digest", path)).rstrip("?")
    return (service, action) if action else (service, method, path)


def _handler(replay: Replay, service: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_any(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            signed = SIGNED_FOR.search(self.headers.get("Authorization", ""))
            target = self.headers.get("X-Amz-Target", "")
            key = _key(signed[1] if signed else service, self.command, self.path, target, _body(sent))
            found = replay.answer(key, _body(sent)) or {
                "status": 501,
                "headers": {},
                "body": f"unknown: {key}",
            }
            body = found["body"]
            content = ("" if body is None else body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(found["status"])
            for name, value in found["headers"].items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_any  # noqa: N815

        def log_message(self, *words) -> None: ...

    return Handler


def _body(sent: bytes) -> object:
    try:
        return json.loads(sent) if sent else None
    except ValueError:
        form = dict(parse_qsl(sent.decode(errors="replace")))
        return form if "Action" in form else sent.decode(errors="replace")


class _Container(grpc.GenericRpcHandler):
    """The container API over gRPC."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def service(self, call):
        method = call.method.rpartition("/")[2]

        def respond(request: bytes, context) -> bytes:
            found = self.replay.answer(("container", method.lower()), None)
            if found is None or found["status"] != "OK":
                code, words = (found["status"], found["body"]) if found else ("UNIMPLEMENTED", method)
                context.abort(getattr(grpc.StatusCode, code), words)
            kind = getattr(container_v1, found["type"], None)
            return kind.serialize(kind(found["body"])) if kind else b""

        return grpc.unary_unary_rpc_method_handler(respond)
