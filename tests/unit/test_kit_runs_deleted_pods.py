"""A run whose pods its operator deletes as soon as one has failed: the error names the rank all the same."""

import json
import threading

import pytest

from kitlib.errors import Rejected, RunFailed
from kitlib.runs.run import Run

from . import objects

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: no'
OPERATORS_WORDS = "Job digits has failed because it has reached the specified backoff limit"


def job(condition):
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}
    conditions = [{"type": condition, "status": "True", "message": OPERATORS_WORDS}]
    return {
        "kind": "PyTorchJob",
        "metadata": {"name": "digits", "uid": "job"},
        "spec": {"pytorchReplicaSpecs": replicas},
        "status": {"conditions": conditions},
    }


def pod(rank, *, code=None, message="", deleted=False):
    """Return a pod that runs, or has failed."""
    state = {"running": {}}
    if code is not None:
        state = objects.terminated(code, "2026-01-01T00:00:05Z", message=message)
    container = {"name": "pytorch", "env": [{"name": "RANK", "value": str(rank)}]}
    meta = {"uid": f"pod-{rank}", "creationTimestamp": objects.SINCE, "containers": [container]}
    meta["labels"] = {"training.kubeflow.org/replica-index": "0"}
    phase = "Running" if code is None else "Failed"
    return objects.pod(f"digits-{rank}", phase=phase, state=state, leaving=deleted, **meta)


class Changes:
    """A watch, as `kitlib.k8s.client.Stream`, whose changes come when they may."""

    def __init__(self, changes, after):
        self.changes, self.after, self.closed = changes, after, threading.Event()

    def __iter__(self):
        self.after.wait(10)
        yield from map(json.dumps, self.changes)
        self.closed.wait(10)

    def close(self):
        self.after.set()
        self.closed.set()


class Api:
    """A cluster in which all has happened, and whose watches tell of it one after the other.

    Args:
        pods: The changes of the pods that the watch brings.
        behind: Whether it brings them only when the run is known to have failed.
        left: The pods that are still there.
    """

    cluster, namespace = "lab", "default"

    def __init__(self, pods, *, behind=True, left=()):
        self.changes = {"PyTorchJob": [("MODIFIED", job("Failed"))], "Pod": pods, "Event": []}
        self.first, self.left, self.asked = threading.Event(), list(left), threading.Event()
        self.behind = behind

    def get_all_at(self, kind, **selectors):
        return {"PyTorchJob": [job("Running")], "Pod": [pod(0), pod(1)], "Event": []}[kind], "1"

    def get_all(self, kind, **selectors):
        if kind != "Pod":
            return [job("Failed")] if kind == "PyTorchJob" else []
        self.asked.set()  # so that the run was seen to have failed
        return self.left

    def find(self, kind, name):
        return None

    def watch(self, kind, version, **selectors):
        changes = [{"type": change, "object": item} for change, item in self.changes[kind]]
        after = {"Pod": self.asked if self.behind else threading.Event(), "PyTorchJob": threading.Event()}
        after = after.get(kind, self.asked)
        if kind == "PyTorchJob" or not self.behind:
            after.set()
        return Changes(changes, after)

    def path(self, kind, name):
        return name

    def stream(self, path, *, about, **request):
        raise Rejected("it is gone", about=about, fix="", status=404, reason="NotFound")


def failure(api):
    with pytest.raises(RunFailed) as failed:
        Run(api, "digits", kind="PyTorchJob").wait(timeout=20)
    return failed.value


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("expected", [True, False])
def test_the_last_words_of_a_pod_that_is_gone_come_with_its_deletion(behind, expected):
    lost = pod(1, code=1, message=TRACEBACK)
    changes = [("MODIFIED", lost)] if expected else []
    error = failure(Api([*changes, ("DELETED", lost), ("DELETED", pod(0))], behind=behind))
    assert (error.rank, error.what) == (1, "rank 1 failed first: ValueError: no")
    assert error.detail == TRACEBACK


def test_a_pod_that_failed_because_it_was_deleted_is_not_the_first_that_failed():
    """Its end may be in the same second as that of the one that was the reason."""
    killed = pod(0, code=143, deleted=True)
    error = failure(Api([("DELETED", pod(1, code=1)), ("DELETED", killed)]))
    assert error.rank == 1


def test_a_long_traceback_of_which_the_kubelet_kept_the_end_is_one():
    frames = "".join(f'  File "x.py", line {line}, in call\n    call()\n' for line in range(9))
    message = f"    half a line()\n{frames}ValueError: deep"
    error = failure(Api([("DELETED", pod(1, code=1, message=message)), ("DELETED", pod(0))]))
    assert error.what == "rank 1 failed first: ValueError: deep"
