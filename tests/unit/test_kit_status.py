import pytest

from kitlib.k8s import pods
from kitlib.runs.status import run_status

from . import objects

WORDS = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
NO_ROOM = (
    "cannot be scheduled: no node of 4 can take it: 4 have not enough nvidia.com/gpu free (it requests 0)"
)


def job(*conditions, completions=2, **status):
    return {
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": {"completions": completions},
        "status": {
            "conditions": [{"type": kind, "status": "True", "message": f"{kind}!"} for kind in conditions]
        }
        | status,
    }


def pod(rank=0, phase="Running", state=None, conditions=(), **meta):
    more = {"labels": {pods.INDEX: str(rank)}, "conditions": conditions, "state": state or {}} | meta
    return objects.pod(f"digits-{rank}-abcde", node="node-0", phase=phase, **more)


def unschedulable(rank):
    reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS}
    return pod(rank, "Pending", conditions=[reason])


def silent(rank, *, evicted=False, **meta):
    states = {"Ready": "False", "ContainersReady": "True"} | ({"DisruptionTarget": "True"} if evicted else {})
    return pod(rank, conditions=[{"type": kind, "status": is_it} for kind, is_it in states.items()], **meta)


def ended(rank, code, at, **more):
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at, **more}}
    return pod(rank, "Failed" if code else "Succeeded", state)


@pytest.mark.parametrize(
    ("observed", "text"),
    [
        ((None, []), "Deleted: it was deleted, or never launched"),
        ((job(), []), "Pending: its pods are being created"),
        ((job(), [pod(0), pod(1)]), "Running: 2 of 2 pods"),
        ((job(), [pod(0), ended(1, 0, "t")]), "Running: 1 of 2 pods, 1 done"),
        ((job("Complete"), [ended(0, 0, "t"), ended(1, 0, "t")]), "Succeeded: 2 of 2 pods"),
        ((job("Complete", succeeded=2), []), "Succeeded: 2 of 2 pods"),
        (
            (job(), [unschedulable(0), unschedulable(1)]),
            f"Pending: rank 0 (pod digits-0-abcde), and 1 more, {NO_ROOM}",
        ),
        (
            (job(), [pod(0), unschedulable(1)]),
            f"Pending: 1 of 2 pods run; rank 1 (pod digits-1-abcde) {NO_ROOM}",
        ),
        ((job("Suspended"), []), "Pending: it is suspended"),
        ((job("Failed"), []), "Failed: Failed!"),
        ((job(), [pod(0), silent(1)]), "Running: 2 of 2 pods; rank 1: its node node-0 does not answer"),
        (
            (job("Failed"), [pod(0), silent(1, evicted=True, deletionTimestamp="2026-01-01T00:00:00Z")]),
            "Failed: node node-0 (rank 1) does not answer",
        ),
    ],
)
def test_a_run_is_judged_by_its_job_and_pods(observed, text):
    assert str(run_status(*observed)) == text


def replicas(*conditions, kind="PyTorchJob", specs="pytorchReplicaSpecs"):
    job_object = job(*conditions)
    job_object["spec"] = {specs: {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}}
    return job_object | {"kind": kind}


def train_job(*conditions):
    return job(*conditions) | {"kind": "TrainJob", "spec": {"trainer": {"numNodes": 3}}}


@pytest.mark.parametrize(
    ("main", "text"),
    [
        (replicas("Created", "Running"), "Running: 3 of 3 pods"),
        (replicas("Created", "Failed"), "Failed: Failed!"),
        (replicas("Suspended"), "Pending: it is suspended"),
        (replicas(kind="ElasticJob", specs="replicaSpecs"), "Running: 3 of 3 pods"),
        (train_job(), "Running: 3 of 3 pods"),
        (train_job("Failed"), "Failed: Failed!"),
    ],
)
def test_the_kinds_of_operators_are_judged_by_their_own_conditions(main, text):
    assert str(run_status(main, [pod(0), pod(1), pod(2)])) == text


@pytest.mark.parametrize("main", [replicas("Succeeded"), train_job("Complete")])
def test_a_job_whose_master_has_ended_is_not_over_while_its_workers_write(main):
    done = [ended(rank, 0, "t") for rank in range(3)]
    assert str(run_status(main, [*done[:2], pod(2)])) == "Running: 1 of 3 pods, 2 done"
    assert str(run_status(main, done)) == "Succeeded: 3 of 3 pods"


def test_the_pods_of_a_pytorch_job_are_ranked_as_the_operator_counts_them():
    def replica(index, rank):
        env = [] if rank is None else [{"name": "RANK", "value": str(rank)}]
        labels = {pods.REPLICA: str(index)}
        return {"metadata": {"name": "x", "labels": labels}, "spec": {"containers": [{"env": env}]}}

    assert [pods.node_rank(replica(*place)) for place in ((0, 0), (0, 1), (1, 2), (3, None))] == [0, 1, 2, 3]


def test_warnings_explain_pods_that_could_not_even_be_made():
    event = {"involvedObject": {"kind": "Job", "name": "x"}, "type": "Warning", "metadata": {}}
    event |= {"reason": "FailedCreate", "message": "Error creating: no room"}
    assert run_status(job(), [], [event]).reason == "Job x cannot create its pods: no room"


@pytest.mark.parametrize(
    ("manifest", "word"),
    [
        (pod(), "Running"),
        (ended(0, 0, "t"), "Completed"),
        (ended(0, 1, "t"), "Error"),
        (ended(0, 137, "t") | {}, "Error"),
        (pod(deletionTimestamp="2026-01-01T00:00:00Z"), "Terminating"),
        (pod(0, "Pending", {"waiting": {"reason": "ContainerCreating"}}), "ContainerCreating"),
        ({"metadata": {"name": "x"}, "spec": {}}, "Pending"),
    ],
)
def test_a_pods_word_is_that_of_kubectl(manifest, word):
    assert pods.status_word(manifest) == word


def test_the_table_of_pods_has_a_column_for_reasons_only_when_there_are_any():
    assert "why" not in pods.table([pod(0)]).columns
    table = pods.table([unschedulable(1), pod(0)])
    assert [row["rank"] for row in table] == [0, 1]
    assert WORDS in repr(table)
