"""08: a loop that survives a change of the number of workers. Rounds are begun, and broken off in a step."""

from collections.abc import Iterable
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

IMAGES, BATCH = 48, 12  # four steps in an epoch
DIVIDED = "three ranks divide each step's batch"
RESUMES = "after a change from one rank to two, it goes on where it was"
STUB = """
def train(state, images, rank, world_size, batch):
    for step in range(len(images) // batch):
        mine = images[step * batch:(step + 1) * batch]
        yield mine
"""
EXERCISE = Exercise("train", seconds=5, stub=STUB)


def round_of(train: Answer, state: dict[str, Any], world_size: int, *, steps: int) -> list[list[list[int]]]:
    """Train with so many ranks for some steps, and break off in the next one, before its update.

    Args:
        train: The learner's function.
        state: What survives from one round to the next, changed in place.
        world_size: Ranks of this round.
        steps: Steps that are done before it is broken off, or the epoch is over.

    Returns:
        The images of each rank for each step that was done.
    """
    states = [dict(state) for _ in range(world_size)]
    ranks = [train(state, list(range(IMAGES)), rank, world_size, BATCH) for rank, state in enumerate(states)]
    if not all(hasattr(batches, "send") for batches in ranks):
        raise NotYet(f"train() returns {describe(ranks[0])}: keep the line that yields this rank's images")
    done: list[list[list[int]]] = []
    first_batches = [next(batches, None) for batches in ranks]
    while not any(images is None for images in first_batches) and len(done) < steps:
        batch, first_batches = (
            first_batches,
            [next(batches, None) for batches in ranks],
        )  # going on to the next step ends this one
        done.append([_numbers(images) for images in batch])
    for batches in ranks:
        batches.close()
    if any(noted != states[0] for noted in states):
        raise NotYet("each rank has to note the step: rank 0 may be the one that is lost")
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


@EXERCISE.check("alone, it takes each image once", essential=True)
def alone(train: Answer) -> None:
    images = flat(round_of(train, {"step": 0}, 1, steps=IMAGES))
    if sorted(images) != list(range(IMAGES)):
        raise NotYet(f"one rank takes {len(images)} images, {len(set(images))} different ones, of {IMAGES}")


@EXERCISE.check(DIVIDED)
def divided(train: Answer) -> None:
    steps = round_of(train, {"step": 0}, 3, steps=IMAGES)
    if not steps:
        raise NotYet("three ranks take no step: a round begins with what is in the state that is passed")
    sizes = [len(rank) for step in steps for rank in step]
    if set(sizes) != {BATCH // 3}:
        raise NotYet(
            f"a rank takes {sizes[0]} images in a step, and should take {BATCH // 3}: a part of the batch"
        )
    if sorted(flat(steps)) != list(range(IMAGES)):
        raise NotYet(
            f"they take {len(flat(steps))} images, {len(set(flat(steps)))} different ones, of {IMAGES}"
        )


@EXERCISE.check("five ranks, among which a batch cannot be divided evenly, lose no image", after=DIVIDED)
def uneven(train: Answer) -> None:
    images = flat(round_of(train, {"step": 0}, 5, steps=IMAGES))
    if sorted(images) != list(range(IMAGES)):
        twice = f", {len(images) - len(set(images))} of them twice" if len(images) > len(set(images)) else ""
        raise NotYet(
            f"with 5 ranks they take {len(set(images))} of {IMAGES} images{twice}: {BATCH} // 5 has a rest; "
            "give each rank every n-th image of the batch"
        )


@EXERCISE.check("a step has the same images with any number of ranks", after=DIVIDED)
def same_batches(train: Answer) -> None:
    batches = [
        [sorted(flat([step])) for step in round_of(train, {"step": 0}, n, steps=IMAGES)] for n in (1, 2, 3, 5)
    ]
    if any(batch != batches[0] for batch in batches):
        raise NotYet("take the batch of this step first, and then this rank's part of that batch")


def changed(train: Answer, *, first: int, then: int) -> list[int]:
    """Return the images of two rounds, the second with another number of ranks."""
    state = {"step": 0}
    before = round_of(train, state, first, steps=2)
    return flat(before) + flat(round_of(train, state, then, steps=IMAGES))


@EXERCISE.check(RESUMES, after=DIVIDED)
def resumes(train: Answer) -> None:
    images = changed(train, first=1, then=2)
    round_of(train, state := {"step": 0}, 1, steps=2)
    step, repeated = state.get("step"), len(images) > len(set(images))
    if (repeated or len(images) < IMAGES) and step not in ((2,) if repeated else (2, 3)):  # 3: see `repeats`
        raise NotYet(
            f"state['step'] is {describe(step)} after two steps, and should be 2: "
            "set it in the dict that is passed, to the step that comes next"
        )
    if repeated:
        raise NotYet(
            "images of the first round come again: begin at state['step'], and end where the epoch does"
        )


@EXERCISE.check("a step in which a worker was lost is repeated", after=RESUMES)
def repeats(train: Answer) -> None:
    images = changed(train, first=3, then=2)
    if set(images) != set(range(IMAGES)):
        raise NotYet("images of the broken step are missing: count a step when it is done, after the yield")
