"""A snapshot of a cluster's resources, to check that nothing of ended pods remains."""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# Folders whose size varies within their own limits.
OWN_RULES = ("etcd", "logs")


def processes(root: Path) -> list[psutil.Process]:
    """Return every process of the cluster in ``root``, the supervisor first, as the host sees them."""
    noted = json.loads((root / "processes.json").read_text())
    supervisor = psutil.Process(noted["supervisor"]["pid"])
    return [supervisor, *supervisor.children(recursive=True)]


def component(root: Path, name: str) -> list[psutil.Process]:
    """Return the processes of a component by name: one, or none while it is down."""
    modules = {"kubelet": "localkube.kubelet", "forkserver": "localkube.runtime.forkserver.server"}
    if name == "supervisor":
        return processes(root)[:1]
    if name == "gateway":
        return [process for process in processes(root) if "--packet-fd" in command_line(process)]
    if name in modules:
        matches = [process for process in processes(root) if modules[name] in command_line(process)]
        # Forked children have its command line until they set another.
        return [process for process in matches if process.ppid() not in {parent.pid for parent in matches}]
    return [
        process
        for process in processes(root)
        if name in [Path(argument).name for argument in command_line(process)[:2]]
    ]


def runtime_init(root: Path) -> psutil.Process:
    """Return process 1 of the cluster's namespaces."""
    (outer,) = [
        child
        for child in processes(root)[0].children()
        if any(argument.endswith("runtime/init.py") for argument in command_line(child))
    ]
    (inner,) = outer.children()
    return inner


def command_line(process: psutil.Process) -> list[str]:
    """Return its command line; none once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def namespaces(pid: int) -> set[str]:
    """Return the namespaces of a process, as ``net:[4026531840]``; none if they are not visible."""
    inodes = set()
    for kind in KINDS:
        with contextlib.suppress(OSError):
            inodes.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return inodes


def own_memory(process: psutil.Process) -> int:
    """Return the proportional set size of a process in bytes.

    It excludes pages of files, whose share grows when another process with the same library ends.
    """
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(kinds))


@dataclass(frozen=True)
class ResourceCounts:
    """Resources that must return to the same level after any number of pods.

    Attributes:
        processes: The number of processes by program.
        descriptors: By process, without the connections of kubelet and supervisor, which clients keep open
        for
            a while.
        mounts: By process, without the supervisor, which has the machine's mounts.
        files: By directory of the cluster, without `OWN_RULES`.
        pod_directories: Their number, on disk and in memory.
        control_groups: The number of the cluster's control groups.
    """

    processes: dict[str, int]
    zombies: int
    namespaces: int
    interfaces: int
    mounts: dict[str, int]
    descriptors: dict[str, int]
    files: dict[str, int]
    pod_directories: int
    control_groups: int

    @classmethod
    def of(cls, root: Path) -> "ResourceCounts":
        all_processes, init = processes(root), runtime_init(root)
        (kubelet,) = component(root, "kubelet")
        by_program = {"runtime": init, "kubelet": kubelet, "supervisor": all_processes[0]}
        in_memory = Path(f"/proc/{init.pid}/root") / root.relative_to("/") / "tmpfs"
        return cls(
            processes=dict(sorted(Counter(_program(process) for process in all_processes).items())),
            zombies=sum(_is_zombie(process) for process in all_processes),
            namespaces=len(set().union(*(namespaces(process.pid) for process in all_processes))),
            interfaces=Path(f"/proc/{init.pid}/net/dev").read_text().count(":"),
            mounts={name: _mounts(by_program[name]) for name in ("runtime", "kubelet")},
            descriptors={
                name: _descriptors(process, sockets=name == "runtime") for name, process in by_program.items()
            },
            files=_files(root),
            pod_directories=sum(1 for folder in (root / "pods", in_memory) for _ in folder.iterdir()),
            control_groups=sum(1 for _ in control_groups(root)),
        )

    def differences(self, earlier: "ResourceCounts") -> list[str]:
        """Describe what has increased or decreased."""
        old, new = asdict(earlier), asdict(self)
        return [f"{name}: {old[name]} became {new[name]}" for name in new if new[name] != old[name]]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _program(process: psutil.Process) -> str:
    arguments = [argument for argument in command_line(process) if not argument.startswith("-")]
    return " ".join(re.sub(r".*/", "", argument)[:40].split("\n")[0] for argument in arguments[:2])


def _mounts(process: psutil.Process) -> int:
    return len(Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines())


def _descriptors(process: psutil.Process, *, sockets: bool) -> int:
    count = 0
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += sockets or not str(path.readlink()).startswith("socket:")
    return count


def _files(root: Path) -> dict[str, int]:
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in OWN_RULES]
    # Restarted containers have a log of each run.
    counts = {path.name: sum(not name.endswith(".log") for name in _names(path)) for path in folders}
    return dict(sorted(counts.items())) | {".": sum(1 for path in root.iterdir())}


def _names(folder: Path) -> Iterator[str]:
    """List the names of all entries below a folder, ignoring those removed meanwhile."""
    for _, folders, files in os.walk(folder):
        yield from (*folders, *files)


def control_groups(root: Path) -> Iterator[Path]:
    """Find the control groups of the cluster and its containers."""
    with contextlib.suppress(FileNotFoundError):
        for group in json.loads((root / "control-groups.json").read_text()):
            yield from (path for path in (Path(group), *Path(group).rglob("*")) if path.is_dir())


def size_of(folder: Path) -> int:
    """Return the disk usage of all files below a folder in bytes."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_blocks * 512
    return total
