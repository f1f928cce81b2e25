"""Plain mode on the real control plane: what a pod of a site has, without namespaces.

The cluster is started by the setting, on a machine that may well allow namespaces; where they are refused
(``test_plain_refused``) the kit chooses by itself. Most tests of pods hold for it too: run them with
TRAINYARD_MODE=plain.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
from soak.footprint import Footprint

from localkube.runtime.client import RuntimeCallError, RuntimeClient

from ..rows import slow
from . import restrictions
from .clusters import Refused, eventually, is_ready, localkube, pod, python, running_cluster, state_home


@pytest.fixture(scope="module")
def cluster(request):
    with (
        # Below /tmp, which a pod sees as a directory of its own.
        state_home(Path("/tmp")) as home,
        running_cluster("--nodes", "2", "--mode", "plain", home=home) as running,
    ):
        yield running


def test_pods_share_the_machines_namespaces(cluster, pods):
    assert cluster.status["mode"] == "plain"
    own_namespaces = "".join(
        f"{Path(f'/proc/self/ns/{name}').readlink()}\n" for name in ("net", "mnt", "pid")
    )
    assert (
        pods.output(pod("for name in net mnt pid; do readlink /proc/self/ns/$name; done")) == own_namespaces
    )


def test_links_and_isolation_are_refused_with_the_reason(cluster):
    with pytest.raises(Refused, match="a node cannot be isolated in plain mode"):
        localkube("node", "isolate", cluster.name, "node-1", home=cluster.home)
    with pytest.raises(Refused, match="share the network of this machine"):
        localkube("link", cluster.name, "node-0", "--bandwidth", "10Mbit", home=cluster.home)


def test_nothing_listens_but_on_the_loopback(cluster, pods):
    pods.running(pod(main=python("import http.server as h; h.test(port=8000)")))
    listening = set()
    for process in cluster.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            connections = process.net_connections("inet")
            listening |= {port.laddr.ip for port in connections if port.status == psutil.CONN_LISTEN}
    assert listening and all(address.startswith("127.") for address in listening)


def test_two_pods_listen_on_the_same_port_and_a_service_finds_both(cluster, pods):
    source = """if True:
        import http.server, socket
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers(); self.wfile.write(socket.gethostname().encode())
        http.server.HTTPServer(("", 80), Handler).serve_forever()
    """
    for name in ("left", "right"):
        pods.create(pod(main=python(source), hostname=name, labels={"app": "pair"}))
    service = {"metadata": {"name": "pair"}, "spec": {"selector": {"app": "pair"}, "ports": [{"port": 80}]}}
    cluster.core.create_namespaced_service("default", service)
    try:
        ask = """if True:
            import time, urllib.request
            seen, deadline = set(), time.monotonic() + 30
            while len(seen) < 2 and time.monotonic() < deadline:
                try:
                    seen.add(urllib.request.urlopen("http://pair", timeout=5).read().decode())
                except OSError:
                    time.sleep(0.2)
            print(sorted(seen))
        """
        assert pods.output(pod(main=python(ask))) == "['left', 'right']\n"
    finally:
        cluster.core.delete_namespaced_service("pair", "default")


def test_background_processes_end_with_their_container(cluster, pods):
    mark = "sleep 98765"
    script = f"({mark} &) ; setsid {mark} & exec sleep 600"
    name = pods.create(pod(script))
    eventually(lambda: len(_running(mark)), expected=2)
    cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    eventually(lambda: _running(mark), expected=[])


def test_a_process_that_lost_its_parent_lives_on_in_its_container(pods):
    script = "(sh -c 'sleep 1; echo adopted' &) ; sleep 3; echo done"
    assert pods.output(pod(script)) == "adopted\ndone\n"


def test_a_command_joins_the_pod_and_ends_with_its_container(cluster, pods):
    name = pods.create(pod("echo here > /tmp/mine; sleep 600", hostname="joined"))
    pods.until(name, is_ready)
    assert cluster.kubectl("exec", name, "--", "sh", "-c", "hostname; cat /tmp/mine") == "joined\nhere\n"


def test_an_event_names_unsupported_fields(cluster, pods):
    name = pods.create(
        pod(
            "sleep 600",
            main={"securityContext": {"readOnlyRootFilesystem": True}},
            volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        )
    )
    pods.wait_for_event(name, "UnsupportedFields", "a volume in memory is a directory on disk")
    pods.wait_for_event(
        name, "UnsupportedFields", "readOnlyRootFilesystem of container main is not supported"
    )


def test_an_event_says_what_a_static_program_lacks(cluster, pods):
    kubectl = cluster.status["kubectl"]
    main = {"command": [*kubectl, "create", "-f", "/settings/map.yaml", "--dry-run=client", "-o=name"]}
    cluster.core.create_namespaced_config_map(
        "default",
        {
            "metadata": {"name": "settings"},
            "data": {"map.yaml": '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "found"}}'},
        },
    )
    try:
        main["volumeMounts"] = [{"name": "settings", "mountPath": "/settings"}]
        volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
        ended = pods.finish(pod(main=main, volumes=volumes))
        assert pods.logs(ended) == "configmap/found\n"
        pods.wait_for_event(ended["metadata"]["name"], "UnsupportedFields", "is linked statically")
    finally:
        cluster.core.delete_namespaced_config_map("settings", "default")


@pytest.mark.parametrize("victim", ["supervisor", *slow("runtime")])
def test_a_machine_without_namespaces_gets_a_plain_cluster(request, victim):
    mark, enter = f"sleep 4{os.getpid()}", restrictions.without_namespaces()
    with state_home(request.config.cache.mkdir("plain-lab")) as home:
        with running_cluster("--nodes", "1", name="killed", home=home, enter=enter) as cluster:
            assert cluster.status["mode"] == "plain"
            script = f"(setsid {mark} &) ; {mark} & wait"
            cluster.core.create_namespaced_pod("default", pod(script, name="victim"))
            eventually(lambda: len(_running(mark)), expected=2)
            traces = Footprint.of(cluster.root)
            os.kill(cluster.status["processes"][victim]["pid"], signal.SIGKILL)
            eventually(lambda: _running(mark), expected=[])
        eventually(traces.leftovers, expected=[])


def _running(mark: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if " ".join(process.info["cmdline"] or []) == mark
    ]


def test_a_policy_that_nobody_enforces_says_so(cluster, pods):
    body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"}}
    cluster.kubectl("create", "-f", "-", stdin=body | {"spec": {"podSelector": {}}})
    try:
        event = pods.wait_for_event("closed", "NetworkPolicyNotEnforced", "not enforced: in plain mode")
        assert event["type"] == "Warning"
        assert pods.output(pod("echo runs")) == "runs\n"
        with pytest.raises(RuntimeCallError, match="no network to make rules for"):
            asyncio.run(rules_of_the_machine(cluster))
    finally:
        cluster.kubectl("delete", "networkpolicy", "closed")


async def rules_of_the_machine(cluster):
    client = await RuntimeClient.connect(cluster.root / "runtime.sock", on_exit=lambda entry: None)
    try:
        await client.call("socket", node="10.244.254.1", netfilter=True)
    finally:
        client.close()
