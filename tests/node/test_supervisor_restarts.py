"""Processes of a cluster killed with -9: each comes back, what ran runs on, and what was stored is there.

A cluster of these tests' own, because others would notice. A second one loses its kubelet at the beginning
and is looked at in the end, when its nodes have been silent for long enough.
"""

import os
import ssl
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from .clusters import (
    PATIENCE,
    Pods,
    command_line,
    container,
    eventually,
    on_node,
    pod,
    python,
    running_cluster,
    state,
    state_home,
)

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
def homes(request):
    with state_home(request.config.cache.mkdir("supervisor")) as home:
        yield home


@pytest.fixture(scope="module", autouse=True)
def silent(homes):
    """A cluster with a pod, whose kubelet no longer says anything."""
    with running_cluster("--nodes", "1", name="silent", home=homes) as running:
        # It stays, however long the other tests take: others are evicted after five minutes.
        stays = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
        Pods(running).running(pod("sleep 600", name="steady", tolerations=stays))
        kubelet = running.process("localkube.kubelet")
        kubelet.suspend()
        yield running
        if kubelet.is_running():
            kubelet.resume()


@pytest.fixture(scope="module")
def victim(homes, silent):
    """A cluster whose processes are killed."""
    with running_cluster("--nodes", "2", name="victim", home=homes) as running:
        running.kubectl("create", "configmap", "kept", "--from-literal=a=b")
        yield running


@pytest.fixture
def pods(victim):
    with Pods(victim) as victim_pods:
        yield victim_pods


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


def test_objects_outlive_a_killed_etcd(victim, pods):
    killed(victim, "etcd")
    assert victim.core.read_namespaced_config_map("kept", "default").data == {"a": "b"}
    assert pods.output(pod("echo usable")) == "usable\n"


def test_pods_are_placed_again_after_a_killed_scheduler(victim, pods):
    killed(victim, "kube-scheduler")
    assert pods.output(pod("echo placed")) == "placed\n"


def test_a_component_whose_restart_is_refused_is_tried_again_until_it_starts(victim, pods):
    log, supervisor_log = victim.root / "logs" / "kube-scheduler.log", victim.root / "logs" / "supervisor.log"
    renamed = log.rename(log.with_suffix(".kept"))
    log.mkdir()  # which nobody can write to
    component(victim, "kube-scheduler").kill()
    eventually(lambda: supervisor_log.read_text().count("kube-scheduler cannot be started") > 1)
    log.rmdir()
    renamed.rename(log)
    eventually(lambda: component(victim, "kube-scheduler") is not None)
    assert pods.output(pod("echo placed")) == "placed\n"


def test_controllers_work_again_after_a_killed_manager(victim):
    killed(victim, "kube-controller-manager")
    victim.kubectl("create", "job", "after", "--image=busybox", "--", "true")
    victim.kubectl("wait", "--for=condition=Complete", "job/after", f"--timeout={PATIENCE}s")


def test_nobody_is_forbidden_what_they_may_do_while_the_api_server_starts_again(victim):
    victim.kubectl("create", "serviceaccount", "reader")
    victim.kubectl("create", "role", "reader", "--verb=get", "--resource=configmaps")
    victim.kubectl("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader")
    url = f"{victim.status['server']}/api/v1/namespaces/default/configmaps/kept"
    headers = {"Authorization": f"Bearer {victim.kubectl('create', 'token', 'reader').strip()}"}
    context = ssl.create_default_context(cafile=str(victim.root / "pki" / "ca.crt"))
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

    before = component(victim, "kube-apiserver")
    before.kill()
    before.wait()
    start = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(poll, range(4)))
    assert set(answers) == {200}


def test_a_new_kubelet_reattaches_to_what_runs_and_reports_what_has_ended_meanwhile(victim, pods):
    place, _ = gate(victim)
    ends, lasting = (
        pods.running(waiting(victim, name, code=code)) for name, code in (("ends", 7), ("stays", 3))
    )
    addresses = {item["metadata"]["name"]: item["status"]["podIP"] for item in (ends, lasting)}
    processes = {name: victim.process("sh", name) for name in ("ends", "stays")}
    supervisor = psutil.Process(victim.status["processes"]["supervisor"]["pid"])

    supervisor.suspend()  # or it would start another kubelet at once
    try:
        kubelet = victim.process("localkube.kubelet")
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


def test_a_new_kubelet_serves_names_logs_and_new_pods_on_every_node(victim, pods):
    kubelet = victim.process("localkube.kubelet")
    kubelet.kill()
    for index in range(2):
        script = "getent hosts kubernetes.default.svc.cluster.local | cut -d' ' -f1"
        assert (
            pods.output(pod(f"until {script} | grep 10.96; do sleep 0.1; done", **on_node(index)))
            == "10.96.0.1\n"
        )


def test_a_new_kubelet_does_not_start_again_what_has_ended(victim, pods):
    finished = pods.finish(pod("echo once"))
    victim.process("localkube.kubelet").kill()
    assert pods.output(pod("echo again")) == "again\n"
    after = victim.core.read_namespaced_pod(finished["metadata"]["name"], "default")
    assert after.status.phase == "Succeeded"
    assert after.status.container_statuses[0].restart_count == 0
    assert pods.logs(finished) == "once\n"


def test_a_killed_gateway_comes_back_and_serves_pods(victim, pods):
    gateways = [process for process in victim.processes() if "--packet-fd" in command_line(process)]
    if not gateways:
        pytest.skip("there is no gateway here: pods have no way out, and none was tested")
    assert pods.output(pod(main=python(ASK_GATEWAY))) == "it answers\n"
    gateways[0].kill()
    gateways[0].wait()
    assert pods.output(pod(main=python(ASK_GATEWAY))) == "it answers\n"


def test_the_supervisor_is_in_a_session_of_its_own(victim):
    pid = victim.status["processes"]["supervisor"]["pid"]
    assert os.getsid(pid) == pid != os.getsid(0)


def test_the_nodes_of_a_silent_kubelet_become_not_ready_until_it_speaks_again(silent):
    silent.kubectl("wait", "--for=condition=Ready=Unknown", "node/node-0", f"--timeout={2 * PATIENCE}s")
    node = silent.core.read_node("node-0")
    condition = next(item for item in node.status.conditions if item.type == "Ready")
    assert condition.reason == "NodeStatusUnknown"
    silent.kubectl("wait", "--for=condition=Ready=False", "pod/steady", f"--timeout={PATIENCE}s")
    silent.process("localkube.kubelet").resume()
    silent.kubectl("wait", "--for=condition=Ready", "node/node-0", "pod/steady", f"--timeout={PATIENCE}s")
    steady = silent.core.read_namespaced_pod("steady", "default")
    assert steady.status.container_statuses[0].restart_count == 0
