import subprocess
import sys
from pathlib import Path

import pytest

from kitlib.causes import Facts
from kitlib.causes.rank_ends import rank_ends
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


def log(text: str, second: int) -> list[Line]:
    return [
        Line(f"2026-01-01T00:00:{second:02}.{index:03}Z", line)
        for index, line in enumerate(text.splitlines())
    ]


def first(logs):
    """Find the end that explains a failure, of processes of which nothing but logs is known."""
    return next(iter(rank_ends(Facts(logs=logs))), None)


ON_DEVICE = """\
/pytorch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread: [3,0,0] Assertion \
`t >= 0 && t < n_classes` failed.
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call."""


def test_an_assertion_on_a_gpu_is_named_by_what_its_thread_wrote():
    (report,) = tracebacks.find(log(ON_DEVICE, 1))
    words = "Assertion `t >= 0 && t < n_classes` failed, /pytorch/aten/src/ATen/native/cuda/Loss.cu:250"
    assert report.error.startswith(f"{words}: RuntimeError: CUDA error: device-side assert triggered")


def test_events_and_other_processes_lines_in_between_are_no_part_of_it():
    lines = log(CULPRIT, 1)
    frames, head = ['{"event":"step"}', "[rank1]: elsewhere"], ["step 3 loss 0.2", "Epoch 1", "loading"]
    for place, between in ((3, frames), (2, head)):
        lines[place:place] = [Line(lines[2].time, text) for text in between]
    (report,) = tracebacks.find(lines)
    assert not [text for text in frames + head if text in report.text]
    assert report.error == "ValueError: this rank is the culprit"


def test_a_traceback_that_was_cut_off_is_shown_as_far_as_it_goes():
    (report,) = tracebacks.find(log(CULPRIT, 1)[:3])
    assert report.error.strip().startswith("File")


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
    assert first(both).error == "ValueError: this rank is the culprit"
    assert "Connection to etcd failed" in first({0: log(LEASE, 1)}).error


