"""Make a fork look like an interpreter that has just started, and run the program in it.

``runpy`` runs modules; for scripts and ``-c`` it would leave its frames below the program's, in tracebacks
and for ``sys._getframe``, so that the interpreter's own functions run those (``native.py``).

Differences from a cold start that cannot be avoided: ``sys.modules`` contains the forkserver's modules, whose
code does not run again (their warnings appear in its log, their filters are in ``warnings.filters`` before
the program imports them) and which are not torn down at the end; nor is a program that leaves threads of C++
libraries running (``native.leave``). All forks of one parent hash strings alike, and the parent's objects are
frozen for the garbage collector. A program that would notice more than that, and a container that mounts a
volume over files that the parent has loaded, starts cold from here, in its own sandbox.
"""

import atexit
import codecs
import functools
import importlib
import io
import linecache
import locale
import multiprocessing.process
import os
import platform
import random
import runpy
import signal
import site
import stat
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import BuiltinImporter, all_suffixes
from importlib.util import MAGIC_NUMBER
from typing import Any, NoReturn

from localkube.runtime.forkserver import native
from localkube.runtime.forkserver.command import ForkPlan, locale_name
from localkube.runtime.forkserver.early_variables import find_module, sets_early

SUFFIXES = all_suffixes()
AFTER_IMPORTS, MAX_BYTES = b"AFTER_IMPORTS = True", 1 << 16  # a line of a sitecustomize
COLD_FILES = (b"PK\x03\x04", MAGIC_NUMBER)  # archives and byte code that carry a script's name


class ForkserverState:
    """The state of the forkserver's interpreter before it preloaded modules, and the preloaded modules.

    Args:
        modules: The names in ``sys.modules`` before that.
    """

    def __init__(self, modules: set[str]) -> None:
        inherited = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
        # Without the directory of ``python -m``, and without the parent's own PYTHONPATH.
        entries = sys.path if sys.flags.safe_path else sys.path[1:]
        self.path = [entry for entry in entries if entry not in inherited]
        self.interpreter = os.stat(sys.executable)
        self._path_files = _path_files()
        self._before = modules
        self._loaded: dict[str, types.ModuleType] = {}
        self.names: set[str] = (
            set()
        )  # top-level ones of preloaded modules: a cold start would search for them
        self.own_modules: list[str] = []  # of localkube, which no program is to see

    def loaded(self) -> None:
        """Record the modules imported since, and drop the caches that their imports have filled.

        Each fork would copy the pages of all names that it looks at, and of all that it frees.
        """
        self._loaded |= {name: sys.modules[name] for name in sys.modules.keys() - self._before - {"__main__"}}
        native.keep(self._loaded)
        self.names = {name.partition(".")[0] for name in self._loaded} - self._before - {"localkube"}
        self.own_modules = [name for name in sys.modules if name.partition(".")[0] == "localkube"]
        native.libraries()
        linecache.clearcache()
        sys.path_importer_cache.clear()
        _forget_finalizers()

    def hide_loaded(self) -> None:
        """Keep the interpreter from tearing down the forkserver's modules at its end, which takes long."""
        for name, module in self._loaded.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def add_packages(self) -> None:
        """Read the ``.pth`` files of packages installed meanwhile, such as those in editable mode."""
        for directory, name, _ in sorted(_path_files() - self._path_files):
            site.addpackage(directory, name, None)

    def user_site_differs(self, env: Mapping[str, str]) -> bool:
        """Compare the packages in a user's home with the forkserver's."""
        if base := env.get("PYTHONUSERBASE"):
            return base != site.getuserbase() or site.getusersitepackages() not in self.path
        home = env.get("HOME", "")
        below = os.path.relpath(site.getusersitepackages(), os.path.expanduser("~"))
        return site.getusersitepackages() in self.path or os.path.isdir(os.path.join(home, below))


def _path_files() -> set[tuple[str, str, int]]:
    """List the ``.pth`` files of the environment, with their modification times."""
    return {
        (directory, entry.name, entry.stat().st_mtime_ns)
        for directory in site.getsitepackages()
        if os.path.isdir(directory)
        for entry in os.scandir(directory)
        if entry.name.endswith(".pth")
    }


