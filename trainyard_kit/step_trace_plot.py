"""Plot the parts of a step by rank."""

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from kitlib.widgets.plots import THEME, Picture, tidy

if TYPE_CHECKING:
    import pandas

LOOKS = {  # colour and hatching of each part, distinguishable without colour
    "computing": (THEME.lines[0], None),
    "data": (THEME.lines[2], "...."),
    "communication": (THEME.lines[1], "////"),
    "waiting": (THEME.lines[3], "xxxx"),
    "other": (THEME.lines[7], None),
}


def plot_step_trace(seconds: "pandas.DataFrame", *, slow_rank: int | None) -> Picture:
    """Plot a bar per rank, in milliseconds of a step, with hidden communication as a thin bar below."""
    table = seconds * 1e3
    figure = Figure(figsize=(9, 1.4 + 0.55 * len(table)), layout="constrained", facecolor=THEME.ground)
    axes, names = figure.subplots(), [f"rank {rank}" for rank in table.index]
    left = [0.0] * len(table)
    for part, (colour, hatch) in LOOKS.items():
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": THEME.ground, "height": 0.6}
        axes.barh(names, table[part], left=left, label=part, **look)
        left = [begin + width for begin, width in zip(left, table[part], strict=True)]
    hidden: dict[str, Any] = {"color": THEME.lines[1], "height": 0.1, "label": "hidden communication"}
    axes.barh([place + 0.38 for place in range(len(names))], table["hidden"], **hidden)
    axes.invert_yaxis()
    message = f"the others wait for rank {slow_rank}"
    if slow_rank is None:
        message = f"no rank stands out (rank {table.waiting.idxmin()} waits least)"
    axes.set_title(f"Where a step goes: {message}", loc="left", color=THEME.text)
    axes.set_xlabel("ms of a step")
    tidy(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=6)
    rows = "; ".join(
        f"rank {rank}: " + ", ".join(f"{part} {row[part]:.0f} ms" for part in LOOKS)
        for rank, row in table.iterrows()
    )
    return Picture(figure, f"Where a step goes, {message}. {rows}")