# Recorded from programs on torch 2.15 in Python 3.11; those with "torchrun" in their names of two ranks.
RECORDED = {
    "spawn": ["ValueError: bucket of rank 1 has no images"],
    "data_loader": ["OSError: picture 5 is truncated"],
    "data_loader_key": ["KeyError: 'label'"],
    "data_loader_killed": [
        "RuntimeError: DataLoader worker (pid(s) 10937) exited unexpectedly",
        "is killed by signal: Killed",
    ],
    "state_dict": [
        "RuntimeError: Error(s) in loading",
        'Missing key(s) in state_dict: "0.bias"',
        "size mismatch for",
    ],
    "assert_close": ["AssertionError: Tensor-likes are not close!"],
    "weights_only": [
        "_pickle.UnpicklingError: Weights only load failed",
        "Unsupported global: GLOBAL __main__.Mine",
    ],
    "cuda": ["RuntimeError: Found no NVIDIA driver"],
    "shapes": ["RuntimeError: addmm: mat1 and mat2 shapes cannot be multiplied"],
    "torchrun": ["ValueError: this rank is the culprit\nand says so in two lines\nwhile reading shard 3"],
    "torchrun_plain": ["ValueError: this rank is the culprit"],
    "torchrun_record": ["ValueError: this rank is the culprit"],
    "torchrun_signal": [],
    "spawn_in_torchrun": ["ValueError: a child of a rank is the culprit"],
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_error_is_the_one_that_a_person_looks_for(name):
    text = (Path(__file__).parent / "tracebacks" / f"{name}.log").read_text()
    report = first({0: log(text, 1)})
    if name == "torchrun_signal":
        assert (report.rank, report.signal) == (1, "SIGSEGV")
        return
    first_words, *others = RECORDED[name]
    assert report.error.startswith(first_words)
    assert all(words in report.error for words in others)
    assert report.error.split("\n")[-1].split(" (from")[0] in report.text
    assert report.rank == (1 if "torchrun" in name else 0)


@pytest.mark.parametrize("name", sorted(name for name in RECORDED if not name.startswith("torchrun")))
def test_the_end_of_a_log_is_enough(name):
    """A kubelet keeps the last 2048 bytes of it."""
    text = (Path(__file__).parent / "tracebacks" / f"{name}.log").read_text()
    text = text.partition("\nW1125")[0]
    tail = tracebacks.with_head(text.encode()[-2048:].decode("utf-8", "replace").splitlines())
    assert RECORDED[name][-1] in first({0: log("\n".join(tail), 1)}).error


# Python itself writes these, of the version that runs the tests: source, the error, more that the text has.
PROGRAMS = {
    "note": ("e = ValueError('x'); e.add_note('of shard 3'); raise e", "ValueError: x", "of shard 3"),
    "open bracket": ("raise ValueError('got [1,\\n2,\\n3] here')", "ValueError: got [1,\n2,\n3] here", ""),
    "two lines": ("raise ValueError('first\\nsecond\\n\\nthird')", "ValueError: first", "second\n\nthird"),
    "context": ("try: {}['a']\nexcept KeyError: raise OSError('no a')", "OSError: no a", "KeyError: 'a'"),
    "cause": (
        "try: {}['a']\nexcept KeyError as e: raise OSError('no a') from e",
        "OSError: no a (from KeyError: 'a')",
        "",
    ),
    "own class": ("class Bad(Exception): pass\nraise Bad", "Bad", "raise Bad"),
    "no message": ("assert 1 == 2", "AssertionError", "assert 1 == 2"),
    "interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt", ""),
    "recursion": ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded", "more times]"),
    "syntax": ("x = 1\nprint((x)", "SyntaxError: '(' was never closed", "print((x)"),
    "group": (
        "raise ExceptionGroup('many', [ValueError('a'), ExceptionGroup('more', [OSError('b')])])",
        "ExceptionGroup: many (2 sub-exceptions); ValueError: a; OSError: b",
        "",
    ),
    "pool": (
        "from concurrent.futures import ProcessPoolExecutor as P\nif __name__ == '__main__':\n"
        "    with P(1) as p: p.submit(int, 'x').result()",
        "ValueError: invalid literal for int() with base 10: 'x'",
        "",
    ),
    "logged before": (
        "import logging\ntry: {}['a']\nexcept KeyError: logging.exception('again')\nraise OSError('no a')",
        "OSError: no a",
        "",
    ),
    "thread before": (
        "from threading import Thread as T\nt = T(target=int, args='x')\nt.start()\nt.join()\n"
        "raise OSError('no a')",
        "OSError: no a",
        "",
    ),
    "ignored before": (
        "class A:\n    def __del__(self): raise ValueError('x')\nA()\nraise OSError('no a')",
        "OSError: no a",
        "",
    ),
    "segfault": ("import ctypes; ctypes.string_at(0)", "Fatal Python error: Segmentation fault", "string_at"),
    "terminate": (
        "import ctypes; ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()",
        "terminate called without",
        "",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pythons_own_reports_are_read_whole(name, tmp_path):
    source, error, more = PROGRAMS[name]
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "broken.py").write_text("x = (1")
    command = [sys.executable, *(["-X", "faulthandler"] if name == "segfault" else []), "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode
    text = "begins\n" + done.stderr + "I1125 13:00:00.000 ends\nstep 4 loss 0.5\n"
    report = first({0: log(text, 1)})
    assert report.error == error or (report.error.startswith(error) and name in ("recursion", "terminate"))
    assert more in report.text and "ends" not in report.text


def test_the_message_of_an_exception_in_c_is_named():
    text = "terminate called after throwing an instance of 'c10::Error'\n  what():  shapes differ\nAborted"
    error = "terminate called after throwing an instance of 'c10::Error'\n  what():  shapes differ"
    assert first({0: log(text, 1)}).error == error


@pytest.mark.parametrize(
    "joint", ["During handling of the above exception, another", "The above exception was the direct cause"]
)
def test_a_chain_of_any_length_is_read(joint):
    part = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    parts = (f"{part}ValueError: {number}" for number in range(3000))
    report = first({0: log(f"\n\n{joint}\n\n".join(parts), 1)})
    assert report.error.startswith("ValueError: 2999") and len(report.error) <= tracebacks.LONGEST


INTERLEAVED = """\
Traceback (most recent call last):
  File "/w/train.py", line 40, in <module>
Traceback (most recent call last):
    main()
  File "/w/train.py", line 40, in <module>
  File "/w/train.py", line 12, in main
    main()
    raise ValueError("rank 0 has no data")
  File "/w/train.py", line 15, in main
    raise KeyError("label")
ValueError: rank 0 has no data
KeyError: 'label'"""


def test_interleaved_tracebacks_give_a_message_and_no_frame():
    assert first({0: log(INTERLEAVED, 1)}).error == "ValueError: rank 0 has no data"
