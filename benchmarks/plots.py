"""Draws recorded findings: `python -m benchmarks.plots` reads docs/explanation/benchmarks.md.

What has a target and compares times is drawn: the other's time over einsql's, so that
einsql is faster right of 1. An upright stroke is the target, a bar the 95 % interval.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import BAR, DOCUMENT, ratio_text

PLOT = DOCUMENT.with_suffix(".svg")
ROW = 0.19
"""Inches that a line takes."""
TITLE = 0.62
"""Inches that a section's title and scale take."""
WIDTH = 9.0
_LETTER = 0.061
"""Inches of the width that a letter of a line's name takes."""
_RIGHT = 0.07
"""The part of the width that the ratios beside the scale take."""
RANGE = (0.2, 1000.0)
TICKS = (0.2, 0.5, 1, 2, 5, 10, 30, 100, 300, 1000)
COMPARES = " / einsql"
"""What titles of tables with ratios of times have in them."""
COLORS = {"met": "#2166ac", "MISSED": "#b2182b", "": "#666666"}
_FIGURE = re.compile(r"([\d.]+)×(?: \[([\d.]+), ([\d.]+)\])?")
_TARGET = re.compile(r"[≥>] ([\d.]+)×")


@dataclass(frozen=True)
class Line:
    """A recorded ratio.

    Attributes:
        what: What was compared.
        value: The other's time over einsql's.
        low: Where the interval begins.
        high: Where it ends.
        target: What is aimed for at least.
        verdict: "met" or "MISSED"; nothing where neither can be said.
    """

    what: str
    value: float
    low: float
    high: float
    target: float
    verdict: str


def recorded(document: str) -> dict[str, list[Line]]:
    """The ratios of times with a target in a document's tables, by the title above them."""
    sections: dict[str, list[Line]] = {}
    title = ""
    for text in document.splitlines():
        if text.startswith("#"):
            title = text.strip("# ")
        elif COMPARES in title and (line := _line(text)):
            sections.setdefault(title.partition(":")[0], []).append(line)
    return sections


def _line(text: str) -> Line | None:
    cells = [c.strip().replace(BAR, "|") for c in re.split(r"(?<!\\)\|", text)][1:]
    found = _FIGURE.match(cells[1]) if len(cells) >= 4 else None
    aim = _TARGET.match(cells[2]) if found else None
    if found is None or aim is None:
        return None
    value = float(found[1])
    low, high = (float(found[n] or value) for n in (2, 3))
    return Line(cells[0], value, low, high, float(aim[1]), cells[3])


def draw(sections: dict[str, list[Line]], path: Path, description: str = "") -> None:
    """Writes an SVG with a panel per section; further right is better for einsql.

    Args:
        sections: Lines by the title of their panel.
        path: The file.
        description: What its metadata say of it.
    """
    rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "einsql", "font.size": 8})
    longest = max(len(line.what) for lines in sections.values() for line in lines)
    left = (longest + 2) * _LETTER / WIDTH
    heights = [TITLE + ROW * len(lines) for lines in sections.values()]
    figure = Figure(figsize=(WIDTH, sum(heights)))
    top = 0.0
    for (title, lines), height in zip(sections.items(), heights, strict=True):
        bottom = 1 - (top + height - 0.25) / sum(heights)
        size = 1 - left - _RIGHT, ROW * len(lines) / sum(heights)
        axes = figure.add_axes((left, bottom, *size))
        _panel(axes, title, lines, -left / size[0])
        top += height
    described = {"Description": description} if description else {}
    figure.savefig(path, metadata={"Date": None, **described})


def _panel(axes: Axes, title: str, lines: Sequence[Line], margin: float) -> None:
    axes.set_title(title, loc="left", x=margin, fontsize=8, fontweight="bold")
    axes.set_xscale("log")
    axes.set_xlim(*RANGE)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [line.what for line in lines])
    axes.set_xticks(TICKS)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color="#e6e6e6")
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_axisbelow(True)
    for n, line in enumerate(lines):
        color = COLORS[line.verdict]
        ends = [min(max(x, RANGE[0]), RANGE[1]) for x in (line.low, line.value, line.high)]
        axes.plot([ends[0], ends[2]], [n, n], color=color, linewidth=1.5)
        beyond = "<" if line.value < RANGE[0] else ">" if line.value > RANGE[1] else "o"
        axes.plot(ends[1], n, beyond, color=color, markersize=3.5 + (beyond != "o"), clip_on=False)
        axes.plot(line.target, n, "|", color="black", markersize=9)
        text = ratio_text(line.value)
        axes.annotate(text, (1.01, n), xycoords=("axes fraction", "data"), va="center", color=color)


def main() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    draw(recorded(text), PLOT)
    print(f"Written to {PLOT}")


if __name__ == "__main__":
    main()
