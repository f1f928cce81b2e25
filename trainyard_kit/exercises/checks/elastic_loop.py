"""08: a training loop that survives a change of the world size. The checks interrupt rounds within a step."""

from collections.abc import Iterable
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

IMAGES, BATCH = 48, 12  # four steps in an epoch
DIVIDED = "three ranks divide the batch of each step"
RESUMES = "after a change from one rank to two, it resumes where it stopped"
STUB = """
def train(state, images, rank, world_size, batch):
    for step in range(len(images) // batch):
        mine = images[step * batch:(step + 1) * batch]
        yield mine
"""
EXERCISE = Exercise("train", seconds=5, stub=STUB)


def train_round(
    train: Answer, state: dict[str, Any], world_size: int, *, steps: int
) -> list[list[list[int]]]:
    """Train for some steps, and interrupt the next one before its update.

    Args:
        train: The learner's function.
        state: The state that survives from one round to the next, changed in place.
        world_size: Number of ranks in this round.
        steps: Number of steps to complete, if the epoch has as many.

    Returns:
        The images of each rank for each completed step.
    """
    states = [dict(state) for _ in range(world_size)]
    ranks = [train(state, list(range(IMAGES)), rank, world_size, BATCH) for rank, state in enumerate(states)]
    if not all(hasattr(batches, "send") for batches in ranks):
        raise NotYet(f"train() returns {describe(ranks[0])}: keep the line that yields this rank's images")
    done: list[list[list[int]]] = []
    batch = [next(batches, None) for batches in ranks]
    while not any(images is None for images in batch) and len(done) < steps:
        next_batch = [next(batches, None) for batches in ranks]  # which completes the step
        done.append([_numbers(images) for images in batch])
        batch = next_batch
    for batches in ranks:
        batches.close()
    if any(rank_state != states[0] for rank_state in states):
        raise NotYet("each rank has to record the step: rank 0 may be the one that fails")
    state.clear()
    state.update(states[0])
    return done


def _numbers(images: object) -> list[int]:
    try:
        if not isinstance(images, Iterable):
            raise TypeError
        return [int(image) for image in images]
    except TypeError:
        raise NotYet(f"a step yields {describe(images)}, and should yield a list of images") from None


def flat(steps: list[Any]) -> list[int]:
    return [image for step in steps for rank in step for image in rank]


@EXERCISE.check("a single rank takes each image once", essential=True)
def single_rank(train: Answer) -> None:
    images = flat(train_round(train, {"step": 0}, 1, steps=IMAGES))
    if sorted(images) != list(range(IMAGES)):
        raise NotYet(f"one rank takes {len(images)} images, {len(set(images))} of them distinct, of {IMAGES}")


@EXERCISE.check(DIVIDED)
def divides_batch(train: Answer) -> None:
    steps = train_round(train, {"step": 0}, 3, steps=IMAGES)
    if not steps:
        raise NotYet("three ranks take no step: a round begins with the state that is passed")
    sizes = [len(rank) for step in steps for rank in step]
    if set(sizes) != {BATCH // 3}:
        raise NotYet(
            f"a rank takes {sizes[0]} images per step, and should take {BATCH // 3}: its share of the batch"
        )
    if sorted(flat(steps)) != list(range(IMAGES)):
        raise NotYet(
            f"they take {len(flat(steps))} images, {len(set(flat(steps)))} of them distinct, of {IMAGES}"
        )


@EXERCISE.check("five ranks, which cannot divide a batch evenly, lose no image", after=DIVIDED)
def uneven_shares(train: Answer) -> None:
    images = flat(train_round(train, {"step": 0}, 5, steps=IMAGES))
    if sorted(images) != list(range(IMAGES)):
        twice = f", {len(images) - len(set(images))} of them twice" if len(images) > len(set(images)) else ""
        raise NotYet(
            f"with 5 ranks they take {len(set(images))} of {IMAGES} images{twice}: {BATCH} // 5 leaves a "
            "remainder; give each rank every n-th image of the batch"
        )


@EXERCISE.check("a step has the same images for any number of ranks", after=DIVIDED)
def same_batches(train: Answer) -> None:
    batches = [
        [sorted(flat([step])) for step in train_round(train, {"step": 0}, n, steps=IMAGES)]
        for n in (1, 2, 3, 5)
    ]
    if any(batch != batches[0] for batch in batches):
        raise NotYet("take the batch of this step first, then this rank's share of it")


def two_rounds(train: Answer, *, first: int, then: int) -> list[int]:
    """Return the images of two rounds, the second with another number of ranks."""
    state = {"step": 0}
    before = train_round(train, state, first, steps=2)
    return flat(before) + flat(train_round(train, state, then, steps=IMAGES))


@EXERCISE.check(RESUMES, after=DIVIDED)
def resumes_at_step(train: Answer) -> None:
    images = two_rounds(train, first=1, then=2)
    train_round(train, state := {"step": 0}, 1, steps=2)
    step, repeated = state.get("step"), len(images) > len(set(images))
    if (repeated or len(images) < IMAGES) and step not in ((2,) if repeated else (2, 3)):  # 3: the next check
        raise NotYet(
            f"state['step'] is {describe(step)} after two steps, and should be 2: "
            "set it in the dict that is passed, to the number of the next step"
        )
    if repeated:
        raise NotYet(
            "images of the first round are repeated: begin at state['step'], and stop at the end of the epoch"
        )


@EXERCISE.check("a step in which a worker fails is repeated", after=RESUMES)
def repeats_failed_step(train: Answer) -> None:
    images = two_rounds(train, first=3, then=2)
    if set(images) != set(range(IMAGES)):
        raise NotYet(
            "images of the interrupted step are missing: count a step once it is complete, after the yield"
        )
