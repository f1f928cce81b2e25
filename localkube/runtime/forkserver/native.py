"""What a fork changes below Python to look like a new process: C streams, thread counts, the kernel's view.

Not here: what Python itself shows (``interpreter.py``).
"""

import ctypes
import functools
import mmap
import operator
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14
IONBF = 2
MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20
LIBRARIES = "libgomp", "libtorch_cpu", "openblas"  # parts of the names of their files

_python = ctypes.pythonapi
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fopen.restype = ctypes.c_void_p
_libc.sbrk.restype = ctypes.c_void_p
_libc.sbrk.argtypes = [ctypes.c_ssize_t]
# The last three arguments are those of sys.excepthook; a C function does not look at them.
_list_of = ctypes.PYFUNCTYPE(*[ctypes.py_object] * 5)(("PySequence_List", _python))
_run_file = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)(
    ("PyRun_SimpleFileExFlags", _python)
)
_run_string = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyRun_SimpleStringFlags", _python)
)


class Become(BaseException):
    """Unwinds the stack of a fork of the forkserver; sys.excepthook then runs its program."""


def become(program: Callable[[], object], *, before: Callable[[], None]) -> NoReturn:
    """Unwind to the interpreter's top level and run ``program`` there, with no frame of ours below it.

    The top level calls sys.excepthook for an uncaught exception, from C and with an empty stack.
    The program runs in it, itself called from C, and the process then ends as after any program: threads
    joined, atexit callbacks called, streams flushed, modules torn down, the exit code set.

    Args:
        program: From ``script`` or ``command``, or any function.
        before: Called immediately before it, on the empty stack.
    """
    sys.excepthook = functools.partial(_list_of, map(operator.call, (before, program)))
    raise Become


def script(path: str) -> Callable[[], object]:
    """Prepare a script for ``become``."""
    file = _libc.fopen(os.fsencode(path), b"rbe")
    if not file:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return functools.partial(_run_file, file, os.fsencode(os.path.abspath(path)), 1, None)


def command(text: str) -> Callable[[], object]:
    """Prepare the text of ``python -c`` for ``become``."""
    return functools.partial(_run_string, text.encode() + b"\n", None)


def _finished(status: int, *_: object) -> None:
    """Exit with 0; after an error, which is printed by now, ``Become`` exits with 1 as any uncaught error."""
    if status == 0:
        end_with(0)
        raise SystemExit(0)
    if not issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt):
        end_with(1)


_run_file.errcheck = _run_string.errcheck = _finished  # type: ignore[assignment]  # an errcheck may return None


def mark_interrupted() -> None:
    """Tell the interpreter that a KeyboardInterrupt ended the program, so that it dies of SIGINT."""
    hook, sys.excepthook = sys.excepthook, lambda *_: None
    interrupt = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    interrupt(("PyRun_SimpleStringFlags", _python))(b"raise KeyboardInterrupt", None)
    sys.excepthook = hook


def set_flag(name: str, value: int) -> None:
    """Change one of sys.flags, which Python code cannot do."""
    position = type(sys.flags).__match_args__.index(name)
    setter = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_ssize_t, ctypes.py_object)
    _python.Py_IncRef(ctypes.py_object(value))
    setter(("PyStructSequence_SetItem", _python))(sys.flags, position, value)


def keep(value: object) -> None:
    """Never free an object, not even when the interpreter ends."""
    _python.Py_IncRef(ctypes.py_object(value))


def skip_destructors() -> None:
    """End processes without the clean-up of the C and C++ libraries loaded so far, but flush C streams."""
    if hasattr(_libc, "on_exit"):
        # Called in reverse: flush all, then _exit(status, NULL).
        _libc.on_exit(_libc._exit, None)
        _libc.__cxa_atexit(_libc.fflush, None, None)


def end_with(code: int) -> None:
    """Record the exit code of a program that has ended, for ``leave``."""
    _exit_codes.append(code)


def exit_at_once(status: int | str | None = None) -> NoReturn:
    """Replace sys.exit in torchrun: ``leave`` then knows the code, and nothing is torn down."""
    if status is None or isinstance(status, int):
        end_with(status or 0)
    raise SystemExit(status)


