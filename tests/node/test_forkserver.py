"""A fork of the forkserver does what a new interpreter does: each program here runs both ways.

Trainers and the workers of torchrun are in ``test_forkserver_torchrun.py``.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from localkube.runtime.container_spec import ContainerSpec, ProcessSpec, StartRequest

from ..rows import slow
from .forkserver_pair import PYTHON, Pair, same

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


@pytest.fixture(scope="module")
def light() -> Iterator[Pair]:
    """A forkserver without torch, which forks faster."""
    with Pair(modules=["asyncio", "concurrent.futures", "logging", "multiprocessing.pool"]) as pair:
        yield pair


def test_it_says_when_it_is_ready_and_has_one_thread(pair):
    assert pair.ready["ready"] > 0
    assert "torch" in pair.ready["imports"]
    assert len(list(Path(f"/proc/{pair.process.pid}/task").iterdir())) == 1


def test_a_program_finds_torch_imported(pair):
    _, forked = pair.both(["python", "-c", "import sys; print('torch' in sys.modules)"])
    assert forked.stdout == "True\n"


STARTS = [
    ["python", "interpreter.py", "--flag", "value"],
    ["python3", "-u", str(PROGRAMS / "interpreter.py")],
    ["python", "-B", "-m", "interpreter", "x"],
    [PYTHON, "-u", "-c", (PROGRAMS / "interpreter.py").read_text(), "x"],
]
VARIABLES = [
    {},
    {"PYTHONUNBUFFERED": "1", "PYTHONPATH": "/usr/lib::lib"},
    {"PYTHONIOENCODING": "Latin-1:replace", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.utf8"},
    {"PYTHONIOENCODING": ":ignore", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"},
]


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        *zip(STARTS, VARIABLES, strict=True),
        *slow(*((argv, more) for argv in STARTS for more in VARIABLES)),
    ],
)
def test_a_program_sees_the_same_interpreter(pair, argv, more):
    more = {"__": "x"} | more
    if "-c" in argv:
        argv = [word.replace("__file__", "None") for word in argv]
    cold, forked = (json.loads(outcome.stdout) for outcome in pair.both(argv, cwd=PROGRAMS, **more))
    if "-m" in argv:
        assert "_run_code" in forked["frame"]
        cold["frame"] = forked["frame"] = None
    assert forked == cold


ENDS = [
    "import sys; sys.exit()",
    "import sys; sys.exit(3)",
    "import sys; sys.exit('a reason')",
    "import sys; sys.exit([1, 2])",
    "raise SystemExit(300)",
    "raise SystemExit(-1)",
    "exit(True)",
    "import os; os._exit(9)",
    "import os; print('lost'); os._exit(0)",
    "import os; os.kill(os.getpid(), 9)",
    "import os; os.abort()",
    "print('before'); raise KeyboardInterrupt",
    "raise KeyError('x') from ValueError('y')",
    "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "try:\n 1/0\nexcept ZeroDivisionError:\n raise ValueError",
    "this is no Python",
    "import sys; sys.excepthook = lambda *error: print('hook', error[0], error[2].tb_frame)\n1/0",
    "import sys; sys.excepthook = lambda *error: sys.exit(5)\n1/0",
    "import sys; sys.unraisablehook = print\n1/0",
    "import warnings; warnings.warn('to whom', stacklevel=2); warnings.warn('it concerns')",
    "import logging; logging.warning('where'); logging.info('hidden')",
    "import sys; sys.stdout.write('no newline')",
    "import sys; sys.stderr.write('no newline')",
    "import sys; sys.stdout.close()",
    "import sys; sys.stdout = None",
    "import ctypes; ctypes.CDLL(None).printf(b'from C\\n'); print('from Python')",
    "print('ünïcödé \\N{snowman} \\udcff')",
    "import asyncio; asyncio.run(asyncio.sleep(0)); print(asyncio.get_event_loop_policy())",
    "import threading; threading.Thread(target=lambda: 1/0).start()",
    "import gc; a = []; a.append(a); del a; print(gc.collect() > 0)",
    "import dataclasses as d, typing\n@d.dataclass\nclass A:\n x: int\nprint(typing.get_type_hints(A))",
    "x: int = 1\nprint(__annotations__)",
    "import os; os.environ['X'] = 'y'; os.system('echo $X'); print(os.popen('echo $PATH').read())",
    "import os; os.close(1); os.write(2, b'closed')",
    "import sys, io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'latin-1'); print('é')",
    "print(input())",
    "import os; print(os.getpgrp() == os.getsid(0), os.ttyname(0))",
]


@pytest.mark.parametrize(
    ("way", "code"),
    [
        *((number % 3, code) for number, code in enumerate(ENDS)),
        *slow(*((way, code) for code in ENDS for way in range(3))),
    ],
)
def test_a_program_ends_the_same_way(light, way, code, tmp_path):
    """Each in one of three ways to start it; the slow tests have the others."""
    (tmp_path / "program.py").write_text(code)
    start = (["program.py"], ["-m", "program"], ["-u", "-c", code])[way]
    same(light.both(["python", *start], cwd=tmp_path))


@pytest.mark.parametrize(
    "code",
    [
        "import inspect; print(len(inspect.stack()))",
        "import sys, traceback; traceback.print_stack(); print(sys._getframe().f_back)",
        "import sys; sys.excepthook = lambda *error: 1/0\n[][1]",
    ],
)
def test_no_frame_of_the_parent_is_below_a_program(light, code, tmp_path):
    (tmp_path / "program.py").write_text(code)
    same(light.both(["python", "program.py"], cwd=tmp_path))
    same(light.both(["python", "-c", code], cwd=tmp_path))


def test_a_program_can_call_nearly_as_deep(light):
    code = "def f(n=0):\n try:\n  return f(n + 1)\n except RecursionError:\n  return n\nprint(f())"
    cold, forked = light.both(["python", "-c", code])
    assert 0 <= int(cold.stdout) - int(forked.stdout) < 10


@pytest.mark.parametrize("code", ["0", "3"])
def test_threads_callbacks_and_objects_end_in_order(light, code):
    assert same(light.both(["python", "endings.py", code], cwd=PROGRAMS)).code == int(code)


@pytest.mark.parametrize(("words", "code"), [([], 0), *slow((["exit"], 3))])
def test_a_rank_that_ends_while_gloos_threads_drop_its_tensors_ends_well(pair, words, code):
    # A new interpreter aborts in one of some twelve: C++ cannot unwind what ends a thread at that moment.
    command = ["python", "last_collective.py", "16", *words]
    forked = pair.forked(command, env=pair.environment(), cwd=PROGRAMS)
    assert forked.finish().stdout == f"[{code}, {code}]\n" * 16


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        *slow(
            ("os.close(1)", 120),
            ("", 0),
            ("raise KeyError('x')", 1),
            ("raise KeyboardInterrupt", -signal.SIGINT),
            ("sys.stdout.close()", 0),
        ),
    ],
)
def test_a_program_with_threads_of_a_library_ends_with_its_callbacks_output_and_code(pair, end, code):
    # torch computes on two threads of OpenMP, which stay.
    lines = [
        "import atexit, os, sys, torch",
        "torch.ones(1000, 1000).sum()",
        "atexit.register(print, 'late')",
    ]
    program = "\n".join([*lines, "sys.stdout.write('no newline')", end])
    outcome = same(pair.both(["python", "-c", program], OMP_NUM_THREADS="2"))
    assert outcome.code == code


def test_processes_are_started_in_every_way(pair):
    outcome = same(pair.both(["python", "processes.py"], cwd=PROGRAMS))
    assert (outcome.code, outcome.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2", None])
def test_torch_computes_the_same_with_the_same_threads(pair, threads):
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = pair.environment() | dict.fromkeys(names, threads)
    environment = {name: value for name, value in environment.items() if value is not None}
    cold = pair.cold(["python", "loaders.py"], env=environment, cwd=PROGRAMS).finish()
    forked = pair.forked(["python", "loaders.py"], env=environment, cwd=PROGRAMS).finish()
    # OpenBLAS starts its threads when numpy is imported, in a fork when they are needed: one number differs.
    outputs = [re.sub(r", \d+\)\n", "\n", outcome.stdout, count=1) for outcome in (cold, forked)]
    assert outputs[1] == outputs[0]
    assert (forked.stderr, forked.code) == (cold.stderr, 0)


@pytest.mark.slow
def test_a_count_of_threads_for_openmp_alone_reaches_torch(pair):
    code = "import torch; print(torch.get_num_threads())"
    path = pair.environment()["PATH"]
    for more in ({"OMP_NUM_THREADS": "1"}, {"MKL_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "64"}):
        environment = {"PATH": path, "LANG": "C.UTF-8"} | more
        cold = pair.cold(["python", "-c", code], env=environment, cwd=PROGRAMS).finish()
        assert pair.forked(["python", "-c", code], env=environment, cwd=PROGRAMS).finish() == cold


@pytest.mark.parametrize(
    ("way", "number"),
    [
        ("handler", signal.SIGTERM),
        ("default", signal.SIGTERM),
        ("default", signal.SIGINT),
        ("default", signal.SIGHUP),
        ("sigwait", signal.SIGTERM),
    ],
)
def test_signals_have_the_same_effect(light, way, number):
    argv, environment = ["python", "signals.py", way], light.environment()
    processes = [start(argv, env=environment, cwd=PROGRAMS) for start in (light.cold, light.forked)]
    for process in processes:
        process.read_until("ready")
        os.kill(process.pid, number)
    cold, forked = (process.finish() for process in processes)
    assert (forked.code, forked.stdout) == (cold.code, cold.stdout)
    # Where it is interrupted depends on when the signal arrives.
    assert forked.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def test_standard_input_is_read_or_closed_as_it_is_given(light):
    for code in (
        "import sys; print(sys.stdin.read())",
        "import sys; print([*sys.stdin], sys.stdin.encoding)",
    ):
        outcomes = []
        for start in (light.cold, light.forked):
            reader, writer = os.pipe()
            process = start(["python", "-c", code], env=light.environment(), cwd=PROGRAMS, stdin=reader)
            os.close(reader)
            os.write(writer, b"one\r\ntwo\n\xff")
            os.close(writer)
            outcomes.append(process.finish())
        assert same(tuple(outcomes)).code == 0
    code = "import sys; print(sys.stdin, open('/dev/null').fileno()); input()"
    argv, environment = ["python", "-c", code], light.environment()
    starts = (light.cold, light.forked)
    same(tuple(start(argv, env=environment, cwd=PROGRAMS, stdin=None).finish() for start in starts))


@pytest.mark.parametrize("flags", [[], ["-u"]])
def test_a_reader_that_has_gone_is_reported_in_the_same_way(light, flags):
    code = "import sys; print('x' * 100); sys.stderr.write('still here\\n')"
    outcomes = []
    for start in (light.cold, light.forked):
        reader, writer = os.pipe()
        process = start(
            ["python", *flags, "-c", "input();" + code], env=light.environment(), cwd=PROGRAMS, stdin=reader
        )
        os.close(reader)
        process.stop_reading()
        os.write(writer, b"\n")  # only now does it go on and write
        os.close(writer)
        outcomes.append(process.finish())
    assert same(tuple(outcomes)).code == (1 if flags else 120)


def test_modules_on_pythonpath_are_found_and_shadowing_ones_start_cold(pair, tmp_path):
    library = tmp_path / "library"
    (library / "package").mkdir(parents=True)
    (library / "package" / "__main__.py").write_text("print(__package__, __name__)")
    (library / "own.py").write_text("value = 'mine'")
    argv = ["python", "-c", "import own, sys; print(own.value, sys.path)"]
    assert same(pair.both(argv, cwd=tmp_path, PYTHONPATH="library")).stdout.startswith("mine")
    same(pair.both(["python", "-m", "package"], cwd=library))
    (library / "sympy.py").write_text("print('hidden')")
    argv = ["python", "-c", "import sympy; import sys; print('torch' in sys.modules)"]
    assert same(pair.both(argv, cwd=tmp_path, PYTHONPATH=str(library))).stdout == "hidden\nFalse\n"
    (library / "sympy.py").rename(library / "sitecustomize.py")
    assert same(pair.both(argv, cwd=tmp_path, PYTHONPATH=str(library))).stdout == "hidden\nFalse\n"


@pytest.mark.parametrize("late", [True, False])
def test_a_sitecustomize_that_may_run_after_imports_does_not_make_the_start_cold(pair, tmp_path, late):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nAFTER_IMPORTS = {late}\nsys.custom = 'yes'\n")
    code = "import sys; print(sys.custom, 'sitecustomize' in sys.modules, file=sys.stderr)"
    code += "; print('torch' in sys.modules)"
    cold, forked = pair.both(["python", "-c", code], PYTHONPATH=str(tmp_path))
    assert (cold.stderr, forked.stderr) == ("yes True\n", "yes True\n")
    assert forked.stdout == f"{late}\n"


@pytest.mark.parametrize("target", ["missing.py", ".", "empty", "archive", "compiled"])
def test_a_program_that_is_no_plain_script_starts_cold(light, target, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "__main__.py").write_text("import sys; print(sys.path[0], sys.argv)")
    code = "import py_compile, zipfile; zipfile.ZipFile('archive', 'w').write('__main__.py')"
    code += "; py_compile.compile('__main__.py', cfile='compiled')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    same(light.both(["python", target], cwd=tmp_path))


def test_a_script_behind_links_finds_its_neighbours(light, tmp_path):
    (tmp_path / "..data" / "deep").mkdir(parents=True)
    (tmp_path / "..data" / "train.py").write_text(
        "import neighbour, sys; print(__file__, sys.path[0], sys.argv)"
    )
    (tmp_path / "..data" / "neighbour.py").touch()
    (tmp_path / "train.py").symlink_to("..data/train.py")
    assert same(light.both(["python", "train.py"], cwd=tmp_path)).code == 0


def test_nothing_random_is_shared_between_two_programs(pair):
    code = (
        "import random, numpy, torch, multiprocessing, uuid, tempfile;"
        "print(random.random(), numpy.random.rand(), numpy.random.default_rng().random(), uuid.uuid4());"
        "print(torch.rand(1).item(), torch.initial_seed(), tempfile.mktemp());"
        "print(multiprocessing.current_process().authkey.hex())"
    )
    runs = [pair.forked(["python", "-c", code], env=pair.environment(), cwd=PROGRAMS) for _ in range(2)]
    first, second = (process.finish().stdout.split() for process in runs)
    assert len(first) > 7
    assert not set(first) & set(second)


def test_the_parents_files_and_modules_are_not_left_to_the_program(pair):
    code = (
        "import os, sys; ours = [name for name in sys.modules if name.partition('.')[0] == 'localkube'];"
        "print(len(os.listdir('/proc/self/fd')), ours)"
    )
    assert same(pair.both(["python", "-c", code])).stdout == "4 []\n"


def test_a_bad_request_is_refused_and_the_next_one_served(pair):
    null = os.open(os.devnull, os.O_RDWR)
    good = asdict(StartRequest(ContainerSpec(ProcessSpec((), ())), fork_plan={})) | {"fds": ["stdout"]}
    process = good["spec"]["process"] | {"args": 1}
    for request in (
        {},
        good | {"fork_plan": None},
        good | {"spec": good["spec"] | {"process": process}},
        good | {"fds": []},
    ):
        assert pair.request(request, [null])["stage"] == "sandbox"
    os.close(null)
    assert same(pair.both(["python", "-c", "print(1)"])).stdout == "1\n"


def test_the_parent_ends_with_the_runtime():
    with Pair(modules=["json"]) as pair:
        descriptors = len(list(Path(f"/proc/{pair.process.pid}/fd").iterdir()))
        for _ in range(3):
            same(pair.both(["python", "-c", "print(1)"]))
        assert len(list(Path(f"/proc/{pair.process.pid}/fd").iterdir())) == descriptors
    assert pair.process.returncode == 0
