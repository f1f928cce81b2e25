"""Probes of containers, and what follows from them."""

import pytest

from .clusters import container, eventually, is_ready, pod, python, state

SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    broken = False
    def do_GET(self):
        if self.path in ('/break', '/repair'):
            Handler.broken = self.path == '/break'
        elif Handler.broken or 'fine' not in (self.path[1:], self.headers.get('X-Say')):
            return self.send_error(500)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        print(self.path, self.headers['User-Agent'], flush=True)
http.server.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
"""
# It serves for three seconds, and then says that it does not.
HEALTH = """
import concurrent.futures, time, grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
servicer = health.HealthServicer()
health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
servicer.set('trainer', health_pb2.HealthCheckResponse.SERVING)
server.add_insecure_port('0.0.0.0:5000')
server.start()
time.sleep(3)
servicer.set('trainer', health_pb2.HealthCheckResponse.NOT_SERVING)
time.sleep(600)
"""
QUICK = {"periodSeconds": 1, "failureThreshold": 1}
FOREVER = "trap 'exit 0' TERM; sleep infinity & wait"


def http(path="/fine", **more):
    return {"httpGet": {"path": path, "port": 8000} | more.pop("get", {})} | QUICK | more


def served(**probes):
    return python(SERVER) | probes


def events(cluster, name, reason):
    selector = f"involvedObject.name={name},reason={reason}"
    return cluster.kubectl(
        "get", "events", f"--field-selector={selector}", "-o", "jsonpath={.items[*].message}"
    )


def test_a_pod_is_ready_once_its_http_probe_is_answered(pods):
    ports = {"ports": [{"name": "web", "containerPort": 8000}]}
    get = {"port": "web", "httpHeaders": [{"name": "X-Say", "value": "fine"}]}
    name = pods.create(pod(main=served(readinessProbe=http("/", get=get)) | ports))
    started = pods.until(name, lambda pod: "running" in state(pod))
    assert container(started)["started"]
    ready = pods.until(name, is_ready)
    assert container(ready)["ready"]
    assert "/ kube-probe/1.37" in pods.logs(name)


def test_a_pod_whose_probe_fails_is_not_ready_and_an_event_says_why(pods, cluster):
    name = pods.create(pod(main=served(readinessProbe=http("/no"))))
    running = pods.until(name, lambda pod: "running" in state(pod))
    pods.wait_for_event(name, "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500")
    conditions = {c["type"]: c for c in pods.until(name, lambda pod: True)["status"]["conditions"]}
    assert conditions["Ready"]["status"] == conditions["ContainersReady"]["status"] == "False"
    assert "containers with unready status: [main]" in conditions["Ready"]["message"]
    assert container(running)["restartCount"] == 0


def test_a_service_leads_only_to_pods_that_are_ready(pods, cluster):
    name = pods.running(pod(main=served(readinessProbe=http()), labels={"app": "probed"}))["metadata"]["name"]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probed"}}
    cluster.kubectl(
        "apply",
        "-f",
        "-",
        stdin=service | {"spec": {"selector": {"app": "probed"}, "ports": [{"port": 8000}]}},
    )
    slices = ("get", "endpointslices", "-l", "kubernetes.io/service-name=probed", "-o")
    ready = "jsonpath={.items[*].endpoints[*].conditions.ready}"
    eventually(lambda: cluster.kubectl(*slices, ready), expected="true")
    cluster.kubectl("get", "--raw", f"/api/v1/namespaces/default/pods/{name}:8000/proxy/break")
    assert not is_ready(pods.until(name, lambda pod: not is_ready(pod)))
    eventually(lambda: cluster.kubectl(*slices, ready), expected="false")
    cluster.kubectl("get", "--raw", f"/api/v1/namespaces/default/pods/{name}:8000/proxy/repair")
    assert container(pods.until(name, is_ready))["restartCount"] == 0
    eventually(lambda: cluster.kubectl(*slices, ready), expected="true")
    cluster.kubectl("delete", "service", "probed")


@pytest.mark.parametrize(
    "probe",
    [
        {"tcpSocket": {"port": 9}},
        {"httpGet": {"port": 9}},
        {"grpc": {"port": 9}},
        {"exec": {"command": ["sh", "-c", "echo no good; exit 7"]}},
    ],
    ids=lambda probe: next(iter(probe)),
)
def test_a_container_that_fails_its_liveness_probe_is_killed_and_runs_again(pods, cluster, probe):
    always = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}
    name = pods.create(pod(FOREVER, main={"livenessProbe": probe | QUICK}, **always))
    again = pods.until(name, lambda pod: container(pod)["restartCount"] == 1 and "running" in state(pod))
    assert container(again)["lastState"]["terminated"]["exitCode"] == 0
    pods.wait_for_event(name, "Killing", "Container main failed liveness probe, will be restarted")
    words = {
        "grpc": "Liveness probe failed: timeout: failed to connect service",
        "exec": "Liveness probe failed: no good",
    }
    pods.wait_for_event(name, "Unhealthy", words.get(next(iter(probe)), "connect: connection refused"))


def test_a_probe_may_give_less_time_to_end_than_the_pod(pods):
    probe = {"tcpSocket": {"port": 9}, "terminationGracePeriodSeconds": 1} | QUICK
    deaf = "trap '' TERM; sleep infinity & wait"
    name = pods.create(pod(deaf, main={"livenessProbe": probe}, restartPolicy="Always"))
    again = pods.until(name, lambda pod: container(pod)["restartCount"] == 1)
    assert container(again)["lastState"]["terminated"]["exitCode"] == 137


def test_a_command_that_takes_too_long_is_ended_and_has_failed(pods, cluster):
    probe = {"exec": {"command": ["sleep", "65432"]}, "timeoutSeconds": 1} | QUICK
    name = pods.create(pod(FOREVER, main={"readinessProbe": probe}))
    words = 'Readiness probe failed: command timed out: "sleep 65432" timed out after 1s'
    pods.wait_for_event(name, "Unhealthy", words)
    assert not is_ready(pods.until(name, lambda pod: True))
    cluster.kubectl("delete", "pod", name)
    assert not [process for process in cluster.processes() if process.cmdline()[-1:] == ["65432"]]


def test_a_grpc_server_is_asked_for_its_health(pods):
    probe = {"grpc": {"port": 5000, "service": "trainer"}} | QUICK
    name = pods.running(pod(main=python(HEALTH) | {"readinessProbe": probe}))["metadata"]["name"]
    pods.wait_for_event(name, "Unhealthy", 'service unhealthy (responded with "NOT_SERVING")')
