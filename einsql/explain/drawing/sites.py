"""The times of steps, and the work of sites and nodes, in the HTML page of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import Any

from einsql.core.units import duration, quantity
from einsql.explain.operations import CourseReport
from einsql.explain.plain import plain_attributes
from einsql.explain.report import GraphReport
from einsql.explain.times import time_rows

_ROW = 14
"""The height of a node's row in the chart of activity over time, in pixels."""

_COURSE = (("computing", "computing"), ("communicating", "moving"))
"""The activities of a node that are drawn, with their classes."""

_SECONDS = ("seconds", "computing", "communicating", "waiting")


def times(report: GraphReport) -> str:
    """Returns the share of each step with the parts of the statement that it computes."""
    rows = [
        f"<tr><td>{escape(row.name)}</td><td>{duration(row.seconds)}</td><td>{row.share:.1%}</td>"
        f'<td><i style="width:{100 * row.share:.1f}%"></i></td><td>{escape(row.origins)}</td></tr>'
        for row in time_rows(report)
    ]
    if not rows:
        return ""
    run = report.run
    title = "Time by steps, predicted" if run is None else f"Time by steps: {duration(run.seconds)}"
    if run is not None and run.compiling >= 0.5e-6:
        title += f", of which {duration(run.compiling)} waiting for the compiler"
    return _block(title, f'<div class="wide"><table class="times">{"".join(rows)}</table></div>')


def sites(report: GraphReport) -> str:
    """Returns bars for the work of each site; "" for one site."""
    if report.sites == 1:
        return ""
    rows = [plain_attributes(site) for site in report.per_site]
    return _block("Sites", _charts(rows, "site")) if rows else ""


def simulated(report: GraphReport) -> str:
    """Returns the work of a simulation's nodes, in sum and over time."""
    simulation = report.simulation
    if simulation is None:
        return ""
    rows = [plain_attributes(node) for node in simulation.per_node]
    for row in rows:
        del row["sites"]
    return _block(
        f"Simulated: {duration(simulation.seconds)}",
        _course(simulation.course) + _charts(rows, "node"),
    )


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
    unit = "B" if "bytes" in key or "memory" in key else ""
    return f"{quantity(value)}{unit}".strip()


def _course(course: CourseReport) -> str:
    bins = len(course.computing[0])
    rows = []
    for y, node in enumerate(course.nodes):
        parts = (getattr(course, name)[y] for name, _ in _COURSE)
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
    """Yields the class, start and length of each run of intervals with the same main activity."""
    x = 0
    for kind, same in groupby(parts, _most):
        width = len(list(same))
        if kind:
            yield kind, x, width
        x += width


def _most(part: tuple[float, ...]) -> str:
    """Returns the class of the main activity of an interval; "" while sites wait."""
    most = max(range(len(part)), key=part.__getitem__)
    return _COURSE[most][1] if part[most] > 1 - sum(part) else ""
