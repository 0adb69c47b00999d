"""The last result as a chart or a heat map of a bounded size, for the page to draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.frontends.console import colours
from einsql.frontends.console.heat import means
from einsql.frontends.console.picture import Picture
from einsql.storage.results.value_text import short

_POINTS = 1000
"""The most points of a line; longer ones are drawn by the least and greatest of each part."""
_LINES = 12
"""The most lines of a chart."""
_EDGE = 160
"""The most cells along an edge of a heat map; larger maps are drawn as means."""
_SCALE = 64
"""The steps of the colour scale."""


def plot_of(picture: Picture) -> dict[str, Any]:
    """A chart of one key, or a heat map of two keys, as values of JSON."""
    return _heat(picture) if len(picture.keys) == 2 else _chart(picture)


def _chart(picture: Picture) -> dict[str, Any]:
    drawable = [n for n, a in picture.values.items() if np.isfinite(a).any()]
    names = drawable[:_LINES]
    series = [picture.values[n].astype(np.float64) for n in names]
    known = np.concatenate([a[np.isfinite(a)] for a in series])
    least, most = float(known.min()), float(known.max())
    first, last = picture.bounds(0)
    note = (
        f"{len(picture.values)} columns ({len(names)} drawn)"
        if len(picture.values) > len(names)
        else ""
    )
    return {
        "kind": "chart",
        "title": f"{', '.join(names)} over {picture.keys[0]}",
        "note": note,
        "key": picture.keys[0],
        "ends": [str(first), str(last)],
        "bounds": [short(least), short(most)],
        "lines": [
            {"name": n, "points": _points(colours.place(a, least, most), a)}
            for n, a in zip(names, series, strict=True)
        ],
    }


def _points(heights: np.ndarray, values: np.ndarray) -> list[list[float] | None]:
    """Points (x, y) of a line in the unit square, with None for a gap."""
    count = len(values)
    at = _extremes(values) if count > _POINTS else np.arange(count)
    finite = np.isfinite(values)
    width = max(1, count - 1)
    return [
        [round(int(n) / width, 5), round(float(heights[n]), 5)] if finite[n] else None for n in at
    ]


def _extremes(values: np.ndarray) -> np.ndarray:
    """The places of the least and the greatest value of each of some parts, in order."""
    chosen: list[int] = []
    for part in np.array_split(np.arange(len(values)), _POINTS // 2):
        known = part[np.isfinite(values[part])]
        if len(known):
            chosen += sorted(
                {int(known[values[known].argmin()]), int(known[values[known].argmax()])}
            )
        else:
            chosen.append(int(part[0]))
    return np.array(chosen)


def _heat(picture: Picture) -> dict[str, Any]:
    ((name, array), *_) = picture.values.items()
    shape = (min(_EDGE, array.shape[0]), min(_EDGE, array.shape[1]))
    cells = means(array, shape)
    finite = cells[np.isfinite(cells)]
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if least < 0 < most:
        least, most = -max(-least, most), max(-least, most)
    missing = np.isnan(cells)
    shades = colours.shades(np.where(missing, least, cells), least, most)
    merged = [-(-n // d) for n, d in zip(array.shape, shape, strict=True)]
    share = np.linspace(0, 1, _SCALE)
    scale = colours.shades(least * (1 - share) + most * share, least, most)
    return {
        "kind": "heat",
        "title": f"{name} over {picture.keys[0]} (down) and {picture.keys[1]} (across)",
        "note": f"means of up to {merged[0]} × {merged[1]} values" if max(merged) > 1 else "",
        "keys": list(picture.keys),
        "ends": [[str(end) for end in picture.bounds(axis)] for axis in (0, 1)],
        "bounds": [short(least), short(most)],
        "shape": list(shape),
        "cells": "".join(
            "......" if gone else bytes(shade.tolist()).hex()
            for gone, shade in zip(missing.reshape(-1), shades.reshape(-1, 3), strict=True)
        ),
        "scale": bytes(scale.reshape(-1).tolist()).hex(),
    }
