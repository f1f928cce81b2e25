"""What the real controllers make of pods: Deployments, StatefulSets, DaemonSets, CronJobs, budgets."""

import pytest

from .clusters import eventually, python
from .workloads import named, names, nodes, pods_of, rolled_out, until, workload

SERVE = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(os.environ['ANSWER']))
        self.end_headers()
    log_message = lambda *words: None
http.server.HTTPServer(('', 8000), Handler).serve_forever()
"""


def server(answer):
    probe = {"httpGet": {"port": 8000}, "periodSeconds": 1}
    return python(SERVE) | {"readinessProbe": probe, "env": [{"name": "ANSWER", "value": str(answer)}]}


def test_a_deployment_that_does_not_become_ready_keeps_the_old_pods_until_it_is_rolled_back(cluster, made):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    spec = {"replicas": 2, "strategy": strategy, "progressDeadlineSeconds": 4}
    name = made(workload("Deployment", named("web"), main=server(200), spec=spec))
    rolled_out(cluster, "deployment", name)
    before = names(pods_of(cluster, name))
    cluster.kubectl("set", "env", f"deployment/{name}", "ANSWER=500")
    with pytest.raises(AssertionError, match="exceeded its progress deadline"):
        rolled_out(cluster, "deployment", name)
    assert set(before) < set(names(pods_of(cluster, name)))
    until(cluster, f"deployment/{name}", ".status.availableReplicas", 2)
    cluster.kubectl("rollout", "undo", f"deployment/{name}")
    rolled_out(cluster, "deployment", name)
    eventually(lambda: names(pods_of(cluster, name)), wanted=before)
    assert "ANSWER" in cluster.kubectl("rollout", "history", f"deployment/{name}", "--revision=3")


def test_a_deployment_without_ready_pods_is_not_available(cluster, made):
    name = made(workload("Deployment", named("sick"), main=server(500), spec={"replicas": 1}))
    until(cluster, f"deployment/{name}", ".status.unavailableReplicas", 1)
    cluster.kubectl("wait", "--for=condition=Available=False", f"deployment/{name}", "--timeout=120s")
    cluster.kubectl("set", "env", f"deployment/{name}", "ANSWER=200")
    cluster.kubectl("wait", "--for=condition=Available", f"deployment/{name}", "--timeout=120s")


def test_a_stateful_set_starts_in_order_and_keeps_names_and_volumes(cluster, made):
    name = named("db")
    service = {"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": 80}]}
    made({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    main = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    script = "hostname >> /data/who; cat /data/who; trap 'exit 0' TERM; sleep infinity & wait"
    claims = [{"metadata": {"name": "data"}, "spec": claim}]
    keep = {"whenDeleted": "Delete"}
    spec = {"serviceName": name, "replicas": 2, "volumeClaimTemplates": claims}
    spec["persistentVolumeClaimRetentionPolicy"] = keep
    made(workload("StatefulSet", name, script, main=main, spec=spec))
    rolled_out(cluster, "statefulset", name)
    first, second = pods_of(cluster, name)
    assert names([first, second]) == [f"{name}-0", f"{name}-1"]
    ready = {c["type"]: c["lastTransitionTime"] for c in first["status"]["conditions"]}["Ready"]
    assert ready <= second["metadata"]["creationTimestamp"]
    cluster.kubectl("delete", "pod", f"{name}-1")
    eventually(
        lambda: (
            [p["metadata"]["uid"] for p in pods_of(cluster, name)][1:]
            not in ([], [second["metadata"]["uid"]])
        )
    )
    rolled_out(cluster, "statefulset", name)
    assert cluster.kubectl("logs", f"{name}-1").split() == [f"{name}-1"] * 2
    cluster.kubectl("exec", f"{name}-0", "--", "getent", "hosts", f"{name}-1.{name}")
    cluster.kubectl("scale", f"statefulset/{name}", "--replicas=1")
    eventually(lambda: names(pods_of(cluster, name)), wanted=[f"{name}-0"])


def test_a_daemon_set_has_a_pod_on_every_node_and_updates_them_one_by_one(cluster, made):
    name = made(workload("DaemonSet", named("kubelet")))
    rolled_out(cluster, "daemonset", name)
    before = pods_of(cluster, name)
    assert sorted(nodes(before)) == ["node-0", "node-1"]
    cluster.kubectl("set", "env", f"daemonset/{name}", "VERSION=2")
    rolled_out(cluster, "daemonset", name)
    assert sorted(nodes(pods_of(cluster, name))) == ["node-0", "node-1"]
    assert not set(names(before)) & set(names(pods_of(cluster, name)))


def test_a_cron_job_makes_jobs_that_run(cluster, made):
    name = named("nightly")
    template = workload("Deployment", name, "echo done", restartPolicy="Never")["spec"]["template"]
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}
    made({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": spec})
    cluster.kubectl("create", "job", f"{name}-now", f"--from=cronjob/{name}")
    cluster.kubectl("wait", "--for=condition=Complete", f"job/{name}-now", "--timeout=120s")
    assert cluster.kubectl("logs", f"job/{name}-now") == "done\n"


@pytest.mark.slow
def test_a_cron_job_runs_by_its_schedule(cluster, made):
    name = named("often")
    template = workload("Deployment", name, "echo done", restartPolicy="Never")["spec"]["template"]
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}
    made({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": spec})
    cluster.kubectl(
        "wait", "--for=jsonpath={.status.lastSuccessfulTime}", f"cronjob/{name}", "--timeout=120s"
    )


def test_a_budget_refuses_evictions_that_would_leave_too_few(cluster, made):
    name = made(workload("Deployment", named("quorum"), spec={"replicas": 2}))
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": name}}}
    made(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": budget}
    )
    rolled_out(cluster, "deployment", name)
    until(cluster, f"pdb/{name}", ".status.currentHealthy", 2)
    one = names(pods_of(cluster, name))[0]
    with pytest.raises(AssertionError, match="disruption budget"):
        evict(cluster, one)
    cluster.kubectl("patch", "pdb", name, "--type=merge", "-p", '{"spec": {"minAvailable": 1}}')
    until(cluster, f"pdb/{name}", ".status.disruptionsAllowed", 1)
    evict(cluster, one)
    eventually(lambda: one in names(pods_of(cluster, name)), wanted=False)
    until(cluster, f"pdb/{name}", ".status.currentHealthy", 2)


def evict(cluster, name):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    cluster.kubectl(
        "create", "--raw", f"/api/v1/namespaces/default/pods/{name}/eviction", "-f", "-", stdin=body
    )
