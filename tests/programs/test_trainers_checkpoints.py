"""Checkpoints of the elastic trainers: whole or not there, written aside, and only those of this run."""

import multiprocessing
import os
import resource
import signal
import subprocess
import threading
from contextlib import contextmanager

import checkpoints
import pytest
import torch

CheckpointError = checkpoints.CheckpointError
WEIGHTS = torch.full((10,), 30.0).numpy().tobytes()
RUN = {"model": "mlp", "lr": 0.1, "seed": 0}


def state(value=1.0, size=1000):
    """A state as trainers have it: tensors and plain values, one inside the other."""
    return {
        "model": {"weight": torch.full((size,), value)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 1)}],
        },
    }


def saved(folder, steps=(10, 20, 30), run=RUN, **options):
    """Save one after the other, and return what was said of each."""
    with checkpoints.Checkpoints(folder, run, **options) as manager:
        for step in steps:
            manager.save(state(float(step)), epoch=step // 20, step=step)
    return manager.finished()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_two_newest_checkpoints_are_kept_and_found(tmp_path):
    folder = tmp_path / "new" / "folder"
    logs = saved(folder)
    assert [(event["epoch"], event["step"]) for event in logs] == [(0, 10), (1, 20), (1, 30)]
    assert names(folder) == [event["file"] for event in logs[1:]], "and nothing beside them"
    assert logs[2]["bytes"] == (folder / logs[2]["file"]).stat().st_size
    assert all(0 <= event["waited"] <= event["seconds"] for event in logs)
    loaded = checkpoints.Checkpoints(folder, RUN).load()
    assert (loaded.file, loaded.broken) == (logs[2]["file"], ())
    assert loaded.state["model"]["weight"].tolist() == [30.0] * 1000
    assert loaded.state["optimizer"] == state()["optimizer"]


def test_an_empty_folder_and_none_at_all_have_nothing_to_go_on_from(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        assert checkpoints.Checkpoints(folder, RUN).load() == checkpoints.LoadedCheckpoint(None, "", ())


def test_training_goes_on_in_the_state_while_a_copy_of_it_is_written(tmp_path, monkeypatch):
    may_write, requests = threading.Event(), []
    original = checkpoints.write

    def slow(path, content):
        assert may_write.wait(120)
        requests.append(threading.current_thread().name)
        return original(path, content)

    monkeypatch.setattr(checkpoints, "write", slow)
    live = state(1.0)
    with checkpoints.Checkpoints(tmp_path, RUN) as manager:
        for value in (1.0, 2.0):
            live["model"]["weight"].fill_(value)
            may_write.clear()
            manager.save(live, epoch=0, step=int(value))
            assert manager.finished() == [], "it is not written yet, and nobody waits"
            live["model"]["weight"].fill_(99)  # the next step of training
            may_write.set()
            manager.close()
            assert [name["step"] for name in manager.finished()] == [int(value)]
            assert manager.load().state["model"]["weight"][0] == value
    assert requests == ["checkpoint-writer"] * 2
    assert "checkpoint-writer" not in {thread.name for thread in threading.enumerate()}, "joined"


def test_the_next_save_waits_for_the_one_before_and_says_so(tmp_path, monkeypatch):
    order, original = [], checkpoints.write

    def write(path, content):
        order.append(("begins", content["step"]))
        size = original(path, content)
        order.append(("ends", content["step"]))
        return size

    monkeypatch.setattr(checkpoints, "write", write)
    logs = saved(tmp_path, steps=range(5))
    assert order == [(what, step) for step in range(5) for what in ("begins", "ends")]
    assert len(logs) == 5


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b.replace(WEIGHTS, bytes(40), 1), lambda b: b""],
    ids=["half-written", "torn", "empty"],
)
def test_a_file_that_is_not_whole_is_passed_over_named_and_put_out_of_the_way(damage, tmp_path):
    older, newest = (event["file"] for event in saved(tmp_path, steps=(10, 30)))
    whole = (tmp_path / newest).read_bytes()
    (tmp_path / newest).write_bytes(damage(whole))
    assert (tmp_path / newest).read_bytes() != whole
    loaded = checkpoints.Checkpoints(tmp_path, RUN).load()
    assert (loaded.file, loaded.broken) == (older, (newest,))
    assert loaded.state["model"]["weight"][0] == 10
    saved(tmp_path, steps=(30,))
    assert names(tmp_path) == [f"broken-{newest}", older, newest], "it does not push out a whole one"
    for name in (older, newest):
        (tmp_path / name).write_bytes(b"nothing")
    none = checkpoints.Checkpoints(tmp_path, RUN).load()
    assert (none.state, none.broken) == (None, (newest, older))


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(tmp_path):
    saved(tmp_path)
    of_other_model = checkpoints.Checkpoints(tmp_path, RUN | {"model": "resnet18", "limit": 5})
    with pytest.raises(CheckpointError, match=r"limit None, not 5; model mlp, not resnet18.*another --ch"):
        of_other_model.load()
    assert len(names(tmp_path)) == 2, "nothing is thrown away"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"format": checkpoints.FORMAT + 1}, "has format .* reads up to 1: use the trainer that wrote it"),
        (["a list"], "has format .* reads up to 1: use the trainer that wrote it"),
        ({"format": 1, "run": subprocess.Popen}, "complete, but not a checkpoint that this trainer reads"),
    ],
    ids=["newer", "other", "code"],
)
def test_a_checkpoint_of_a_newer_kit_or_something_else_is_refused(content, words, tmp_path):
    torch.save(content, tmp_path / "epoch-0000-step-00000001.pt")
    with pytest.raises(CheckpointError, match=words):
        checkpoints.Checkpoints(tmp_path, RUN).load()


def die_while_writing(folder):
    checkpoints.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.write(folder / "epoch-0000-step-00000009.pt", {"format": 1})


def test_a_partial_checkpoint_is_ignored_and_removed_by_the_next(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=die_while_writing, args=(tmp_path,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".epoch-0000-step-00000009.pt.")
    assert checkpoints.Checkpoints(tmp_path, RUN).load() == checkpoints.LoadedCheckpoint(None, "", ())
    (report,) = saved(tmp_path, steps=(10,))
    assert names(tmp_path) == [report["file"]]


@contextmanager
def no_room(folder, size):
    """A volume with too little room: a small one where one may mount, else a limit on the size of files."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_volume_costs_the_newest_checkpoint_and_not_the_run(tmp_path):
    with no_room(tmp_path, 200_000), checkpoints.Checkpoints(tmp_path, RUN, failures=2) as manager:
        manager.save(state(1.0), epoch=0, step=1)
        for step in (2, 3):  # 400 kB
            manager.save(state(9.0, size=100_000), epoch=0, step=step)
        manager.close()
        first, *failed = manager.finished()
        assert names(tmp_path) == [first["file"]], "the older one stays, of the others nothing does"
        assert manager.load().state["model"]["weight"][0] == 1
        for report in failed:
            assert "file" not in report
            assert "not written; older checkpoints are kept" in report["error"]
        with pytest.raises(
            CheckpointError, match=r"2 checkpoints in a row could not be written to .*Free space"
        ):
            manager.save(state(1.0), epoch=0, step=4)


def test_a_save_that_works_forgives_those_that_did_not(tmp_path):
    with no_room(tmp_path, 200_000), checkpoints.Checkpoints(tmp_path, RUN, failures=2) as manager:
        for step, size in enumerate((100_000, 1000, 100_000, 1000)):
            manager.save(state(size=size), epoch=0, step=step)
        manager.close()
        assert ["error" in name for name in manager.finished()] == [True, False, True, False]
