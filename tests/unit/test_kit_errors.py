import base64
import http.server
import json
import shlex
import threading
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from kitlib import errors
from kitlib.errors import Interrupted, KitError, Rejected, RunFailed
from kitlib.k8s import credential_plugin
from kitlib.k8s.api_errors import expired, grant, launch_rejected, rejected, unreached
from kitlib.k8s.client import Kube


def test_an_error_says_what_failed_on_which_object_and_what_to_try_in_a_few_lines():
    error = KitError("it is gone", about='cluster "lab"', fix="make it again")
    assert str(error) == 'it is gone\n  about: cluster "lab"\n  try:   make it again'
    failed = RunFailed("rank 2 failed", about="run", fix="fix it", detail="Traceback\n  x\n")
    assert failed._render_traceback_() == [  # a notebook's, of which the traceback is none
        "RunFailed: rank 2 failed\n  about: run\n  try:   fix it\n\nTraceback\n  x"
    ]


def test_every_error_of_the_kit_has_one_base_class():
    classes = [name for name in vars(errors).values() if isinstance(name, type) and name is not KitError]
    assert all(issubclass(kind, KitError) for kind in classes)
    assert issubclass(Interrupted, KeyboardInterrupt)


@pytest.mark.parametrize(
    ("status", "body", "what", "fix"),
    [
        (409, b'{"reason": "AlreadyExists", "message": "a already exists"}', "already exists", "name"),
        (403, b'{"reason": "Forbidden", "message": "may not"}', "may not", "administrator"),
        (502, b"<html>Bad Gateway</html>", "Bad Gateway", "try again"),
        (500, b"", "HTTP status 500", "try again"),
        (401, b"[]", "[]", "kubeconfig"),
    ],
)
def test_the_api_servers_words_are_kept_and_a_remedy_added(status, body, what, fix):
    error = rejected(status, body, about="Job")
    assert isinstance(error, Rejected)
    assert what in error.what
    assert fix in error.fix
    assert error.status == status


FORBIDDEN = 'jobs.batch is forbidden: User "ada" cannot create resource "jobs" in API group "batch"'


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (f'{FORBIDDEN} in the namespace "lab"', "kubectl create role create-jobs -n lab --verb=create"),
        (f"{FORBIDDEN} at the cluster scope", "kubectl create clusterrolebinding create-jobs --clusterrole="),
        ('pods "x" is forbidden: exceeded quota: attendee, requested: pods=1', "delete runs"),
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest": hostNetwork', "leave out"),
        ("no words that we know", "administrator"),
        (
            "must not have reserved envs, invalid envs configured: [PET_NNODES]",
            "leave out PET_NNODES: Trainer",
        ),
    ],
)
def test_a_forbidden_request_names_the_role_that_would_allow_it(words, fix):
    body = json.dumps({"reason": "Forbidden", "message": words}).encode()
    assert fix in rejected(403, body, about="Job").fix


def test_a_value_that_the_api_server_repeats_at_length_is_cut():
    body = b'env: Invalid value: [{"name": "%s"}]: must not be' % (b"A" * 60)
    error = launch_rejected(rejected(422, body, about="Job"), "", document=0, fix="")
    assert error.what == "the API server rejected the manifest: env: Invalid value: …: must not be"


@pytest.mark.parametrize(
    ("resource", "group", "expected"),
    [
        ("pods/exec", "", "--verb=create --resource=pods/exec"),
        ("jobs", "batch", "--resource=jobs.batch"),
        ("pytorchjobs/scale", "kubeflow.org", "--resource=pytorchjobs.kubeflow.org/scale"),
    ],
)
def test_a_right_is_granted_in_the_words_of_kubectl(resource, group, expected):
    assert expected in grant("create", resource, group=group, namespace="lab")


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer",
            "does not trust",
            "this very cluster",
        ),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "no TLS", "proxy"),
        ("Failed to resolve: Name or service not known", "cannot be found", "network"),
        ("Connection refused", "does not answer", "port"),
        ("Connection to 10.0.0.1 timed out", "does not answer", "private"),
        ("Unable to connect to proxy: Connection refused", "the proxy on the way", "proxy-url"),
        ("something else", "does not answer", "runs"),
    ],
)
def test_the_words_of_a_connection_are_explained_and_kept(words, what, fix):
    explanation, tried = unreached(words)
    assert what in explanation
    assert words in explanation
    assert fix in tried


