"""Hooks, sidecars, readiness gates: how the containers of a pod begin and end beside each other."""

import secrets
import time
from datetime import datetime

import pytest

from .clusters import command_line, container, eventually, is_ready, on_node, pod, python, state
from .workloads import job

FOREVER = "trap 'exit 0' TERM; sleep infinity & wait"
ALWAYS = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}
LISTENER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, self.headers['User-Agent'], flush=True)
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(('', 8000), Handler).serve_forever()
"""


@pytest.fixture
def place(cluster):
    """A directory of the host that the pods of a test share with it."""
    folder = cluster.home / f"place-{secrets.token_hex(3)}"
    folder.mkdir()
    return folder


def at(place):
    return {"volumes": [{"name": "place", "hostPath": {"path": str(place)}}]}


def shell(name, script, **more):
    mounts = [{"name": "place", "mountPath": "/place"}]
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mounts} | more


def sidecar(name, script=None, **more):
    script = script or f"trap 'echo {name} >> /place/ends; exit 0' TERM; sleep infinity & wait"
    return shell(name, f"echo {name} >> /place/begins; {script}", restartPolicy="Always", **more)


def lines(path):
    return path.read_text().split() if path.exists() else []


def seconds(text):
    return datetime.fromisoformat(text).timestamp()


def test_a_container_waits_for_the_hook_of_the_one_before_it(pods):
    slow = {"name": "slow", "image": "busybox", "command": ["sh", "-c", FOREVER]}
    slow["lifecycle"] = {"postStart": {"sleep": {"seconds": 2}}}
    after = {"name": "after", "image": "busybox", "command": ["sh", "-c", FOREVER]}
    created = pods.running(pod(containers=[slow, after], terminationGracePeriodSeconds=30))
    began = [seconds(state(created, name)["running"]["startedAt"]) for name in ("slow", "after")]
    assert began[1] - began[0] >= 1  # times are in whole seconds


def test_a_container_whose_post_start_hook_fails_is_killed_and_runs_again(pods):
    hook = {"lifecycle": {"postStart": {"httpGet": {"port": 9}}}}
    # The signal may come before the shell's trap: it is killed after the grace period.
    name = pods.create(pod(FOREVER, main=hook, **ALWAYS | {"terminationGracePeriodSeconds": 1}))
    again = pods.until(name, lambda pod: container(pod)["restartCount"] == 1)
    assert not container(again)["ready"]
    pods.wait_for_event(name, "FailedPostStartHook", "PostStartHook failed")
    pods.wait_for_event(name, "Killing", "FailedPostStartHook")


def test_the_pre_stop_hook_comes_before_the_signal_and_within_the_grace_period(pods, cluster, place):
    hook = {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}
    tidy = shell("main", "trap 'echo asked >> /place/ends; exit 0' TERM; sleep infinity & wait", **hook)
    name = pods.running(pod(containers=[tidy], **at(place), terminationGracePeriodSeconds=600))["metadata"][
        "name"
    ]
    start = time.monotonic()
    cluster.kubectl("delete", "pod", name)
    assert time.monotonic() - start >= 2
    assert lines(place / "ends") == ["asked"]


def test_a_pre_stop_hook_by_http_is_heard(pods, cluster, place):
    hook = {"lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": 8000}}}}
    ready = {"readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}
    main = shell("main", 'exec python -c "$0" > /place/heard', **hook, **ready)
    main["command"].append(LISTENER)
    name = pods.running(pod(containers=[main], **at(place)))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name)
    assert lines(place / "heard") == ["/bye", "kube-lifecycle/1.37"]


def test_hooks_by_command_run_in_the_container(pods, cluster, place):
    say = {"exec": {"command": ["sh", "-c", "echo $WORD $PPID >> /place/begins"]}}
    env = [{"name": "WORD", "value": "hook"}]
    main = shell("main", FOREVER, env=env, lifecycle={"postStart": say, "preStop": say})
    name = pods.running(pod(containers=[main], **at(place)))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name)
    assert lines(place / "begins")[::2] == ["hook", "hook"]


def test_a_pre_stop_hook_that_fails_is_told_and_does_not_hold_up_the_end(pods, cluster):
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo secret; exit 1"]}}}}
    name = pods.running(pod(FOREVER, main=hook, terminationGracePeriodSeconds=30))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name)
    assert "secret" not in pods.wait_for_event(name, "FailedPreStopHook", "PreStopHook failed")["message"]


def test_a_pre_stop_hook_that_takes_too_long_is_cut_off(pods, cluster):
    hook = {"lifecycle": {"preStop": {"httpGet": {"port": 8000, "path": "/", "host": "10.244.250.250"}}}}
    name = pods.running(pod(FOREVER, main=hook, terminationGracePeriodSeconds=1))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "--timeout=120s")


def test_sidecars_begin_in_order_before_the_others_and_end_after_them_in_reverse(pods, cluster, place):
    inits = [sidecar("first"), sidecar("second")]
    main = shell(
        "main",
        "echo main >> /place/begins; trap 'sleep 0.5; echo main >> /place/ends; exit 0' TERM;"
        + "sleep infinity & wait",
    )
    name = pods.running(pod(containers=[main], initContainers=inits, **at(place), **ALWAYS))["metadata"][
        "name"
    ]
    # A container without a probe is ready before its program has written anything.
    eventually(lambda: lines(place / "begins"), expected=["first", "second", "main"])
    cluster.kubectl("delete", "pod", name)
    assert lines(place / "ends") == ["main", "second", "first"]


def test_containers_after_a_sidecar_wait_for_its_startup_probe(pods, cluster, place):
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60}
    serve = "until [ -e /place/go ]; do sleep 0.05; done; exec python -m http.server 8000"
    inits = [sidecar("server", serve, startupProbe=probe)]
    main = shell("main", "echo main >> /place/begins")
    name = pods.create(pod(containers=[main], initContainers=inits, **at(place)))
    waits = pods.until(name, lambda pod: "running" in state(pod, "server"))
    assert not container(waits, "server")["started"]
    assert waits["status"]["phase"] == "Pending"
    pods.wait_for_event(name, "Unhealthy", "Startup probe failed")
    assert lines(place / "begins") == ["server"]
    (place / "go").touch()
    done = pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    assert "terminated" in state(done, "server")


def test_a_sidecar_does_not_keep_a_job_from_completing_and_runs_again_when_it_ends(cluster, place):
    name = f"job-{secrets.token_hex(3)}"
    flaky = sidecar("flaky", "[ $(wc -l < /place/begins) -gt 1 ] || exit 1; " + FOREVER)
    main = shell("main", "until [ $(wc -l < /place/begins) -gt 1 ]; do sleep 0.05; done")
    body = job(name, pod(containers=[main], initContainers=[flaky], **at(place)))
    cluster.kubectl("create", "-f", "-", stdin=body)
    cluster.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=120s")
    assert lines(place / "begins") == ["flaky", "flaky"]
    cluster.kubectl("delete", "job", name)


def test_containers_see_each_others_processes_where_their_pod_asks_for_it(pods, cluster, place):
    hold = shell("hold", "sleep 43210 & exec sleep 43211")
    look = "until pkill -9 -xf 'sleep 43211'; do sleep 0.05; done; sleep 54321 &"
    ended = pods.finish(pod(containers=[hold, shell("look", look)], shareProcessNamespace=True, **at(place)))
    assert state(ended, "hold")["terminated"]["exitCode"] == 137
    assert state(ended, "look")["terminated"]["exitCode"] == 0
    for word in ("43210", "54321", "infinity"):
        eventually(lambda word=word: cluster.processes_with(word), expected=[])


@pytest.mark.namespaces
def test_containers_do_not_see_each_others_processes_otherwise(pods, place):
    hold = shell("hold", "touch /place/up; exec sleep 32109")
    look = "until [ -e /place/up ]; do sleep 0.05; done; ps ax"
    name = pods.create(pod(containers=[hold, shell("look", look)], **at(place)))
    pods.until(name, lambda pod: "terminated" in state(pod, "look"))
    assert "32109" not in pods.logs(name, "look")


def test_an_event_names_unsupported_fields_of_a_pod(pods):
    secured = {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}
    name = pods.running(pod(FOREVER, main=secured, hostUsers=True))["metadata"]["name"]
    event = pods.wait_for_event(name, "UnsupportedFields", "hostUsers is not supported")
    assert event["type"] == "Warning"
    for field in ("hostUsers", "securityContext.seccompProfile of container main"):
        assert field in event["message"]


def test_pods_that_come_while_no_kubelet_runs_get_addresses_of_their_own(cluster, pods):
    old = pods.running(pod("exec sleep 600", name="z-old", **on_node(0)))["status"]["podIP"]
    kubelet = cluster.process("localkube.kubelet")
    kubelet.suspend()  # so that the API has the new ones, which it lists first, before the next kubelet asks
    names = [pods.create(pod("exec sleep 600", name=f"a-new-{index}", **on_node(0))) for index in range(3)]
    kubelet.kill()
    addresses = [pods.until(name, is_ready)["status"]["podIP"] for name in names]
    assert len({old, *addresses}) == 4


def test_probe_results_survive_the_kubelet(cluster, pods):
    ready = {"httpGet": {"port": 8000}, "periodSeconds": 600}
    startup = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 30}
    live = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 1}
    main = python(LISTENER) | {"readinessProbe": ready, "startupProbe": startup, "livenessProbe": live}
    name = pods.running(pod(main=main, **ALWAYS))["metadata"]["name"]
    before = pods.until(name, is_ready)
    kubelet = cluster.process("localkube.kubelet")
    kubelet.kill()
    eventually(lambda: kubelet_of(cluster) not in (None, kubelet.pid))
    process = [p for p in cluster.processes() if LISTENER in command_line(p)][0]
    process.kill()
    after = pods.until(name, lambda pod: container(pod)["restartCount"] == 1 and is_ready(pod))
    assert container(before)["ready"] and container(after)["started"]


def kubelet_of(cluster):
    pids = [p.pid for p in cluster.processes() if "localkube.kubelet" in " ".join(command_line(p))]
    return pids[0] if len(pids) == 1 else None
