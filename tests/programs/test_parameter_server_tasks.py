"""The ledger: whatever workers, servers and the master do, each record counts once per epoch."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parameter_server.evaluation import Evaluation
from parameter_server.protocol_pb2 import Score
from parameter_server.tasks import MIN_SLOW_SECONDS, Ledger

WORKERS, SERVERS = 4, 2


class World:
    """A ledger with workers and servers around it, all of which may die at any moment.

    Servers know which minibatches they have applied, and how often in truth: a push that is repeated must not
    be applied again. A checkpoint is what a server goes back to.
    """

    def __init__(self, ledger):
        self.ledger, self.now = ledger, 0.0
        self.applied = [set() for _ in range(SERVERS)]
        self.saved = [set() for _ in range(SERVERS)]
        self.incarnations = [0] * SERVERS
        self.tasks, self.pushed = {}, {}

    def request_task(self, worker):
        self.now += 1.0
        assigned = self.ledger.next(worker, self.now)
        self.tasks[worker] = assigned and [assigned.epoch, list(assigned.minibatches)]
        return assigned

    def push(self, worker, *, to=SERVERS):
        """Push the next minibatch of a worker's task to the first servers, or to all; note who has it."""
        task = self.tasks.get(worker)
        if not task or not task[1]:
            return
        minibatch = task[1].pop(0)
        for server in range(to):
            self.applied[server].add((task[0], minibatch))
        if to == SERVERS:
            self.pushed.setdefault(worker, []).append((task[0], minibatch, tuple(self.incarnations)))

    def push_to_one(self, worker):
        self.push(worker, to=1)

    def work(self, worker):
        """Do a minibatch, as workers do most of the time; else few have counted when a server is lost."""
        if not (self.tasks.get(worker) or [0, []])[1]:
            self.request_task(worker)
        self.push(worker)
        self.report(worker)

    def pass_time(self):
        self.now += 10 * MIN_SLOW_SECONDS

    def report(self, worker):
        """Report what was acknowledged by the servers of today; the master checks that they are."""
        for epoch, minibatch, by in self.pushed.pop(worker, []):
            if by == tuple(self.incarnations):
                self.ledger.report(epoch, [minibatch], self.now)

    def kill_worker(self, worker):
        self.tasks.pop(worker, None)
        self.pushed.pop(worker, None)
        self.ledger.lost(worker)

    def kill_server(self, server):
        self.applied[server] = set(self.saved[server])
        self.incarnations[server] += 1
        for epoch in list(self.ledger.snapshot()):
            self.ledger.reopen(epoch, {number for its, number in self.applied[server] if its == epoch})

    def save(self, server):
        self.saved[server] = set(self.applied[server])

    def restart_master(self, forget):
        """Begin a new ledger from the old one's snapshot, as the file has it; it may lack the newest."""
        old, snapshot = self.ledger, self.ledger.snapshot()
        if forget and snapshot:
            newest = max(snapshot)
            snapshot[newest] = bytes(len(snapshot[newest]))
        facts = ("records", "minibatch", "epochs", "seed")
        restored = {name: getattr(old, name) for name in facts}
        self.ledger = Ledger(**restored, minibatches_per_task=old.per_task)
        self.ledger.restore(old.first_open, snapshot)

    def close_epochs(self):
        while not self.ledger.over and self.ledger.complete(self.ledger.first_open):
            for server in range(SERVERS):
                self.save(server)
            self.ledger.close(self.ledger.first_open)

    def finish(self, worker=99):
        """Let one worker do all that is left."""
        for index in range(WORKERS):
            self.kill_worker(index)
        self.close_epochs()
        while not self.ledger.over:
            assert self.request_task(worker) is not None, "something is left, and nobody has it"
            while self.tasks[worker][1]:
                self.push(worker)
            self.report(worker)
            self.close_epochs()


workers = st.integers(0, WORKERS - 1)
servers = st.integers(0, SERVERS - 1)
OF_WORKERS = ("request_task", "push", "push_to_one", "report", "kill_worker")
moves = st.one_of(
    *[st.tuples(st.just("work"), workers)] * 5,
    *(st.tuples(st.just(move), workers) for move in OF_WORKERS),
    *(st.tuples(st.just(move), servers) for move in ("kill_server", "save")),
    st.tuples(st.just("restart_master"), st.booleans()),
    *(st.tuples(st.just(move)) for move in ("pass_time", "close_epochs")),
)
sizes = st.fixed_dictionaries(
    {
        "records": st.integers(1, 40),
        "minibatch": st.integers(1, 5),
        "minibatches_per_task": st.integers(1, 4),
        "epochs": st.integers(1, 3),
        "seed": st.integers(0, 3),
    }
)


