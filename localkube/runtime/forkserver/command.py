"""Plan how the forkserver can start a container's command, if it can.

Pure, except that it reads the program that the command names. Some settings take effect only when Python
starts or torch is imported: interpreter flags, allocators, most variables of the mathematical libraries. A
command with one of these starts cold. ``interpreter.py`` carries the plan out.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

# Read once, when the interpreter or a library that the forkserver has already loaded starts.
_PREFIXES = """
    ACC_ AOTINDUCTOR_ AOT_ AS_SECURE_LOG_FILE ATEN_ BLIS_ CASK_ COMPILE_STROBELIGHT_ COVERAGE_PROCESS_
    CUBLAS CUTEDSL_ CUTLASS_ DNNL_ DUMP_AOTI_ ENABLE_HOST_SIDE_TMA ENABLE_PERSISTENT_TMA
    ENABLE_TEMPLATE_ ENABLE_TMA_ FAKE_ALLOW_META FLYDSL_ FX_ GCONV_PATH GFORTRAN_ GLIBC GOMP_ GOTO_
    INDUCTOR_ INTEL_LIBITTNOTIFY I_MPI_ KINETO_ KMP_ LD_ LIBNVVM_ LLVM_ LOCPATH LOGLEVEL LOG_AUTOTUNE_
    LOG_TLPARSE MALLOC_ MKL MPI_ MPMATH_ NPY_ NUMPY_ NVPL_ NVRTC_ NV_NVVM_ OMPI_ OMP_ ONEDNN_ OPENBLAS_
    OPENSSL_ PARTITIONER_ PT2_ PYTHON PYTORCH_ SAGE_ROOT SETUPTOOLS_USE_DISTUTILS SYMPY_ TORCH TQDM_
    TRITON_ UNSAFE_SKIP_FSDP _PYTHON __PYVENV
