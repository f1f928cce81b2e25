"""Asynchronous checkpoints of the elastic trainers.

Files are written atomically: to a temporary file, flushed to the disk, renamed, and the folder is flushed as
well. Training pauses only while the state is copied in memory; a thread writes the copy. A full volume loses
the newest checkpoint, not the run: the older ones stay, and training continues.

Loading takes the newest complete file, skips incomplete ones, and rejects those of another run. Elastic
trainers use `CheckpointManager`, imported from this file next to them. Membership, and the state of surviving
ranks, are in ``elastic.py``.
"""

import os
import pickle
import queue
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from elastic import DO_NOT_RESTART, State, Worker

FORMAT = 1  # format version; a reader rejects a higher one
KEEP = 2  # files, in case the newest cannot be read
PATTERN = "epoch-*-step-*.pt"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The result of loading from a folder.

    Attributes:
        state: The saved state; None if there is no complete checkpoint.
        file: Its name, or "".
        broken: Names of newer, incomplete files; they are renamed so that they are not read again.
    """

    state: dict[str, Any] | None
    file: str
    broken: tuple[str, ...]


class CheckpointError(Exception):
    """A problem that a restart does not fix; the message names it and the fix."""


class Checkpoints:
    """The checkpoints of one run, in one folder. One process writes at a time; any may read.

    Args:
        folder: The folder; created when needed.
        run: The settings that must match for a run to continue another: model, global batch size,
            learning rate, seed. Not the world size, which may change.
        failures: After this many failed saves in a row, the next one raises.

    Example:
        >>> with Checkpoints(Path("data/checkpoints"), {"model": "mlp", "seed": 0}) as checkpoints:
        ...     checkpoints.save({"model": network.state_dict()}, epoch=0, step=10)
        ...     events = checkpoints.finished()  # call at every step; lists files once they are complete
    """

    def __init__(self, folder: Path, run: Mapping[str, object], *, failures: int = 3) -> None:
        self.folder, self.run, self._limit = folder, dict(run), failures
        self._memory: object = (
            None  # of the copy; reused, because allocating new pages costs more than copying
        )
        self._thread: threading.Thread | None = None
        self._written: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._failed, self._reason = 0, ""

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Saving

    def save(self, state: dict[str, Any], *, epoch: int, step: int) -> None:
        """Copy the state, and write the copy in the background.

        Waits for the previous checkpoint if it is still being written, because there is only one copy.

        Args:
            state: Tensors and plain values, in dicts, lists and tuples.
            epoch: The next epoch.
            step: The next step, counted from the beginning of the run.

        Raises:
            CheckpointError: Too many saves in a row have failed; the message has the last reason.
        """
        began = time.perf_counter()
        self.close()
        if self._failed >= self._limit:
            raise CheckpointError(
                f"{self._failed} checkpoints in a row could not be written to {self.folder}: {self._reason}. "
                "Free space on the volume, then start the run again: it resumes from the last complete one"
            )
        self._memory = _copy_to_host(state, self._memory)
        name = f"epoch-{epoch:04}-step-{step:08}.pt"
        content = {"format": FORMAT, "run": self.run, "epoch": epoch, "step": step, "state": self._memory}
        waited = time.perf_counter() - began
        self._thread = threading.Thread(
            target=self._write, args=(name, content, began, waited), name="checkpoint-writer"
        )
        self._thread.start()

    def finished(self) -> list[dict[str, Any]]:
        """Return the completed and failed saves since the last call, as fields of an event.

        The fields are epoch, step, file, bytes, seconds (from the call to the disk) and waited (seconds that
        training paused); ``error`` replaces file and bytes.
        """
        done = []
        while not self._written.empty():
            done.append(self._written.get())
        return done

    def close(self) -> None:
        """Wait until the current checkpoint is on the disk. May be called twice."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, name: str, content: dict[str, Any], began: float, waited: float) -> None:
        """Write in the thread: print nothing, and run at low priority."""
        if sys.platform == "linux":  # if priorities are per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        event: dict[str, Any] = {"epoch": content["epoch"], "step": content["step"]}
        try:
            event |= {"file": name, "bytes": write(self.folder / name, content)}
            self._failed = 0
            for old in sorted(self.folder.glob(PATTERN))[:-KEEP]:
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
            self._failed, self._reason = self._failed + 1, str(error)
            event |= {"error": f"not written; older checkpoints are kept: {error}"}
        event |= {"seconds": round(time.perf_counter() - began, 4), "waited": round(waited, 4)}
        self._written.put(event)

    # Loading

    def load(self) -> LoadedCheckpoint:
        """Return the newest complete state.

        Raises:
            CheckpointError: It belongs to another run, or has a newer format.
        """
        broken: list[str] = []
        for path in sorted(self.folder.glob(PATTERN), reverse=True):
            content = self._read(path)
            if content is not None:
                return LoadedCheckpoint(content["state"], path.name, tuple(broken))
            broken.append(path.name)
        return LoadedCheckpoint(None, "", tuple(broken))

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a file, or None if it is incomplete; it is then renamed."""
        try:
            with path.open("rb") as file:  # once: another process may replace it
                if zipfile.ZipFile(file).testzip() is None:  # torch.save writes an archive with checksums
                    file.seek(0)
                    return self._validated(path, torch.load(file, map_location="cpu", weights_only=True))
        except FileNotFoundError:
            return None
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{path} is complete, but not a checkpoint that this trainer reads: "
                f"use the trainer that wrote it, or another --checkpoint-dir ({error})"
            ) from error
        except (OSError, zipfile.BadZipFile):
            pass
        with suppress(OSError):  # the folder may be read-only
            path.rename(
                path.with_name(f"broken-{path.name}")
            )  # otherwise it would count as one of those kept
        return None

    def _validated(self, path: Path, content: object) -> dict[str, Any]:
        known = content if isinstance(content, dict) else {}
        number = known.get("format")
        if not isinstance(number, int) or number > FORMAT:
            raise CheckpointError(
                f"{path} has format {number}, this trainer reads up to {FORMAT}: "
                "use the trainer that wrote it, or another --checkpoint-dir"
            )
        saved_run = known["run"]
        differences = [
            f"{name} {saved_run.get(name)}, not {self.run.get(name)}"
            for name in sorted(saved_run.keys() | self.run.keys())
            if saved_run.get(name) != self.run.get(name)
        ]
        if differences:
            raise CheckpointError(
                f"{path} belongs to another run: {'; '.join(differences)}. "
                "Start with the same values, or with another --checkpoint-dir"
            )
        return known


class CheckpointManager:
    """Save and load the checkpoints of an elastic trainer, and log both; without a folder, do nothing.

    Args:
        folder: The folder of the checkpoints, or None.
        run: As in `Checkpoints`.
        every: Steps between two checkpoints.
        failures: As in `Checkpoints`.
    """

    def __init__(self, folder: Path | None, run: Mapping[str, Any], *, every: int, failures: int) -> None:
        self._files = Checkpoints(folder, run, failures=failures) if folder else None
        self._every = every

    def after_step(self, worker: Worker, state: State, *, last: bool) -> None:
        """Start a save on rank 0 when it is due; log the completed ones."""
        if self._files is not None:
            if worker.rank == 0 and (last or state.step % self._every == 0):
                _save(self._files, state)
            _report(self._files, worker)

    def resume(self, worker: Worker, state: State) -> bool:
        """Fill the state from the newest complete checkpoint; return False if there is none."""
        if self._files is None:
            return False
        with _exit_without_restart():
            checkpoint = self._files.load()
        if checkpoint.state is not None:
            state.load_state_dict(checkpoint.state)
            torch.set_rng_state(checkpoint.state["rng"])
        if checkpoint.state is not None or checkpoint.broken:
            worker.emit("resume", epoch=state.epoch, next_step=state.step, broken=checkpoint.broken)
        return checkpoint.state is not None

    def leave(self, worker: Worker, state: State) -> None:
        """Save before this worker leaves: it may be the last."""
        if self._files is not None:
            _save(self._files, state)
            self.close(worker)

    def close(self, worker: Worker) -> None:
        """Wait until everything is on the disk, and log it."""
        if self._files is not None:
            self._files.close()
            _report(self._files, worker)


def _save(files: Checkpoints, state: State) -> None:
    with _exit_without_restart():
        content = state.state_dict() | {"rng": torch.get_rng_state()}
        files.save(content, epoch=state.epoch, step=state.step)


def _report(files: Checkpoints, worker: Worker) -> None:
    for done in files.finished():
        worker.emit("checkpoint", **done)


@contextmanager
def _exit_without_restart() -> Iterator[None]:
    """Exit with a status that tells the launcher that a restart would not help."""
    try:
        yield
    except CheckpointError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(DO_NOT_RESTART) from error


def save_model(path: Path, content: dict[str, Any]) -> None:
    """Write the trained model, or exit with a clear error."""
    with _exit_without_restart():
        try:
            write(path, content)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} cannot be written ({error}); is the volume full, or read-only?"
            ) from error


def write(path: Path, content: dict[str, Any]) -> int:
    """Write a file atomically, and return its size in bytes.

    Raises:
        OSError, RuntimeError: It cannot be written; no partial file is left.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent)
    try:
        torch.save(content, temporary)  # by name: torch then writes without Python's lock
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the rename durable
    finally:
        os.close(folder)
    return path.stat().st_size


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes of this host."""
    for left in folder.glob(f".*.pt.{socket.gethostname()}.*"):
        if not Path("/proc", left.name.rpartition(".")[2]).exists():
            left.unlink(missing_ok=True)


def _copy_to_host(value: object, memory: object) -> object:
    """Copy a state to the host's memory, into the tensors of the previous copy."""
    if isinstance(value, torch.Tensor):
        if isinstance(memory, torch.Tensor) and (memory.shape, memory.dtype) == (value.shape, value.dtype):
            return memory.copy_(value.detach())
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        places = memory if isinstance(memory, Mapping) else {}
        return {name: _copy_to_host(part, places.get(name)) for name, part in value.items()}
    if isinstance(value, list | tuple):
        copies: Sequence[object] = [None] * len(value)
        if isinstance(memory, list | tuple) and len(memory) == len(value):
            copies = memory
        return type(value)(_copy_to_host(part, place) for part, place in zip(value, copies, strict=True))
    return value
