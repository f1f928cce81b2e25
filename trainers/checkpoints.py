"""Checkpoints that training does not wait for: what the elastic trainers write, and what they go on from.

A file is whole or not there: it is written beside its place, flushed to the disk, renamed, and the folder is
flushed as well. Training stands still only while the state is copied in memory; a thread writes the copy. A
volume that is full costs the newest checkpoint, not the run: the older ones stay, and training goes on.

Loading takes the newest file that is whole, passes over those that are not, and refuses those of another run.
`Keeper` is how an elastic trainer uses them; it is imported from beside it: ``trainers/checkpoints.py``.
Which ranks there are, and who has the state while somebody still lives, is in ``elastic.py``.
"""

import os
import pickle
import queue
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

FORMAT = 1  # of what is in a file; a reader refuses a higher one
KEEP = 2  # files, in case the newest cannot be read
PATTERN = "epoch-*-step-*.pt"
DO_NOT_RESTART = 78  # EX_CONFIG: for elastic_launch.py


@dataclass(frozen=True)
class Found:
    """What a folder has to go on from.

    Attributes:
        state: As it was saved; None where there is no whole checkpoint.
        file: Its name, or "".
        broken: Names of newer files that are not whole; they are renamed, so as not to count again.
    """

    state: dict | None
    file: str
    broken: tuple[str, ...]


class Refused(Exception):
    """There is something in the folder that a restart would not mend; the text says what, and what to do."""


class Checkpoints:
    """The checkpoints of one run, in one folder. One process writes at a time; any may read.

    Args:
        folder: Where; made when it is needed.
        run: What must be the same for one run to be the continuation of another: model, global batch size,
            learning rate, seed. Not the world size, which may change.
        failures: After so many saves in a row that failed, the next raises.

    Example:
        >>> with Checkpoints(Path("data/checkpoints"), {"model": "mlp", "seed": 0}) as checkpoints:
        ...     checkpoints.save({"model": network.state_dict()}, epoch=0, step=10)
        ...     events = checkpoints.finished()  # asked at every step; the file is there when it says so
    """

    def __init__(self, folder: Path, run: Mapping[str, object], *, failures: int = 3) -> None:
        self.folder, self.run, self._limit = folder, dict(run), failures
        self._memory: object = None  # of the copy; kept, since fresh pages cost more than copying into them
        self._thread: threading.Thread | None = None
        self._written: queue.SimpleQueue[dict] = queue.SimpleQueue()
        self._failed, self._reason = 0, ""

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    # Saving

    def save(self, state: dict, *, epoch: int, step: int) -> None:
        """Copy the state, and write the copy while training goes on.

        Waits for the checkpoint before, if that is still being written: there is one copy.

        Args:
            state: Tensors and plain values, in dicts, lists and tuples.
            epoch: The epoch and
            step: the step, counted from the beginning of the run, that come next.

        Raises:
            Refused: Too many saves in a row have failed; with the reason of the last.
        """
        began = time.perf_counter()
        self.close()
        if self._failed >= self._limit:
            raise Refused(
                f"{self._failed} checkpoints in a row could not be written to {self.folder}: {self._reason}. "
                "Make room on the volume, then start the run again: it goes on from the last that is whole"
            )
        self._memory = _copied(state, self._memory)
        name = f"epoch-{epoch:04}-step-{step:08}.pt"
        content = {"format": FORMAT, "run": self.run, "epoch": epoch, "step": step, "state": self._memory}
        waited = time.perf_counter() - began
        self._thread = threading.Thread(
            target=self._write, args=(name, content, began, waited), name="checkpoint-writer"
        )
        self._thread.start()

    def finished(self) -> list[dict]:
        """Return what has been written, or could not be, since this was last asked: fields of an event.

        epoch, step, file, bytes, seconds from the call to the disk, waited: seconds that training stood
        still; and ``error`` in place of file and bytes.
        """
        done = []
        while not self._written.empty():
            done.append(self._written.get())
        return done

    def close(self) -> None:
        """Wait until what is being written is on the disk. May be called twice."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, name: str, content: dict, began: float, waited: float) -> None:
        """In the thread: it prints nothing, and takes only the processor's time that training leaves."""
        if sys.platform == "linux":  # where a priority is a thread's own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        said: dict = {"epoch": content["epoch"], "step": content["step"]}
        try:
            said |= {"file": name, "bytes": write(self.folder / name, content)}
            self._failed = 0
            for old in sorted(self.folder.glob(PATTERN))[:-KEEP]:
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch's own writer says RuntimeError
            self._failed, self._reason = self._failed + 1, str(error)
            said |= {"error": f"not written, the older ones stay: {error}"}
        said |= {"seconds": round(time.perf_counter() - began, 4), "waited": round(waited, 4)}
        self._written.put(said)

    # Loading

    def load(self) -> Found:
        """Return the newest state that is whole.

        Raises:
            Refused: It is another run's, or of a newer format.
        """
        broken = []
        for path in sorted(self.folder.glob(PATTERN), reverse=True):
            content = self._read(path)
            if content is not None:
                return Found(content["state"], path.name, tuple(broken))
            broken.append(path.name)
        return Found(None, "", tuple(broken))

    def _read(self, path: Path) -> dict | None:
        """Return the content of a file, or None if it is not whole; it is then put out of the way."""
        try:
            with path.open("rb") as file:  # once: another process may replace it
                if zipfile.ZipFile(file).testzip() is None:  # torch.save writes an archive with checksums
                    file.seek(0)
                    return self._judged(path, torch.load(file, map_location="cpu", weights_only=True))
        except FileNotFoundError:
            return None
        except pickle.UnpicklingError as error:
            raise Refused(
                f"{path} is whole, but no checkpoint that this trainer reads: "
                f"take the trainer that wrote it, or another --checkpoint-dir ({error})"
            ) from error
        except (OSError, zipfile.BadZipFile):
            pass
        with suppress(OSError):  # the folder may be read-only
            path.rename(path.with_name(f"broken-{path.name}"))  # or it would count as one that is kept
        return None

    def _judged(self, path: Path, content: object) -> dict:
        known = content if isinstance(content, dict) else {}
        number = known.get("format")
        if not isinstance(number, int) or number > FORMAT:
            raise Refused(
                f"{path} has format {number}, this trainer reads up to {FORMAT}: "
                "take the trainer that wrote it, or another --checkpoint-dir"
            )
        theirs = known["run"]
        differ = [
            f"{name} {theirs.get(name)}, not {self.run.get(name)}"
            for name in sorted(theirs.keys() | self.run.keys())
            if theirs.get(name) != self.run.get(name)
        ]
        if differ:
            raise Refused(
                f"{path} is of another run: {'; '.join(differ)}. "
                "Start with the same values, or with another --checkpoint-dir"
            )
        return known


