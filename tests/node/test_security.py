"""Who reaches what: other users of the machine, web pages in the user's browser, pods, and their volumes."""

import http.client
import json
import os
import shlex
import socket
import ssl
import traceback
from pathlib import Path

import pytest
from soak import resources

from .clusters import pod, python
from .restrictions import NOBODY

EVIL = "https://evil.example"
OWN = "belongs to the local cluster itself, and is not shown to pods"
ASK = """
import json, ssl, urllib.error, urllib.request, pathlib
token = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
context = ssl._create_unverified_context()
headers = {"Authorization": "Bearer " + token.read_text()} if token.exists() else {}
def request(path, method="GET", body=None):
    data = json.dumps(body).encode() if body else None
    url = "https://kubernetes.default.svc.cluster.local" + path
    request = urllib.request.Request(url, data, headers | {"Content-Type": "application/json"}, method=method)
    try:
        return urllib.request.urlopen(request, context=context, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code
made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}
secrets = request("/api/v1/namespaces/default/secrets")
print(token.exists(), [secrets, request("/api/v1/nodes/node-0/proxy/pods"),
      request("/api/v1/namespaces/default/configmaps", "POST", made)])
"""


def as_nobody(look):
    """Call a function as another user of the machine, in a process of its own, and return its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writing, json.dumps(look()).encode())
        except BaseException:  # noqa: BLE001 - the parent fails with it
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert text.startswith("{"), text
    return json.loads(text)


def succeeds(act, item):
    try:
        act(item)
    except OSError:
        return False
    return True


def connect(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))


def request(cluster, method="GET", path="/api/v1/namespaces/default/configmaps", *, body=None, **headers):
    """Return the status, the headers and the body of a request without a certificate."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", cluster.status["api_port"], context=ssl._create_unverified_context(), timeout=10
    )
    connection.request(method, path, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user, so this was NOT tested")
def test_another_user_of_the_machine_reaches_neither_files_nor_sockets_nor_processes(cluster):
    # Pods of other tests go meanwhile, with their directories, which os.walk passes over.
    paths = [Path(top, name) for top, below, names in os.walk(cluster.root) for name in (*below, *names)]
    files = [path for path in [cluster.root, *paths] if not path.is_symlink()]
    keys = [path for path in files if path.suffix in (".key", ".sock") or path.name == "kubeconfig"]
    assert len(keys) > 5
    sockets = list(cluster.root.glob("*.sock"))
    pids = [process.pid for process in cluster.processes()]
    assert len(sockets) and len(pids) > 7

    def look():
        readable = {
            "listed": (files, lambda path: list(path.parent.iterdir())),
            "opened": (keys, lambda path: path.open("rb")),
            "connected to": (sockets, connect),
            "its files": (pids, lambda pid: list(Path(f"/proc/{pid}/root/").iterdir())),
            "its network": (pids, lambda pid: os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)),
            "its memory": (pids, lambda pid: os.open(f"/proc/{pid}/mem", os.O_RDONLY)),
            "its environment": (pids, lambda pid: Path(f"/proc/{pid}/environ").read_bytes()),
            "signalled": (pids, lambda pid: os.kill(pid, 0)),
        }
        done = {
            what: [str(item) for item in items if succeeds(act, item)]
            for what, (items, act) in readable.items()
        }
        return done | {"api answers": ["it"] if succeeds(request, cluster) else []}

    by_stranger = as_nobody(look)
    assert not any(by_stranger.values()), by_stranger


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Host": "evil.example"},  # a name of theirs that points to 127.0.0.1 by now
        {"Host": "evil.example", "Origin": "https://evil.example:443", "Cookie": "a=b"},
        {"Origin": "null", "Authorization": "Basic YWRtaW46YWRtaW4="},
    ],
    ids=["a foreign origin", "a rebound name", "both", "guessed words"],
)
def test_a_web_page_in_the_users_browser_gets_nothing_and_changes_nothing(cluster, headers):
    status, answered, text = request(cluster, **headers)
    assert status in (401, 403)
    assert "items" not in text
    assert not [name for name in answered if name.lower().startswith("access-control-")]
    # What a form of any page may send without asking the server before.
    body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-a-page"}})
    status, _, _ = request(cluster, "POST", body=body, Content_Type="text/plain", **headers)
    assert status in (401, 403)
    status, answered, _ = request(cluster, "OPTIONS", Access_Control_Request_Method="POST", **headers)
    assert status in (401, 403)
    assert not [name for name in answered if name.lower().startswith("access-control-")]
    names = [item.metadata.name for item in cluster.core.list_namespaced_config_map("default").items]
    assert "of-a-page" not in names


