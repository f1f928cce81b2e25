"""Find the control plane's programs, or obtain them: PATH, package, cache, or a build.

The order is fixed, and each step reports what it chose or why it was skipped, because a wait of minutes needs
a reason. Programs are written to a staging folder, which is renamed when it is complete: a cache never holds
half a control plane. Building is in `build`. `TRAINYARD_CONTROLPLANE` forces one step: path, package, cache
or build. Only the standard library is used, so that this can run before anything is installed.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from localkube.controlplane import KUBERNETES, build, build_time
from localkube.controlplane.lock import Report, cache_lock, no_progress
from localkube.errors import LocalClusterError, Skipped
from localkube.paths import cache_dir, packaged_program, target

VERSION = KUBERNETES
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
COMPONENTS = ("etcd", *SERVERS, "kubectl")
TOOLS = ("gateway", "images")
OURS_ALONE = (*TOOLS, "metrics-server")
ORDER = ("path", "package", "cache", "build")
FORCE = "TRAINYARD_CONTROLPLANE"
LINKED = build.PROGRAM
REMEDIES = (
    "install the wheel of trainyard-kit-controlplane, which `make wheel` makes; or install Go "
    f"{build.go_version()} or newer, or conda-forge's kubernetes-server and kubernetes-client of "
    f"{KUBERNETES} and etcd, then try again"
)


@dataclass(frozen=True)
class ControlPlaneBinaries:
    """The programs of one Kubernetes release.

    Attributes:
        origin: Where they come from: ``path``, ``package``, ``cache`` or ``build``.
    """

    version: str
    origin: str
    programs: Mapping[str, tuple[str, ...]]

    def argv(self, component: str, *args: str) -> list[str]:
        """Build the command that runs ``component`` with ``args``."""
        return [*self.programs[component], *args]

    def has(self, component: str) -> bool:
        """Check whether there is such a component: gateway, images and metrics-server are optional."""
        return component in self.programs


def obtain(*, report: Callable[[str], None]) -> ControlPlaneBinaries:
    """Find the control plane's programs, or obtain them, which may take minutes."""
    forced = os.environ.get(FORCE)
    if forced and forced not in ORDER:
        raise LocalClusterError(
            "unknown source of the control plane", about=f"{FORCE}={forced}", fix=f"use {', '.join(ORDER)}"
        )
    origins = [name for name in ORDER if forced in (None, "", name)]
    reasons: list[str] = []
    chosen = _try_origins([name for name in origins if name != "build"], report, reasons)
    if chosen is None and "build" in origins:
        with cache_lock(report) as publish:
            # Another process may have been obtaining it while this one waited.
            chosen = _try_origins(["build"] if forced else ["cache", "build"], publish, reasons)
    if chosen is None:
        raise LocalClusterError("no control plane could be obtained", about="; ".join(reasons), fix=REMEDIES)
    complete = chosen if chosen.has("images") else _with_tools(chosen, report)
    if not complete.has("metrics-server"):
        report(
            "Control plane: these programs have no metrics-server, so `kubectl top` and autoscaling on CPU "
            f"are missing; {FORCE}=build makes one that has it"
        )
    return complete


def present() -> ControlPlaneBinaries:
    """Find the control plane that is on this machine already."""
    reasons: list[str] = []
    chosen = _try_origins([name for name in ORDER if name != "build"], no_progress, reasons)
    if chosen is None:
        fix = "see `python -m localkube doctor`; in a clone: make setup"
        raise LocalClusterError("there is no control plane yet", about="; ".join(reasons), fix=fix)
    return chosen


def planned_version() -> dict[str, str]:
    """Describe the next cluster's programs: ``version`` and ``origin``, or how long their ``build`` takes."""
    forced = os.environ.get(FORCE)
    chosen = _try_origins(
        [name for name in ORDER if name != "build" and forced in (None, "", name)], no_progress, []
    )
    if chosen is not None:
        return {"version": chosen.version, "origin": chosen.origin}
    build_seconds = build_time.expected(build.control_plane().seconds, build_time.measure_speed())
    return {"version": VERSION, "build": build_seconds}


def cached(binaries: ControlPlaneBinaries, *, report: Report) -> list[Path]:
    """List the cache folders of this control plane; one from a package is copied there first."""
    if binaries.origin == "path":
        raise LocalClusterError(
            "the control plane is not Trainyard's own",
            about=_directory(binaries),
            fix=f"try again with {FORCE}=build",
        )
    if binaries.origin == "package":
        source, folder = Path(binaries.programs["kubectl"][0]), _built()
        if not _usable(folder / LINKED):
            with (
                cache_lock(report),
                tempfile.TemporaryDirectory(prefix=".building-", dir=_cache()) as staging,
            ):
                (Path(staging) / folder.name).mkdir(mode=0o700)
                for program in (source, source.with_name(build.TOOLS)):
                    shutil.copy(program, Path(staging) / folder.name)
                (Path(staging) / folder.name).rename(folder)
        return [folder]
    return sorted({Path(command[0]).parent for command in binaries.programs.values()})


