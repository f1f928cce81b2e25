"""Colours that can be told apart, by the colour-blind too, on light and on dark ground; and line styles, for
those who see no colours at all. Pure.

Every colour has a contrast of at least 4.5 to its ground (WCAG 2.2, 1.4.3), more than lines need, since
figures are written in them as well. The picture in a notebook and the live widget take theirs from here.
"""

from dataclasses import dataclass

# Hues after Okabe and Ito (2008), darkened or lightened until they can be read as text.
LINES_LIGHT = ("#0063a6", "#b34700", "#007352", "#9c3483", "#7a5b00", "#b00020", "#00707f", "#4d4d4d")
LINES_DARK = ("#66b5ff", "#ff9d5c", "#3fd6a0", "#f09fdc", "#e8c840", "#ff8c9b", "#52d3e6", "#c4c4c4")
# Lengths of line and gap, in pixels; the first is a full line.
DASHES = ((), (6, 3), (2, 3), (9, 3, 2, 3), (12, 4), (4, 2, 4, 6), (1, 2), (9, 3, 2, 3, 2, 3))


@dataclass(frozen=True)
class Theme:
    """The colours of one ground.

    Attributes:
        ground: What is drawn on, where the front end does not say.
        text: Words and axes.
        lines: Of ranks and nodes, in turn.
        main: The one line that matters most.
        grid: Lines behind the curves; decoration, so it has no contrast to keep.
        good, bad, busy: Of phases.
    """

    ground: str
    text: str
    lines: tuple[str, ...]
    main: str
    grid: str
    good: str
    bad: str
    busy: str


LIGHT = Theme("#ffffff", "#333333", LINES_LIGHT, "#111111", "#e3e3e3", "#00703c", "#b3001b", "#0063a6")
DARK = Theme("#111111", "#d6d6d6", LINES_DARK, "#ffffff", "#3a3a3a", "#4bd68d", "#ff8c9b", "#66b5ff")


def style(index: int) -> tuple[int, tuple[int, ...]]:
    """Return which colour and which dashes a line has: no two of the first sixty-four are alike."""
    return index % len(LINES_LIGHT), DASHES[(index + index // len(LINES_LIGHT)) % len(DASHES)]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2).

    Example:
        >>> contrast("#000000", "#ffffff")
        21.0
    """
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
