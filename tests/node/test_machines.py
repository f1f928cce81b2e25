"""Nodes that lose their power or their network, and processes of a cluster killed with -9.

What Kubernetes sees, what runs on meanwhile, and what comes back. A cluster of these tests' own, because
others would notice. Some wait for the node controller, which calls a node NotReady after 16 seconds.
"""

import ssl
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from kubernetes import watch

from .clusters import (
    PATIENCE,
    Refused,
    command_line,
    container,
    eventually,
    is_ready,
    localkube,
    on_node,
    pod,
    python,
    running_cluster,
    state,
    state_home,
)

UNREACHABLE = "node.kubernetes.io/unreachable"
BACK = {"stop": "start", "isolate": "reconnect"}
LINES = 500
# Started by an order of its own, so that a test finds the process on the host by its words.
WAIT = (
    "until [ -e /gate/$0 ]; do sleep 0.05; done; for i in $(seq {lines}); do echo line $i; done; exit {code}"
)

# The gateway refuses a connection to itself; without one, nobody answers for its address.
ASK_GATEWAY = f"""
import socket, time
for _ in range({PATIENCE}):
    try:
        socket.create_connection(("10.244.255.254", 9), timeout=1)
    except ConnectionRefusedError:
        print("it answers")
        break
    except OSError:
        time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def cluster(request):
    with (
        state_home(request.config.cache.mkdir("machines")) as home,
        running_cluster("--nodes", "3", name="power", home=home) as running,
    ):
        running.kubectl("create", "configmap", "kept", "--from-literal=a=b")
        yield running


@pytest.fixture
def switch(cluster):
    """Switch nodes, by ``python -m localkube node``; all of them are back after the test."""
    lost_pods = {}

    def call(verb, node):
        lost_pods[node] = BACK.get(verb)
        return localkube("node", verb, cluster.name, node, home=cluster.home)["state"]

    yield call
    for node, verb in lost_pods.items():
        if verb:
            call(verb, node)


def tolerating(seconds):
    """Return the part of a PodSpec by which a pod is evicted from a silent node after so many seconds."""
    toleration = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    return {"tolerations": [toleration | {"tolerationSeconds": seconds}]}


def until_ready(cluster, node, ready):
    """Watch a node until it is Ready, or not."""
    only = f"metadata.name={node}"
    stream = watch.Watch().stream(cluster.core.list_node, field_selector=only, timeout_seconds=PATIENCE)
    for event in stream:
        if is_ready(event["raw_object"]) == ready:
            return
    raise AssertionError(f"Ready of {node} did not become {ready}")


def taints(cluster, node):
    return {taint.key for taint in cluster.core.read_node(node).spec.taints or []}


def running_with(cluster, word):
    """Return how many of the cluster's processes have ``word`` in their command, as the host sees them."""
    count = 0
    for process in cluster.processes():
        try:
            count += process.status() != psutil.STATUS_ZOMBIE and any(
                word in part for part in process.cmdline()
            )
        except psutil.NoSuchProcess:
            continue
    return count


def test_a_node_that_is_switched_off_is_silent_and_returns_with_the_pods_that_remain(cluster, pods, switch):
    stays = pods.running(pod("trap '' TERM; while :; do sleep 0.2; done # stays", restartPolicy="Always"))
    name, node = stays["metadata"]["name"], stays["spec"]["nodeName"]
    evicted = pods.create(pod("while :; do sleep 0.2; done # evicted", nodeName=node, **tolerating(1)))
    pods.until(evicted, is_ready)

    assert switch("stop", node) == "stopped"
    assert running_with(cluster, "# stays") == running_with(cluster, "# evicted") == 0
    assert cluster.core.read_namespaced_pod(name, "default").status.phase == "Running", "nobody was told"
    until_ready(cluster, node, False)
    eventually(lambda: UNREACHABLE in taints(cluster, node))
    pods.until(evicted, lambda item: item["metadata"].get("deletionTimestamp"))

    assert switch("start", node) == "running"
    until_ready(cluster, node, True)
    pods.gone(evicted)
    again = pods.until(name, lambda item: is_ready(item) and container(item)["restartCount"] == 1)
    assert again["metadata"]["uid"] == stays["metadata"]["uid"]
    assert container(again)["lastState"]["terminated"]["exitCode"] == 137
    assert running_with(cluster, "# evicted") == 0
    eventually(lambda: taints(cluster, node), expected=set())