def token(**payload):
    middle = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")
    return f"Bearer head.{middle}.signature"


def test_a_token_that_has_expired_says_so_itself_and_nothing_else_is_taken_for_one():
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert expired(token(exp=now.timestamp() - 60), now) == "2029-12-31T23:59+00:00"
    for valid in (token(exp=now.timestamp() + 60), token(), token(exp="soon"), "Bearer opaque", "", None):
        assert expired(valid, now) == ""


PLUGIN = """
apiVersion: v1
kind: Config
current-context: lab
clusters: [{{name: lab, cluster: {{server: "{server}"}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]
users: [{{name: lab, user: {{exec: {exec}}}}}]
"""
ANONYMOUS = (
    'nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in API group "" '
    "at the cluster scope"
)


@contextmanager
def serve(handler):
    """Serve requests in a thread; yield the address."""
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def refusing():
    """An API server that lets nobody in: its address, and what it answers."""
    answer = {"status": 403, "message": ANONYMOUS}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"kind": "Status", "message": answer["message"]}).encode()
            self.send_response(answer["status"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serve(Handler) as address:
        yield address, answer


def credential(version="v1beta1", **status):
    """A plugin that prints a credential."""
    document = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential"}
    return f"echo {shlex.quote(json.dumps(document | {'status': status}))}"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo the sign-in has expired: aws login >&2; exit 1", "the sign-in has expired: aws login"),
        ("exit 3", "ended with 3"),
        ("echo enter the code >&2; exec sleep 600", "did not end within 1 s, and has no terminal to ask in"),
        ("read answer || read answer < /dev/tty", "/dev/tty"),
        (None, "no-such-plugin"),
        ("true", "printed no ExecCredential: nothing"),
        ("echo Opening the browser...", "printed no ExecCredential: Opening the browser"),
        ("echo '[]'", "printed no ExecCredential"),
        ("echo '{}'", "printed the apiVersion None"),
        (credential(), "without a token"),
        (credential(token=""), "without a token"),
        (credential(clientCertificateData="x"), "without a token"),
        (credential(token="x", expirationTimestamp="2020-01-01T00:00:00Z"), "has expired, at 2020"),
        (credential(token="x", expirationTimestamp="soon"), "printed no ExecCredential"),
        (credential("v1", token="x"), "and not 'client.authentication.k8s.io/v1beta1'"),
        (credential(token="x", expirationTimestamp="2999-01-01T00:00:00Z"), ""),
    ],
)
def test_a_credential_plugin_that_fails_is_shown_in_its_own_words(
    tmp_path, refusing, script, words, status, monkeypatch
):
    if "sleep" in (script or ""):
        monkeypatch.setattr(credential_plugin, "SECONDS", 1)
    server, answer = refusing
    answer["status"] = status
    entry = {"apiVersion": "client.authentication.k8s.io/v1beta1", "interactiveMode": "Never"}
    entry |= {"command": "no-such-plugin"} if script is None else {"command": "sh", "args": ["-c", script]}
    (tmp_path / "config").write_text(PLUGIN.format(server=server, exec=json.dumps(entry)))
    with pytest.raises(Rejected) as raised:
        Kube(tmp_path / "config", cluster="lab")._request("GET", "/api", about="nodes")
    assert words in raised.value.what and "clusterrole" not in raised.value.fix
    assert "new kubeconfig" not in raised.value.fix
    assert "kit.credentials()" in raised.value.fix


