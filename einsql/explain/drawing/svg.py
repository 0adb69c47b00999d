"""A figure as SVG: boxes with operations and their cuts, arrows with moved bytes."""

from __future__ import annotations

import unicodedata
from html import escape
from importlib.resources import files

from einsql.explain.drawing.figure import (
    Arrow,
    Bar,
    Box,
    BoxKind,
    Figure,
    figure_of,
    folded,
)
from einsql.explain.drawing.layout import Layout, Point, layered
from einsql.explain.report import GraphReport

LETTER = 6.63
"""The width of a letter of the monospaced font at 11 px, in pixels."""
_LINE = 16.0
"""The height of a line of text in a box, in pixels."""
_PAD = 10.0
"""The space between a box's frame and its text, in pixels."""
_PLATE = 13.0
"""The height of the background of an edge's text, in pixels."""
_HEAD = 24.0
"""The height of a box's title line, in pixels."""
_TRACK = 96.0
"""The width of a bar that shows the cut of a label, in pixels."""
_WIDEST = 44
"""The most letters of a line; the tooltip and the details have the full text."""
_BARS = 10
"""The most bars of a box; the number of other labels is written instead, to limit its height."""
_SEGMENTS = 32
"""The most segments of a bar; more would be narrower than 3 pixels."""


def standalone(report: GraphReport) -> str:
    """Returns the graph of a plan as an SVG document; repetitions are drawn once."""
    full = figure_of(report)
    figure = folded(full, report) or full
    style = files(__package__).joinpath("graph.css").read_text(encoding="utf-8")
    return draw(figure, report.statement, style=f"<style>\n{style}</style>\n")


