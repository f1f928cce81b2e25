"""Print what a container's process finds: itself as the kernel sees it, its mounts, the files around."""

# ruff: noqa: PTH107, PTH109, PTH110, PTH115, PTH118, PTH120, PTH123, PTH208, SIM115
import ctypes
import json
import os
import resource
import stat
import sys

# The container's own directories. What the machine holds is as it is, however a process was started, and the
# names of a clone's environment are longer than a log.
OWN = ("dev", "new", "run", "scripts", "tmp")
PRCTL = {"death signal": 2, "dumpable": 3, "keep capabilities": 8, "secure bits": 27, "timer slack": 30}
PRCTL |= {"subreaper": 37, "no new privileges": 39, "no huge pages": 42}
FIELDS = "Umask Uid Gid Groups NSpid NSsid NSpgid SigBlk SigIgn SigCgt Cap NoNew Seccomp: CoreD"


def owner(status: os.stat_result) -> list:
    """Return the ids of a file; in plain mode those of a pod's range are there as well."""
    return [number if number < 1 << 16 else "of the pod" for number in (status.st_uid, status.st_gid)]


def entry(path: str) -> list:
    try:
        status = os.lstat(path)
    except OSError as error:
        return [error.strerror]
    link = os.readlink(path) if stat.S_ISLNK(status.st_mode) and not path.startswith("/proc") else ""
    return [stat.filemode(status.st_mode), *owner(status), link]


def tree() -> dict:
    entries = {"/": entry("/")}
    for place, folders, files in os.walk("/"):
        if place == "/":
            entries |= {f"/{name}": entry(f"/{name}") for name in folders}
            folders[:] = [name for name in folders if name in OWN]
        for name in (*folders, *files):
            entries[os.path.join(place, name)] = entry(os.path.join(place, name))
    for line in open("/proc/self/mountinfo"):
        path = line.split()[4]
        while path != "/" and not path.startswith(("/proc/", "/sys/")):
            entries[path] = entry(path)
            path = os.path.dirname(path)
    return entries


def descriptor(number: str) -> list:
    status = os.fstat(int(number))
    at = open(f"/proc/self/fdinfo/{number}").read().split()
    return [stat.filemode(status.st_mode), *owner(status), *at[2:4]]


def control(option: int) -> int:
    value = ctypes.c_int(0)
    answer = ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0)
    return value.value if option in (2, 37) else answer


def mounts() -> dict:
    lines = (line.split(" - ") for line in open("/proc/self/mountinfo"))
    return {left.split()[4]: [*left.split()[5:], *right.split()[:1]] for left, right in lines}


def files(place: str, names: tuple) -> dict:
    return {name: open(f"{place}/{name}").read() for name in names}


def process() -> dict:
    spaces = {f"has {name}": os.path.exists(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    return spaces | {
        "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "child of the first process": os.getppid() in (0, 1),
        "leads its session": os.getsid(0) == os.getpid(),
        "leads its group": os.getpgid(0) == os.getpid(),
        "nice": os.nice(0),
        "scheduler": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority],
        "affinity": sorted(os.sched_getaffinity(0)),
        "cwd": os.getcwd(),
        "seen by others": [os.access(f"/proc/self/{name}", os.R_OK) for name in ("environ", "mem", "fd")],
        "owner of /proc": entry("/proc/self/environ"),
        "size of the user namespace": [line.split()[2] for line in open("/proc/self/uid_map")],
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
    }


status = [line.split(":") for line in open("/proc/self/status") if line.startswith(tuple(FIELDS.split()))]
limits = [name for name in dir(resource) if name.startswith("RLIMIT")]
found = {
    "start": {"warm": "torch" in sys.modules},
    "status": {name: value.split() for name, value in status},
    "limit": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    "process": process(),
    "control": {name: control(option) for name, option in PRCTL.items()},
    "file": files("/proc/self", ("oom_score_adj", "coredump_filter", "comm", "setgroups")),
    "environment": dict(os.environ),
    "descriptor": {name: descriptor(name) for name in ("0", "1", "2")},
    "mount": mounts(),
    "tree": tree(),
}
json.dump(found, sys.stdout)
