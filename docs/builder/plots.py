"""Plots for the page, in colours that its style sheet fills in for dark and light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from einsql.core.units import duration

INK, DIM, RULE = "#010203", "#010204", "#010205"
SERIES = ("#010206", "#010207", "#010208", "#010209")
COLOURS = dict(
    zip(
        (INK, DIM, RULE, *SERIES),
        ("ink", "dim", "rule", "one", "two", "three", "four"),
        strict=True,
    )
)
"""Colours that nobody draws with, and the variables of the style sheet that take their place."""
_BLUE, _RED = (0.23, 0.53, 0.83), (0.85, 0.42, 0.12)
"""Of heat maps: seen on black and on white, the more the greater the value is."""


def styled() -> AbstractContextManager[None]:
    """Within it figures are drawn, and written, for the page."""
    return rc_context({
        "svg.fonttype": "none", "svg.hashsalt": "einsql", "font.size": 11,
        "text.color": INK, "axes.labelcolor": DIM, "xtick.labelcolor": DIM, "ytick.labelcolor": DIM,
        "axes.edgecolor": RULE, "xtick.color": RULE, "ytick.color": RULE, "grid.color": RULE,
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11,
        "legend.frameon": False, "legend.labelcolor": INK, "lines.linewidth": 2,
        "image.interpolation": "none",
    })  # fmt: skip


def axes(width: float = 7.2, height: float = 3.2) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    with styled():
        made = Figure(figsize=(width, height), layout="constrained")
        return made, made.add_subplot()


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    *,
    log: bool = False,
    height: float = 3.2,
) -> Figure:
    """Lines with their names at their ends; seconds in powers of ten where `log` says so."""
    made, ax = axes(height=height)
    with styled():
        for (xs, ys), colour in zip(series.values(), SERIES, strict=False):
            ax.plot(xs, ys, color=colour, marker="o" if len(xs) < 20 else "", markersize=5)
        if log:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xticks(next(iter(series.values()))[0])
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: duration(v)))
        ax.grid(axis="y", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.set_xlabel(x)
        ax.set_ylabel(y)
        if len(series) > 1:
            _named(ax, {name: (xs[-1], ys[-1]) for name, (xs, ys) in series.items()})
    return made


def _named(ax: Axes, ends: Mapping[str, tuple[float, float]]) -> None:
    """The names of lines at their ends, moved apart where those meet."""
    points = 72 / ax.figure.dpi
    colours = dict(zip(ends, SERIES, strict=False))
    lowest = -np.inf
    for name, end in sorted(ends.items(), key=lambda item: item[1][1]):
        height = float(ax.transData.transform(end)[1]) * points
        lowest = max(height, lowest + 15)
        ax.annotate(name, end, (8, lowest - height), textcoords="offset points",
                    color=colours[name], va="center", fontweight="bold")  # fmt: skip


def bars(
    values: Mapping[str, float],
    *,
    unit: str = "",
    form: str = "{:,.3g}",
    marked: Sequence[str] = (),
    most: float | None = None,
) -> Figure:
    """Horizontal bars with their values; those that are marked stand out."""
    made, ax = axes(height=0.35 + 0.3 * len(values))
    with styled():
        names = list(values)
        colours = [SERIES[0] if n in marked or not marked else RULE for n in names]
        ax.barh(range(len(names)), list(values.values()), color=colours, height=0.72)
        ax.set_yticks(range(len(names)), names, color=INK)
        ax.invert_yaxis()
        for n, value in enumerate(values.values()):
            ax.annotate(form.format(value) + unit, (value, n), (5, 0), textcoords="offset points",
                        va="center", color=INK)  # fmt: skip
        ax.set_xlim(0, (most or max(values.values())) * 1.14)
        _bare(ax)
    return made


def grouped(groups: Mapping[str, Mapping[str, float]], y: str, form: str = "{:.3g}") -> Figure:
    """Upright bars beside each other, a group for each name."""
    made, ax = axes(height=3.0)
    series = list(next(iter(groups.values())))
    wide = 0.8 / len(series)
    with styled():
        for k, name in enumerate(series):
            at = [n + (k - (len(series) - 1) / 2) * wide for n in range(len(groups))]
            heights = [g[name] for g in groups.values()]
            ax.bar(at, heights, width=wide * 0.9, color=SERIES[k], label=name)
            for place, value in zip(at, heights, strict=True):
                ax.annotate(form.format(value), (place, value), (0, 3), ha="center", color=INK,
                            textcoords="offset points", fontsize=10)  # fmt: skip
        ax.set_xticks(range(len(groups)), list(groups), color=INK)
        ax.tick_params(axis="x", length=0)
        ax.set_ylabel(y)
        ax.legend(ncols=len(series), loc="upper left", bbox_to_anchor=(0, 1.14))
        ax.margins(y=0.12)
    return made


def shade(values: np.ndarray, most: float | None = None) -> np.ndarray:
    """Numbers as colours: none at 0, blue above it and orange below it."""
    most = most or float(np.nanmax(np.abs(values))) or 1.0
    part = np.clip(np.nan_to_num(values, posinf=0, neginf=0) / most, -1, 1)
    colour = np.where(part[..., None] >= 0, _BLUE, _RED)
    return np.concatenate([colour, np.abs(part)[..., None]], axis=-1)


def heat(
    values: np.ndarray,
    rows: Sequence[str] | str = "",
    columns: Sequence[str] | str = "",
    *,
    width: float = 5.2,
) -> Figure:
    """A matrix as shades; names of rows and columns, or of the two axes."""
    high, wide = values.shape
    made, ax = axes(width, (width - 0.8) * high / wide + 0.7)
    with styled():
        ax.imshow(shade(values))
        ax.spines[:].set_visible(True)
        for names, axis in ((rows, ax.yaxis), (columns, ax.xaxis)):
            if isinstance(names, str):
                axis.set_label_text(names)
            else:
                axis.set_ticks(range(len(names)), names, color=INK)
                axis.set_tick_params(length=0)
        if not isinstance(columns, str):
            ax.xaxis.set_tick_params(rotation=90)
    return made


def pictures(
    images: Sequence[np.ndarray], titles: Sequence[str], *, across: int = 8, size: float = 0.9
) -> Figure:
    """Small images with a line above each."""
    rows = -(-len(images) // across)
    made = Figure(figsize=(size * across, (size + 0.32) * rows), layout="constrained")
    with styled():
        for n, (image, title) in enumerate(zip(images, titles, strict=True), 1):
            ax = made.add_subplot(rows, across, n)
            ax.set_axis_off()
            ax.imshow(shade(image))
            ax.set_title(title, fontsize=10, color=INK, pad=3)
    return made


def _bare(ax: Axes) -> None:
    """Nothing but names at the left."""
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.tick_params(axis="y", length=0)