def _try_origins(names: list[str], report: Report, reasons: list[str]) -> ControlPlaneBinaries | None:
    steps = {"path": _from_path, "package": _from_package, "cache": _from_cache, "build": _from_build}
    for name in names:
        try:
            binaries = steps[name](report)
        except Skipped as reason:
            if f"{name}: {reason}" not in reasons:
                reasons.append(f"{name}: {reason}")
                report(f"Control plane: not from {name}: {reason}")
        else:
            report(f"Control plane: Kubernetes {binaries.version} from {name}, {_directory(binaries)}")
            return binaries
    return None


def _directory(binaries: ControlPlaneBinaries) -> str:
    return str(Path(binaries.programs["kube-apiserver"][0]).parent)


def _from_path(report: Report) -> ControlPlaneBinaries:
    programs: dict[str, tuple[str, ...]] = {}
    for name in COMPONENTS:
        place = shutil.which(name)
        if place is None:
            raise Skipped(f"there is no {name}")
        programs[name] = (place,)
    versions = {name: _kubernetes_version(name, programs[name][0]) for name in (*SERVERS, "kubectl")}
    minor = VERSION.rpartition(".")[0]
    for name, version in versions.items():
        if version.rpartition(".")[0] != minor:
            raise Skipped(f"{programs[name][0]} is {version}, not {minor}")
    if len(set(versions.values())) > 1:
        raise Skipped(
            "its programs are of several versions: " + ", ".join(f"{n} {v}" for n, v in versions.items())
        )
    etcd = _output([programs["etcd"][0], "--version"])
    match = re.search(r"etcd Version: (\d+)\.(\d+)", etcd)
    if match is None or not (3, 5) <= (int(match[1]), int(match[2])) < (4, 0):
        raise Skipped(f"{programs['etcd'][0]} is not an etcd of version 3.5 or a later 3")
    return ControlPlaneBinaries(versions["kubectl"], "path", programs)


def _kubernetes_version(name: str, place: str) -> str:
    if name == "kubectl":
        try:
            return json.loads(_output([place, "version", "--client", "--output=json"]))["clientVersion"][
                "gitVersion"
            ]
        except (ValueError, KeyError, TypeError):
            return "not Kubernetes' kubectl"
    words = _output([place, "--version"]).split()
    return words[1] if words[:1] == ["Kubernetes"] and len(words) > 1 else "not Kubernetes"


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout


def _from_package(report: Report) -> ControlPlaneBinaries:
    return _linked(packaged_program(LINKED, build.fingerprint()), "package")


def _from_cache(report: Report) -> ControlPlaneBinaries:
    built = _built() / LINKED
    if _usable(built):
        return _linked(built, "cache")
    raise Skipped(f"nothing of {VERSION} is there yet")


def _from_build(report: Report) -> ControlPlaneBinaries:
    _build(_built(), build.control_plane(), report)
    return _linked(_built() / LINKED, "build")


def _build(folder: Path, module: build.GoModule, report: Report) -> None:
    def tools(go: str, staging: Path) -> None:
        build.build_tools(go, staging, environment=module.environment, report=report)

    build.build(
        folder, cache=_cache(), package=".", program=LINKED, report=report, module=module, complete=tools
    )


def build_for(architecture: str, *, report: Report) -> list[Path]:
    """Build our programs for Linux on ``amd64`` or ``arm64``, unless they are in the cache."""
    folder = _built(architecture=architecture)
    module = replace(build.control_plane(), environment={"GOOS": "linux", "GOARCH": architecture})
    with cache_lock(report) as publish:
        if not _usable(folder / LINKED):
            try:
                _build(folder, module, publish)
            except Skipped as reason:
                raise LocalClusterError(str(reason), about="the build", fix=REMEDIES) from reason
    return [folder / LINKED, folder / build.TOOLS]


def _with_tools(binaries: ControlPlaneBinaries, report: Report) -> ControlPlaneBinaries:
    """Add the gateway and the store of images, which no release has, unless they cannot be built."""
    if _usable(_built() / LINKED):
        ours = _linked(_built() / LINKED, "cache").programs
        return replace(binaries, programs={**binaries.programs, **{name: ours[name] for name in OURS_ALONE}})
    folder = _built(tools=True)
    try:
        with cache_lock(report) as publish:
            if not _usable(folder / build.TOOLS):
                build.build(
                    folder,
                    cache=_cache(),
                    package=build.TOOLS_PACKAGE,
                    program=build.TOOLS,
                    report=publish,
                )
    except (Skipped, LocalClusterError) as reason:
        report(f"Tools: pods reach nothing outside the cluster, and no images are pulled: {reason}")
        return binaries
    ours = {name: (str(folder / build.TOOLS), name) for name in TOOLS}
    return replace(binaries, programs={**binaries.programs, **ours})


def _linked(place: Path, origin: str) -> ControlPlaneBinaries:
    programs = {name: (str(place), name) for name in (*COMPONENTS, *OURS_ALONE)}
    if _usable(place.with_name(build.TOOLS)):
        # It starts in 10 ms and 13 MB, where the whole control plane takes 50 ms and 87 MB.
        programs |= {name: (str(place.with_name(build.TOOLS)), name) for name in TOOLS}
    return ControlPlaneBinaries(VERSION, origin, programs)


def _cache() -> Path:
    return cache_dir() / "controlplane"


def _built(*, tools: bool = False, architecture: str = "") -> Path:
    kind = "tools-" if tools else ""
    system, machine = target()
    return _cache() / f"{VERSION}-{kind}{build.fingerprint()}-{system}-{architecture or machine}"


def _usable(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)
