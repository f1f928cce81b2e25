"""05: turn a single-process program into a DDP program. It is trained on two ranks and recorded.

torchrun runs the learner's file through `ddp_recorder`, which records each rank's images, steps and weights.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kitlib import config
from trainyard_kit.exercises import sandbox
from trainyard_kit.exercises.checklist import Exercise, NotYet, describe

RANKS, EPOCHS, BATCH, SECONDS = 2, 2, 64, 40
STEPS = EPOCHS * 23  # of 64 images each, of 1,437
STUB = config.DATA / "notebooks" / "scripts" / "digits_todo.py"
EXERCISE = Exercise("program")


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank.

    Attributes:
        world_size: World size of its process group at the last step; 0 without a group.
        images: The indices of the images that it read, in order.
        steps: The number of its optimizer steps.
        weights: Digests of its weights after each of the first steps and at the end.
    """

    world_size: int
    images: tuple[int, ...]
    steps: int
    weights: tuple[str, ...]

    def epoch(self, number: int) -> tuple[int, ...]:
        """Return the images of an epoch."""
        size = len(self.images) // EPOCHS
        return self.images[number * size : (number + 1) * size]


@lru_cache(maxsize=1)
def train(source: str) -> tuple[RankRecord, ...]:
    """Run a program on two ranks."""
    with tempfile.TemporaryDirectory(prefix="exercise-") as folder:
        program = Path(folder, "program.py")
        program.write_text(source, encoding="utf-8")
        # Without a network, the machine's name may not resolve.
        flags = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={RANKS}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *flags]
        recorder = str(sandbox.HERE / "ddp_recorder.py")
        arguments = [recorder, folder, str(program), f"--epochs={EPOCHS}", f"--global-batch-size={BATCH}"]
        with sandbox.checking(f"training {EPOCHS} epochs on {RANKS} ranks") as show:
            status, _ = sandbox.run(
                [*torchrun, *arguments],
                seconds=SECONDS,
                folder=folder,
                on_tick=show(lambda: _describe(folder)),
            )
        if errors := sorted(Path(folder).glob("error-*")):
            raise NotYet(errors[0].read_text())
        if status is None:
            raise NotYet(
                "the two ranks have not finished: does one wait for a call that the other never makes?"
            )
        records = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*"))]
    if len(records) < RANKS:
        raise NotYet(f"{RANKS - len(records)} of {RANKS} ranks ended before they had finished training")
    return tuple(
        RankRecord(record["world_size"], tuple(record["images"]), record["steps"], tuple(record["weights"]))
        for record in records
    )


def _describe(folder: str) -> str:
    """Describe the progress of the training by the steps of rank 0."""
    steps = Path(folder, "steps-0")
    count = steps.stat().st_size if steps.exists() else 0
    return f"step {count} of about {STEPS}" if count else "torchrun is starting two ranks"


def run_ranks(program: object) -> tuple[RankRecord, ...]:
    """Run the learner's file."""
    if not isinstance(program, str | Path) or not Path(program).is_file():
        raise NotYet(f"program is {describe(program)}, and should be the path of your file")
    source = Path(program).read_text(encoding="utf-8")
    if source == STUB.read_text(encoding="utf-8"):
        raise NotYet("the file is unchanged: fill in its four TODOs, and save it")
    return train(source)


@EXERCISE.check("it finishes on two ranks of torchrun", essential=True)
def finishes(program: object) -> None:
    if not all(rank.steps for rank in run_ranks(program)):
        raise NotYet("it takes no training step: the program should train when it is run")


@EXERCISE.check("TODO 1: the ranks join one process group")
def process_group(program: object) -> None:
    if (world_size := run_ranks(program)[0].world_size) != RANKS:
        message = "each process trains alone" if not world_size else f"the world size is {world_size}"
        raise NotYet(f"{message}: call dist.init_process_group before any computation")


SHARES = "TODO 2: each rank reads its own share of the images"


@EXERCISE.check(SHARES)
def separate_shares(program: object) -> None:
    first, second = (set(rank.epoch(0)) for rank in run_ranks(program))
    if len(first & second) > 1:  # one image pads an odd number
        raise NotYet(
            f"{len(first & second)} images are read by both ranks: give the loader a DistributedSampler"
        )


@EXERCISE.check(f"TODO 2: a step has {BATCH} images across both ranks")
def global_batch(program: object) -> None:
    batch_size = round(len(run_ranks(program)[0].images) / run_ranks(program)[0].steps)
    if not BATCH // RANKS - 1 <= batch_size <= BATCH // RANKS:
        raise NotYet(f"each rank takes {batch_size} images per step: divide the batch size by the world size")


# Ranks that read the same shuffled images have equal weights and new orders without TODO 3 and 4.
@EXERCISE.check("TODO 3: both ranks have the same weights after each step", after=SHARES)
def same_weights(program: object) -> None:
    first, second = (rank.weights for rank in run_ranks(program))
    if first != second:
        same = [mine == second_weight for mine, second_weight in zip(first, second, strict=False)]
        when = f"after step {same.index(False) + 1}" if False in same[:-1] else "at the end"
        raise NotYet(
            f"the weights differ {when}: wrap the model in DistributedDataParallel, which averages "
            "the gradients of each step, and train the wrapped model"
        )


@EXERCISE.check("TODO 4: each epoch has its own order", after=SHARES)
def epoch_order(program: object) -> None:
    if run_ranks(program)[0].epoch(0) == run_ranks(program)[0].epoch(1):
        raise NotYet("both epochs have the same order: call sampler.set_epoch before each epoch")
