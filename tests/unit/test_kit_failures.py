from pathlib import Path

import pytest
import yaml

from kitlib.causes import Diagnosis, Facts, causes
from kitlib.display.tracebacks import Line
from kitlib.k8s import pods
from kitlib.runs.diagnosis import run_failed
from kitlib.runs.status import RunObjects

from . import objects

MANIFESTS = Path(__file__).parents[2] / "manifests"
TORCHRUN = [
    "E1121 3 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0",
    "Traceback (most recent call last):",
    '  File "/bin/torchrun", line 8, in <module>',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "====",
]

ONE = {pods.INDEX: "1"}


def failed_pod(rank, at):
    labels = {pods.INDEX: str(rank)}
    return objects.pod(f"pod-{rank}", phase="Failed", labels=labels, state=objects.terminated(1, at))


def failure(ended, log):
    facts = Facts(pods=ended, logs=log, phase="Failed")
    return run_failed(Diagnosis('run "digits"', "Failed", tuple(causes(facts))))


def explain(written):
    log = {
        rank: [Line(f"2026-01-01T00:00:0{rank}Z", text) for text in texts] for rank, texts in written.items()
    }
    ended = [failed_pod(0, "2026-01-01T00:00:09Z"), failed_pod(1, "2026-01-01T00:00:05Z")]
    return failure(ended, log)


def test_without_a_traceback_the_last_words_of_the_rank_that_ended_first_are_shown():
    error = explain({0: ["hello"], 1: ["starting", "the data is not there", *TORCHRUN]})
    assert error.rank == 1
    assert error.what == "rank 1 failed first: exit code 1; its last line: the data is not there"
    assert error.detail == "starting\nthe data is not there"


def test_a_pod_that_replaces_a_failed_one_does_not_hide_its_end():
    """The Training Operator deletes the failed pod, makes another, and then gives up."""
    ended, waiting = failed_pod(1, "2026-01-01T00:00:05Z"), objects.pod("pod-1", phase="Pending", labels=ONE)
    ended["metadata"] |= {"uid": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    waiting["metadata"] |= {"uid": "b", "creationTimestamp": "2026-01-01T00:00:06Z"}
    run = RunObjects(None, "digits")
    run.observe(ended)
    assert run.newest([waiting], started=True) == [ended]
    assert run.newest([waiting]) == [waiting], "why it waits is in the other"
    assert RunObjects(None, "digits").newest([waiting], started=True) == [waiting]


def test_a_long_last_message_without_a_traceback_is_no_reason():
    pod = failed_pod(0, "2026-01-01T00:00:09Z")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["message"] = '{"event":"step"}\n{"event":"step"}\n'
    assert pods.why(pod) == "Error, exit code 1"
    ended["message"] = "the trainer could not be fetched\n"
    assert pods.why(pod) == "Error, exit code 1: the trainer could not be fetched"


WAYS = [
    "elastic-job/elasticjob",
    "indexed-job/job",
    "parameter-server/job",
    "parameter-server/ps",
    "parameter-server/worker",
    "pytorch-job/pytorchjob",
    "torch-elastic/podtemplate",
]


def containers_in(item):
    """Return the containers of all pods in a manifest."""
    if isinstance(item, list):
        return [container for part in item for container in containers_in(part)]
    if not isinstance(item, dict):
        return []
    return item.get("containers", []) + [entry for part in item.values() for entry in containers_in(part)]


@pytest.mark.parametrize("way", WAYS)
def test_the_last_words_of_each_way_to_train_stay_with_its_pods(way):
    containers = containers_in(yaml.safe_load((MANIFESTS / f"{way}.yaml").read_text()))
    assert {container.get("terminationMessagePolicy") for container in containers} == {
        "FallbackToLogsOnError"
    }


def test_those_of_a_train_job_stay_by_what_the_kit_adds_to_its_runtime():
    patch = yaml.safe_load((MANIFESTS / "operators/trainer/then/torch_distributed.yaml").read_text())
    added = {change["path"].rpartition("/")[2]: change["value"] for change in patch}
    assert added["terminationMessagePolicy"] == "FallbackToLogsOnError"
