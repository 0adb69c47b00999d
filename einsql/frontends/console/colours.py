"""The colour depth of a terminal, and the colours of values."""

from __future__ import annotations

import os
from typing import IO

import numpy as np

NONE, INDEXED, FULL = 0, 8, 24
"""Bits of a colour: none at all, one of 256, or any."""

RESET = "\x1b[0m"

_VIRIDIS = [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141),
            (39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)]  # fmt: skip
_DIVERGING = [(59, 76, 192), (123, 159, 249), (192, 212, 245), (235, 235, 235),
              (242, 203, 183), (238, 132, 104), (180, 4, 38)]  # fmt: skip

SERIES = [(31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189)]
"""Colours of the lines of a chart."""


def depth(stream: IO[str]) -> int:
    """The bits of the colours of a stream: none in a pipe or with NO_COLOR."""
    term = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR") or term in ("", "dumb") or not stream.isatty():
        return NONE
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return FULL
    return INDEXED if "256color" in term else NONE


def shades(values: np.ndarray, least: float, most: float) -> np.ndarray:
    """The colours of values.

    Values on both sides of zero go from blue over white to red, others from dark to bright.

    Args:
        values: Any shape, without NaN.
        least: The value of the first colour; where signs differ, -most.
        most: The value of the last colour.

    Returns:
        uint8 of the shape and 3 colours each: red, green, blue.
    """
    anchors = np.array(_DIVERGING if least < 0 < most else _VIRIDIS, np.float64)
    at = place(values, least, most) * (len(anchors) - 1)
    colours = [np.interp(at, range(len(anchors)), anchors[:, c]) for c in range(3)]
    return np.stack(colours, axis=-1).round().astype(np.uint8)


def place(values: np.ndarray, least: float, most: float) -> np.ndarray:
    """Values rescaled from an interval to 0 … 1; 0.5 if the interval is empty."""
    if not least < most:
        return np.full(values.shape, 0.5)
    # Halves, for the difference of two floats may be infinite.
    return np.clip((values / 2 - least / 2) / (most / 2 - least / 2), 0, 1)


def code(colour: tuple[int, ...], bits: int, *, back: bool = False) -> str:
    """The escape sequence that begins a colour."""
    ground = 48 if back else 38
    if bits == FULL:
        return f"\x1b[{ground};2;{';'.join(map(str, colour))}m"
    if bits == INDEXED:
        return f"\x1b[{ground};5;{_indexed(colour)}m"
    return ""


_STEPS = (0, 95, 135, 175, 215, 255)
"""Levels of the 6 × 6 × 6 colours that terminals number from 16 on."""


def _indexed(colour: tuple[int, ...]) -> int:
    red, green, blue = np.abs(np.subtract.outer(colour, _STEPS)).argmin(axis=1).tolist()
    return int(16 + 36 * red + 6 * green + blue)
