"""What sites and nodes do, in the HTML page of a plan: bars, and the course of a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from einsql.core.units import duration, quantity
from einsql.explain.drawing.figure import Report

_ROW = 14
"""Height of a node's row in the course, in pixels."""

_COURSE = (("computing", "computing"), ("communicating", "moving"))
"""What is drawn of each node, and its class."""

_SECONDS = ("seconds", "computing", "communicating", "waiting")


def sites(report: Report) -> str:
    """Bars for what each site does."""
    per_site: list[dict[str, Any]] = report.get("per_site", [])
    return _block("Sites", _charts(per_site, "site")) if per_site else ""


def simulated(report: Report) -> str:
    """What the nodes of a simulation do, in sum and in the course of time."""
    played: Report = report.get("simulation", {})
    if not played:
        return ""
    end = duration(played["seconds"])
    return _block(f"Simulated: {end}", _course(played["course"]) + _charts(_shown(played), "node"))


def _shown(played: Report) -> list[dict[str, Any]]:
    return [{k: v for k, v in node.items() if k != "sites"} for node in played["per_node"]]


def _block(title: str, body: str) -> str:
    return f'<section class="block"><h2>{title}</h2>{body}</section>'


def _charts(rows: list[dict[str, Any]], what: str) -> str:
    charts = []
    for key in rows[0]:
        values = [float(s[key]) for s in rows]
        most, mean = max(values), sum(values) / len(values)
        shown = [_value(key, v) for v in (*values, most)]
        bars = "".join(
            f'<i style="height:{100 * v / most if most else 0:.1f}%" '
            f'title="{what} {n}: {shown[n]}"></i>'
            for n, v in enumerate(values)
        )
        uneven = f", {most / mean:.2f} × mean" if mean else ""
        charts.append(
            f'<figure><div class="bars">{bars}</div><figcaption>{key.replace("_", " ")} by {what}: '
            f"at most {shown[-1]}{uneven}</figcaption></figure>"
        )
    return f'<div class="charts">{"".join(charts)}</div>'


def _value(key: str, value: float) -> str:
    if key in _SECONDS:
        return duration(value)
    if "utilisation" in key:
        return f"{value:.0%}"
    unit = "B" if "bytes" in key or key == "memory" else ""
    return f"{quantity(value)}{unit}".strip()


def _course(course: Report) -> str:
    """A row for each node: what most of its sites do, from the left to the right."""
    bins = len(course["computing"][0])
    rows = []
    for y, node in enumerate(course["nodes"]):
        parts = (course[name][y] for name, _ in _COURSE)
        spans = "".join(
            f'<rect class="{kind}" x="{x}" y="{y * _ROW + 1}" width="{width}" '
            f'height="{_ROW - 2}"></rect>'
            for kind, x, width in _runs(list(zip(*parts, strict=True)))
        )
        rows.append(f"<g><title>node {node}</title>{spans}</g>")
    height = _ROW * len(rows)
    return (
        f'<figure><svg class="course" viewBox="0 0 {bins} {height}" height="{height}" '
        f'preserveAspectRatio="none" role="img" aria-label="What nodes do in the course of time">'
        f"{''.join(rows)}</svg><figcaption>nodes in the course of the run: "
        '<i class="computing"></i>computing <i class="moving"></i>communicating '
        "<i></i>waiting</figcaption></figure>"
    )


def _runs(parts: list[tuple[float, ...]]) -> Iterator[tuple[str, int, int]]:
    """What fills most of each part of the run: its class, where it begins, and for how long."""
    x = 0
    for kind, same in groupby(parts, _most):
        width = len(list(same))
        if kind:
            yield kind, x, width
        x += width


def _most(part: tuple[float, ...]) -> str:
    """The class of what takes most of a part of the run; nothing where sites wait."""
    most = max(range(len(part)), key=part.__getitem__)
    return _COURSE[most][1] if part[most] > 1 - sum(part) else ""
