"""12: overall and per-class accuracy from the confusion matrices of ranks with unequal numbers of images."""

from copy import deepcopy
from typing import SupportsFloat

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

MATRICES = [  # a row for each true class; the second rank has no image of the last class
    [[40, 8, 2], [5, 25, 0], [4, 0, 16]],
    [[1, 3, 0], [2, 2, 2], [0, 0, 0]],
    [[3, 0, 1], [0, 1, 3], [1, 1, 2]],
]
SHARES = "it returns the overall accuracy and a list with the accuracy of each class"
STUB = """
def accuracies(matrices):
    return 0.0, []
"""
EXERCISE = Exercise("accuracies", seconds=10, stub=STUB)


def compute(accuracies: Answer, matrices: list[list[list[int]]]) -> tuple[float, list[float]]:
    """Call the learner's function, which may also return arrays."""
    import numpy

    result = accuracies(deepcopy(matrices))
    try:
        overall, per_class = result
        numbers: list[SupportsFloat] = [overall, *numpy.asarray(per_class).ravel().tolist()]
        return float(numbers[0]), [float(number) for number in numbers[1:]]
    except (TypeError, ValueError):
        raise NotYet(f"it returns {describe(result)}, and should return a number and a list") from None


def compare(answer: float, counts: list[tuple[int, int]], column: int = 0) -> None:
    """Compare an accuracy with that of the sums over the ranks; name the mistake behind a wrong one."""
    correct, images = (sum(values) for values in zip(*counts, strict=True))
    shares = [right / total for right, total in counts if total]
    mean = "this is the mean of the ranks' accuracies: add up the counts first, then divide"
    advice = {
        100 * correct / images: "return a fraction, not a percentage",
        sum(shares) / len(counts): mean,
        sum(shares) / len(shares): mean,
        correct / (column or images): "rows are the true classes: divide by the sum of the row",
    }
    if not abs(answer - correct / images) < 0.0005:  # of nan, too
        hint = next((text for value, text in advice.items() if abs(value - answer) < 0.0005), "")
        hint = hint or f"{correct} of {images} images are correct, so it should be {correct / images:.4f}"
        raise NotYet(f"it is {answer:.4f}: {hint}")


def counts(label: int) -> list[tuple[int, int]]:
    """Count the correct images and all images of a class, for each rank."""
    return [(matrix[label][label], sum(matrix[label])) for matrix in MATRICES]


@EXERCISE.check(SHARES, essential=True)
def result_shape(accuracies: Answer) -> None:
    _, per_class = compute(accuracies, MATRICES[:1])
    if len(per_class) != 3:
        raise NotYet(
            f"the list has {len(per_class)} numbers, and should have one for each of the three classes"
        )


@EXERCISE.check("for one rank both are correct", essential=True)
def one_rank(accuracies: Answer) -> None:
    overall, per_class = compute(accuracies, MATRICES[:1])
    compare(overall, [(81, 100)])
    for label, share in enumerate(per_class):
        compare(share, counts(label)[:1], sum(row[label] for row in MATRICES[0]))


@EXERCISE.check("for ranks of unequal size the overall accuracy is that of all images")
def overall_accuracy(accuracies: Answer) -> None:
    sums = [(sum(matrix[label][label] for label in range(3)), sum(map(sum, matrix))) for matrix in MATRICES]
    compare(compute(accuracies, MATRICES)[0], sums)


@EXERCISE.check("so is the accuracy of each class, even if a rank has no image of it")
def class_accuracies(accuracies: Answer) -> None:
    for label, share in enumerate(compute(accuracies, MATRICES)[1]):
        compare(share, counts(label))


@EXERCISE.check("the ranks' matrices are unchanged", last=True)
def matrices_unchanged(accuracies: Answer) -> None:
    matrices = deepcopy(MATRICES)
    accuracies(matrices)
    if matrices != MATRICES:
        raise NotYet("a second call would count twice: add up into a new matrix")
