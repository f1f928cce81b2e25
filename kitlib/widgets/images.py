"""A grid of images, each under its label."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from kitlib.widgets.picture import Picture

COLUMNS = 8


def picture(images: Any, labels: Sequence[str], *, title: str, synthetic: bool) -> Picture:
    """Return a picture of images.

    Args:
        images: (images, height, width) in shades of grey, or with a last axis of three colours; bytes.
        labels: One for each.
        title: Whose they are.
        synthetic: Whether they are stand-ins; the picture then says so.
    """
    rows = -(-len(images) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * 1.05, rows * 1.25 + 0.5))
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flat
    figure.subplots_adjust(
        left=0.01, right=0.99, bottom=0.01, top=1 - 0.65 / figure.get_figheight(), hspace=0.35
    )
    for panel in panels:
        panel.axis("off")
    for panel, image, label in zip(figure.axes, images, labels, strict=False):
        panel.imshow(image, cmap="gray_r" if image.ndim == 2 else None)
        panel.set_title(label if len(label) <= 14 else f"{label[:13]}…", fontsize=8)
    words = f"{title}: synthetic stand-in images" if synthetic else title
    figure.suptitle(words, fontsize=10, color="firebrick" if synthetic else None)
    shown = ", ".join(sorted(set(labels))[:12])
    return Picture(figure, f"{words}; {len(images)} of them, of the classes {shown}")
