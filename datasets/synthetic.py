"""Stand-in images that can be learnt, for where the real ones cannot be had: drawn by numpy, the same for
one seed.

A picture shows one shape, filled with waves, on a background of other waves. Its class decides, with
chance, about the shape, the colours and the waves. Classes come in groups: those of one group look alike,
as cats and dogs do, and differ in the direction of their waves alone. Place, size, angle, colours, light
and noise are drawn anew for every picture.

Handwritten digits are those of scikit-learn, bent and moved: the pictures for testing are made from other
digits than those for training. Files are not written here.
"""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

CHUNK = 500
GROUP_SPREAD = {"hue": 0.16, "angle": 0.34, "size": 0.16}


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 digits, 8 x 8 from 0 to 16, and what they are; from its file, as it
    imports slowly."""
    with gzip.open(digits_file(), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def digits_file() -> Path:
    """Return scikit-learn's own file of the digits."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("the digits come with scikit-learn, which is missing here")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def labels(count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return so many labels in random order, each class as often as the others."""
    return rng.permutation(np.arange(count) % classes)


def digits(which: np.ndarray, rng: np.random.Generator, *, test: bool) -> np.ndarray:
    """Return a 28 x 28 picture of uint8 for each label: a digit of 8 x 8, turned, sheared, scaled and
    moved."""
    images, truth = read_digits()
    cut = len(images) * 4 // 5
    images, truth = (images[cut:], truth[cut:]) if test else (images[:cut], truth[:cut])
    images = np.pad(images / 16, ((0, 0), (2, 2), (2, 2)))
    chosen = np.empty(len(which), dtype=np.int64)
    for digit in range(10):
        wanted = which == digit
        chosen[wanted] = rng.choice(np.flatnonzero(truth == digit), wanted.sum())
    made = [_bent(images[chosen[start : start + CHUNK]], rng) for start in range(0, len(which), CHUNK)]
    return np.concatenate(made)


