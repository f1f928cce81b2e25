"""The controller of ElasticJobs as functions: what it makes of a job, and what it makes of the job's pods."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from elastic_job import controller

import kitlib as kit
from kitlib import config

from . import objects


@pytest.fixture
def job(tmp_path):
    """An ElasticJob as it is in a cluster."""
    trainer = tmp_path / "mine.py"
    trainer.write_text("print('hello')\n")
    item = kit.ElasticJob(trainer, name="digits", nodes=2, processes_per_node=3, args={"epochs": 1}).objects[
        -1
    ]
    item["metadata"] |= {"namespace": "default", "uid": "01234567-89ab"}
    return item


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(phase, code=None, *, leaving=False, disrupted=False):
    state = {} if code is None else objects.terminated(code)
    conditions = [objects.condition("DisruptionTarget")] if disrupted else []
    return objects.pod("digits-worker-0", phase=phase, state=state, conditions=conditions, leaving=leaving)


def conditions(status):
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def test_the_rendezvous_comes_before_the_containers_own_arguments(job):
    (container,) = controller.worker_pod(job, 1)["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    assert container["args"] == [
        "--rdzv_backend=etcd",
        "--rdzv_endpoint=digits-etcd:2379",
        "--rdzv_id=digits-01234567",  # another one for each job, so that no state of an older one is met
        "--nnodes=2:2",
        "--nproc_per_node=3",
        "/trainyard/trainer/mine.py",
        "--epochs=1",
    ]


def test_a_job_that_names_no_etcd_has_its_own_beside_its_workers(job, monkeypatch):
    """Whoever reaches an etcd of rendezvous may change what is in it: no two namespaces share one."""
    folder = config.manifests("operators", "elastic-job")
    monkeypatch.setattr(controller, "ETCD", folder / "etcd.yaml")
    controller.worker_of(job)["template"]["spec"]["priorityClassName"] = "low"
    by_kind = {item["kind"]: item for item in controller.etcd(job)}
    assert by_kind["Pod"]["spec"]["priorityClassName"] == "low"  # not preempted before its workers
    assert (meta := by_kind["Pod"]["metadata"]) == by_kind["Service"]["metadata"]
    assert (meta["name"], meta["namespace"]) == ("digits-etcd", job["metadata"]["namespace"])
    assert meta["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert by_kind["Service"]["spec"]["selector"] == meta["labels"]
    assert "--advertise-client-urls=http://digits-etcd:2379" in str(by_kind["Pod"]["spec"])
    other_objects = [
        item for path in folder.glob("*.yaml") if path.name != "etcd.yaml" for item in read_all(path)
    ]
    shared = [item for item in other_objects if "quay.io/coreos/etcd" in str(item)]
    assert [item["metadata"] for item in shared] == [{"name": "etcd", "namespace": "default"}]
    (policy,) = [item for item in other_objects if item["kind"] == "NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == shared[0]["spec"]["selector"]["matchLabels"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {}}]}]  # of its own namespace


def read_all(path):
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


@pytest.mark.parametrize("labels", [{}, {controller.RENDEZVOUS: "another"}])
def test_a_job_that_names_an_etcd_meets_there(job, labels, monkeypatch):
    job["spec"]["rdzvEndpoint"] = "etcd-service:2379"
    monkeypatch.setattr(controller, "request", lambda *_, **__: {"metadata": {"labels": labels}})
    assert "--rdzv_endpoint=etcd-service:2379" in controller.rendezvous(job)
    assert controller.etcd_ready(job, NOW)
    job["spec"]["rdzvEndpoint"] = "etcd-service.elastic-job:2379"
    assert not controller.has_own_etcd(job)


def test_an_etcd_that_a_job_names_and_nobody_has_made_is_made(job, monkeypatch):
    """As the workshop's page has it: its set-up starts etcd-service, and the job names it."""
    monkeypatch.setattr(controller, "ETCD", config.manifests("operators", "elastic-job") / "etcd.yaml")
    sent = []
    monkeypatch.setattr(
        controller, "request", lambda verb, path, body=None: sent.append(body) if body else None
    )
    job["spec"]["rdzvEndpoint"] = "etcd-service:2379"
    assert not controller.etcd_ready(job, NOW)
    assert [(item["kind"], item["metadata"]["name"]) for item in sent] == [
        ("Service", "etcd-service"),
        ("Pod", "etcd-service"),
    ]


@pytest.mark.parametrize(
    ("pods", "phase"),
    [
        ([], "Created"),
        ([pod("Pending"), pod("Running")], "Running"),
        ([pod("Succeeded", 0), pod("Running")], "Running"),
        ([pod("Succeeded", 0), pod("Succeeded", 0)], "Succeeded"),
        ([pod("Succeeded", 0), pod("Pending")], "Succeeded"),  # nobody is left whom it could join
        ([pod("Succeeded", 0, leaving=True), pod("Running")], "Running"),  # told to leave, as it did
        ([pod("Succeeded", 0, disrupted=True), pod("Pending")], "Created"),
        ([pod("Running"), pod("Failed", 1)], "Failed"),
        ([pod("Running"), pod("Failed", 1, leaving=True)], "Running"),
        ([pod("Running"), pod("Failed", 137)], "Running"),  # a signal: another one takes its place
        ([pod("Running"), pod("Failed")], "Running"),  # evicted before it began
    ],
)
def test_a_job_is_judged_by_its_pods(job, pods, phase):
    assert controller.compute_phase(job, pods, now=NOW)[0] == phase


def test_killed_workers_count_towards_the_limit_and_preempted_do_not(job):
    job["spec"]["backoffLimit"] = 0
    status = controller.status_of(job, [pod("Failed", 137, disrupted=True), pod("Running")], now=NOW)
    assert (status["replaced"], conditions(status)) == (0, {"Running": "True"})
    job["status"] = controller.status_of(job, [pod("Failed", 137)], now=NOW)
    again = controller.status_of(job, [pod("Failed", 137, leaving=True)], now=NOW)
    assert job["status"]["replaced"] == again["replaced"] == 1, "the one that is replaced was counted before"
    assert "backoff limit" in job["status"]["conditions"][-1]["message"]


def test_a_job_fails_at_its_deadline_and_is_forgotten_after_its_time(job):
    job["spec"] |= {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 10}
    job["status"] = controller.status_of(job, [pod("Running")], now=NOW)
    assert controller.next_due(job, [], NOW) == 60
    later = NOW + timedelta(seconds=61)
    job["status"] = controller.status_of(job, [pod("Running")], now=later)
    assert controller.finished(job) == "Failed"
    assert "deadline of 60 s" in job["status"]["conditions"][-1]["message"]
    assert controller.remaining(job, later) == 10


def test_a_condition_keeps_its_time_and_the_one_before_it_no_longer_holds(job):
    job["status"] = controller.status_of(job, [pod("Running")], now=NOW)
    again = controller.status_of(job, [pod("Running")], now=NOW + timedelta(seconds=9))
    assert again == job["status"]
    over = controller.status_of(job, [pod("Succeeded", 0)], now=NOW + timedelta(seconds=9))
    assert conditions(over) == {"Running": "False", "Succeeded": "True"}
    assert over["completionTime"] == "2026-01-01T00:00:09Z"
    assert over["replicaStatuses"]["Worker"]["succeeded"] == 1
    assert controller.finished(job | {"status": over}) == "Succeeded"
    assert controller.status_of(job | {"status": over}, [], now=NOW)["conditions"] == over["conditions"]