class Keeper:
    """When an elastic trainer saves and loads, and what it says of it; without a folder it does nothing.

    Args:
        folder: Of the checkpoints, or None.
        run: As in `Checkpoints`.
        every: Steps between two checkpoints.
        failures: As in `Checkpoints`.
    """

    def __init__(self, folder: Path | None, run: Mapping, *, every: int, failures: int) -> None:
        self._files = Checkpoints(folder, run, failures=failures) if folder else None
        self._every = every

    def after_step(self, worker, state, *, last: bool) -> None:
        """Let rank 0 begin to save when it is time; say what has been written meanwhile."""
        if self._files is not None:
            if worker.rank == 0 and (last or state.step % self._every == 0):
                self._save(state)
            self._report(worker)

    def resume(self, worker, state) -> bool:
        """Fill the state from the newest checkpoint that is whole; False where there is none."""
        if self._files is None:
            return False
        with _hopeless():
            found = self._files.load()
        if found.state is not None:
            state.load_state_dict(found.state)
            torch.set_rng_state(found.state["rng"])
        if found.state is not None or found.broken:
            worker.emit("resume", epoch=state.epoch, next_step=state.step, broken=found.broken)
        return found.state is not None

    def leave(self, worker, state) -> None:
        """Save before this worker goes: it may be the last."""
        if self._files is not None:
            self._save(state)
            self.close(worker)

    def close(self, worker) -> None:
        """Wait until all is on the disk, and say so."""
        if self._files is not None:
            self._files.close()
            self._report(worker)

    def _save(self, state) -> None:
        with _hopeless():
            content = state.state_dict() | {"rng": torch.get_rng_state()}
            self._files.save(content, epoch=state.epoch, step=state.step)

    def _report(self, worker) -> None:
        for done in self._files.finished():
            worker.emit("checkpoint", **done)


@contextmanager
def _hopeless() -> Iterator[None]:
    """End the process where starting it again would not help: the launcher knows the status."""
    try:
        yield
    except Refused as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(DO_NOT_RESTART) from error


def save_model(path: Path, content: dict) -> None:
    """Write the trained model, or end with a clear word."""
    with _hopeless():
        try:
            write(path, content)
        except (OSError, RuntimeError) as error:
            raise Refused(f"{path} cannot be written ({error}); is the volume full, or read-only?") from error


def write(path: Path, content: dict) -> int:
    """Write a file that is whole or not there, and return its size in bytes.

    Raises:
        OSError, RuntimeError: It cannot be written; nothing of it is left.
    """
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    try:
        torch.save(content, beside)  # by name: torch then writes without Python's lock
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)
    return path.stat().st_size


def _sweep(folder: Path) -> None:
    """Remove what a process of this host, killed in the middle, has left."""
    for left in folder.glob(f".*.pt.{socket.gethostname()}.*"):
        if not Path("/proc", left.name.rpartition(".")[2]).exists():
            left.unlink(missing_ok=True)


def _copied(value: object, memory: object) -> object:
    """Return a copy of a state in the host's memory; tensors take the places of those of the copy before."""
    if isinstance(value, torch.Tensor):
        fits = isinstance(memory, torch.Tensor) and (memory.shape, memory.dtype) == (value.shape, value.dtype)
        return memory.copy_(value.detach()) if fits else value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        places = memory if isinstance(memory, Mapping) else {}
        return {name: _copied(each, places.get(name)) for name, each in value.items()}
    if isinstance(value, list | tuple):
        fits = isinstance(memory, list | tuple) and len(memory) == len(value)
        pairs = zip(value, memory if fits else [None] * len(value), strict=True)
        return type(value)(_copied(each, place) for each, place in pairs)
    return value
