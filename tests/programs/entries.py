"""The list of programs and manifests, and what they need before they run: sources and environments."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIST = HERE / "programs.toml"
TORCH = ("torch", "torchvision")  # an environment has those of the kit's own


@dataclass(frozen=True)
class Entry:
    """A program or a manifest of the list.

    Attributes:
        path: Relative to its repository; with an empty ``repository``, to this folder.
        ends: How: "as it is", "with an argument", "with a package", or "not".
        why: For what is not "as it is".
        log: A regular expression that the log has; of what ends "not", its error.
        wait: Of a manifest: the arguments of `kubectl wait`.
        logs: Of a manifest: the arguments of `kubectl logs`.
        curve: ``run.metrics()`` has a loss.
        endless: It is not awaited: it runs until its log has what is expected.
        environment: The packages beside the kit's own that the pods need, by their name in the list.
        before: Words of a command that its README wants first, in its folder.
        checkpoint: A file that the program writes, relative to its working directory.
        data: What it reads below ``mount``, by default ``../data`` of the working directory: paths, and their
            makers in `data`.
        beside: What it reads beside itself: the same.
        server: A folder of the kit's manifests, whose Deployment serves what the program speaks to.
    """

    name: str
    path: str
    repository: str = ""
    commit: str = ""
    ends: str = "as it is"
    why: str = ""
    log: str = ""
    wait: str = ""
    logs: str = ""
    install: str = ""
    curve: bool = False
    endless: bool = False
    environment: str = ""
    before: tuple[str, ...] = ()
    checkpoint: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    mount: str = "/data"
    server: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    args: Any = ()
    files: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def file(self, folder: Path) -> Path:
        """Where the file is."""
        return (folder / self.repository if self.repository else HERE) / self.path

    @property
    def all_files(self) -> list[str]:
        """Its files and folders, with the data that is made beside it."""
        return [*self.files, *(name for name in self.beside if name != ".")]

    @property
    def command(self) -> str:
        """What its user writes, without what only the place of the test wants: name, workspace, volume."""
        options = {"nodes": 2} | self.options
        if self.args:
            options["args"] = self.args
        if self.all_files:
            options["files"] = self.all_files
        words = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in options.items()]
        program = () if "module" in self.options else (json.dumps(Path(self.path).name),)
        return f"kit.launch({', '.join((*program, *words))})"


def read_list() -> list[Entry]:
    """Return the entries of programs.toml."""
    tables = tomllib.loads(LIST.read_text(encoding="utf-8"))
    entries = []
    for table in tables["manifest"] + tables["program"]:
        commit = tables["commits"].get(table.get("repository", ""), "")
        entries.append(Entry(**{"commit": commit} | table))
    return entries


def packages() -> dict[str, list[str]]:
    """Return the packages of each environment of the list."""
    return dict(tomllib.loads(LIST.read_text(encoding="utf-8"))["environments"])


def check_out(entries: Iterable[Entry], folder: Path, sources: str) -> None:
    """Fetch the commit of each repository that is not in the folder yet.

    Args:
        sources: Where repositories are: an address, or a folder with mirrors, as OWNER/NAME.
    """
    needed = {(entry.repository, entry.commit) for entry in entries if not entry.file(folder).exists()}
    for repository, commit in sorted(needed):
        place = folder / repository
        place.mkdir(parents=True, exist_ok=True)
        for words in (
            ["init", "--quiet"],
            ["fetch", "--quiet", "--depth=1", f"{sources}/{repository}", commit],
            ["checkout", "--quiet", "FETCH_HEAD"],
        ):
            subprocess.run(["git", "-C", str(place), *words], check=True)


def make_environment(name: str, folder: Path) -> Path:
    """Install the kit, with the torch of this one, and the packages of an environment; return its Python."""
    place = folder / "environments" / name
    python, uv = place / "bin" / "python", [sys.executable, "-m", "uv", "--quiet"]
    if not python.exists():
        subprocess.run([*uv, "venv", "--python", sys.executable, str(place)], check=True)
    pinned = [f"{package}=={version(package).partition('+')[0]}" for package in TORCH]
    kit = ["--editable", str(ROOT), "--editable", str(ROOT / "localkube")]
    words = [*uv, "pip", "install", f"--python={python}", *kit, *pinned, *packages()[name]]
    subprocess.run(words, check=True, cwd=folder)
    return python
