from kitlib.display import tracebacks
from kitlib.display.tracebacks import Line, time_key

CULPRIT = """\
before
Traceback (most recent call last):
  File "trainer.py", line 3, in <module>
    main()
ValueError: this rank is the culprit
after"""

TORCHRUN = """\
Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
trainer.py FAILED"""

CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in g
RuntimeError: no a"""


def log(text: str, second: int) -> list[Line]:
    return [
        Line(f"2026-01-01T00:00:{second:02}.{index:03}Z", line)
        for index, line in enumerate(text.splitlines())
    ]


def test_a_traceback_is_found_among_other_lines():
    (found,) = tracebacks.find(log(CULPRIT, 1))
    assert found.text.splitlines()[0] == "Traceback (most recent call last):"
    assert found.error == "ValueError: this rank is the culprit"


def test_torchruns_own_traceback_is_left_out():
    assert tracebacks.find(log(TORCHRUN, 1)) == []


def test_the_prefix_of_a_rank_is_taken_off_and_names_the_rank():
    (found,) = tracebacks.find(log("\n".join(f"[rank5]: {line}" for line in CULPRIT.splitlines()), 1))
    assert found.rank == 5
    assert '\n  File "trainer.py"' in found.text


def test_a_chain_of_exceptions_is_one_traceback():
    (found,) = tracebacks.find(log(CHAINED, 1))
    assert found.error == "RuntimeError: no a"
    assert "KeyError: 'a'" in found.text


def test_events_and_other_processes_lines_in_between_are_no_part_of_it():
    lines = log(CULPRIT, 1)
    lines.insert(3, Line(lines[2].time, '{"event":"step"}'))
    lines.insert(4, Line(lines[2].time, "[rank1]: elsewhere"))
    (found,) = tracebacks.find(lines)
    assert "event" not in found.text
    assert "elsewhere" not in found.text
    assert found.error == "ValueError: this rank is the culprit"


def test_a_traceback_that_was_cut_off_is_shown_as_far_as_it_goes():
    (found,) = tracebacks.find(log(CULPRIT, 1)[:3])
    assert found.error.strip().startswith("File")


def test_the_rank_that_failed_first_is_named_whatever_its_number():
    late = CULPRIT.replace("this rank is the culprit", "connection reset by peer")
    found = tracebacks.first({0: log(late, 3), 1: log(TORCHRUN, 1), 2: log(CULPRIT, 2)})
    assert found.rank == 2
    assert found.error == "ValueError: this rank is the culprit"


def test_there_may_be_none():
    assert tracebacks.first({0: [], 1: log("all is well", 1)}) is None


def test_times_sort_though_go_leaves_out_trailing_zeros():
    times = [
        "2026-01-01T00:00:01Z",
        "2026-01-01T00:00:01.000000001Z",
        "2026-01-01T00:00:01.1Z",
        "2026-01-01T00:00:02Z",
    ]
    assert sorted(times, key=time_key) == times


LEASE = """\
Exception in thread Thread-1 (lease_worker):
Traceback (most recent call last):
  File "etcd_rendezvous.py", line 800, in lease_worker
ConnectionRefusedError: [Errno 111] Connection refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "threading.py", line 1045, in _bootstrap_inner
etcd.EtcdConnectionFailed: Connection to etcd failed"""


def test_a_thread_that_ends_explains_nothing_where_a_program_has_ended():
    both = {0: log(LEASE, 1), 1: log(CULPRIT, 2)}
    assert tracebacks.first(both).error == "ValueError: this rank is the culprit"
    assert "Connection to etcd failed" in tracebacks.first({0: log(LEASE, 1)}).error