def test_a_power_failure_empties_volumes_in_memory_and_keeps_disks(cluster, pods, switch):
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    script = "echo found: $(ls /memory) $(ls /disk); touch /memory/ram /disk/disk; echo up; exec sleep 600"
    manifest = pod(script, main={"volumeMounts": mounts}, volumes=volumes, restartPolicy="Always")
    before = pods.running(manifest)
    name, node = before["metadata"]["name"], before["spec"]["nodeName"]
    pods.wait_for_line(name, "up")
    switch("stop", node)
    switch("start", node)
    pods.until(name, lambda item: is_ready(item) and container(item)["restartCount"] == 1)
    pods.wait_for_line(name, "up")
    assert pods.logs(name).splitlines()[0] == "found: disk"
    for place in ("writable", "termination"):
        left = cluster.root / "pods" / before["metadata"]["uid"] / place
        eventually(lambda left=left: [path.name for path in left.iterdir()], expected=["main.1"])


def test_a_stopped_node_stays_off_when_the_kubelet_is_killed(cluster, switch):
    switch("stop", "node-2")
    kubelet = cluster.process("localkube.kubelet")
    kubelet.kill()
    kubelet.wait()
    eventually(lambda: running_with(cluster, "localkube.kubelet"))
    with pytest.raises(Refused, match="the node is stopped"):
        localkube("node", "isolate", cluster.name, "node-2", home=cluster.home)
    assert switch("start", "node-2") == "running"


def test_a_node_that_is_not_there_is_refused_with_those_that_are(cluster):
    with pytest.raises(Refused, match="node-0, node-1, node-2"):
        localkube("node", "stop", cluster.name, "node-9", home=cluster.home)


@pytest.mark.namespaces
def test_the_nodes_of_a_silent_kubelet_become_not_ready_until_it_speaks_again(cluster, pods):
    name = pods.running(pod("sleep 600", **tolerating(600)))["metadata"]["name"]
    kubelet = cluster.process("localkube.kubelet")
    kubelet.suspend()
    try:
        until_ready(cluster, "node-0", False)
        conditions = cluster.core.read_node("node-0").status.conditions
        reasons = [(item.status, item.reason) for item in conditions if item.type == "Ready"]
        assert reasons == [("Unknown", "NodeStatusUnknown")]
        pods.until(name, lambda item: not is_ready(item))
    finally:
        kubelet.resume()
    until_ready(cluster, "node-0", True)
    assert container(pods.until(name, is_ready))["restartCount"] == 0
    assert cluster.process("localkube.kubelet") == kubelet


def component(cluster, name):
    """Return a program of the control plane, which may be one of several in the same binary."""
    processes = [
        process
        for process in cluster.processes()
        if name in [Path(word).name for word in command_line(process)[:2]]
    ]
    assert len(processes) <= 1
    return processes[0] if processes else None


def killed(cluster, name):
    """Kill a component, and wait until another one runs in its place and the API is ready."""
    before = component(cluster, name)
    before.kill()
    eventually(lambda: (now := component(cluster, name)) is not None and now.pid != before.pid)
    eventually(lambda: ready(cluster))


def ready(cluster):
    try:
        return cluster.kubectl("get", "--raw", "/readyz", "--request-timeout=5s") == "ok"
    except AssertionError:
        return False


def gate(cluster):
    """Return a directory in which a test opens gates for its pods, and the volume that shows it to them."""
    place = cluster.home / "gate"
    place.mkdir(exist_ok=True)
    return place, {"name": "gate", "hostPath": {"path": str(place)}}


def waiting(cluster, name, *, code, lines=LINES):
    """Return a pod that waits at the gate of its name, writes lines, and ends with a code."""
    _, volume = gate(cluster)
    command = ["sh", "-c", WAIT.format(lines=lines, code=code), name]
    main = {"command": command, "volumeMounts": [{"name": "gate", "mountPath": "/gate"}]}
    return pod(main=main, volumes=[volume])


@pytest.mark.namespaces
def test_objects_outlive_a_killed_etcd(cluster, pods):
    killed(cluster, "etcd")
    assert cluster.core.read_namespaced_config_map("kept", "default").data == {"a": "b"}
    assert pods.output(pod("echo usable")) == "usable\n"


@pytest.mark.namespaces
def test_a_component_whose_restart_is_refused_is_tried_again_until_it_starts(cluster, pods):
    log, supervisor_log = (
        cluster.root / "logs" / "kube-scheduler.log",
        cluster.root / "logs" / "supervisor.log",
    )
    renamed = log.rename(log.with_suffix(".kept"))
    log.mkdir()  # which nobody can write to
    component(cluster, "kube-scheduler").kill()
    eventually(lambda: supervisor_log.read_text().count("kube-scheduler cannot be started") > 1)
    log.rmdir()
    renamed.rename(log)
    eventually(lambda: component(cluster, "kube-scheduler") is not None)
    assert pods.output(pod("echo placed")) == "placed\n"


