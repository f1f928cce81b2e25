"""Who takes a lost process's place, and when the master gives up; and how a pod's state is read."""

import pytest
from parameter_server.job import JobState
from parameter_server.pods import Member, termination
from parameter_server.process_manager import ProcessManager
from parameter_server.protocol_pb2 import WAIT, Progress, Registration
from parameter_server.settings import SERVER, WORKER, JobSettings

from ..unit import objects


class Cluster:
    """Processes as a cluster would have them, in memory."""

    def __init__(self):
        self.there, self.launched, self.asked, self.full = {}, [], None, False

    def members(self):
        return list(self.there.values())

    def desired_workers(self):
        return self.asked

    def launch(self, role, index):
        if self.full:
            return False
        self.launched.append((role, index))
        self.there[role, index] = Member(role, index)
        return True

    def remove(self, role, index, *, now=False):
        self.there.pop((role, index), None)

    def end(self, role, index, kind, reason=""):
        self.there[role, index] = Member(role, index, kind, reason)

    def running(self, role):
        return sorted(index for (its, index), member in self.there.items() if its == role and not member.over)


def make(cluster, *, workers=2, servers=1, max_relaunches=2, next_worker=0):
    events = []
    settings = JobSettings("m.py", "r", "s", workers=workers, servers=servers, max_relaunches=max_relaunches)
    job = JobState(settings, 100, 0, lambda event, **fields: events.append((event, fields)))
    job.next_worker = next_worker
    processes = ProcessManager(job, cluster, job.log_event)
    processes.start()
    return job, processes, events


def count(job, worker):
    """Have a worker do a minibatch."""
    job.register(Registration(index=0, address="x", incarnation=5))
    task = job.next_task(Progress(worker=worker))
    job.report(Progress(worker=worker, epoch=0, minibatches=list(task.minibatches)[:1], incarnations=[5]))


def test_a_lost_worker_gets_a_new_index_and_a_lost_server_keeps_its_own():
    cluster = Cluster()
    _, processes, events = make(cluster, workers=4, servers=2)
    processes.tick()  # those that wait for a place are left waiting
    assert (cluster.running(WORKER), cluster.running(SERVER)) == ([0, 1, 2, 3], [0, 1])
    del cluster.there[WORKER, 0]
    cluster.end(SERVER, 1, "evicted")
    processes.tick()
    assert (cluster.running(WORKER), cluster.running(SERVER)) == ([1, 2, 3, 4], [0, 1])
    relaunches = [fields for event, fields in events if event == "relaunch"]
    assert [(event["of"], event["index"], event["instead_of"], event["kind"]) for event in relaunches] == [
        (SERVER, 1, 1, "evicted"),
        (WORKER, 4, 0, "deleted"),
    ]


def test_pods_that_outlive_the_master_are_deleted_at_the_jobs_end():
    cluster = Cluster()
    _, processes, _ = make(cluster, workers=4, servers=2)
    cluster.end(WORKER, 0, "finished")
    processes.record_failure(WORKER, 3, "ValueError")  # about to end; its traceback is in its log
    processes.delete_unreached(reached={(WORKER, 1), (SERVER, 0)})  # worker 2 and server 1 are pending
    assert (cluster.running(WORKER), cluster.running(SERVER)) == ([1, 3], [0])
    assert (WORKER, 0) in cluster.there  # an ended pod keeps its logs


def test_a_server_that_says_nothing_is_replaced_and_not_let_in_again():
    cluster = Cluster()
    job, processes, events = make(cluster)
    job.register(Registration(index=0, address="x", incarnation=5))
    processes.tick()
    now = job.clock()
    job.clock = lambda: now + 31
    processes.tick()
    processes.tick()
    assert [fields["kind"] for event, fields in events if event == "relaunch"] == ["silent"]
    assert not job.ready
    assert 5 in job.replaced
    assert job.next_task(Progress(worker=0)).kind == WAIT


def test_a_new_master_adopts_what_runs_and_starts_what_is_missing():
    cluster = Cluster()
    for index in (1, 6):
        cluster.there[WORKER, index] = Member(WORKER, index)
    cluster.end(WORKER, 7, "deleted")
    cluster.there[SERVER, 0] = Member(SERVER, 0)
    _, processes, _ = make(cluster, workers=3, servers=2, next_worker=5)
    assert cluster.launched == [(SERVER, 1), (WORKER, 8)]
    processes.tick()
    assert cluster.running(WORKER) == [1, 6, 8]


def test_a_pod_that_cannot_be_created_now_is_created_later():
    cluster = Cluster()
    cluster.full = True
    _, processes, _ = make(cluster)
    processes.tick()
    cluster.full = False
    processes.tick()
    assert (cluster.running(WORKER), cluster.running(SERVER)) == ([0, 1], [0])


def test_as_many_workers_run_as_are_asked_for_and_the_newest_go_first():
    cluster = Cluster()
    _, processes, _ = make(cluster)
    cluster.asked = 4
    processes.tick()
    assert cluster.running(WORKER) == [0, 1, 2, 3]
    cluster.asked = 1
    processes.tick()
    assert cluster.running(WORKER) == [0]


@pytest.mark.parametrize("kind", ["deleted", "preempted", "evicted", "node lost", "finished", "rejected"])
def test_a_loss_that_is_nobodys_fault_never_counts(kind):
    cluster = Cluster()
    job, processes, _ = make(cluster)
    for _ in range(20):
        cluster.end(WORKER, cluster.running(WORKER)[0], kind)
        processes.tick()
    assert not job.failed
    assert len(cluster.running(WORKER)) == 2


def test_a_worker_killed_in_a_loop_ends_the_job_with_the_reason():
    cluster = Cluster()
    job, processes, _ = make(cluster, max_relaunches=2)
    for expected in ("", "", "3 times: worker 3: it was killed by signal 9"):
        cluster.end(WORKER, cluster.running(WORKER)[-1], "killed", "it was killed by signal 9")
        processes.tick()
        assert job.failed == expected


def test_workers_that_are_killed_after_having_done_something_are_replaced_for_ever():
    cluster = Cluster()
    job, processes, _ = make(cluster, max_relaunches=2)
    for _ in range(8):
        worker = cluster.running(WORKER)[0]
        count(job, worker)
        cluster.end(WORKER, worker, "killed")
        processes.tick()
    assert not job.failed


def pod(phase="Running", *, deleted=False, conditions=(), terminated=None, **status):
    state = {"terminated": terminated} if terminated else None
    return objects.pod(phase=phase, state=state, conditions=conditions, leaving=deleted, status=status)


def disturbed(reason):
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why"}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (pod("Pending"), ""),
        (pod("Running"), ""),
        (pod("Succeeded"), "finished"),
        (pod(deleted=True), "deleted"),
        (pod(deleted=True, conditions=disturbed("PreemptionByScheduler")), "preempted"),
        (pod("Failed", conditions=disturbed("DeletionByTaintManager")), "node lost"),
        (pod("Failed", conditions=disturbed("EvictionByEvictionAPI")), "evicted"),
        (pod("Failed", reason="Evicted", message="disk"), "evicted"),
        (pod("Failed", reason="OutOfcpu", message="no room"), "rejected"),
        (pod("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"}), "out of memory"),
        (pod("Failed", terminated={"exitCode": 137, "reason": "Error"}), "killed"),
        (pod("Failed", terminated={"exitCode": 1, "reason": "Error"}), "error"),
    ],
)
def test_a_pods_state_says_why_it_is_over(status, kind):
    assert termination(status)[0] == kind
    assert bool(termination(status)[1]) == bool(kind)
