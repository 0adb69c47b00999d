"""The colour depth of a terminal, and the colours of values."""

from __future__ import annotations

import os
from typing import IO

import numpy as np

NONE, INDEXED, FULL = 0, 8, 24
"""Colour depths in bits: no colours, 256 colours, or full colours."""

RESET = "\x1b[0m"

_VIRIDIS = [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141),
            (39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)]  # fmt: skip
_DIVERGING = [(59, 76, 192), (123, 159, 249), (192, 212, 245), (235, 235, 235),
              (242, 203, 183), (238, 132, 104), (180, 4, 38)]  # fmt: skip

SERIES = [(31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189)]
"""The colours of the lines of a chart, as (red, green, blue)."""


def depth(stream: IO[str]) -> int:
    """The colour depth of a stream in bits: 0 for a pipe or with NO_COLOR."""
    term = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR") or term in ("", "dumb") or not stream.isatty():
        return NONE
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return FULL
    return INDEXED if "256color" in term else NONE


def shades(values: np.ndarray, least: float, most: float) -> np.ndarray:
    """The colours of values.

    Values of both signs use a scale from blue over white to red, others from dark to bright.

    Args:
        values: An array of any shape, without NaN.
        least: The value of the first colour; -most if the values have both signs.
        most: The value of the last colour.

    Returns:
        A uint8 array of shape (*shape, 3): red, green and blue.
    """
    anchors = np.array(_DIVERGING if least < 0 < most else _VIRIDIS, np.float64)
    at = place(values, least, most) * (len(anchors) - 1)
    colours = [np.interp(at, range(len(anchors)), anchors[:, c]) for c in range(3)]
    return np.stack(colours, axis=-1).round().astype(np.uint8)


def place(values: np.ndarray, least: float, most: float) -> np.ndarray:
    """Values scaled from an interval to 0 … 1; 0.5 if the interval is empty."""
    if not least < most:
        return np.full(values.shape, 0.5)
    # The halves avoid an overflow of the difference of two floats.
    return np.clip((values / 2 - least / 2) / (most / 2 - least / 2), 0, 1)


def code(colour: tuple[int, ...], bits: int, *, back: bool = False) -> str:
    """The escape sequence that sets a colour."""
    ground = 48 if back else 38
    if bits == FULL:
        return f"\x1b[{ground};2;{';'.join(map(str, colour))}m"
    if bits == INDEXED:
        return f"\x1b[{ground};5;{_indexed(colour)}m"
    return ""


_STEPS = (0, 95, 135, 175, 215, 255)
"""The levels of the 6 × 6 × 6 colour cube of terminals, whose numbers start at 16."""


def _indexed(colour: tuple[int, ...]) -> int:
    red, green, blue = np.abs(np.subtract.outer(colour, _STEPS)).argmin(axis=1).tolist()
    return int(16 + 36 * red + 6 * green + blue)