@settings(max_examples=80, deadline=None)
@given(sizes, st.lists(moves, min_size=20, max_size=80))
def test_each_record_counts_once_per_epoch_whatever_dies(size, history):
    world = World(Ledger(**size))
    for move, *number in history:
        getattr(world, move)(*number)
        for epoch in range(size["epochs"]):
            assert 0 <= world.ledger.counted(epoch) <= size["records"]
    world.finish()
    everything = set(itertools.product(range(size["epochs"]), range(world.ledger.minibatches)))
    assert all(applied == everything for applied in world.applied)
    assert all(world.ledger.counted(epoch) == size["records"] for epoch in range(size["epochs"]))
    assert world.ledger.steps == size["epochs"] * world.ledger.minibatches


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_tasks_of_an_epoch_share_no_record_and_together_have_all(size):
    ledger = Ledger(**size | {"epochs": 1})
    spans = []
    for worker in itertools.count():
        assigned = ledger.next(worker, 0.0)
        if assigned is None:
            break
        spans += [ledger.records_of(number) for number in assigned.minibatches]
    covered = [record for start, end in spans for record in range(start, end)]
    assert sorted(covered) == list(range(size["records"]))


def test_a_lost_workers_task_is_handed_out_again_without_what_has_counted():
    ledger = Ledger(records=12, minibatch=1, minibatches_per_task=12, epochs=1)
    task = ledger.next(0, 0.0)
    ledger.report(0, task.minibatches[:5], 1.0)
    assert ledger.next(1, 1.0) is None
    assert ledger.lost(0) == (0, 0)
    assert ledger.next(1, 2.0).minibatches == task.minibatches[5:]


def test_a_slow_task_is_handed_out_again_from_its_end_and_the_first_finisher_counts():
    ledger = Ledger(records=4, minibatch=1, minibatches_per_task=4, epochs=1)
    first = ledger.next(0, 0.0)
    assert ledger.next(1, MIN_SLOW_SECONDS - 1) is None
    second = ledger.next(1, MIN_SLOW_SECONDS + 1)
    assert second.minibatches == first.minibatches[::-1]
    assert ledger.report(0, second.minibatches, 7.0) == (4, [0])
    assert ledger.report(0, first.minibatches, 8.0) == (0, [])
    assert ledger.complete(0)
    assert ledger.busy_workers() == set()


def test_the_order_of_tasks_is_another_one_in_each_epoch_and_the_same_for_a_seed():
    def order(epochs, seed):
        ledger = Ledger(records=50, minibatch=1, minibatches_per_task=1, epochs=epochs, seed=seed)
        return [ledger.next(worker, 0.0).task for worker in range(50 * epochs)]

    assert order(2, 0) == order(2, 0)
    assert order(2, 0)[:50] != order(2, 0)[50:]
    assert order(1, 0) != order(1, 1)


def test_nothing_to_do_and_a_minibatch_that_is_not_there_are_refused():
    for name in ("records", "minibatch", "minibatches_per_task"):
        with pytest.raises(ValueError, match="at least one"):
            Ledger(**{"records": 1, "minibatch": 1, "minibatches_per_task": 1, "epochs": 1} | {name: 0})
    with pytest.raises(ValueError, match="no minibatch 3 in an epoch of 2"):
        Ledger(records=4, minibatch=2, minibatches_per_task=1, epochs=1).report(0, [3], 0.0)


def test_a_hundred_thousand_tasks_are_a_few_megabytes():
    import tracemalloc

    tracemalloc.start()
    ledger = Ledger(records=100_000, minibatch=1, minibatches_per_task=1, epochs=1)
    for worker in range(200):
        ledger.next(worker, 0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6


def judge(evaluation, portion, *, correct=5, loss=1.0, now=9.0):
    number, start, end = portion
    return evaluation.report(Score(task=number, images=end - start, correct=correct, loss=loss), now)


def test_test_records_are_judged_once_though_a_worker_is_lost_and_another_is_slow():
    evaluation = Evaluation(1, records=25, size=10, step=7)
    first = evaluation.next(0, 0.0)
    evaluation.lost(0)
    assert evaluation.next(1, 1.0) == first
    second = evaluation.next(2, 1.5)
    assert evaluation.next(1, 2.0) == first  # it asks again: it has forgotten
    third = evaluation.next(4, 2.1)
    assert evaluation.next(3, 1.0 + MIN_SLOW_SECONDS) == first  # slow
    assert evaluation.next(5, 1.0 + MIN_SLOW_SECONDS) is None
    portions = (first, second, third)
    assert sorted(portion[1:] for portion in portions) == [(0, 10), (10, 20), (20, 25)]
    assert all(judge(evaluation, portion) for portion in portions)
    assert not judge(evaluation, second, correct=10, loss=0.0)
    assert evaluation.done
    assert evaluation.result() == {"accuracy": 0.6, "loss": 0.12, "correct": 15, "images": 25}


STEPS = st.tuples(st.sampled_from(["next", "report", "lost"]), st.integers(0, 2))


@given(st.lists(STEPS, max_size=40))
def test_an_evaluation_ends_with_its_last_worker(steps):
    evaluation, has = Evaluation(1, records=25, size=10, step=7), {}
    for now, (step, worker) in enumerate(steps):
        if step == "next":
            has[worker] = evaluation.next(worker, now)
        elif step == "lost":
            evaluation.lost(worker)
        elif portion := has.pop(worker, None):
            judge(evaluation, portion, now=now)
    for _ in range(3):
        if (portion := evaluation.next(9, 1000)) is not None:
            judge(evaluation, portion, now=1000)
    assert evaluation.done
    assert evaluation.next(9, 2000) is None
