"""Install the packages pinned in constraints.txt into the environment of this interpreter.

It uses uv, which unpacks during downloads and caches packages, with the servers of pip's configuration.
Without an NVIDIA GPU it installs the CPU build of torch, 0.2 GB instead of 3, from PyTorch's index if that
answers; ``TRAINYARD_TORCH=default`` or ``cpu`` overrides this.

    .venv/bin/python tools/install_packages.py --extras clouds,workshop,lab,dev

``--newest`` installs the newest releases within the ranges of pyproject.toml, for ``tools/dev.py newest``.
"""

import argparse
import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from localkube.bundles import wheels  # noqa: E402 (it needs nothing installed)

CONSTRAINTS = str(ROOT / "constraints.txt")
PINNED = ("--constraints", CONSTRAINTS)
NEWEST = ("--upgrade", "--resolution", "highest", "--prerelease", "disallow")
TORCH = "TRAINYARD_TORCH"
PROBE_SECONDS = 5
NEEDED_BYTES = {"cpu": 3 * 10**9, "default": 8 * 10**9}
# Compiling all 16,000 files would take a minute of CPU. Importing these compiles what a run uses, as pods
# see the environment read-only. The two lists take equally long, on one core each.
USED = (
    "torch._dynamo, torch.distributed.run, torchvision",
    "sklearn.datasets, matplotlib.pyplot, pandas, papermill, kubernetes.client, ipywidgets",
)
# Settings of pip's configuration, and the variables that set the same for uv.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "HTTPS_PROXY",
}
_SIZE = re.compile(r"Downloading (\S+) \(([\d.]+)([KMG])iB\)")


class InstallError(Exception):
    """The message names what failed and the fix."""


def print_line(line: str) -> None:
    print(line, flush=True)


def uv_environment(configuration: str) -> dict[str, str]:
    """Return the variables that make uv use the servers of pip's configuration.

    Args:
        configuration: The output of ``pip config list``.

    Example:
        >>> uv_environment("global.index-url='https://mirror.example/simple'")["UV_DEFAULT_INDEX"]
        'https://mirror.example/simple'
    """
    variables = {"UV_SYSTEM_CERTS": "1"}  # pip also trusts the system's certificates
    for line in configuration.splitlines():
        key, _, value = line.partition("=")
        name = SETTINGS.get(key.rpartition(".")[2])
        if name:
            values = str(ast.literal_eval(value)).split()
            variables[name] = ("," if name == "UV_FIND_LINKS" else " ").join(values)
    return {name: value for name, value in variables.items() if name not in os.environ}


def torch_build(environment: Mapping[str, str]) -> str:
    """Choose the build of torch and print the reason: ``cpu``, or ``default`` with CUDA.

    Args:
        environment: The environment of uv.

    Raises:
        InstallError: ``TRAINYARD_TORCH`` has an unknown value.
    """
    build = os.environ.get(TORCH, "")
    if build in NEEDED_BYTES:
        print_line(f"torch: the {build} build, set by {TORCH}")
        return build
    if build:
        raise InstallError(f"{TORCH}={build} is not a build of torch: use {' or '.join(NEEDED_BYTES)}")
    if shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        print_line("torch: the default build, since this machine has an NVIDIA GPU")
        return "default"
    if reason := cpu_index_problem(environment):
        print_line(f"torch: the default build with CUDA, 3 GB; PyTorch's index of CPU builds: {reason}")
        return "default"
    print_line("torch: the CPU build, since this machine has no NVIDIA GPU")
    return "cpu"


def cpu_index_problem(environment: Mapping[str, str]) -> str:
    """Query PyTorch's index of CPU builds for the pinned versions; return the problem, if any."""
    probe = [sys.executable, "-m", "uv", "pip", "compile", "--python", sys.executable, "--no-deps"]
    probe += ["--torch-backend=cpu", "--constraints", CONSTRAINTS, "-"]
    brief = {"UV_HTTP_TIMEOUT": str(PROBE_SECONDS), "UV_HTTP_RETRIES": "0"}
    try:
        process = subprocess.run(
            probe,
            input="torch\ntorchvision\n",
            env={**environment, **brief},
            capture_output=True,
            text=True,
            timeout=2 * PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {2 * PROBE_SECONDS} s"
    if process.returncode == 0:
        return ""
    lines = process.stderr.strip().splitlines() or [f"uv ended with {process.returncode}"]
    return lines[-1].strip().removeprefix("cause: ")


def progress(lines: Iterable[str]) -> Iterator[str]:
    """Convert uv's output to lines with the downloaded megabytes.

    Example:
        >>> list(progress(["Downloading torch (539.1MiB)", " Downloaded torch"]))[-1]
        '565 of 565 MB fetched: torch'
    """
    sizes: dict[str, float] = {}
    downloaded = 0.0
    for raw in lines:
        line = raw.strip()
        if match := _SIZE.match(line):
            sizes[match[1]] = float(match[2]) * 1024 ** " KMG".index(match[3])
        elif line.startswith("Downloaded "):
            name = line.split()[1]
            downloaded += sizes.get(name, 0)
            yield f"{downloaded / 1e6:,.0f} of {sum(sizes.values()) / 1e6:,.0f} MB fetched: {name}"
        elif not line.startswith("+ "):
            yield line


def check_space(folder: Path, build: str) -> None:
    """Check that the disk has enough space.

    Raises:
        InstallError: Too little is free.
    """
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES[build]:
        raise InstallError(
            f"{folder} has {free / 1e9:.1f} GB free and the packages need about "
            f"{NEEDED_BYTES[build] / 1e9:.0f}: free some, or choose another place with VENV=…"
        )


def install(requirements: list[str], versions: Sequence[str] = PINNED) -> None:
    """Install ``requirements``, as pip takes them, in the versions given by uv's options.

    Raises:
        InstallError: The disk is too small, or uv fails; its output is above.
    """
    configuration = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    environment = {**os.environ, **uv_environment(configuration.stdout)}
    offer = wheels.pip_options()
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, *offer, *versions]
    build = "default" if "--no-index" in offer else torch_build(environment)
    if importlib.util.find_spec("torch") is None:
        check_space(Path(sys.prefix), build)
    command = [*uv, *(["--torch-backend=cpu"] if build == "cpu" else []), *requirements]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None, "standard output is a pipe"
        for line in progress(process.stdout):
            print_line(line)
    if process.returncode:
        raise InstallError(f"uv ended with {process.returncode}; its output is above")


def compile_used() -> None:
    """Import the modules that a run uses, to compile them.

    Raises:
        InstallError: It cannot be imported.
    """
    # Some shells and images disable bytecode for shared folders; this folder is not shared.
    writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    running = [subprocess.Popen([sys.executable, "-c", f"import {folder}"], env=writing) for folder in USED]
    codes = [process.wait() for process in running]
    if any(codes):
        raise InstallError("the installed packages cannot be imported; the reason is above")
    print_line("compiled the modules that runs import")


def main() -> int:
    """Install, compile; return the exit status."""
    parser = argparse.ArgumentParser(description="Install the pinned packages into this environment.")
    parser.add_argument("--extras", default="clouds,workshop,elastic,tensorboard,transformers,lab,dev")
    parser.add_argument("--newest", action="store_true", help="the newest releases, not the pinned ones")
    parser.add_argument("more", nargs="*", help="further packages or wheels")
    options = parser.parse_args()
    try:
        own_projects = ["--editable", f".[{options.extras}]", "--editable", "./localkube"]
        install([*own_projects, *options.more], NEWEST if options.newest else PINNED)
        compile_used()
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
