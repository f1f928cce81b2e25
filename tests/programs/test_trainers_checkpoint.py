"""The trainer that resumes: stopped anywhere, it goes on as if nothing had happened."""

import json
import shutil

import cifar10_ddp
import pytest
import torch

from .small_data import load_trainer, of_kind, rank_events, read_events, start_ranks, write_cifar10

trainer = load_trainer("cifar10_checkpoint")


def flags_in(folder):
    """Return flags of a run of two epochs of ten steps each, with a checkpoint after every third."""
    return [
        f"--data-dir={folder / 'cifar10'}",
        f"--checkpoint-dir={folder / 'checkpoints'}",
        f"--model-file={folder / 'model.pt'}",
        *("--checkpoint-every=3", "--epochs=2", "--batch-size=20", "--log-every=1"),
    ]


@pytest.fixture
def flags(tmp_path):
    """The flags of a run that has not begun."""
    write_cifar10(tmp_path / "cifar10")
    return flags_in(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that has ended, and its events."""
    folder = tmp_path_factory.mktemp("whole")
    write_cifar10(folder / "cifar10")
    return folder, rank_events(1, "cifar10_checkpoint", *flags_in(folder))


@pytest.fixture
def ended(whole, tmp_path):
    """The flags of a copy of the run that has ended."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    return flags_in(tmp_path)


@pytest.fixture
def recorded(monkeypatch):
    """The images of every step, in order; at the step number ``stop`` it ends as by a blow."""
    augment, images = cifar10_ddp.augment, []

    def record(data, chosen, *args, **options):
        if len(images) == record.stop:
            raise KeyboardInterrupt
        images.append(chosen.tolist())
        return augment(data, chosen, *args, **options)

    record.stop, record.images = None, images
    monkeypatch.setattr(cifar10_ddp, "augment", record)
    return record


def weights(flags):
    return torch.load(flags[2].partition("=")[2], weights_only=True)["weights"]


def checkpoints(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(flags, recorded, run_trainer, tmp_path):
    events = run_trainer(trainer, *flags)
    reference, images = weights(flags), list(recorded.images)
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    recorded.images.clear()
    recorded.stop = 17
    with pytest.raises(KeyboardInterrupt):
        run_trainer(trainer, *flags)
    assert checkpoints(tmp_path) == ["epoch-0001-step-000003.pt", "epoch-0001-step-000006.pt"]
    recorded.stop = None
    rest = run_trainer(trainer, *flags)
    (resumed,) = of_kind(rest, "resume")
    assert (resumed["epoch"], resumed["next_step"], resumed["broken"]) == (1, 6, [])
    assert recorded.images[:16] + recorded.images[17:] == images, (
        "the step that was lost is taken again, no other"
    )
    losses = {event["step"]: event["loss"] for event in of_kind(events, "step")}
    again = {event["step"]: event["loss"] for event in of_kind(rest, "step")}
    assert again == {step: losses[step] for step in range(16, 20)}
    assert all(torch.equal(reference[name], value) for name, value in weights(flags).items())


def test_a_run_that_had_ended_only_tests_again(whole, ended, run_trainer):
    again = run_trainer(trainer, *ended)
    assert [event["event"] for event in again] == ["start", "resume", "memory", "eval", "end"]
    assert again[3]["accuracy"] == of_kind(whole[1], "eval")[0]["accuracy"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b.replace(b[70_000:70_008], b"12345678")]
)
def test_a_broken_checkpoint_is_passed_over_for_the_one_before(damage, ended, run_trainer, tmp_path):
    newest = tmp_path / "checkpoints" / checkpoints(tmp_path)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    (resumed,) = of_kind(run_trainer(trainer, *ended), "resume")
    assert (resumed["epoch"], resumed["next_step"], resumed["broken"]) == (1, 9, [newest.name])


def test_when_none_can_be_read_it_says_so_and_begins_anew(ended, run_trainer, tmp_path):
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"nothing")
    events = run_trainer(trainer, *ended)
    assert len(of_kind(events, "resume")[0]["broken"]) == 2
    assert of_kind(events, "step")[0]["step"] == 0


def test_a_checkpoint_of_another_run_is_refused(ended, run_trainer):
    with pytest.raises(SystemExit, match=r"another run \(epochs: 2\).*another --checkpoint-dir"):
        run_trainer(trainer, *ended, "--epochs=3")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_ranks_that_were_killed_go_on_together(flags):
    flags.append("--batch-size=10")
    ranks = start_ranks(2, "cifar10_checkpoint", *flags)
    for line in ranks[0].stdout:
        if '"checkpoint"' in line and json.loads(line)["next_step"] == 6:
            for rank in ranks:
                rank.kill()
    for rank in ranks:
        rank.communicate()
    ranks = start_ranks(2, "cifar10_checkpoint", *flags)
    events_by_rank = [read_events(rank.communicate(timeout=100)[0].splitlines()) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    resumed = [of_kind(events, "resume")[0] for events in events_by_rank]
    first, other = (event["epoch"] * 10 + event["next_step"] for event in resumed)
    assert first == other >= 6, "both go on with the same step"
    for events in events_by_rank:
        assert [event["step"] for event in of_kind(events, "step")] == list(range(first, 20))