def test_the_port_speaks_no_plain_http(cluster):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.status["api_port"], timeout=120)
    connection.request("GET", "/api/v1/pods", headers={"Host": "evil.example"})
    answer = connection.getresponse()
    assert (answer.status, "HTTPS server" in answer.read().decode()) == (400, True)


@pytest.mark.parametrize("mounted", [False, True], ids=["without a token", "with its account's token"])
def test_a_pod_cannot_act_on_the_api_by_itself(pods, mounted):
    output = pods.output(pod(main=python(ASK), automountServiceAccountToken=mounted))
    assert output == f"{mounted} [{', '.join(['403' if mounted else '401'] * 3)}]\n"


def test_no_key_of_the_cluster_is_readable_in_a_pod(pods, cluster):
    names = [path.name for path in (cluster.root / "pki").glob("*.key")]
    assert {"admin.key", "node-node-0.key"} <= set(names)
    keys = f"find / -xdev -name '*.key' -path '*{cluster.name}*' 2>/dev/null"
    search = f"{keys}; cat {cluster.root}/pki/node-node-0.key 2>&1"
    output = pods.output(pod(f"({search}) | grep -v '^cat' ; ls /proc/1/root/proc | grep -c '^[0-9]'"))
    assert "PRIVATE KEY" not in output
    assert not [name for name in names if name in output]


def test_a_host_path_that_names_the_clusters_own_directory_is_refused(pods, cluster, tmp_path):
    (tmp_path / "link").symlink_to(cluster.root)
    paths = [tmp_path / "link/pki", *(cluster.root / place for place in ("", "pki", "not-there/yet"))]
    names = []
    for path in paths:
        volumes = [{"name": "own", "hostPath": {"path": str(path), "type": "DirectoryOrCreate"}}]
        main = {"volumeMounts": [{"name": "own", "mountPath": "/own"}]}
        names.append(pods.create(pod("find /own", main=main, volumes=volumes)))
    for name in names:
        pods.wait_for_event(name, "FailedMount", OWN)
    assert not (cluster.root / "not-there").exists()


def test_a_sub_path_that_leads_to_the_clusters_own_directory_is_refused(pods, cluster):
    volumes = [{"name": "above", "hostPath": {"path": str(cluster.home)}}]
    path = str((cluster.root / "pki").relative_to(cluster.home))
    main = {"volumeMounts": [{"name": "above", "mountPath": "/own", "subPath": path}]}
    name = pods.create(pod("find /own", main=main, volumes=volumes))
    pods.wait_for_event(name, "Failed", OWN)


@pytest.mark.namespaces
@pytest.mark.parametrize("root", ["home", "the machine", "a link"])
def test_the_clusters_own_directory_is_empty_in_a_host_path_above_it(pods, cluster, root, tmp_path):
    link = cluster.home / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(cluster.home)
    path = {"home": cluster.home, "the machine": Path("/"), "a link": link}[root]
    volumes = [{"name": "above", "hostPath": {"path": str(path)}}]
    main = {"volumeMounts": [{"name": "above", "mountPath": "/above"}]}
    within = Path("/") if root == "the machine" else cluster.home
    directory = Path("/above") / cluster.root.relative_to(within)
    script = (
        f"cd {shlex.quote(str(directory.parents[1]))} && ls -A | wc -l; touch x 2>/dev/null || echo closed"
    )
    assert pods.output(pod(script, main=main, volumes=volumes)).split() == ["0", "closed"]


def test_the_clusters_own_processes_cannot_be_seen_or_signalled_from_a_pod(pods, cluster):
    runtime_init = resources.runtime_init(cluster.root)
    output = pods.output(
        pod(f"cat /proc/[0-9]*/cmdline; kill -9 -1; kill -9 {runtime_init.pid}; echo; echo alive")
    )
    assert "alive" in output.splitlines()
    assert "runtime/init.py" not in output
    assert runtime_init.is_running()
