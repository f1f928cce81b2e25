"""The resources of this machine: cores, memory, disk, GPUs, and whether namespaces are allowed."""

import errno
import os
import platform
import pwd
import shutil
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localkube.errors import LocalClusterError
from localkube.paths import cache_dir, existing, full_disk, state_dir
from localkube.runtime import syscalls
from localkube.runtime.container_spec import LinuxIdMapping
from localkube.runtime.mounts import closing
from localkube.runtime.overlay import can_mount_layers
from localkube.runtime.processes import stat_fields
from localkube.runtime.user_namespace import MANY_IDS, enter_user_namespace, new_user_namespace

CAP_SYS_ADMIN = 21
RANGE = 65536
# For the pods of root, where /etc/subuid has none: between systemd's ranges for containers and for foreign
# files (https://systemd.io/UIDS-GIDS/), and below 2**31, which some programs cannot represent.
OWN_RANGES = (0x70000000, (0x7FFE0000 - 0x70000000) // RANGE)
FEWEST_RANGES = 256
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine; ``memory`` in bytes, ``device`` its node in /dev."""

    index: str
    name: str
    memory: int
    uuid: str = ""
    device: str = ""


@dataclass(frozen=True)
class Namespaces:
    """Whether pods can be isolated; otherwise ``reason`` and ``fix`` explain why not."""

    allowed: bool
    user_namespace: bool
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True)
class IdRanges:
    """Ranges of uids and gids for pods; by default only the user's own.

    Attributes:
        first: The first id of the first range.
        size: Ids in a range.
        count: Ranges; with a single one, all pods share it.
        idmap: The ids of files are shifted into a pod's range when they are mounted; otherwise, volumes
            belong to the single range.
        subordinate: The first of the subordinate users and groups of a user who is not root; the range is
            then that of the runtime's own user namespace, whose root is the user.
    """

    first: int = 0
    size: int = 1
    count: int = 1
    idmap: bool = False
    subordinate: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostInfo:
    """The machine's properties; ``memory`` and ``disk_free`` in bytes.

    ``disk_problem`` is the reason why no cluster can be stored here, if any.
    ``overlay`` is true if the layers of images can be mounted; otherwise they are copied.
    """

    system: str
    python: str
    cores: int
    memory: int
    disk_free: int
    disk_path: str
    disk_problem: str
    gpus: tuple[Gpu, ...]
    namespaces: Namespaces
    pod_users: IdRanges
    overlay: bool = False

    @property
    def mode(self) -> str:
        """The mode of pods by default: ``namespaces``, or ``plain`` processes."""
        return "namespaces" if self.namespaces.allowed else "plain"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"mode": self.mode}


def inspect_host() -> HostInfo:
    """Inspect this machine; takes milliseconds, longer with GPUs."""
    place = existing(state_dir())
    separation, users = namespaces(), pod_users(place)
    return HostInfo(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_version()} {sys.executable}",
        cores=cores(),
        memory=memory(),
        disk_free=shutil.disk_usage(place).free,
        disk_path=str(place),
        disk_problem=disk_problem(),
        gpus=gpus(),
        namespaces=separation,
        pod_users=users,
        overlay=separation.allowed and _overlay(place, separation, users),
    )


def disk_problem() -> str:
    """Describe why the disk cannot store a cluster: it is full, or cannot be written; else empty."""
    # An existing cache may be another user's, filled and read-only, such as one in a container image.
    cache = [] if cache_dir().is_dir() else [existing(cache_dir())]
    for folder in (existing(state_dir()), *cache):
        if not os.access(folder, os.W_OK | os.X_OK):
            closed = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            return f"cannot write to {folder}: {os.strerror(closed)}"
    return full_disk(state_dir())


def _overlay(place: Path, separation: Namespaces, users: IdRanges) -> bool:
    shifted = LinuxIdMapping(0, users.first, users.size) if users.idmap else None
    try:
        return can_mount_layers(place, user_namespace=separation.user_namespace, shifted=shifted)
    except OSError:  # the directory cannot be written, which creating a cluster reports
        return False


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Compute the memory that this process may use: the machine's or its control group's, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CGROUP_LIMITS:
        if os.path.exists(path):
            text = Path(path).read_text().strip()
            if text.isdigit():
                total = min(total, int(text))
    return total


def gpus() -> tuple[Gpu, ...]:
    """List the NVIDIA GPUs that the driver shows."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
    except nvml.NVMLError:  # it shares the machine's memory, as on Jetson and GB10
        memory = 0
    device = f"/dev/nvidia{nvml.nvmlDeviceGetMinorNumber(handle)}"
    return Gpu(str(index), nvml.nvmlDeviceGetName(handle), memory, nvml.nvmlDeviceGetUUID(handle), device)


def namespaces() -> Namespaces:
    """Try user, network, mount and PID namespaces, and a mount, in a child process."""
    user = not _is_administrator()
    if platform.system() != "Linux":
        return Namespaces(
            False, user, f"{platform.system()} has no namespaces", "use Linux, or a Linux virtual machine"
        )
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _try_namespaces(user, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        problem = pipe.read()
    os.waitpid(child, 0)
    if not problem:
        return Namespaces(True, user)
    return Namespaces(False, user, problem, namespaces_fix())


def pod_users(place: Path) -> IdRanges:
    """Find the ids for pods, and whether files below ``place`` can be shifted into their ranges.

    Root's subordinate ids in /etc/subuid and /etc/subgid are taken if there are enough of them. Another
    user's are enough for one range, which all pods share.
    """
    if platform.system() != "Linux":
        return IdRanges()
    if not _is_administrator():
        subordinate = _own_subordinate_ids()
        return (
            IdRanges(0, MANY_IDS, subordinate=subordinate)
            if subordinate and _can_map(subordinate)
            else IdRanges()
        )
    first, count = _subordinate_ids() or OWN_RANGES
    mapping = LinuxIdMapping(0, first, RANGE)
    try:
        namespace = new_user_namespace(mapping)
    except OSError:
        # Root of a container without such ids: it is not the machine's root, and its pods have its id.
        return IdRanges()
    source = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        with closing(syscalls.clone_tree(source)) as tree:
            syscalls.map_ids(tree, namespace)
    except OSError:
        return IdRanges(first, RANGE)
    finally:
        os.close(source)
        os.close(namespace)
    return IdRanges(first, RANGE, count, idmap=True)


def _ids_of(path: str, names: Collection[str]) -> set[tuple[int, int]]:
    """Read the ranges of /etc/subuid or /etc/subgid for a user with these names: first id and count."""
    lines = Path(path).read_text().splitlines() if os.path.exists(path) else []
    fields = (line.split(":") for line in lines if line.count(":") == 2)
    return {(int(start), int(size)) for name, start, size in fields if name in names}


def _own_subordinate_ids() -> tuple[int, ...]:
    """Find the first of this user's subordinate users and groups; empty if they are too few."""
    try:
        names: tuple[str, ...] = (pwd.getpwuid(os.getuid()).pw_name, str(os.getuid()))
    except KeyError:
        names = (str(os.getuid()),)
    if not all(map(shutil.which, ("newuidmap", "newgidmap"))):
        return ()
    ranges = [_ids_of(path, names) for path in ("/etc/subuid", "/etc/subgid")]
    firsts = [min((first for first, size in span if size >= MANY_IDS - 1), default=0) for span in ranges]
    return tuple(firsts) if all(firsts) else ()


def _can_map(subordinate: tuple[int, ...]) -> bool:
    """Try to map subordinate ids: newuidmap may lack privileges, as in many containers."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            enter_user_namespace(subordinate)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def _subordinate_ids() -> tuple[int, int] | None:
    """Return the first of root's subordinate ids, and the number of ranges; None if too few."""
    ranges = [_ids_of(path, ("root", "0")) for path in ("/etc/subuid", "/etc/subgid")]
    common = max(ranges[0] & ranges[1], key=lambda ids: ids[1], default=(0, 0))
    return (common[0], common[1] // RANGE) if common[1] >= FEWEST_RANGES * RANGE else None


def _is_administrator() -> bool:
    """Check for CAP_SYS_ADMIN, which root in a container usually lacks."""
    if os.getuid() or not os.path.exists("/proc/self/status"):
        return False
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_ADMIN & 1)


def choose_mode(here: HostInfo, mode: str) -> str:
    """Choose ``namespaces`` or ``plain``."""
    if platform.system() != "Linux":
        raise LocalClusterError(
            f"nodes run on Linux, not on {platform.system()}",
            about=here.system,
            fix="run the kit in a Linux virtual machine or in a container; plain mode needs no rights there",
        )
    if mode == "namespaces" and not here.namespaces.allowed:
        raise LocalClusterError(
            f"pods cannot be separated here: {here.namespaces.reason}",
            about="namespaces",
            fix=f"{here.namespaces.fix}; or leave the mode out, and pods run as plain processes",
        )
    return "namespaces" if mode != "plain" and here.namespaces.allowed else "plain"


def _try_namespaces(user: bool, writer: int) -> None:
    """Write the first error to the pipe, and exit."""
    step = "making a user namespace"
    try:
        if user:
            enter_user_namespace()
        step = "making network, mount and PID namespaces"
        syscalls.unshare(
            syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWUTS
        )
        child = os.fork()
        if child == 0:
            step = "mounting /proc"
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.mount("proc", "/proc", "proc", syscalls.PROC_FLAGS)
            step = "mounting by descriptors, as Linux 5.2 and newer do,"
            os.close(syscalls.new_mount("tmpfs", (), 0))
            os._exit(0)
        os.waitpid(child, 0)
    except OSError as error:
        os.write(writer, f"{step} was refused: {error}".encode())
    finally:
        os._exit(0)


def namespaces_fix() -> str:
    """Explain how an administrator allows namespaces here."""
    switches = {
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=15000"),
    }
    for path, (value, setting) in switches.items():
        if os.path.exists(path) and Path(path).read_text().strip() == value:
            return f"an administrator allows it with: sysctl -w {setting}"
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        options = "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        return f"start the container with: {options}"
    return "ask an administrator to allow unprivileged user namespaces (see localkube/INTERNALS.md)"


def start_time(pid: int) -> int | None:
    """Read a process's start time in ticks since boot; None if it has ended."""
    fields = stat_fields(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])
