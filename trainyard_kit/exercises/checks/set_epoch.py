"""06: a training loop whose epochs all have the same order. Both ranks of it run, for four epochs."""

from collections import Counter
from itertools import pairwise

from trainyard_kit.exercises.checklist import Exercise, NotYet, describe

IMAGES, RANKS, EPOCHS = 40, 2, 4
STUB = """
def train(images, rank, ranks, epochs):
    sampler = DistributedSampler(images, num_replicas=ranks, rank=rank, seed=1)
    loader = DataLoader(images, batch_size=8, sampler=sampler)
    for epoch in range(epochs):
        for batch in loader:
            yield epoch, batch
"""
EXERCISE = Exercise("train", seconds=30, stub=STUB)


def orders(train, rank: int) -> list[list[int]]:
    """Run a rank; return the images of each of its epochs, in their order."""
    found: list[list[int]] = [[] for _ in range(EPOCHS)]
    steps = train(list(range(IMAGES)), rank, RANKS, EPOCHS)
    try:
        for epoch, batch in steps:
            found[epoch].extend(int(image) for image in batch)
    except TypeError as error:
        if "iter" in str(error) or "unpack" in str(error):
            raise NotYet(
                f"train() returns {describe(steps)}: keep the line that yields epoch and batch"
            ) from None
        raise
    return found


@EXERCISE.check("each rank trains in each epoch", essential=True)
def trains(train):
    for rank in range(RANKS):
        counts = [len(order) for order in orders(train, rank)]
        if set(counts) != {IMAGES // RANKS}:
            raise NotYet(
                f"rank {rank} has {counts} images in its epochs, and should have {IMAGES // RANKS} in each"
            )


@EXERCISE.check("together the ranks see each image once in an epoch")
def once(train):
    for epoch, both in enumerate(zip(*(orders(train, rank) for rank in range(RANKS)), strict=True)):
        if len(set(sum(both, []))) != IMAGES:
            seen = len(set(sum(both, [])))
            raise NotYet(
                f"in epoch {epoch} they see {seen} of {IMAGES} images: ranks must shuffle by the same number"
            )


@EXERCISE.check("images are shuffled, also in the first epoch")
def shuffled(train):
    for epoch, images in enumerate(orders(train, 0)):
        steps = Counter((after - before) % IMAGES for before, after in pairwise(images))
        ((step, times),) = steps.most_common(1)
        # A shuffled order has each distance a few times; one that is reversed, rotated or dealt out has one.
        if times > len(images) // 3:
            raise NotYet(
                f"in epoch {epoch} most images come {step} places after the one before them, "
                "in the order of the data set: the sampler should shuffle"
            )


@EXERCISE.check("each epoch has an order of its own")
def fresh(train):
    found = orders(train, 0)
    same = [(a, b) for a in range(EPOCHS) for b in range(a + 1, EPOCHS) if found[a] == found[b]]
    if same:
        words = f"epochs {same[0][0]} and {same[0][1]} have the same order"
        raise NotYet(
            f"{words}: the sampler has to be told the number of the epoch before the loader is iterated"
        )


@EXERCISE.check("run again, it does the same")
def repeatable(train):
    if orders(train, 0) != orders(train, 0):
        raise NotYet("two runs differ: the order should depend only on the seed and the epoch")
