"""Report each rank's stack, process groups and last collectives on a socket.

Python imports this module at the start of every process that has its folder on PYTHONPATH. It does nothing
until a program creates a process group; then a thread listens on a socket that only this user can open. The
collectives are those of torch's flight recorder, so steps take no longer. ``run.why()`` reads the report
through ``programs/probe.py``.
"""

# ruff: noqa: PLC0415, PTH100, PTH106, PTH110, PTH118, PTH120, PTH123 - imports would slow down every start of Python
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # in place of typing's, whose import is slow
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from socket import socket
    from types import ModuleType

# The fork server may import this after torch.
AFTER_IMPORTS = True
MODULE, MAKES_GROUPS = "torch.distributed.distributed_c10d", "_process_group_name"
PREFIX = "trainyard-rank-"  # of the socket's directory; the socket is named after the process
JOINING = (
    "_create_c10d_store",
    "init_process_group",
)  # functions with rank, world size and address as variables
MAX_CALLS, MAX_FRAMES = 40, 200  # per group; per stack
LONGEST_PATH = 100  # the kernel's limit for a socket
started_in = 0  # the process that runs the thread


class ModuleFinder:
    """Finds one module as Python does, and watches it after it is loaded."""

    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and spec.loader is not None:
            sys.meta_path.remove(ModuleFinder)
            load = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                load(module)
                watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch(module: "ModuleType") -> None:
    """Start reporting with the first process group, which torch names before it connects."""
    name_group = getattr(module, MAKES_GROUPS, None)
    if name_group is None:
        return

    def named(*args: object, **options: object) -> object:
        start(module)
        return name_group(*args, **options)

    setattr(module, MAKES_GROUPS, named)


def start(module: "ModuleType") -> None:
    """Start the reporting thread, once in each process."""
    global started_in
    if started_in == os.getpid():
        return
    started_in = os.getpid()
    import atexit
    import socket
    import tempfile
    import threading
    from contextlib import suppress

    for place in (os.environ.get("TRAINYARD_RANKS"), tempfile.gettempdir(), "/dev/shm"):
        with suppress(OSError):
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=place or None)
            atexit.register(leave, folder, started_in)
            path = os.path.join(folder, str(started_in))
            if len(path) <= LONGEST_PATH:
                server = socket.socket(socket.AF_UNIX)
                server.bind(path)
                server.listen()
                threading.Thread(target=serve, args=(server, module), name="trainyard", daemon=True).start()
                return
            os.rmdir(folder)


def leave(folder: str, process: int) -> None:
    import shutil

    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def serve(server: "socket", module: "ModuleType") -> None:
    import json
    from contextlib import suppress

    while True:
        with suppress(Exception):
            connection, _ = server.accept()
            with connection:
                connection.sendall(json.dumps(report(module)).encode())


def report(module: "ModuleType") -> dict[str, object]:
    """Build this rank's report."""
    import threading
    import time

    world = module._world
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    joins, frame = None, main
    stack: list[tuple[str, str, int]] = []
    while frame is not None and len(stack) < MAX_FRAMES:
        stack.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        if (
            joins is None
            and frame.f_code.co_name in JOINING
            and frame.f_globals["__name__"].startswith("torch.")
        ):
            own = frame.f_locals
            joins = {name: own[name] for name in ("rank", "world_size", "hostname", "port") if name in own}
        frame = frame.f_back
    default = world.default_pg
    groups = {
        name: {
            "ranks": sorted(world.pg_group_ranks.get(group, ())),
            "size": group.size(),
            "description": getattr(group, "group_desc", ""),
            "backend": world.pg_map[group][0],
        }
        for group, name in world.pg_names.items()
        if group in world.pg_map
    }
    backends = {word.rpartition(":")[2] for group in groups.values() for word in group["backend"].split(",")}
    calls, missing = [], []
    for backend in sorted(backends):
        try:
            calls += recorded(module, backend)
        except Exception as error:  # noqa: BLE001 - an older torch, or another backend
            missing.append(f"{backend}: {type(error).__name__}: {error}")
    return {
        "rank": None if default is None else default.rank(),
        "world_size": None if default is None else default.size(),
        "time": time.time(),
        "stack": stack,
        "joins": joins,
        "groups": groups,
        "calls": calls,
        "missing": missing,
    }


def recorded(module: "ModuleType", backend: str) -> list[dict[str, object]]:
    """List the last collectives of a backend, as torch's flight recorder has them, oldest first."""
    import pickle

    from torch._C import _distributed_c10d as c10d

    # Without stacks, for which torch would import its compiler with 900 modules.
    name, backends = ("_dump_nccl_trace", ()) if backend == "nccl" else ("_dump_fr_trace", (backend,))
    dump = getattr(c10d, name)(True, False, False, *backends)
    calls: list[dict[str, object]] = []
    count: dict[str, int] = {}
    for entry in reversed(pickle.loads(dump).get("entries", ())):
        group, description = entry["process_group"]
        count[group] = count.get(group, 0) + 1
        if count[group] <= MAX_CALLS:
            calls.append(
                {
                    "group": group,
                    "description": description,
                    "number": entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
                    "op": entry["profiling_name"].partition(":")[2],
                    "p2p": entry["is_p2p"],
                    "sizes": entry["input_sizes"],
                    "pending": not entry["retired"] and entry["state"] != "completed",
                    "time": entry["time_created_ns"] / 1e9,
                }
            )
    return calls[::-1]


def report_idle_gpus(before: "set[str]") -> None:
    """Report at exit that the pod has GPUs but torch finds none, with the versions involved."""
    import re

    torch = sys.modules.get("torch")
    is_agent = "LOCAL_RANK" not in os.environ and sys.argv[0].endswith(("torchrun", "distributed/run.py"))
    if torch is None or is_agent or os.environ.get("LOCAL_RANK", "0") != "0" or torch.cuda.is_available():
        return
    own = [
        vars(sys.modules[name]) for name in {*sys.modules} - before | {"__main__"}
    ]  # forks have torch already
    values = [value for names in own for value in [*names.values()]]
    if not any(
        str(getattr(value, "__module__", None) or value).startswith(("torch", "<module 'torch"))
        for value in values
        if isinstance(value, type) or hasattr(value, "__spec__")
    ):
        return
    driver = None
    if os.path.exists("/proc/driver/nvidia/version"):
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            driver = re.search(r"Module\D{1,80}(\d+[.\d]+)", file.read())
    built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
    shown = f"the node's driver is {driver[1]}" if driver else "the pod sees no NVIDIA driver"
    what = f"this pod has {os.environ['TRAINYARD_GPUS']} GPUs, but torch finds no CUDA device"
    print(f"{what}: torch {torch.__version__} {built}, and {shown}", file=sys.stderr)
    if os.environ.get("TRAINYARD_IDLE_GPUS") == "fail":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # runs last, as it was registered first


def run_next() -> None:
    """Run the sitecustomize module that this one hides, such as Debian's."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place) != here]
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None and __name__ == "sitecustomize":
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


if "TRAINYARD_GPUS" in os.environ and "SIMULATED_MS_PER_IMAGE" not in os.environ:  # declared GPUs
    import atexit

    atexit.register(report_idle_gpus, {*sys.modules})
if MODULE in sys.modules:
    watch(sys.modules[MODULE])
else:
    sys.meta_path.insert(0, ModuleFinder)
run_next()
