"""Heat maps of half-block characters; a character shows two cells of the map."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from einsql.frontends.console import colours
from einsql.frontends.console.picture import Picture
from einsql.storage.results.value_text import short

_LARGEST = 8
"""The largest edge of a value's square, in dots."""
_AROUND = 5
"""The number of other lines: the command, the title, the last key, the scale, the prompt."""
_RAMP = ".:-=+*#%@"
_BAR = 24
"""The width of the colour scale, in characters."""


def draw_heat(picture: Picture, columns: int, lines: int, bits: int) -> Iterator[str]:
    """The lines of a heat map: its rows are the first key, its columns the second key.

    If the map is too large for the screen, each dot shows the mean of its values.

    Args:
        picture: The values over two keys; the first value column is drawn.
        columns: The width of the screen in characters.
        lines: The height of the screen in lines.
        bits: The terminal's colour depth in bits; without colours, characters show the values.
    """
    ((name, array), *_) = picture.values.items()
    first, last = (str(end) for end in picture.bounds(0))
    margin = max(len(first), len(last)) + 1
    dots = 1 if bits == colours.NONE else 2  # per character, one above the other
    room = (max(2, dots * (lines - _AROUND)), max(2, columns - margin - 1))
    shape = _fitted(array.shape, room, dots)
    cells = means(array, (min(shape[0], array.shape[0]), min(shape[1], array.shape[1])))
    finite = cells[np.isfinite(cells)]
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    yield _title(name, picture, cells.shape)
    if least < 0 < most:
        least, most = -max(-least, most), max(-least, most)
    grown = cells[np.ix_(*(np.arange(n) * c // n for n, c in zip(shape, cells.shape, strict=True)))]
    drawn = list(_half_blocks(grown, least, most, bits) if bits else _ramp(grown, least, most))
    for n, line in enumerate(drawn):
        label = first if n == 0 else last if n == len(drawn) - 1 else ""
        yield f"{label:>{margin - 1}} {line}"
    left, right = (str(end) for end in picture.bounds(1))
    yield " " * margin + left + f"{right:>{max(0, grown.shape[1] - len(left))}}"
    share = np.linspace(0, 1, _BAR)[None]
    scale = least * (1 - share) + most * share
    if bits:
        bar = next(_half_blocks(scale.repeat(2, 0), least, most, bits))
    else:
        bar = next(_ramp(scale, least, most))
    yield f"{' ' * margin}{short(least)} {bar} {short(most)}"


def _title(name: str, picture: Picture, drawn: tuple[int, ...]) -> str:
    title = f"{name} over {picture.keys[0]} (down) and {picture.keys[1]} (across)"
    merged = [-(-n // d) for n, d in zip(picture.shape, drawn, strict=True)]
    if max(merged) > 1:
        title += f", means of up to {merged[0]} × {merged[1]}"
    return title


def _fitted(shape: tuple[int, ...], room: tuple[int, int], dots: int) -> tuple[int, int]:
    """The number of dots of a map in each direction; cells are square if possible."""
    high, wide = shape
    high_room, wide_room = room
    aspect = 1 if dots == 2 else 2  # a character is twice as high as it is wide
    grow = min(high_room // high, wide_room // (wide * aspect), _LARGEST)
    if grow:
        return high * grow, wide * grow * aspect
    if high > high_room and wide * aspect > wide_room:
        shrink = max(high / high_room, wide * aspect / wide_room)
        return max(1, round(high / shrink)), max(1, round(wide * aspect / shrink))
    return (
        min(high_room, high * max(1, min(_LARGEST, high_room // high))),
        min(wide_room, wide * max(1, min(_LARGEST, wide_room // wide))),
    )


def means(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The mean of the values in each cell of a coarser grid; NaN for a cell without values.

    Args:
        array: An array with two axes; NaN for missing values.
        shape: The number of cells by axis, at most the array's extents.

    Returns:
        A float64 array of that shape.
    """
    rows, columns = (
        np.linspace(0, n, cells + 1).astype(np.int64)
        for n, cells in zip(array.shape, shape, strict=True)
    )
    averages = np.empty(shape)
    with np.errstate(all="ignore"):  # ∞ - ∞ counts as missing
        for n, (start, stop) in enumerate(pairwise(rows.tolist())):
            strip = array[start:stop].astype(np.float64)
            known = ~np.isnan(strip)
            sums = np.add.reduceat(np.where(known, strip, 0).sum(axis=0), columns[:-1])
            averages[n] = sums / np.add.reduceat(known.sum(axis=0), columns[:-1])
    return averages


def _half_blocks(cells: np.ndarray, least: float, most: float, bits: int) -> Iterator[str]:
    missing = np.isnan(cells)
    shades = colours.shades(np.where(missing, least, cells), least, most)
    for top in range(0, len(cells), 2):
        line, former = "", ""
        for column in range(cells.shape[1]):
            upper, lower = (
                None if n >= len(cells) or missing[n, column] else tuple(shades[n, column])
                for n in (top, top + 1)
            )
            style, block = _block(upper, lower, bits)
            line += (style if style != former else "") + block
            former = style
        yield line + colours.RESET


def _block(
    upper: tuple[int, ...] | None, lower: tuple[int, ...] | None, bits: int
) -> tuple[str, str]:
    """The colours and the character of two dots; the first dot is the upper one."""
    if upper is None and lower is None:
        return colours.RESET, " "
    if upper is None or lower is None:
        colour, block = (lower, "▄") if upper is None else (upper, "▀")
        assert colour is not None
        return colours.RESET + colours.code(colour, bits), block
    return colours.code(upper, bits) + colours.code(lower, bits, back=True), "▀"


def _ramp(cells: np.ndarray, least: float, most: float) -> Iterator[str]:
    missing = np.isnan(cells)
    at = colours.place(np.where(missing, least, cells), least, most)
    for line, holes in zip((at * (len(_RAMP) - 1)).round().astype(int), missing, strict=True):
        yield "".join(" " if hole else _RAMP[n] for n, hole in zip(line, holes, strict=True))
