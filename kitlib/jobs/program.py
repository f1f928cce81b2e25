"""The program of a training job: its sources and files, or the address from which pods fetch it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from kitlib import config
from kitlib.causes.processes import RANKS
from kitlib.errors import BadInput
from kitlib.jobs import functions
from kitlib.jobs.layout import Layout
from kitlib.jobs.layout import read as read_layout
from kitlib.jobs.sources import Remote, Sources, collect, flags, modes, normalise_files, remote, sources
from kitlib.k8s.manifests import Object

FETCH = config.DATA / "trainers" / "fetch_trainer.py"
RANKS_FOLDER = "_trainyard"


@dataclass(frozen=True)
class TrainerProgram:
    """A trainer, read.

    Attributes:
        path: Of the program; in the pods its name is the same.
        sources: What is carried to the pods, by path below the project's root.
        args: Its flags.
        files: Files and folders that it reads, below its folder.
        modes: Permissions of those that are not plain files.
        function: Whose source it is, if it is a function.
        remote: From where pods fetch it, if it is not here.
        layout: Of its project, if it is a file here.
    """

    path: Path
    sources: Sources
    args: list[str]
    files: list[str] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    function: Callable[..., object] | None = None
    remote: Remote | None = None
    layout: Layout | None = None

    @classmethod
    def read(
        cls,
        trainer: str | Path | Callable[..., object] | None,
        args: Mapping[str, Any] | Sequence[object] = (),
        *,
        files: Sequence[str | Path] = (),
        secret: str | None = None,
        root: str | Path | None = None,
        module: str | None = None,
    ) -> Self:
        """Read a file, a module, or a function as a program; or parse a URL."""
        address = None if callable(trainer) or trainer is None else remote(trainer, secret)
        for name, value in {"files": files, "root": root, "module": module}.items():
            if value and (callable(trainer) or address):
                fix = "put it on a volume, or beside a program that is a file here"
                raise BadInput(f"{name}= needs a trainer that is a file", about=f"{name}={value!r}", fix=fix)
        if callable(trainer):
            source = functions.carried(trainer, args)
            return cls(Path(next(iter(source))), source, [], function=trainer)
        if address:
            return cls(Path(address.name), sources(FETCH), flags(args), remote=address)
        layout = read_layout(trainer, root, module)
        names = normalise_files(layout.base, files)
        permissions = modes(layout.base, names)  # refuses what is too large, before it is read
        content, layout = collect(layout, files=names)
        first = content[layout.name]
        words = flags(args, [first, *(text for name, text in content.items() if name.endswith(".py"))])
        folder = PurePosixPath(layout.folder)
        permissions = {(folder / name).as_posix(): mode for name, mode in permissions.items()}
        return cls(layout.program, content, words, names, permissions, layout=layout)


def with_path(environment: Sequence[Object], folder: str) -> list[Object]:
    """Put a folder before those of ``PYTHONPATH`` in a container's variables; of two, join both."""
    before = [item.get("value", "") for item in environment if item["name"] == "PYTHONPATH"]
    path = ":".join(filter(None, [folder, *reversed(before)]))
    rest = [item for item in environment if item["name"] != "PYTHONPATH"]
    return [*rest, {"name": "PYTHONPATH", "value": path}] if path else rest


def ranks_for(image: str | None) -> dict[str, str]:
    """Read the module by which ranks report to `Run.why`, found by PYTHONPATH; none for custom images."""
    return {} if image else {f"{RANKS_FOLDER}/{RANKS.name}": RANKS.read_text(encoding="utf-8")}
