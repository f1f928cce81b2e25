"""What a training job runs: a program with all that travels with it, or the address to fetch it from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kitlib import config
from kitlib.errors import BadInput
from kitlib.jobs import functions
from kitlib.jobs.sources import Remote, Sources, flags, listed, modes, remote, sources

FETCH = config.DATA / "trainers" / "fetch_trainer.py"


@dataclass(frozen=True)
class TrainerProgram:
    """A trainer, read.

    Attributes:
        path: Of the program; in the pods its name is the same.
        sources: What is carried to the pods, by path below the trainer's folder.
        args: Its flags.
        files: Files and folders that it reads, below its folder.
        modes: Permissions of those that are not plain files.
        function: Whose source it is, if it is a function.
        remote: From where pods fetch it, if it is not here.
    """

    path: Path
    sources: Sources
    args: list[str]
    files: list[str] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    function: Callable[..., object] | None = None
    remote: Remote | None = None

    @classmethod
    def read(
        cls,
        trainer: str | Path | Callable[..., object],
        args: Mapping[str, Any] | Sequence[object] = (),
        *,
        files: Sequence[str | Path] = (),
        secret: str | None = None,
    ) -> Self:
        """Read a file, or a function as a program; or parse a URL."""
        address = None if callable(trainer) else remote(trainer, secret)
        if files and (callable(trainer) or address):
            fix = "put them on a volume, or beside a program that is a file here"
            raise BadInput("files= needs a trainer that is a file", about=f"files={files!r}", fix=fix)
        if callable(trainer):
            source = functions.carried(trainer, args)
            return cls(Path(next(iter(source))), source, [], function=trainer)
        if address:
            return cls(Path(address.name), sources(FETCH), flags(args), remote=address)
        words, path = flags(args), config.find(trainer)
        names = listed(path, files)
        permissions = modes(path, names)  # refuses what is too large, before it is read
        return cls(path, sources(path, files=names), words, names, permissions)