def run(plan: ForkPlan, env: dict[str, str], state: ForkserverState, *, last: Callable[[], None]) -> NoReturn:
    """Become the program of ``plan``; the calling process is a fork with its descriptors 0, 1 and 2 in place.

    Args:
        last: Called when everything is set up, immediately before the program.

    Raises:
        native.Become: Always, except for a cold start; nothing may catch it.
    """
    if not _can_run(plan, env, state):
        start_cold(plan, env)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    _set_signals()
    _set_flags(plan)
    _set_paths(plan, env, state)
    _replace_streams(env, unbuffered=plan["unbuffered"])
    _forget_parent(plan, state)
    native.set_threads(env)
    native.set_title(plan["comm"], plan["argv"], env)
    _customize(env)
    last()
    native.become(_program(plan), before=_forget_become)


def _can_run(plan: ForkPlan, env: Mapping[str, str], state: ForkserverState) -> bool:
    """Check that the container would load what the forkserver has loaded."""
    try:
        interpreter = os.stat(plan["executable"])
        if not os.path.samestat(interpreter, state.interpreter):
            return False
        if plan["kind"] == "script" and not _is_plain_script(plan["target"]):
            return False
        codecs.lookup(env.get("PYTHONIOENCODING", "").partition(":")[0] or "utf-8")
        locale.setlocale(locale.LC_CTYPE, locale_name(env))
    except (OSError, LookupError, locale.Error):
        return False
    if site.ENABLE_USER_SITE and state.user_site_differs(env):
        return False
    searched = [_first_path(plan), *_python_path(env)]
    if (source := _source(plan, searched)) is not None and sets_early(source, searched):
        return False
    hidden = state.names | {"sitecustomize", "usercustomize"}
    late = {os.path.dirname(path) for path in _customizations(env)}
    return not any(
        _provides(entry, hidden - {"sitecustomize"} if entry in late else hidden) for entry in searched
    )


def _customizations(env: Mapping[str, str]) -> Iterator[str]:
    """Find each ``sitecustomize.py`` that declares that it may also run after other imports."""
    for directory in _python_path(env):
        path = os.path.join(directory, "sitecustomize.py")
        with suppress(OSError), open(path, "rb") as file:
            if AFTER_IMPORTS in file.read(MAX_BYTES).splitlines():
                yield path


def _customize(env: Mapping[str, str]) -> None:
    """Import ``sitecustomize``, as the interpreter does when it starts."""
    if any(_customizations(env)):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def _source(plan: ForkPlan, searched: Sequence[str]) -> bytes | None:
    """Read the program, unless it is an installed module."""
    if plan["kind"] == "command":
        return plan["target"].encode()
    path: str | None = plan["target"]
    if plan["kind"] == "module":
        path = find_module(f"{plan['target']}.__main__", searched) or find_module(plan["target"], searched)
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def _is_plain_script(path: str) -> bool:
    if not stat.S_ISREG(os.stat(path).st_mode):
        return False
    with open(path, "rb") as file:
        return not file.read(4).startswith(COLD_FILES)


def _provides(directory: str, names: set[str]) -> bool:
    """Check for anything in ``directory`` that an import of one of ``names`` could find."""
    try:
        entries = set(os.listdir(directory or "."))
    except OSError:
        return False
    if any(
        entry in names and os.path.isfile(os.path.join(directory, entry, "__init__.py")) for entry in entries
    ):
        return True
    return any(
        entry.endswith(suffix) and entry.removesuffix(suffix) in names
        for entry in entries
        for suffix in SUFFIXES
    )


def start_cold(plan: ForkPlan, env: dict[str, str]) -> NoReturn:
    """Execute the command of ``plan`` in place of this process."""
    try:
        os.execve(plan["program"], plan["command"], env)
    except OSError as error:
        os.write(2, f"cannot start {plan['program']}: {error.strerror}\n".encode())
        os._exit(127)