def draw(figure: Figure, title: str, name: str = "graph", style: str = "") -> str:
    """Returns an SVG element.

    Args:
        figure: The boxes and arrows.
        title: The accessible name.
        name: The element's id, unique in a page.
        style: The style element; "" if the page has one.
    """
    layout = layered(
        [_size(b) for b in figure.boxes], [(a.source, a.target) for a in figure.arrows]
    )
    w, h = _number(layout.width), _number(layout.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" class="plan" role="group" '
        f'width="{w}" height="{h}" viewBox="0 0 {w} {h}" aria-label="{_text(title)}">',
        style + f"<title>{_text(title)}</title>",
        f'<defs><marker id="{name}-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<g class="arrows" marker-end="url(#{name}-tip)">',
        *(_arrow(a, p, figure) for a, p in zip(figure.arrows, layout.paths, strict=True)),
        "</g>",
        *(_box(b, c) for b, c in zip(figure.boxes, layout.corners, strict=True)),
        *_labels(figure, layout),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _number(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


def _text(text: str) -> str:
    """Returns escaped text; control characters, which are invalid in XML, are replaced."""
    shown = "".join(c if c in "\t\n" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
    return escape(shown.encode("utf-8", "replace").decode("utf-8"))


def _letters(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _clipped(text: str, most: int = _WIDEST) -> str:
    if _letters(text) <= most:
        return text
    kept = ""
    for c in text:
        if _letters(kept + c) >= most:
            break
        kept += c
    return kept + "…"


# ---- boxes


def _size(box: Box) -> Point:
    texts = [*box.lines, *box.notes]
    letters = max((_letters(_clipped(t)) for t in texts), default=0)
    width = max(letters * LETTER, _letters(_clipped(_heading(box), 30)) * 7.3 + 40, 120.0)
    if box.bars:
        width = max(width, _bar_left(box) + _TRACK + 36)
    rows = len(texts) + min(len(box.bars), _BARS + 1)
    return round(width + 2 * _PAD), _HEAD + _LINE * rows + _PAD


def _heading(box: Box) -> str:
    return box.name if box.kind in (BoxKind.INPUT, BoxKind.REPEAT) else f"{box.name}  {box.kind}"


def _box(box: Box, corner: Point) -> str:
    x, y = corner
    width, height = _size(box)
    radius = 12 if box.kind is BoxKind.INPUT else 5
    label = " ".join([_heading(box), *box.lines, *box.notes])
    lines = [
        f'<a href="#{box.id}" class="node {box.kind}" data-id="{box.id}" '
        f'transform="translate({_number(x)} {_number(y)})" aria-label="{_text(label)}">',
        f"<title>{_text(chr(10).join([_heading(box), *box.lines, *box.notes]))}</title>",
    ]
    if box.kind is BoxKind.REPEAT:
        lines.append(f'<path class="behind" d="M8 {_number(height)}v5h{_number(width)}V8h-5" />')
    lines += [
        f'<rect class="body" width="{_number(width)}" height="{_number(height)}" rx="{radius}"/>',
        _line("head", 16, _clipped(_heading(box), 30)),
    ]
    if box.share is not None:
        lines += [
            f'<text class="share" x="{_number(width - _PAD)}" y="16">{box.share:.0%}</text>',
            f'<rect class="heat" x="0" y="{_number(height - 3)}" height="3" '
            f'width="{_number(max(1.0, width * box.share))}"/>',
        ]
    y = _HEAD + 11
    for line in box.lines:
        lines.append(_line("line", y, _clipped(line)))
        y += _LINE
    for bar in box.bars[:_BARS]:
        lines += _bar(bar, _bar_left(box), y)
        y += _LINE
    if len(box.bars) > _BARS:
        lines.append(_line("line", y, f"… {len(box.bars) - _BARS} more labels"))
        y += _LINE
    for note in box.notes:
        lines.append(_line("note", y, _clipped(note)))
        y += _LINE
    return "\n".join([*lines, "</a>"])


def _line(kind: str, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{_number(_PAD)}" y="{_number(y)}">{_text(text)}</text>'


def _bar_left(box: Box) -> float:
    letters = max(_letters(_bar_text(b)) for b in box.bars)
    return _PAD + max(letters + 1, 6) * LETTER


def _bar_text(bar: Bar) -> str:
    return f"{_clipped(bar.label, 14)}:{bar.extent:,}"


def _bar(bar: Bar, left: float, y: float) -> list[str]:
    """Returns a label, and its interval divided into its parts."""
    kind = "kept" if bar.kept else "reduced"
    shown = min(bar.parts, _SEGMENTS)
    step = _TRACK / shown
    gap = min(2.0, step / 3) if shown > 1 else 0.0
    cut = "" if bar.parts > 1 else " whole"
    lines = [
        _line("line", y, _bar_text(bar)),
        *(
            f'<rect class="{kind}{cut}" x="{_number(left + k * step)}" y="{_number(y - 8)}" '
            f'width="{_number(step - gap)}" height="8"/>'
            for k in range(shown)
        ),
    ]
    if bar.parts > 1:
        x = _number(left + _TRACK + 4)
        lines.append(f'<text class="parts" x="{x}" y="{_number(y)}">÷{bar.parts:,}</text>')
    return lines


# ---- arrows


def _arrow(arrow: Arrow, path: list[Point], figure: Figure) -> str:
    d = [f"M{_number(path[0][0])} {_number(path[0][1])}"]
    for k in range(1, len(path)):
        (x0, y0), (x1, y1) = path[k - 1], path[k]
        if k % 2 == 0:
            d.append(f"L{_number(x1)} {_number(y1)}")
        else:
            middle = _number((y0 + y1) / 2)
            d.append(f"C{_number(x0)} {middle} {_number(x1)} {middle} {_number(x1)} {_number(y1)}")
    source, target = figure.boxes[arrow.source], figure.boxes[arrow.target]
    moves = " moves" if arrow.nbytes else ""
    return (
        f'<path class="arrow{moves}" data-from="{source.id}" data-to="{target.id}" '
        f'd="{"".join(d)}"/>'
    )


def _labels(figure: Figure, layout: Layout) -> list[str]:
    """Returns the labels of arrows, which are drawn last and next to the reader."""
    labels: list[str] = []
    there: list[tuple[float, float, float]] = []
    for arrow, path in zip(figure.arrows, layout.paths, strict=True):
        if arrow.text:
            (x0, y0), (x1, y1) = path[-2], path[-1]
            x, y, text = (x0 + x1) / 2, (y0 + y1) / 2 + 4, _clipped(arrow.text)
            width = (_letters(text) + 1) * LETTER
            while any(abs(y - v) < _PLATE and abs(x - u) < (width + w) / 2 for u, v, w in there):
                y -= _PLATE
            there.append((x, y, width))
            labels.append(
                f'<rect class="plate" x="{_number(x - width / 2)}" y="{_number(y - 10)}" '
                f'width="{_number(width)}" height="{_number(_PLATE)}"/>'
                f'<text class="{"moved" if arrow.nbytes else "there"}" x="{_number(x)}" '
                f'y="{_number(y)}">{_text(text)}</text>'
            )
    return labels
