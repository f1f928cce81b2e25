"""Pictures of what ranks do over time, from the JSON lines that they log: for notebook 16."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.patches import Patch

COLOURS = {"works": "tab:blue", "waits in all_reduce": "lightgrey", "waits in barrier": "tab:orange"}
BEFORE, AFTER = 0.6, 0.5  # seconds that are shown before the last step, and after the last line


def intervals(rows: pd.DataFrame, end: float) -> list[tuple[float, float, str]]:
    """List what one rank did, as (begin, end, what), from its events in the order of time.

    It works until it enters a collective, and waits in it until the step has ended. Without an error logged,
    the last part goes on to ``end``.
    """
    parts, began, doing = [], None, "works"
    for row in rows.itertuples():
        if began is not None:
            parts.append((began, row.time, doing))
        began, doing = row.time, f"waits in {row.collective}" if row.event == "wait" else "works"
        if row.event == "error":
            return parts
    return parts if began is None else [*parts, (began, end, doing)]


def draw_waits(run: Any) -> None:
    """Draw a bar for each rank: when it worked and when it waited, around the last step of all."""
    events = run.metrics()
    events = events[events.event.isin(["wait", "step", "error"])].sort_values("time", kind="stable")
    last_step = events[events.event == "step"].time.max()
    end = events.time.max() + AFTER
    _, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    for rank, rows in events.groupby("rank"):
        for begin, until, doing in intervals(rows, end):
            face, edge, hatch = (
                (COLOURS[doing], "white", "") if until < end else ("white", COLOURS[doing], "////")
            )
            axes.barh(rank, until - begin, left=begin - last_step, color=face, edgecolor=edge, hatch=hatch)
        for moment in rows[rows.event == "error"].time:
            axes.plot(moment - last_step, rank, "X", color="tab:red", markersize=9)
    ranks = range(int(events.world_size.max()))
    for rank in set(ranks) - set(events["rank"]):
        axes.text(0.02 - BEFORE, rank, "its pod was deleted, with its log", va="center")
    axes.set(yticks=ranks, ylim=(-0.6, len(ranks) - 0.4), xlim=(-BEFORE, end - last_step))
    axes.set(xlabel="seconds since the last step that any rank ended", ylabel="rank")
    axes.invert_yaxis()
    marks = [Patch(color=colour, label=doing) for doing, colour in COLOURS.items()]
    marks.append(
        Patch(facecolor="white", edgecolor="tab:blue", hatch="////", label="nothing more was written")
    )
    marks.append(plt.Line2D([], [], color="tab:red", marker="X", linestyle="", label="reports an error"))
    look = {"ncols": 5, "fontsize": "small", "frameon": False, "loc": "lower center"}
    axes.legend(handles=marks, bbox_to_anchor=(0.5, 1), columnspacing=1, **look)
