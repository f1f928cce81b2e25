"""Set up the kit in a hosted notebook (Colab, Kaggle, Studio Lab) without changing its packages.

The third cell of each notebook installs the kit's wheels of one version and calls `enter`;
``tools/addresses.py`` writes that cell.

Missing packages are installed; existing ones, such as torch, are neither upgraded nor downgraded. `kitlib`
cannot be imported before `prepare`, so this module uses only the standard library.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "trainyard-kit"
DISTRIBUTIONS = (DISTRIBUTION, "trainyard-kit-localkube")
COURSE = "course"  # the folder to which the notebooks are copied
STEPS = ("Collecting", "Downloading", "Processing", "Building", "Installing")  # of pip's output
LIMITED = "pods see its files and processes, images are not pulled, and nodes cannot be isolated"
# Packages of which an old release restricts only some notebooks.
NEEDED_BY = {"protobuf": "10 (parameter servers)", "grpcio": "10 (parameter servers)"}
_VERSION = re.compile(
    r"[\d.]+((a|b|rc|\.post|\.dev)\d+)*(\+[a-z0-9.]+)?"
)  # PEP 440, unlike some of Debian's versions
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def canonical(name: str) -> str:
    """Normalize a package's name according to PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(requirements: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """List the packages that are missing, without the lower bounds of their versions.

    Without them, pip may choose the newest release that is compatible with the installed packages.

    Example:
        >>> missing(["torch>=2.15", "kopf>=1.45", "kubernetes>=36,<37"], {"torch": "2.8"})
        ['kopf', 'kubernetes<37']
    """
    wanted = []
    for requirement in requirements:
        text, _, marker = requirement.partition(";")
        name = _NAME.match(text)
        if name and "extra ==" not in marker and canonical(name[0]) not in installed:
            bounds = text[name.end() :].replace(" ", "").split(",")
            wanted.append(
                name[0] + ",".join(bound for bound in bounds if bound.startswith(("<", "!=", "==")))
            )
    return wanted


def enter() -> None:
    """Set up the kit and change to the folder of the notebooks, unless that was done before."""
    if missing(_declared(), _installed()) or not Path("..", "trainers").is_dir():
        os.chdir(prepare())


def prepare(folder: str = COURSE) -> Path:
    """Install missing packages, copy the course if it is missing, and print what this machine supports.

    Args:
        folder: The folder for the course, unless the working directory is already its folder of notebooks.

    Returns:
        The folder of the notebooks, for ``os.chdir``.

    Raises:
        RuntimeError: pip or the kit failed; the message contains its last lines of output.
    """
    start = time.monotonic()
    installed = _installed()
    requirements = missing(_declared(), installed)
    if requirements:
        _install(requirements, installed)
    here = Path.cwd()
    if not (here.parent / "trainers").is_dir():
        here = here / folder / "notebooks"
        if not here.is_dir():
            _call("trainyard_kit.cli", "course", str(here.parent))
            print(
                f"Open the copies of the notebooks in {folder}/notebooks: their images and links work there."
            )
    seconds, torch = time.monotonic() - start, installed.get("torch")
    torch_note = f"torch {torch} unchanged" if torch else "torch newly installed"
    version = metadata.version(DISTRIBUTION)
    print(f"Trainyard {version}: {len(requirements)} packages installed in {seconds:.0f} s.")
    print(f"Python {sys.version.split()[0]}, {torch_note}; the kernel need not be restarted.")
    for line in [*_limits(installed), *_mode()]:
        print(line)
    return here


def _installed() -> dict[str, str]:
    distributions = metadata.distributions()
    return {canonical(item.name): item.version for item in distributions if item.name}


def _declared() -> dict[str, None]:
    """List the distinct requirements of the kit and its local cluster."""
    return dict.fromkeys(line for name in DISTRIBUTIONS for line in metadata.requires(name) or ())


def _install(requirements: list[str], installed: Mapping[str, str]) -> None:
    """Install packages with pip, constrained to the installed versions of all others."""
    constraints = Path.cwd() / ".trainyard-constraints.txt"
    pins = [f"{name}=={version}\n" for name, version in installed.items() if _VERSION.fullmatch(version)]
    constraints.write_text("".join(pins))
    try:
        for line in _lines(
            "pip", "install", "--disable-pip-version-check", "-c", str(constraints), *requirements
        ):
            if line.startswith(STEPS):
                print(f"\r{line[:100]:100}", end="", flush=True)
    finally:
        constraints.unlink()
        print(f"\r{'':100}\r", end="")
    importlib.invalidate_caches()


def _limits(installed: Mapping[str, str]) -> Iterator[str]:
    """Name the installed packages that are too old for some notebooks."""
    for require in _declared():
        name, _, minimum = require.partition(";")[0].partition(">=")
        version, minimum = installed.get(canonical(name)), minimum.partition(",")[0].strip()
        if version and name in NEEDED_BY and _numbers(version) < _numbers(minimum):
            yield f"Limited: notebook {NEEDED_BY[name]} needs {name} {minimum}, and {version} is installed."


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)[:2]]


def _mode() -> Iterator[str]:
    doctor = json.loads(_call("localkube", "doctor").splitlines()[-1])["result"]
    gpus = ", ".join(gpu["name"] for gpu in doctor["gpus"]) or "none"
    yield f"Cores: {doctor['cores']}. Memory: {doctor['memory'] / 2**30:.1f} GiB. GPUs: {gpus}."
    if doctor["mode"] == "namespaces":
        yield "Mode: namespaces. Each pod has its own network, processes and file system."
    else:
        yield f"Mode: plain. Pods are processes of this machine: {LIMITED}."
        yield f"Namespaces are not available: {doctor['namespaces']['reason']}"


def _call(*command: str) -> str:
    return "\n".join(_lines(*command))


def _lines(*command: str) -> Iterator[str]:
    arguments = [sys.executable, "-m", *command]
    output_lines = []
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            output_lines.append(line.rstrip())
            yield output_lines[-1]
    if process.returncode:
        raise RuntimeError(f"python -m {' '.join(command[:2])} failed:\n" + "\n".join(output_lines[-15:]))