@pytest.mark.namespaces
def test_controllers_work_again_after_a_killed_manager(cluster):
    killed(cluster, "kube-controller-manager")
    cluster.kubectl("create", "job", "after", "--image=busybox", "--", "true")
    cluster.kubectl("wait", "--for=condition=Complete", "job/after", f"--timeout={PATIENCE}s")


@pytest.mark.namespaces
def test_nobody_is_forbidden_what_they_may_do_while_the_api_server_starts_again(cluster):
    cluster.kubectl("create", "serviceaccount", "reader")
    cluster.kubectl("create", "role", "reader", "--verb=get", "--resource=configmaps")
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader")
    url = f"{cluster.status['server']}/api/v1/namespaces/default/configmaps/kept"
    headers = {"Authorization": f"Bearer {cluster.kubectl('create', 'token', 'reader').strip()}"}
    context = ssl.create_default_context(cafile=str(cluster.root / "pki" / "ca.crt"))
    request = urllib.request.Request(url, headers=headers)
    answers = []

    def poll(_):
        """Request it again and again until it is answered as before."""
        while time.monotonic() - start < PATIENCE and (not answers or answers[-1] != 200):
            try:
                with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                    answers.append(answer.status)
            except urllib.error.HTTPError as error:
                answers.append(error.code)
            except OSError:
                continue

    before = component(cluster, "kube-apiserver")
    before.kill()
    before.wait()
    start = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(poll, range(4)))
    assert set(answers) == {200}


@pytest.mark.namespaces
def test_a_new_kubelet_reattaches_to_what_runs_and_reports_what_has_ended_meanwhile(cluster, pods):
    place, _ = gate(cluster)
    ends, lasting = (
        pods.running(waiting(cluster, name, code=code)) for name, code in (("ends", 7), ("stays", 3))
    )
    addresses = {item["metadata"]["name"]: item["status"]["podIP"] for item in (ends, lasting)}
    processes = {name: cluster.process("sh", name) for name in ("ends", "stays")}
    supervisor = psutil.Process(cluster.status["processes"]["supervisor"]["pid"])

    supervisor.suspend()  # or it would start another kubelet at once
    try:
        kubelet = cluster.process("localkube.kubelet")
        kubelet.kill()
        eventually(lambda: kubelet.is_running() and kubelet.status() != psutil.STATUS_ZOMBIE, expected=False)
        (place / "ends").touch()
        assert psutil.wait_procs([processes["ends"]], timeout=PATIENCE)[1] == []
    finally:
        supervisor.resume()

    ended = pods.until(ends["metadata"]["name"], lambda pod: pod["status"]["phase"] == "Failed")
    assert state(ended)["terminated"]["exitCode"] == 7
    assert pods.logs(ended).splitlines() == [f"line {number}" for number in range(1, LINES + 1)]

    assert processes["stays"].is_running()
    (place / "stays").touch()
    ended = pods.until(lasting["metadata"]["name"], lambda pod: pod["status"]["phase"] == "Failed")
    assert state(ended)["terminated"]["exitCode"] == 3
    assert (container(ended)["restartCount"], ended["status"]["podIP"]) == (
        0,
        addresses[ended["metadata"]["name"]],
    )
    assert pods.logs(ended).splitlines() == [f"line {number}" for number in range(1, LINES + 1)]


@pytest.mark.namespaces
def test_a_new_kubelet_serves_names_logs_and_new_pods_on_every_node(cluster, pods):
    kubelet = cluster.process("localkube.kubelet")
    kubelet.kill()
    for index in range(2):
        script = "getent hosts kubernetes.default.svc.cluster.local | cut -d' ' -f1"
        assert (
            pods.output(pod(f"until {script} | grep 10.96; do sleep 0.1; done", **on_node(index)))
            == "10.96.0.1\n"
        )


@pytest.mark.namespaces
def test_a_new_kubelet_does_not_start_again_what_has_ended(cluster, pods):
    finished = pods.finish(pod("echo once"))
    cluster.process("localkube.kubelet").kill()
    assert pods.output(pod("echo again")) == "again\n"
    after = cluster.core.read_namespaced_pod(finished["metadata"]["name"], "default")
    assert after.status.phase == "Succeeded"
    assert after.status.container_statuses[0].restart_count == 0
    assert pods.logs(finished) == "once\n"


@pytest.mark.namespaces
def test_a_killed_gateway_comes_back_and_serves_pods(cluster, pods):
    gateways = [process for process in cluster.processes() if "--packet-fd" in command_line(process)]
    if not gateways:
        pytest.skip("there is no gateway here: pods have no egress, and none was tested")
    assert pods.output(pod(main=python(ASK_GATEWAY))) == "it answers\n"
    gateways[0].kill()
    gateways[0].wait()
    assert pods.output(pod(main=python(ASK_GATEWAY))) == "it answers\n"
