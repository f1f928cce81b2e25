"""A cluster's lock: the second command waits, and hears what the first is doing."""

import threading

import pytest

from localkube.controlplane.lock import lock_path, locked, no_progress
from localkube.paths import ClusterPaths

from ..patience import PATIENCE


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cluster_paths = ClusterPaths("lab")
    cluster_paths.root.parent.mkdir(parents=True)
    return cluster_paths


class Second(threading.Thread):
    """A command that wants the same lock."""

    def __init__(self, paths):
        super().__init__()
        self.paths, self.said = paths, []
        self.heard, self.held = threading.Condition(), threading.Event()

    def run(self):
        with locked(self.paths, self.hear):
            self.held.set()

    def hear(self, text):
        with self.heard:
            self.said.append(text)
            self.heard.notify_all()

    def wait_for(self, words):
        with self.heard:
            assert self.heard.wait_for(lambda: any(words in text for text in self.said), PATIENCE), self.said


def test_a_waiter_gets_each_step_of_the_locks_holder_and_then_the_lock(paths):
    steps = []
    with locked(paths, steps.append) as report:
        second = Second(paths)
        second.start()
        second.wait_for("it has just begun")
        for step in ("making a very long list of certificates", "starting"):
            report(step)
            second.wait_for(f"another command is working on this cluster: {step}")
        assert not second.held.is_set()
    second.join(PATIENCE)
    assert second.held.is_set()
    assert steps == ["making a very long list of certificates", "starting"]


def test_a_lock_that_its_holder_removes_is_taken_anew_by_who_waited(paths):
    with locked(paths, no_progress):
        second = Second(paths)
        second.start()
        second.wait_for("another command")
        lock_path(paths).unlink()
    second.join(PATIENCE)
    assert second.held.is_set()
    assert lock_path(paths).exists()