def leave() -> None:
    """End the process here, after threads are joined and atexit's callbacks called, if C++ threads still run.

    During finalization the interpreter calls pthread_exit in every thread that requests the GIL. A thread of
    gloo does so when it drops the tensors of the last collective; a C++ destructor cannot be unwound, so the
    whole process would abort: "terminate called without an active exception". A program that ends by
    SystemExit, whose code is not visible here, is torn down as usual, after ``end_collectives``.
    """
    has_foreign_threads = len(os.listdir("/proc/self/task")) > threading.active_count()
    if not _exit_codes or not (has_foreign_threads or sys.exit is exit_at_once):
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter reports it, and ends with a code of its own
    _libc.fflush(None)
    os._exit(_exit_codes[-1])


def end_collectives() -> None:
    """Join gloo's threads where a program ends by SystemExit, before modules are torn down; see ``leave``."""
    distributed = sys.modules.get("torch.distributed")
    if not _exit_codes and distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def use_huge_pages() -> None:
    """Move this process's memory to huge pages: a fork copies an entry for each page of its parent.

    A page that a fork writes to is copied alone, as before. Linux before 6.1 cannot do it.
    """
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
    for addresses, mode, *about in mappings:
        if mode == "rw-p" and about[3:] in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if start < end:
                _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def unbuffer_streams() -> None:
    """Make C's own streams unbuffered, as ``python -u`` does."""
    for name in ("stdin", "stdout", "stderr"):
        _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, name), None, IONBF, 0)


def set_threads(env: Mapping[str, str]) -> None:
    """Give OpenMP, MKL and OpenBLAS the thread counts that they would have read from ``env`` at start.

    Threads start when they are first needed. Libraries that are not loaded, or lack the symbols, are skipped.
    """
    counts = {name: int(env[name]) for name in env if name.endswith("_NUM_THREADS") and env[name].isdigit()}
    openmp = counts.get("OMP_NUM_THREADS")
    threads = counts.get("MKL_NUM_THREADS") or openmp
    loaded = libraries()
    if threads and (torch := loaded.get("libtorch_cpu")) and hasattr(torch, "mkl_serv_set_num_threads"):
        # torch passes MKL's number on to OpenMP, and MKL limits it to the number of cores.
        openmp = min(threads, torch.mkl_get_max_threads())
        torch.mkl_serv_set_num_threads(openmp)
    if openmp and "libgomp" in loaded:
        loaded["libgomp"].omp_set_num_threads(openmp)
    if "openblas" in loaded:
        number = (
            counts.get("OPENBLAS_NUM_THREADS")
            or counts.get("OMP_NUM_THREADS")
            or len(os.sched_getaffinity(0))
        )
        _set_openblas(loaded["openblas"], min(number, len(os.sched_getaffinity(0))))


def _set_openblas(library: ctypes.CDLL, number: int) -> None:
    """OpenBLAS stops its threads at a fork, and later starts as many as these variables say."""
    try:
        for name in ("blas_num_threads", "blas_cpu_number"):
            ctypes.c_int.in_dll(library, name).value = number
    except ValueError:
        return


@functools.cache
def libraries() -> dict[str, ctypes.CDLL]:
    """Open the mathematical libraries that this process has loaded; the forkserver does so for all forks."""
    opened: dict[str, ctypes.CDLL] = {}
    with open("/proc/self/maps") as file:
        paths = {line.split(None, 5)[5].strip() for line in file if "/" in line}
    for path in sorted(paths):
        for name in LIBRARIES:
            if name in os.path.basename(path) and name not in opened:
                opened[name] = ctypes.CDLL(path)
    return opened


class _Map(ctypes.Structure):
    """The kernel's ``struct prctl_mm_map``."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


_kept: list[Any] = []
_exit_codes: list[int] = []


def set_title(comm: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Show the container's own command and environment in /proc, where ``ps`` reads them.

    Where the kernel was built without CONFIG_CHECKPOINT_RESTORE, only the short name changes.
    """
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(os.fsencode(comm)), 0, 0, 0)
    command = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    # Private, because the kernel shows only anonymous memory.
    memory = mmap.mmap(-1, len(command + variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(command + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = start + len(command)
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    # The first of these is the third in the manual, proc(5).
    stat = {number: int(fields[number - 3]) for number in (26, 27, 28, 45, 46, 47)}
    new = _Map(*(stat[number] for number in (26, 27, 45, 46, 47)), _libc.sbrk(0), stat[28])
    new.arg_start, new.arg_end, new.env_start, new.env_end = start, middle, middle, middle + len(variables)
    new.exe_fd = 0xFFFFFFFF
    size = ctypes.c_ulong(ctypes.sizeof(new))
    _libc.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), ctypes.byref(new), size, ctypes.c_ulong(0))
    _kept.append(memory)
