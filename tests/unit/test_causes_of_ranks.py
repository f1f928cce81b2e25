"""The rank that failed first, from what it wrote, what torchrun reports and what the node saw."""

import tomllib
from pathlib import Path

import pytest

from kitlib.causes import Facts, causes
from kitlib.causes.known_errors import known
from kitlib.display.tracebacks import Line

from . import objects

LOST = [
    "[rank{0}]: Traceback (most recent call last):",
    '[rank{0}]:   File "/trainyard/trainer/train.py", line 29, in <module>',
    "[rank{0}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed "
    "by peer [10.244.1.{1}]:50074. This is typically caused by a remote worker crashing.",
]
SHAPES = [
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 8 vs 4. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch?",
]
TRACE = ["Traceback (most recent call last):", '  File "/x.py", line 3']
SECOND = "2026-01-01T00:00:05Z"


def torchrun(rank, code, local=0, *, closed=()):
    """Return what torchrun writes when its processes have failed."""
    table = [
        f"E1128 05:24:51.597000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
        f"(exitcode: {code}) local_rank: {local} (pid: 5) of binary: python",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Failures:",
    ]
    rows = [*((closed_rank, -15) for closed_rank in closed), (rank, code)]
    for number, (failed, exit_code) in enumerate(rows):
        if failed == rank:
            table.append("Root Cause (first observed failure):")
        table += [
            f"[{number}]:",
            f"  rank      : {failed} (local_rank: {local})",
            f"  exitcode  : {exit_code} (pid: 5)",
            "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ]
    return [*table, "====="]


def lines(texts, at="2026-01-01T00:00:05"):
    return [Line(f"{at}.{number:03}Z", text) for number, text in enumerate(texts)]


def pod(rank, *, code=1, reason="Error", at=SECOND, phase="Failed", processes=1, **more):
    command = ["torchrun", f"--nproc-per-node={processes}"]
    container = {"name": "pytorch", "command": command, "resources": {"limits": {"memory": "600Mi"}}}
    container["env"] = [{"name": "PET_NNODES", "value": "2"}]  # as launchers and operators give it
    labels = {"batch.kubernetes.io/job-completion-index": str(rank)}
    state = objects.terminated(code, at, reason=reason)
    more = {"uid": f"uid-{rank}", "containers": [container], "labels": labels} | more
    ip = {"podIP": f"10.244.1.{rank}"}
    return objects.pod(f"x-{rank}", phase=phase, state=state, node=f"node-{rank}", status=ip, **more)


def lost(rank, to):
    return [text.format(rank, to) for text in LOST]


def first(pods, logs, **more):
    return causes(Facts(pods=pods, logs={key: lines(texts) for key, texts in logs.items()}, **more))[0]


WAYS = {  # how rank 1 ended: its exit code, the node's reason, what it wrote, what is said of it
    "memory": (137, "OOMKilled", [], "rank 1 was OOMKilled: it needs more than its memory limit of 600Mi"),
    "SIGKILL": (137, "Error", [], "rank 1 failed first: it was killed (SIGKILL)"),
    "SIGSEGV": (139, "Error", [], "rank 1 failed first: it crashed (SIGSEGV)"),
    "SIGABRT": (134, "Error", [], "rank 1 failed first: it aborted (SIGABRT)"),
    "SIGBUS": (
        135,
        "Error",
        [],
        "rank 1 failed first: it crashed (SIGBUS): /dev/shm or a mapped file is full",
    ),
    "_exit": (3, "Error", ["step 3 done"], "rank 1 failed first: exit code 3; its last line: step 3 done"),
    "_exit in silence": (3, "Error", [], "rank 1 failed first: exit code 3, without any output"),
    "message": (1, "Error", ["no data"], "rank 1 failed first: exit code 1; its last line: no data"),
    "colours": (
        1,
        "Error",
        [
            "\x1b[1;31mTraceback (most recent call last):\x1b[0m",
            '  File \x1b[35m"/x.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m',
            "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad label 12\x1b[0m",
        ],
        "rank 1 failed first: ValueError: bad label 12",
    ),
    "import": (
        1,
        "Error",
        [*TRACE, "ModuleNotFoundError: No module named 'x'"],
        "rank 1 failed first: ModuleNotFoundError: No module named 'x'",
    ),
}


CONNECTIONS_OF_ITS_OWN = {
    "its data loader": [
        '  File "/lib/torch/utils/data/dataloader.py", line 9, in __next__',
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/lib/torch/utils/data/_utils/signal_handling.py", line 73, in handler',
        "RuntimeError: DataLoader worker (pid 8) is killed by signal: Killed.",
    ],
    "a server of data": [
        '  File "/lib/torch/utils/data/dataloader.py", line 9, in __next__',
        '  File "/trainyard/trainer/train.py", line 9, in __getitem__',
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
}


@pytest.mark.parametrize("client", CONNECTIONS_OF_ITS_OWN)
def test_a_connection_to_something_else_than_a_rank_is_no_consequence(client):
    traceback_lines = ["Traceback (most recent call last):", *CONNECTIONS_OF_ITS_OWN[client]]
    logs = {0: lost(0, 1), 1: [f"[rank1]: {text}" for text in traceback_lines]}
    cause = first([pod(0), pod(1)], logs)
    assert cause.line == f"rank 1 failed first: {traceback_lines[-1]}"


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
@pytest.mark.parametrize("way", WAYS)
def test_a_broken_connection_is_a_consequence_of_the_rank_that_ended_otherwise(way, launcher):
    """The others report first, and torchrun and the pods end in the order of neither."""
    code, reason, texts, line = WAYS[way]
    failed = pod(1, code=code, reason=reason, at="2026-01-01T00:00:06Z")
    logs = {0: lost(0, 1), 1: texts}
    if launcher == "torchrun":
        failed = pod(1, reason=reason)
        logs = {0: lost(0, 1) + torchrun(0, 1), 1: texts + torchrun(1, 128 - code if code > 128 else code)}
    cause = first([pod(0), failed], logs)
    assert cause.line == line
    assert cause.rank == 1
    assert "rank 0 lost its connection to another rank: a consequence" in cause.ruled_out
    assert any("pod x-1 on node-1" in text for text in cause.evidence)


def test_the_killed_rank_of_a_pod_with_several_is_named():
    logs = {0: lost(0, 1) + lost(1, 1) + torchrun(0, 1, closed=[1]), 1: torchrun(3, -9, closed=[2])}
    cause = first([pod(0, processes=2), pod(1, reason="OOMKilled", processes=2)], logs)
    assert (cause.kind, cause.rank) == ("OOMKilled", 3)
    told_to_end = pod(1, processes=2, leaving=True)
    cause = first([pod(0, processes=2), told_to_end], logs)
    assert cause.line == "rank 3 failed first: it was killed (SIGKILL)"


def test_a_rank_that_torchrun_ended_is_found_by_the_lost_address():
    logs = {
        0: lost(0, 1) + torchrun(0, 1, closed=[1]),
        1: ["the data is not there", *lost(2, 1), *torchrun(2, 1, closed=[3])],
    }
    cause = first([pod(0, processes=2), pod(1, processes=2)], logs)
    assert cause.line == "rank 3 ended first; its last line: the data is not there"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_rank_that_leaves_with_exit_code_0_while_others_train_is_the_cause(processes):
    left = processes * 2 - 1
    logs = {0: lost(0, 1) + torchrun(0, 1), 1: []}
    pods = [pod(0, processes=processes), pod(1, code=0, phase="Succeeded", processes=processes)]
    if processes == 2:
        logs = {0: lost(0, 1) + lost(1, 1) + torchrun(0, 1), 1: lost(2, 1) + torchrun(2, 1)}
        pods[1] = pod(1, processes=2)
    assert first(pods, logs).line == f"rank {left} ended first, with exit code 0, while others still trained"


def test_without_another_end_a_broken_connection_is_what_is_known():
    (cause,) = causes(Facts(pods=[pod(0)], logs={0: lines(lost(0, 7))}))
    assert cause.line.startswith("rank 0 failed first: RuntimeError: [/pytorch/third_party/gloo")
    assert "other ranks" in cause.fix


def test_different_shapes_on_two_ranks_are_named_and_not_the_connection_that_breaks():
    cause = first([pod(0, code=134), pod(1)], {0: SHAPES + torchrun(0, -6), 1: lost(1, 0) + torchrun(1, 1)})
    assert (cause.kind, cause.rank) == ("ShapeMismatch", 0)
    assert "different shapes" in cause.evidence[0]


def test_of_a_timeout_a_rank_whose_pod_is_gone_may_be_the_one_that_did_not_come():
    error, (kind, line) = TIMEOUTS["gloo"]
    trace = ["[rank0]: Traceback (most recent call last):", '[rank0]:   File "/lib/torch/distributed/c.py"']
    main = {"kind": "Job", "metadata": {"name": "x"}, "spec": {"completions": 2}}
    cause = first([pod(0)], {0: [*trace, f"[rank0]: {error}", *torchrun(0, 1)]}, main=main)
    assert (cause.kind, cause.line) == (kind, line.partition("; its last")[0])


def test_where_all_ranks_fail_alike_the_lowest_is_named_once_whoever_was_first():
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: bad label 12"]
    logs = {0: lines(trace, "2026-01-01T00:00:06"), 1: lines(trace)}
    (cause,) = causes(Facts(pods=[pod(0), pod(1)], logs=logs))
    assert cause.line == "rank 0 failed first: ValueError: bad label 12"
    killed = [pod(0, code=137, at="2026-01-01T00:00:09Z"), pod(1, code=137)]
    (cause,) = causes(Facts(pods=killed))
    assert cause.line == "rank 0 failed first: it was killed (SIGKILL)"
    assert "rank 1 failed with the same error" in cause.evidence


def test_of_two_errors_of_their_own_the_later_one_failed_as_well():
    ends = causes(Facts(pods=[pod(0, code=3), pod(1, code=4, at="2026-01-01T00:00:09Z")]))
    starts = [cause.line.partition(", ")[0] for cause in ends]
    assert starts == ["rank 0 failed first: exit code 3", "rank 1 failed as well: exit code 4"]


THREAD = ["Exception in thread Thread-1 (load):", *TRACE, "ValueError: bad label 12"]


def test_an_exception_in_a_thread_is_the_error_of_a_rank_that_ends_for_it():
    cause = first([pod(0), pod(1)], {0: lost(0, 1), 1: THREAD + torchrun(1, 1)})
    assert cause.line == "rank 1 failed first: ValueError: bad label 12"


def test_an_exception_that_a_running_rank_survived_is_no_failure():
    running = [pod(rank, code=None, phase="Running") for rank in range(2)]
    (cause,) = causes(Facts(pods=running, logs={1: lines(THREAD)}, phase="Running"))
    assert cause.line.startswith("rank 1 went on after an exception in a thread, or one that it logged: ")


def test_a_long_error_is_shortened_and_its_detail_has_all_of_it():
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', f"ValueError: {'long ' * 200}"]
    cause = first([pod(0)], {0: trace})
    assert len(cause.line) < 450
    assert trace[-1].strip() in cause.detail


TOLD = [
    "W1128 12:41:13.1 1 torch/distributed/elastic/agent/server/api.py:752] Received 15 death signal",
    "Traceback (most recent call last):",
    '  File "/usr/lib/torch/distributed/run.py", line 1138, in main',
    "    time.sleep(monitor_interval)",
]
TIMEOUTS = {  # what rank 0 of two wrote, and what is said of the rank that did not come
    "gloo": (
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation",
        ("Timeout", "rank 1 did not come to a collective: rank 0 waited 8 s for it; its last line: step 4"),
    ),
    "monitored barrier": (
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms",
        ("Timeout", "rank 1 did not come to a collective: rank 0 waited 5 s for it; its last line: step 4"),
    ),
    "nccl": (
        "RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118, "
        "OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600047 milliseconds",
        ("Timeout", "rank 1 did not come to a collective: rank 0 waited 600 s for it; its last line: step 4"),
    ),
    "store": (
        "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/1",
        ("NotJoined", "rank 1 did not come to init_process_group: rank 0 waited 15 s for it; its last line"),
    ),
    "world size": (
        "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/2",
        ("WorldSize", "rank 2 did not come to init_process_group: rank 0 waited 15 s for it; the run has 2 "),
    ),
}


@pytest.mark.parametrize("expected", [TOLD, []], ids=["its launcher says so", "its log was cut"])
@pytest.mark.parametrize("way", TIMEOUTS)
def test_of_a_timeout_the_rank_that_did_not_come_is_the_cause(way, expected):
    error, (kind, line) = TIMEOUTS[way]
    trace = ["[rank0]: Traceback (most recent call last):", '[rank0]:   File "/lib/torch/distributed/c.py"']
    logs = {0: [*trace, f"[rank0]: {error}", *torchrun(0, 1)], 1: ["step 4", *expected]}
    cause = first([pod(0), pod(1, leaving=True)], logs)
    assert cause.kind == kind
    assert cause.line.startswith(line)


@pytest.mark.parametrize("earlier", [0, 1])
def test_of_two_timeouts_the_one_that_names_a_rank_is_the_cause(earlier):
    lines = [[*TRACE, TIMEOUTS[way][0]] for way in ("gloo", "world size")]
    logs = {n: [*(f"[rank{n}]: {line}" for line in lines[n]), *torchrun(n, 1)] for n in (0, 1)}
    ends = (f"{SECOND[:18]}{rank != earlier:d}Z" for rank in (0, 1))
    assert first([pod(rank, at=end) for rank, end in enumerate(ends)], logs).who == "rank 2"


def several(first, second):
    """A pod of a rank that runs, or has ended, with a container beside it."""
    states = [{"name": "pytorch", "state": first}, {"name": "logger", "state": second}]
    return pod(0, code=None, phase="Running") | {"status": {"phase": "Running", "containerStatuses": states}}


RUNS = {"running": {"startedAt": SECOND}}


def test_a_container_beside_a_rank_that_fails_is_not_the_rank():
    (cause,) = causes(Facts(pods=[several(RUNS, objects.terminated(3, SECOND))], phase="Running"))
    assert (cause.kind, cause.who) == ("Sidecar", "rank 0")
    assert cause.what.endswith(
        "logger beside it that failed: Error, exit code 3; its own, pytorch, still runs"
    )
    assert cause.fix.startswith("kubectl logs x-0 -c logger")


def test_a_container_that_keeps_a_pod_whose_rank_has_ended_is_named():
    (cause,) = causes(Facts(pods=[several(objects.terminated(0, SECOND), RUNS)], phase="Running"))
    assert cause.line == (
        "rank 0 has ended with exit code 0, and its container logger still runs: so its pod does not end"
    )
    assert causes(Facts(pods=[several(RUNS, objects.terminated(0, SECOND))], phase="Running")) == []


def test_a_rank_whose_init_container_failed_has_not_ended_early():
    waits = [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}]
    failed = pod(1, code=None) | {"status": {"phase": "Failed", "containerStatuses": waits}}
    named_causes = causes(Facts(pods=[pod(0, leaving=True), failed], logs={0: lines(TOLD)}))
    assert "EndedEarly" not in [cause.kind for cause in named_causes]


def test_clocks_of_nodes_are_compared_by_that_of_the_api_server():
    """Node 0 is an hour behind: its rank ended later all the same."""
    behind = pod(0, code=3, at="2025-12-31T23:00:09Z")
    behind["metadata"]["managedFields"] = [{"subresource": "status", "time": "2026-01-01T00:00:09Z"}]
    punctual = pod(1, code=4, at="2026-01-01T00:00:05Z")
    punctual["metadata"]["managedFields"] = [{"subresource": "status", "time": "2026-01-01T00:00:06Z"}]
    assert first([behind, punctual], {}).rank == 1


def test_a_pod_that_was_deleted_for_the_failure_of_another_is_no_cause():
    killed = pod(0, code=137, at="2026-01-01T00:00:04Z", leaving=True)
    cause = first([killed, pod(1, code=3)], {})
    assert cause.rank == 1
    assert cause.ruled_out == ("rank 0 was told to end: a consequence",)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_survived_traceback_is_not_the_cause_of_a_later_failure(processes):
    """torchrun has restarted the ranks since; only its last report is the table of its end."""
    traceback_lines = [
        "Traceback (most recent call last):",
        '  File "/x.py", line 3',
        "ValueError: bad label 12",
    ]
    survived = [*(f"[rank1]: {text}" for text in traceback_lines), torchrun(1, 1)[0], "step 1", "step 2"]
    pods_of_run = [pod(0, processes=processes), pod(1, code=1, processes=processes)]
    logs = {0: [*lost(0, 1), torchrun(0, 1)[0], *lost(0, 1), *torchrun(0, 1)]}
    cause = first(pods_of_run, logs | {1: [*survived, *torchrun(1, -9)]})
    assert cause.line == "rank 1 failed first: it was killed (SIGKILL)"
    killed = pod(1, code=137, reason="OOMKilled", processes=processes)
    cause = first([pods_of_run[0], killed], logs | {1: survived})
    assert (cause.kind, cause.who) == ("OOMKilled", "rank 1")
    second_log = [f"[rank1]: {text}" for text in [*traceback_lines[:2], "KeyError: 'label'"]]
    cause = first(pods_of_run, logs | {1: [*survived, *second_log, *torchrun(1, 1)]})
    assert cause.line == "rank 1 failed first: KeyError: 'label'"


def test_the_sender_of_a_kill_is_evidence():
    event = {"reason": "Killed", "message": "rank 1 was killed", "metadata": {"creationTimestamp": SECOND}}
    event["involvedObject"] = {"kind": "Pod", "name": "x-1", "uid": "uid-1"}
    cause = first([pod(1, code=137)], {}, events=[event])
    assert "Event Killed: rank 1 was killed" in cause.evidence


def test_a_run_that_has_succeeded_has_no_cause():
    assert causes(Facts(pods=[pod(0, code=0, phase="Succeeded")], logs={}, phase="Succeeded")) == []


RECORDED = tomllib.loads((Path(__file__).parent / "recorded_errors.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in RECORDED.items() for text in texts]
)
def test_recorded_errors_are_known(kind, text):
    error = known(text)
    assert error is not None
    assert error.kind == kind


@pytest.mark.parametrize(
    "text", ["ValueError: no", "KeyError: 'rank'", "", "RuntimeError: loss of precision"]
)
def test_an_error_of_the_program_itself_is_none_of_them(text):
    assert known(text) is None


@pytest.mark.parametrize("address", [" [10.244.1.1]:50074", ""])
@pytest.mark.parametrize("left", [{}, {"code": 137}, {"phase": "Running"}, None])
def test_of_a_pod_that_reports_nothing_each_rank_may_be_the_one(left, address):
    """It was told to end before torchrun had reported, or is gone."""
    pods = [pod(0, processes=2), *([] if left is None else [pod(1, processes=2, leaving=True, **left)])]
    main = {"kind": "Job", "metadata": {"name": "x"}, "spec": {"completions": 2}}
    texts = [text.replace(" [10.244.1.1]:50074", address) for text in lost(1, 1)]
    logs = {0: [*texts, *torchrun(1, 1, 1, closed=[0])], 1: []}
    assert first(pods, logs, main=main).line == "one of ranks 2, 3 ended first"


@pytest.mark.parametrize("way", ["memory", "SIGKILL", "_exit", "import"])
def test_the_number_of_a_pod_of_several_ranks_is_none_of_a_rank(way):
    code, reason, texts, line = WAYS[way]
    failed = pod(1, code=code, reason=reason, processes=2)
    cause = first([pod(0, processes=2), failed], {0: lost(1, 1), 1: texts})
    assert cause.line == line.replace("rank 1", "one of ranks 2, 3")
    assert ("run.logs(rank=1)" in cause.fix) == (code in (1, 3))  # logs are those of pods