def _bent(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    count, side, wide = len(images), images.shape[1], 28
    angle, shear = rng.normal(0, 0.17, count), rng.normal(0, 0.15, count)
    scale = 2.35 * np.exp(rng.normal(0, 0.10, count))
    grid = np.arange(wide, dtype=np.float32) - (wide - 1) / 2
    y = grid[None, :, None] - rng.uniform(-2.5, 2.5, count)[:, None, None]
    x = grid[None, None, :] - rng.uniform(-2.5, 2.5, count)[:, None, None]
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    u = (cos * x + sin * y + shear[:, None, None] * y) / scale[:, None, None] + (side - 1) / 2
    v = (cos * y - sin * x) / scale[:, None, None] + (side - 1) / 2
    u, v = np.clip(u, 0, side - 1.001), np.clip(v, 0, side - 1.001)
    left, top = u.astype(np.int64), v.astype(np.int64)
    right, below = u - left, v - top
    row = np.arange(count)[:, None, None]
    value = (
        images[row, top, left] * (1 - right) * (1 - below)
        + images[row, top, left + 1] * right * (1 - below)
        + images[row, top + 1, left] * (1 - right) * below
        + images[row, top + 1, left + 1] * right * below
    )
    value = np.clip(value * 1.5 - 0.25, 0, 1) + rng.normal(0, 0.04, value.shape).astype(np.float32) * (
        value > 0.02
    )
    return (np.clip(value, 0, 1) * 255).astype(np.uint8)


class Looks:
    """How the classes look.

    Args:
        classes: How many.
        group: How many of them look alike.
        seed: Of the looks; pictures are drawn with another.
    """

    def __init__(self, classes: int, *, group: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 20])
        groups = -(-classes // group)
        of = np.arange(classes) // group
        member = (np.arange(classes) % group) - (group - 1) / 2
        # Spread evenly over their ranges, in random order: no two groups are the same by accident.
        self.corners = _spread(0.75, 3.5, groups, rng)[of]
        self.aspect = np.exp(_spread(-0.55, 0.55, groups, rng))[of]
        self.hole = np.where(_spread(0, 1, groups, rng) > 0.6, 0.45, 0.0)[of]
        self.hue = _spread(0, 1, groups, rng)[of] + member * GROUP_SPREAD["hue"] / group
        self.waves = _spread(5, 13, groups, rng)[of]
        self.angle = _spread(0, np.pi, groups, rng)[of] + member * np.pi / group
        self.size = 0.62 + member * GROUP_SPREAD["size"] / group


def _spread(low: float, high: float, count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(low + (high - low) * (np.arange(count) + 0.5) / count)


def pictures(which: np.ndarray, looks: Looks, side: int, rng: np.random.Generator) -> np.ndarray:
    """Return a picture for each label: (images, side, side, 3) of uint8."""
    made = [_drawn(which[start : start + CHUNK], looks, side, rng) for start in range(0, len(which), CHUNK)]
    return np.concatenate(made)


def _drawn(which: np.ndarray, looks: Looks, side: int, rng: np.random.Generator) -> np.ndarray:
    count = len(which)

    def normal(mean: np.ndarray | float, deviation: float) -> np.ndarray:
        return (mean + rng.normal(0, deviation, count)).astype(np.float32)[:, None, None]

    def uniform(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, count).astype(np.float32)[:, None, None]

    axis = np.linspace(-1, 1, side, dtype=np.float32)
    x, y = axis[None, None, :] - uniform(-0.35, 0.35), axis[None, :, None] - uniform(-0.35, 0.35)
    tilt = normal(0.0, 0.35)
    u, v = np.cos(tilt) * x + np.sin(tilt) * y, np.cos(tilt) * y - np.sin(tilt) * x
    size, aspect = normal(looks.size[which], 0.08).clip(0.35, 0.9), normal(np.sqrt(looks.aspect[which]), 0.06)
    power = normal(looks.corners[which], 0.12).clip(0.5)
    distance = (
        (np.abs(u / (size * aspect)) + 1e-3) ** power + (np.abs(v * aspect / size) + 1e-3) ** power
    ) ** (1 / power)
    shape = _edge(1 - distance, side) * _edge(
        distance - looks.hole[which].astype(np.float32)[:, None, None], side
    )
    inside = _waves(
        x, y, normal(looks.angle[which], GROUP_SPREAD["angle"]), normal(looks.waves[which], 0.8), uniform
    )
    outside = _waves(x, y, uniform(0, np.pi), uniform(3, 14), uniform)
    paint = _colour(normal(looks.hue[which], 0.09), uniform(0.45, 0.9), uniform(0.5, 0.95))
    ground = _colour(uniform(0, 1), uniform(0.1, 0.6), uniform(0.25, 0.85))
    shape = (shape * uniform(0.6, 1.0))[..., None]
    picture = shape * paint * (0.5 + 0.5 * inside[..., None])
    picture += (1 - shape) * ground * (0.75 + 0.25 * outside[..., None])
    picture = picture * uniform(0.75, 1.15)[..., None] + rng.normal(0, 0.06, picture.shape).astype(np.float32)
    return (np.clip(picture, 0, 1) * 255).astype(np.uint8)


def _edge(depth: np.ndarray, side: int) -> np.ndarray:
    """Return 1 inside and 0 outside, with an edge of about a pixel."""
    return np.clip(0.5 + depth * side / 5, 0, 1)


def _waves(x, y, angle, number, uniform) -> np.ndarray:
    return np.sin(number * (np.cos(angle) * x + np.sin(angle) * y) + uniform(0, 2 * np.pi))


def _colour(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return colours as (images, 1, 1, 3), from hue, saturation and value."""
    k = (np.array([5, 3, 1], dtype=np.float32) + hue[..., None] * 6) % 6
    return value[..., None] * (1 - saturation[..., None] * np.clip(np.minimum(k, 4 - k), 0, 1))
