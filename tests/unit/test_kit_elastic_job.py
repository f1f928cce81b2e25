"""The controller of ElasticJobs as functions: what it makes of a job, and what it makes of the job's pods."""

import pytest

import kitlib as kit
from kitlib.operators import elastic_job as controller


@pytest.fixture
def job(tmp_path):
    """An ElasticJob as it is in a cluster."""
    trainer = tmp_path / "mine.py"
    trainer.write_text("print('hello')\n")
    item = kit.ElasticJob(trainer, name="digits", nodes=2, processes=3, args={"epochs": 1}).objects[-1]
    item["metadata"] |= {"namespace": "default", "uid": "01234567-89ab"}
    return item


def pod(phase, code=None):
    state = {} if code is None else {"terminated": {"exitCode": code}}
    return {"status": {"phase": phase, "containerStatuses": [{"state": state}]}}


def test_the_rendezvous_comes_before_the_containers_own_arguments(job):
    (container,) = controller.worker_pod(job, 1)["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    assert container["args"] == [
        "--rdzv_backend=etcd",
        "--rdzv_endpoint=etcd-service.elastic-job:2379",
        "--rdzv_id=digits-01234567",  # another one for each job, so that no state of an older one is met
        "--nnodes=2:2",
        "--nproc_per_node=3",
        "/trainyard/trainer/mine.py",
        "--epochs=1",
    ]


def test_a_worker_has_a_headless_service_of_its_name_and_belongs_to_its_job(job):
    made, service = controller.worker_pod(job, 1), controller.service(job, 1)
    assert made["metadata"]["name"] == service["metadata"]["name"] == "digits-worker-1"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= made["metadata"]["labels"].items()
    assert made["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert made["metadata"]["labels"]["trainyard/run"] == "digits"
    assert made["spec"]["restartPolicy"] == "Never"  # ExitCode is the controller's to see to


@pytest.mark.parametrize(
    ("pods", "phase"),
    [
        ([], "Created"),
        ([pod("Pending"), pod("Running")], "Running"),
        ([pod("Succeeded", 0), pod("Running")], "Running"),
        ([pod("Succeeded", 0), pod("Succeeded", 0)], "Succeeded"),
        ([pod("Running"), pod("Failed", 1)], "Failed"),
        ([pod("Running"), pod("Failed", 137)], "Running"),  # a signal: another one takes its place
    ],
)
def test_a_job_is_judged_by_its_pods(job, pods, phase):
    assert controller.judge(job, pods) == phase


def test_a_condition_keeps_its_time_and_the_one_before_it_no_longer_holds(job):
    job["status"] = controller.status_of(job, [pod("Running")], "Running")
    again = controller.status_of(job, [pod("Running")], "Running")
    assert again == job["status"]
    over = controller.status_of(job, [pod("Succeeded", 0)], "Succeeded")
    assert {each["type"]: each["status"] for each in over["conditions"]} == {
        "Running": "False",
        "Succeeded": "True",
    }
    assert over["replicaStatuses"]["Worker"] == {"active": 0, "succeeded": 1, "failed": 0}
    assert controller.finished(job | {"status": over}) == "Succeeded"
