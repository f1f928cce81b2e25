"""12: a confusion matrix, from labels and predictions."""

from collections.abc import Callable

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

LABELS, PREDICTIONS = [0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 1, 1, 1, 0, 2, 2, 0, 2]
WANTED = [[1, 2, 0, 0], [1, 1, 0, 0], [1, 0, 3, 0], [0, 0, 0, 0]]
TOTAL = "each image is counted once"
STUB = """
def confusion(labels, predictions, classes):
    return []
"""
EXERCISE = Exercise("confusion", seconds=10, stub=STUB)


def rows(confusion: Answer, kind: Callable[[list[int]], object] = list) -> list[list[int]]:
    """Compute the matrix of four classes, of which the last has no images; an array is right, too."""
    import numpy

    matrix = confusion(kind(LABELS), kind(PREDICTIONS), 4)
    try:
        counts = [[float(count) for count in row] for row in numpy.asarray(matrix).tolist()]
    except (TypeError, ValueError):
        raise NotYet(f"it returns {describe(matrix)}, and should return a list of rows") from None
    if shares := [count for row in counts for count in row if not count.is_integer()]:
        raise NotYet(f"a number is {shares[0]:.3g}: count images, and divide by nothing")
    return [[int(count) for count in row] for row in counts]


@EXERCISE.check("it has a row and a column for each class", essential=True)
def square(confusion: Answer) -> None:
    lengths = [len(row) for row in rows(confusion)]
    if not lengths:
        raise NotYet("it has no rows yet: make one of zeros for each class")
    if lengths != [4] * 4:
        raise NotYet(
            f"for four classes its rows have the lengths {lengths}: a class without images needs a row, too"
        )


@EXERCISE.check(TOTAL)
def total(confusion: Answer) -> None:
    total_count = sum(map(sum, rows(confusion)))
    if total_count == len(LABELS) * 4:
        raise NotYet("each count appears in all rows: they are one list; make a new list for each")
    if rows(confusion) == [[min(count, 1) for count in row] for row in WANTED]:
        raise NotYet("a cell is 1 however many images it has: add 1 for each image, one by one")
    if total_count != len(LABELS):
        raise NotYet(f"the sum of all numbers is {total_count}, for {len(LABELS)} images")


@EXERCISE.check("what is right is on the diagonal", after=TOTAL)
def diagonal(confusion: Answer) -> None:
    on_diagonal = [rows(confusion)[index][index] for index in range(4)]
    if on_diagonal != [WANTED[index][index] for index in range(4)]:
        raise NotYet(
            f"the diagonal is {on_diagonal}, and should be {[WANTED[index][index] for index in range(4)]}"
        )


@EXERCISE.check("rows are the truth, columns the predictions", after=TOTAL)
def orientation(confusion: Answer) -> None:
    matrix = rows(confusion)
    if matrix == [list(column) for column in zip(*WANTED, strict=True)]:
        raise NotYet("it is transposed: the label chooses the row")
    if matrix != WANTED:
        raise NotYet(
            f"two images of class 0 were taken for class 1: row 0 is {matrix[0]}, and should be {WANTED[0]}"
        )


@EXERCISE.check("it takes arrays of numpy as well", after=TOTAL)
def arrays(confusion: Answer) -> None:
    import numpy

    if rows(confusion, numpy.array) != rows(confusion):
        raise NotYet("with arrays the matrix is another one: iterate over labels and predictions in pairs")


@EXERCISE.check("ten thousand images take less than a second", last=True)
def fast(confusion: Answer) -> None:
    import time

    labels = [number % 10 for number in range(10_000)]
    began = time.process_time()
    confusion(labels, labels[::-1], 10)
    if (took := time.process_time() - began) > 1:
        raise NotYet(f"it takes {took:.1f} s: go through the images once, not once for each cell")
