"""Collect the licence texts of the Go modules in a wheel's programs.

Go records the modules in each program (``go version -m``); the texts are in their sources from the module
proxy. The bills of materials of the same modules are in ``sbom.py``.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

OWN = "trainyard/"  # our modules have the project's licence
TEXTS = re.compile(r"(licen[cs]e|copying|copyright|notice|patents)([.-](?!go$).*)?", re.IGNORECASE)
NOT_COMPILED = {"testdata", "vendor", "LICENSES", "node_modules"}
DEVELOPED = "(devel)"


def modules(program: Path, *, go: str) -> set[tuple[str, str]]:
    """Return path and version of each module in a program.

    Args:
        program: A program; scripts have no modules.
        go: The Go command.
    """
    command = [go, "version", "-m", str(program)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    entries: list[tuple[str, str]] = []
    for line in process.stdout.splitlines():
        kind, _, rest = line.strip().partition("\t")
        path, version, *_ = [*rest.split("\t"), ""]
        if kind in ("mod", "dep"):
            entries.append((path, version))
        elif kind == "=>" and not path.startswith("."):  # otherwise the same module with our patch
            entries[-1] = (path, version)
    versions = {path.rpartition("/v")[0].rsplit("/", 1)[0]: version for path, version in reversed(entries)}
    for path, version in [module for module in entries if module[1] == DEVELOPED]:
        entries.remove((path, version))
        if not path.startswith(OWN):  # built in its repository; take the version of the modules beside it
            start = path.rpartition("/v")[0].rsplit("/", 1)[0]
            beside = [of for of in versions if of.startswith(start) and versions[of] != DEVELOPED]
            entries.append((path, versions[beside[0]]))
    return set(entries)


def collect(programs: Iterable[Path], folder: Path, *, go: str) -> list[str]:
    """Copy the licence texts of all modules in the programs, and of Go's library, to a folder each.

    Returns:
        The modules that have none, as ``path@version``.

    Raises:
        CalledProcessError: The sources cannot be downloaded.
    """
    all_modules = sorted({module for program in programs for module in modules(program, go=go)})
    names = [f"{path}@{version}" for path, version in all_modules]
    environment = os.environ | {"GOFLAGS": "-mod=mod", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    folder.mkdir(parents=True, exist_ok=True)
    root = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    sources = {"go": Path(root)}
    if names:
        download = [go, "mod", "download", "-json", *names]
        process = subprocess.run(
            download, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        decoder, text = json.JSONDecoder(), process.stdout.strip()
        while text:
            module, end = decoder.raw_decode(text)
            sources[f"{module['Path']}@{module['Version']}"] = Path(module["Dir"])
            text = text[end:].lstrip()
    return [name for name, source in sources.items() if not _copy(source, folder / name, deep=name != "go")]


def _copy(source: Path, target: Path, *, deep: bool) -> bool:
    texts = []
    for directory, below, files in os.walk(source):
        below[:] = sorted(set(below) - NOT_COMPILED) if deep else []
        texts += [Path(directory, name) for name in files if TEXTS.fullmatch(name)]
    for text in texts:
        goal = target / text.relative_to(source)
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(text, goal)
    return bool(texts)
