"""Plots as image files, drawn by matplotlib."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from einsql.frontends.console.heat import means
from einsql.frontends.console.picture import Picture
from einsql.frontends.console.settings import CommandError

_DOTS = 1000
"""The largest number of values along an edge; larger maps are drawn as means."""
_SUFFIXES = (".png", ".svg", ".pdf")


def save_image(picture: Picture, path: str) -> None:
    """Writes a heat map of two keys, or a line chart of one key.

    Raises:
        CommandError: The suffix names no image format, or matplotlib is not installed.
        OSError: The file can't be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise CommandError(
            f'.plot draws the last result, and "{path}" does not end in {", ".join(_SUFFIXES)}\n'
            "To draw something else SELECT it first; .plot alone draws in the terminal."
        )
    try:
        from matplotlib.figure import Figure  # pyplot would require a display
    except ImportError as error:
        raise CommandError(
            'Images need matplotlib: pip install "einsql[plot]"\n'
            ".plot without a file draws in the terminal."
        ) from error
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    if len(picture.keys) == 2:
        ((name, matrix), *_) = picture.values.items()
        high, wide = (min(n, _DOTS) for n in picture.shape)
        values = means(matrix, (high, wide))
        (top, bottom), (left, right) = picture.bounds(0), picture.bounds(1)
        finite = values[np.isfinite(values)]
        least, most = float(finite.min()), float(finite.max())
        both = least < 0 < most
        far = max(-least, most)
        shown = axes.imshow(
            values,
            extent=(left - 0.5, right + 0.5, bottom + 0.5, top - 0.5),
            aspect="equal" if max(picture.shape) <= 4 * min(picture.shape) else "auto",
            interpolation="nearest",
            cmap="coolwarm" if both else "viridis",
            vmin=-far if both else least,
            vmax=far if both else most,
        )
        figure.colorbar(shown, label=name)
        axes.set_ylabel(picture.keys[0])
        axes.set_xlabel(picture.keys[1])
    else:
        first, last = picture.bounds(0)
        for name, values in picture.values.items():
            axes.plot(range(first, last + 1), values, label=name, marker="." * (len(values) < 50))
        axes.set_xlabel(picture.keys[0])
        if len(picture.values) > 1:
            axes.legend()
        else:
            axes.set_ylabel(next(iter(picture.values)))
    figure.savefig(os.fspath(path), dpi=120)