def _set_signals() -> None:
    """Handle signals as a starting interpreter does; the caller has reset them all."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_flags(plan: ForkPlan) -> None:
    sys.dont_write_bytecode = plan["no_bytecode"]
    native.set_flag("dont_write_bytecode", int(plan["no_bytecode"]))


def _python_path(env: Mapping[str, str]) -> list[str]:
    value = env.get("PYTHONPATH", "")
    return [os.path.abspath(entry) for entry in value.split(":")] if value else []


def _first_path(plan: ForkPlan) -> str:
    """Find the directory that the interpreter puts first into sys.path."""
    if plan["kind"] == "script":
        return os.path.dirname(os.path.realpath(plan["target"]))
    return os.getcwd() if plan["kind"] == "module" else ""


def _set_paths(plan: ForkPlan, env: Mapping[str, str], state: ForkserverState) -> None:
    first = {"script": plan["target"], "module": "-m", "command": "-c"}[plan["kind"]]
    sys.argv = [first, *plan["arguments"]]
    sys.orig_argv = list(plan["argv"])
    sys.executable = plan["executable"]
    sys.path[:] = [_first_path(plan), *dict.fromkeys([*_python_path(env), *state.path])]
    sys.path_importer_cache.clear()
    state.add_packages()


def _replace_streams(env: Mapping[str, str], *, unbuffered: bool) -> None:
    """Open sys.stdin, stdout and stderr on the container's descriptors, as the interpreter does at its start.

    Source: create_stdio in CPython's pylifecycle.c.
    """
    encoding, _, errors = env.get("PYTHONIOENCODING", "").partition(":")
    is_portable = locale.setlocale(locale.LC_CTYPE) in ("C.UTF-8", "C.utf8", "UTF-8")
    errors = errors or ("strict" if encoding or not is_portable else "surrogateescape")
    old = sys.stderr
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _open_stream(
            number,
            f"<{name}>",
            encoding=codecs.lookup(encoding or "utf-8").name,
            errors="backslashreplace" if name == "stderr" else errors,
            unbuffered=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if unbuffered:
        native.unbuffer_streams()
    _redirect_logging(old, sys.stderr)


def _open_stream(
    number: int, name: str, *, encoding: str, errors: str, unbuffered: bool
) -> io.TextIOWrapper | None:
    try:
        os.fstat(number)
    except OSError:
        return None
    mode = "r" if number == 0 else "w"
    raw = io.FileIO(number, mode, closefd=False)
    raw.name = name
    interactive = raw.isatty()
    buffer: Any = raw
    if number == 0:
        buffer = io.BufferedReader(raw)
    elif not unbuffered:
        buffer = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=encoding,
        errors=errors,
        newline="\n",
        line_buffering=not unbuffered and (interactive or number == 2),
        write_through=unbuffered,
    )
    stream.mode = mode  # type: ignore[misc]
    return stream


def _redirect_logging(old: Any, new: Any) -> None:
    """Let the log handlers of imported modules write to the new stream."""
    logging = sys.modules.get("logging")
    for reference in list(logging._handlerList) if logging else ():
        handler = reference()
        if logging and getattr(handler, "stream", None) is old and isinstance(handler, logging.StreamHandler):
            handler.setStream(new)


def _forget_parent(plan: ForkPlan, state: ForkserverState) -> None:
    """Reset the state that modules keep of the process that imported them, above all random seeds."""
    main = types.ModuleType("__main__")
    main.__loader__, main.__builtins__ = BuiltinImporter, sys.modules["builtins"]  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):  # from 3.14 on they are created lazily (PEP 649)
        main.__annotations__ = {}
    for name in ("__main__", "__mp_main__"):
        if name in sys.modules:
            sys.modules[name] = main
    if plan["kind"] == "module":
        sys.modules.pop(plan["target"], None)  # runpy warns of a module that was imported before
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    tempfile.tempdir = tempfile._name_sequence = None  # type: ignore[attr-defined]
    for name in state.own_modules:
        sys.modules.pop(name, None)
    linecache.clearcache()
    platform._uname_cache = None  # type: ignore[attr-defined]  # it has the host's name
    platform._platform_cache.clear()  # type: ignore[attr-defined]
    multiprocessing.process.current_process().authkey = os.urandom(32)
    random.seed()
    if spawn := sys.modules.get("multiprocessing.spawn"):
        spawn.set_executable(plan["executable"])
    if logging := sys.modules.get("logging"):
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()  # type: ignore[attr-defined]
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") and (distributed := sys.modules.get("torch.distributed")):
        distributed.set_debug_level_from_env()


def _forget_finalizers() -> None:
    """Let the program's first finalizer register itself with atexit, after the existing callbacks."""
    atexit.unregister(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


def _forget_become() -> None:
    """Undo what ``native.become`` changed to reach the interpreter's top level."""
    sys.excepthook = sys.__excepthook__
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def _program(plan: ForkPlan) -> Callable[[], object]:
    if plan["kind"] == "script":
        return native.script(plan["target"])
    if plan["kind"] == "command":
        return native.command(plan["target"])
    return functools.partial(_run_module, plan["target"])


def _run_module(name: str) -> None:
    """Run a module as ``python -m`` does, with the same frames in tracebacks: without this function's."""
    try:
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            native.end_with((end.code or 0) & 0xFF)
        raise
    except BaseException as error:  # noqa: BLE001 - reported as the interpreter would report it
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            native.mark_interrupted()
        else:
            native.end_with(1)
        return
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()  # before C's streams, which SystemExit flushes first
    native.end_with(0)
    raise SystemExit(0)