"""
FIXED_PREFIXES = tuple(_PREFIXES.split())
FIXED = {"CI", "CXX"}
# Exceptions: read when they are used, or set again in the new process by interpreter.py.
FREE = {
    "PYTHONBREAKPOINT",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONIOENCODING",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONUSERBASE",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
}
FREE_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_")
LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch"}
# How installers write scripts whose interpreter's path has a space or is too long for the kernel:
# https://github.com/pypa/distlib/blob/master/distlib/scripts.py
_TRAMPOLINE = re.compile(rb"'''exec' (.+) \"\$0\" \"\$@\"\n")
COLD_TORCHRUN = "localkube.runtime.forkserver.cold_torchrun"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Of the forkserver and of containers that run on the host's file system. OpenMP's threads spin while they
# wait for one another, unless told to sleep: with more threads than cores they take these from the threads
# that compute, and a step costs twice the CPU time.
OPENMP_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


class ForkPlan(TypedDict):
    """A program to run in a fork of the forkserver; plain data, because it travels in a request."""

    command: list[str]  # as execve would get it
    kind: str  # script, module or command
    target: str
    arguments: list[str]
    program: str  # what a cold start would execute
    argv: list[str]  # of the interpreter, as sys.orig_argv has it
    executable: str
    comm: str  # the name that the kernel would give to the process
    unbuffered: bool
    no_bytecode: bool


def plan(argv: Sequence[str], env: Mapping[str, str], *, python: str, path: str) -> ForkPlan | None:
    """Plan a command's run in a fork of the forkserver; None when it must start cold.

    Args:
        argv: The command, as execve would get it.
        python: The interpreter of the forkserver, an absolute path.
        path: The directories that are searched for a command without a slash.

    Example:
        >>> env = {"LANG": "C.UTF-8"}
        >>> plan(["python", "-u", "train.py"], env, python="/kit/bin/python", path="/kit/bin")["target"]
        'train.py'
    """
    program = _find(argv[0], path)
    if program is None or unfit(env):
        return None
    line, comm, executable = list(argv), os.path.basename(program), program
    if not _is_interpreter(program, python):
        unfolded = _unfold(program, argv, path)
        if unfolded is None or not _is_interpreter(unfolded[1], python):
            return None
        line, executable, comm = unfolded
    parsed = _parse(line[1:])
    if parsed is None:
        return None
    kind, target, arguments, letters = parsed
    if kind == "command" and sys.version_info >= (3, 13):
        return None  # its tracebacks show the source; those of PyRun_SimpleString do not
    return ForkPlan(
        command=list(argv),
        kind=kind,
        target=target,
        arguments=arguments,
        program=program,
        argv=line,
        executable=executable,
        comm=comm[:15],
        unbuffered="u" in letters or is_on(env, "PYTHONUNBUFFERED"),
        no_bytecode="B" in letters or is_on(env, "PYTHONDONTWRITEBYTECODE"),
    )


def is_torchrun(container: ForkPlan) -> bool:
    """Check whether a command is torchrun, by its own name or as a module."""
    name = os.path.basename(container["target"])
    return container["target"] in LAUNCHERS if container["kind"] == "module" else name == "torchrun"


def cold_command(container: ForkPlan, *, mounts: Iterable[str]) -> list[str]:
    """Return the command of a container that the forkserver does not start: torchrun still forks its workers.

    Args:
        container: The plan of its own command.
        mounts: The mount points of its volumes: one of them may hide the interpreter.
    """
    python = container["executable"]
    covered = any(python.startswith(f"{mount.rstrip('/')}/") for mount in mounts)
    if covered or not is_torchrun(container):
        return container["command"]
    return [python, "-P", "-m", COLD_TORCHRUN, *container["command"]]


def unfit(env: Mapping[str, str]) -> str | None:
    """Return the name of a variable that would have no effect in a fork; None if there is none.

    ``PYTHONHASHSEED`` is one, unless it is ``random``. Without it all forks of one parent hash alike,
    with a seed that was random when the parent started.
    """
    for name, value in env.items():
        if name == "PYTHONHASHSEED" and value in ("", "random"):
            continue
        if name in THREADS and (value == "" or value.isascii() and value.isdigit() and int(value) > 0):
            continue
        if (name, value) in OPENMP_ENVIRONMENT.items():
            continue
        is_free = name in FREE or name.startswith(FREE_PREFIXES)
        if not is_free and (name in FIXED or name.startswith(FIXED_PREFIXES)):
            return name
    return None if _has_utf8_locale(env) else "LC_ALL"


def is_read_at_import(name: str) -> bool:
    """Check whether torch, or a library that it loads, reads a variable once, when it is imported.

    Variables that the interpreter reads when it starts do not count: a program cannot set them in time.
    """
    if name in THREADS or name == "TORCH_DISTRIBUTED_DEBUG":  # set for a fork from what its pod declares
        return True
    if name in FREE or name.startswith((*FREE_PREFIXES, "PYTHON", "_PYTHON", "LD_", "MALLOC_")):
        return False
    return name in FIXED or name.startswith(FIXED_PREFIXES)


def is_on(env: Mapping[str, str], name: str) -> bool:
    """Check a variable as Python checks a flag: any text but a 0 sets it."""
    value = env.get(name, "")
    return bool(value) and not (value.isascii() and value.isdigit() and int(value) == 0)


def _has_utf8_locale(env: Mapping[str, str]) -> bool:
    """Check for a UTF-8 locale; for the C locale, Python has a mode that a fork cannot enter."""
    name = locale_name(env)
    return name.partition(".")[2].lower().replace("-", "") == "utf8"


def locale_name(env: Mapping[str, str]) -> str:
    return env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "C"


def _find(name: str, path: str) -> str | None:
    if "/" in name:
        return name if os.path.isabs(name) and os.path.isfile(name) else None
    for directory in path.split(":"):
        candidate = os.path.join(directory, name)
        if os.path.isabs(directory) and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def _is_interpreter(program: str, python: str) -> bool:
    """Check for the same interpreter in the same environment, which its directory decides."""
    same_directory = os.path.dirname(program) == os.path.dirname(python)
    return same_directory and os.path.realpath(program) == os.path.realpath(python)


def _unfold(script: str, argv: Sequence[str], path: str) -> tuple[list[str], str, str] | None:
    """Unfold a ``#!`` script as the kernel does: the interpreter's argv, its path, the process's name."""
    try:
        with open(script, "rb") as file:
            first, _, rest = file.read(1024).partition(b"\n")
        interpreter, _, option = first.decode().removeprefix("#!").strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return None
    if not first.startswith(b"#!") or not interpreter:
        return None
    if interpreter == "/bin/sh" and (trampoline := _TRAMPOLINE.match(rest)):
        (python,) = shlex.split(trampoline[1].decode())
        return [python, script, *argv[1:]], python, os.path.basename(python)
    if os.path.basename(interpreter) != "env":
        return [interpreter, *option.split(None, 1), script, *argv[1:]], interpreter, os.path.basename(script)
    option = option.strip()
    program = _find(option, path) if option and not option.startswith("-") and "=" not in option else None
    return None if program is None else ([option, script, *argv[1:]], program, os.path.basename(program))


def _parse(arguments: Sequence[str]) -> tuple[str, str, list[str], str] | None:
    """Parse an interpreter's command line: kind, target, the target's arguments, the letters of the flags."""
    letters, queue = "", list(arguments)
    while queue and queue[0].startswith("-") and queue[0] != "-":
        option = queue.pop(0)
        for position, letter in enumerate(option[1:], 2):
            if letter in "uB":
                letters += letter
            elif letter in "mc":
                target = option[position:] or (queue.pop(0) if queue else "")
                return ({"m": "module", "c": "command"}[letter], target, queue, letters) if target else None
            else:
                return None
    return ("script", queue[0], queue[1:], letters) if queue and queue[0] not in ("-", "") else None
