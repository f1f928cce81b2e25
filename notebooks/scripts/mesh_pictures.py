"""Pictures for notebook 18: how two ranks divide a block's matrices, and the slots of a pipeline."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

RANKS, DIRECTIONS = ("tab:blue", "tab:orange"), {"forward": "tab:blue", "backward": "tab:green"}
Slot = tuple[int, int, str, float, float]  # stage, micro-batch, direction, begin and end in milliseconds


def predicted_slots(stages: int, parts: int, stage_ms: float) -> list[Slot]:
    """List the slots of GPipe's schedule, as (stage, part, direction, begin, end) in milliseconds.

    The backward pass takes twice the forward pass, and begins when that has ended on the last stage.
    """
    slot, turn = stage_ms / parts, (stages + parts - 1) * stage_ms / parts
    forward = [
        (stage, part, "forward", (stage + part) * slot, (stage + part + 1) * slot)
        for stage in range(stages)
        for part in range(parts)
    ]
    backward = [
        (stage, part, "backward", turn + 2 * slot * place, turn + 2 * slot * (place + 1))
        for stage in range(stages)
        for part in range(parts)
        for place in [stages - 1 - stage + part]
    ]
    return forward + backward


def measured_slots(run: Any) -> list[Slot]:
    """Read the slots of the step that took the median time, as `predicted_slots` lists them."""
    steps = run.metrics("step")
    times = steps.groupby("step").seconds.max()
    rows = steps[steps.step == times.sort_values().index[len(times) // 2]]
    began = min(row.slots[0][1] for row in rows.itertuples())
    return [
        (row.place, part, direction, 1000 * (begin - began), 1000 * (end - began))
        for row in rows.itertuples()
        for kind in ("forward", "backward")
        for part, (direction, begin, end) in enumerate(slot for slot in row.slots if slot[0] == kind)
    ]


def draw_kilobytes(kilobytes: Any) -> None:
    """Draw what the rank with most of each mesh holds, and what it gives to collectives in a step."""
    table = kilobytes.groupby("mesh", sort=False).max()[::-1]
    _, (left, right) = plt.subplots(1, 2, sharex=True, sharey=True, figsize=(8, 2.6), layout="constrained")
    table[["weights_KB"]].plot.barh(ax=left, color="tab:green", legend=False, title="holds: weights")
    sent = table[["gradients_KB", "activations_KB"]].rename(columns=lambda name: name.removesuffix("_KB"))
    sent.plot.barh(ax=right, stacked=True, title="gives to collectives in a step")
    for axes in (left, right):
        axes.set(xlabel="KB, the largest of four ranks", ylabel="")


def draw_slots(slots: dict[str, list[Slot]]) -> None:
    """Draw schedules below each other: a row for each stage, a box with its number for each micro-batch."""
    _, rows = plt.subplots(len(slots), sharex=True, figsize=(8, 1.7 * len(slots)), layout="constrained")
    for axes, (title, boxes) in zip(rows, slots.items(), strict=True):
        axes.axvspan(0, max(box[4] for box in boxes), color="#eee", zorder=0)
        for stage, part, direction, begin, end in boxes:
            colour = "tab:blue" if direction == "forward" else "tab:green"
            axes.barh(stage, end - begin, left=begin, height=0.9, color=colour, edgecolor="white")
            axes.text((begin + end) / 2, stage, part, color="white", ha="center", va="center", fontsize=8)
        axes.set(title=title, ylabel="stage", yticks=range(1 + max(box[0] for box in boxes)))
        axes.invert_yaxis()
    rows[-1].set_xlabel("ms of a step; blue: forward, green: backward, grey: idle")


def draw_matrix(axes: Axes, left: float, width: float, height: float, *, parts: str, title: str) -> None:
    """Draw a matrix whose ``columns`` or ``rows`` two ranks divide, or of which both have all: ``""``."""
    for rank, colour in enumerate(RANKS if parts else ("lightgrey",)):
        across, down = (2 if parts == "columns" else 1), (2 if parts == "rows" else 1)
        corner = left + (rank * width / 2 if across == 2 else 0), -height / 2
        if down == 2:
            corner = left, -rank * height / 2
        size = width / across, height / down
        axes.add_patch(plt.Rectangle(corner, *size, facecolor=colour, edgecolor="white"))
        label = f"rank {rank}" if parts else "both"
        axes.text(
            corner[0] + size[0] / 2, corner[1] + size[1] / 2, label, ha="center", va="center", fontsize=8
        )
    axes.text(left + width / 2, height / 2 + 4, title, ha="center", va="bottom", fontsize=9)


def draw_block() -> None:
    """Draw a block as tensor parallelism divides it: the first matrix by columns, the second by rows."""
    _, axes = plt.subplots(figsize=(8.6, 2.7), layout="constrained")
    place = 0
    matrices = (
        ("", 24, 20, "x\n32 × 64", "·"),
        ("columns", 64, 24, "up\n64 × 256", "→"),
        ("columns", 64, 20, "gelu(x · up)\n32 × 256", "·"),
        ("rows", 24, 64, "down\n256 × 64", "="),
    )
    for parts, width, height, title, sign in matrices:
        draw_matrix(axes, place, width, height, parts=parts, title=title)
        axes.text(place + width + 7, 0, sign, ha="center", va="center", fontsize=14)
        place += width + 14
    for rank, colour in enumerate(RANKS):
        axes.add_patch(plt.Rectangle((place + 36 * rank, -10), 24, 20, facecolor=colour, edgecolor="white"))
        axes.text(place + 36 * rank + 12, 0, f"rank {rank}", ha="center", va="center", fontsize=8)
    axes.text(place + 30, 0, "+", ha="center", va="center", fontsize=14)
    axes.text(place + 30, 14, "two sums, 32 × 64:\nadded by the all-reduce", ha="center", fontsize=9)
    axes.set(xlim=(-2, place + 66), ylim=(-34, 52), aspect="equal")
    axes.axis("off")
