"""Line charts of braille characters; a character is two dots wide and four dots high."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einsql.frontends.console import colours
from einsql.frontends.console.picture import Picture
from einsql.storage.results.value_text import short

_HIGHEST, _LOWEST = 16, 4
"""The most and the least lines of a plot."""
_AROUND = 5
"""The number of other lines: the command, the title, the frame, the keys and the prompt."""
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bit of each dot in a braille character, by row and column."""


def draw_chart(picture: Picture, columns: int, lines: int, bits: int) -> Iterator[str]:
    """The lines of a chart of each value column over one key.

    If several values fall into one column of dots, the dots from the least to the greatest
    value are set.

    Args:
        picture: The values over one key.
        columns: The width of the screen in characters.
        lines: The height of the screen in lines.
        bits: The terminal's colour depth in bits; colours distinguish several lines.
    """
    series = [a.astype(np.float64) for a in picture.values.values()]
    known = np.concatenate([a[np.isfinite(a)] for a in series])
    least, most = float(known.min()), float(known.max())
    high = min(_HIGHEST, max(_LOWEST, lines - _AROUND))
    labels = [short(most), short(least)]
    margin = max(map(len, labels)) + 1
    wide = max(8, columns - margin - 2)
    dots = np.zeros((len(series), 4 * high, 2 * wide), bool)
    for n, values in enumerate(series):
        _set(dots[n], values, least, most)
    names = [
        f"{colours.code(c, bits)}{name}{colours.RESET}" if bits and len(series) > 1 else name
        for name, c in zip(picture.values, _cycled(len(series)), strict=True)
    ]
    yield f"{', '.join(names)} over {picture.keys[0]}"
    for n, line in enumerate(_lines(dots, bits)):
        label = labels[0] if n == 0 else labels[1] if n == high - 1 else ""
        yield f"{label:>{margin - 1}} {'┤' if label else '│'}{line}"
    yield " " * margin + "└" + "─" * wide
    first, last = (str(end) for end in picture.bounds(0))
    yield " " * (margin + 1) + first + f"{last:>{max(0, wide - len(first))}}"


def _cycled(count: int) -> list[tuple[int, ...]]:
    return [colours.SERIES[n % len(colours.SERIES)] for n in range(count)]


def _set(dots: np.ndarray, values: np.ndarray, least: float, most: float) -> None:
    """Sets the dots of one line.

    Args:
        dots: A bool array of shape (height, width) in dots, all false.
        values: The values of the line; NaN leaves a gap.
        least: The value at the bottom of the plot.
        most: The value at the top of the plot.
    """
    high, wide = dots.shape
    values = np.where(np.isfinite(values), values, np.nan)
    low, top = _envelope(values, wide)
    for x in np.flatnonzero(~np.isnan(low)):
        ends = [low[x], top[x]]
        for other in (x - 1, x + 1):  # half the way to each neighbour connects the line
            if 0 <= other < wide and not np.isnan(low[other]):
                if low[other] > top[x]:
                    ends.append((low[other] + top[x]) / 2)
                elif top[other] < low[x]:
                    ends.append((top[other] + low[x]) / 2)
        at = (1 - colours.place(np.array([max(ends), min(ends)]), least, most)) * (high - 1)
        start, stop = at.round().astype(int)
        dots[start : stop + 1, x] = True


def _envelope(values: np.ndarray, wide: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest value in each column of dots; NaN for a column without values."""
    count = len(values)
    if count <= wide:
        at = np.round(np.linspace(0, wide - 1, count)).astype(int) if count > 1 else np.array([0])
        between = np.interp(np.arange(wide), at, values) if count > 1 else np.full(wide, np.nan)
        between[at] = values  # includes single values between two gaps
        return between, between
    bounds = np.linspace(0, count, wide + 1).astype(np.int64)[:-1]
    return np.fmin.reduceat(values, bounds), np.fmax.reduceat(values, bounds)


def _lines(dots: np.ndarray, bits: int) -> Iterator[str]:
    """The characters of overlapping lines; the last line determines the colour."""
    count, high, wide = dots.shape
    cells = dots.reshape(count, high // 4, 4, wide // 2, 2)
    patterns = (cells * _DOTS[:, None, :]).sum(axis=(2, 4))
    palette = _cycled(count)
    for row in range(high // 4):
        line, former = "", -1
        for column in range(wide // 2):
            pattern = int(np.bitwise_or.reduce(patterns[:, row, column]))
            owner = int(np.flatnonzero(patterns[:, row, column])[-1]) if pattern else former
            if bits and owner != former:
                line += colours.code(palette[owner], bits)
                former = owner
            line += chr(0x2800 + pattern) if pattern else " "
        yield line.rstrip() + (colours.RESET if former >= 0 else "")