def test_a_refusal_of_a_known_user_does_not_run_the_credential_plugin_again(tmp_path, refusing):
    server, answer = refusing
    answer["message"] = ANONYMOUS.replace("system:anonymous", "ada")
    script = f"echo >> {tmp_path}/calls; " + credential(token="x")
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "interactiveMode": "Never"}
    plugin |= {"command": "sh", "args": ["-c", script]}
    (tmp_path / "config").write_text(PLUGIN.format(server=server, exec=json.dumps(plugin)))
    with pytest.raises(Rejected, match='User "ada"'):
        Kube(tmp_path / "config", cluster="lab").get_all("Pod")
    assert (tmp_path / "calls").read_text() == "\n"


@pytest.mark.parametrize("words", [ANONYMOUS, 'User "system:anonymous" cannot get path "/version"'])
def test_nobody_is_advised_to_give_rights_to_anonymous(words):
    error = rejected(403, json.dumps({"message": words}).encode(), about="nodes")
    assert "kubectl create" not in error.fix and "sign in" in error.fix


def _status(message, reason, **details):
    return json.dumps({"kind": "Status", "message": message, "reason": reason, "details": details}).encode()


GONE = "create not allowed while custom resource definition is terminating"
COULD_NOT = "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("status", "body", "missing"),
    [
        (404, b"404 page not found\n", True),  # not yet served, or no longer
        (404, _status(COULD_NOT, "NotFound"), True),
        (405, _status(GONE, "MethodNotAllowed"), True),
        (404, _status('namespaces "ada" not found', "NotFound", kind="namespaces"), False),
        (404, _status('configmaps "notes" not found', "NotFound", kind="configmaps"), False),
        (405, _status("the server does not allow this method", "MethodNotAllowed"), False),
        (422, _status("invalid", "Invalid"), False),
    ],
)
@pytest.mark.parametrize("write", ["create", "apply"])
def test_a_write_to_a_kind_that_nobody_serves_says_that_it_is_missing(
    write, status, body, missing, unserving, tmp_path
):
    item = {"apiVersion": "elastic.pytorch.org/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "a"}}
    server, answer = unserving
    answer |= {"status": status, "body": body}
    (tmp_path / "config").write_text(PLUGIN.format(server=server, exec="null"))
    with pytest.raises(Rejected) as caught:
        getattr(Kube(tmp_path / "config", cluster="lab"), write)(item)
    assert ("has no kind ElasticJob in elastic.pytorch.org/v1alpha1" in caught.value.what) == missing
    assert caught.value.status == (404 if missing else status)


CHANGED = 'Operation cannot be fulfilled on resourcequotas "a": the object has been modified'


@pytest.mark.parametrize(
    ("write", "status", "more", "words", "attempts"),
    [
        *((write, status, {}, "initializing", 11) for write in ("create", "apply") for status in (429, 503)),
        ("create", 409, {"reason": "Conflict", "message": CHANGED}, "has been modified", 3),
    ],
)
def test_a_write_is_retried_if_the_api_server_requests_it(
    write, status, more, words, attempts, unserving, tmp_path
):
    server, answer = unserving
    item = {"apiVersion": "elastic.pytorch.org/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "a"}}
    answer |= {"status": 201, "body": json.dumps(item).encode(), "busy": [status, status]} | more
    (tmp_path / "config").write_text(PLUGIN.format(server=server, exec="null"))
    kube = Kube(tmp_path / "config", cluster="lab")
    assert getattr(kube, write)(item) == item
    answer["busy"] = [status] * (attempts + (status == 409))
    with pytest.raises(Rejected, match=words):
        getattr(kube, write)(item)
    assert answer["busy"] == [409] * (status == 409)


@pytest.fixture
def unserving():
    """An API server that lists a kind and refuses to write it: its address, and what it answers."""
    answer = {"busy": [], "message": "storage is (re)initializing", "reason": "TooManyRequests"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            resource = {"name": "elasticjobs", "kind": "ElasticJob", "namespaced": True}
            self._answer(200, json.dumps({"resources": [resource]}).encode())

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            if answer["busy"]:
                body = _status(answer["message"], answer["reason"])
                self._answer(answer["busy"].pop(), body, {"Retry-After": "0"})
            else:
                self._answer(answer["status"], answer["body"])

        do_PATCH = do_POST

        def _answer(self, status, body, headers=()):
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serve(Handler) as address:
        yield address, answer
