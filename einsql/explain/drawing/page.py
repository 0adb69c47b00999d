"""The HTML page of a plan: one file without requests, readable without scripts and on paper."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files

from einsql.core.units import duration, quantity
from einsql.explain.drawing.details import input_details, link, node_details, repeat_details, table
from einsql.explain.drawing.figure import BoxKind, Figure, figure_of, folded
from einsql.explain.drawing.sites import simulated, sites, times
from einsql.explain.drawing.svg import draw
from einsql.explain.report import GraphReport
from einsql.explain.text import lines


def page(report: GraphReport) -> str:
    """Returns the HTML document of a plan."""
    sql, text = report.statement, "\n".join(lines(report))
    figure = figure_of(report)
    short = folded(figure, report)
    drawings = [draw(figure, "The plan's graph", "whole")]
    if short is not None:
        drawings.insert(0, draw(short, "The plan, repetitions folded", "folded"))
    body = [
        _header(report),
        _tools(report, short is not None),
        '<main><div class="canvas" tabindex="0" aria-label="Graph">',
        *drawings,
        "</div>",
        '<aside aria-label="Details" aria-live="polite">',
        f'<div class="hint">{_hint(report)}</div>',
        *_sections(report, figure, short),
        "</aside></main>",
        times(report),
        simulated(report),
        sites(report),
        _operations(report),
        _rewrites(report),
        f'<details class="block"{" open" * (sql.count(chr(10)) < 30)}><summary>SQL</summary>'
        f"<pre>{_clean(sql)}</pre></details>",
        f'<details class="block"{" open" * (report.levels is not None)}><summary>Text</summary>'
        f"<pre>{_clean(text)}</pre></details>",
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Plan: {_clean(' '.join(sql.split())[:60])}</title>",
            f"<style>\n{_file('graph.css')}{_file('page.css')}</style></head><body>",
            *(part for part in body if part),
            f"<script>\n{_file('page.js')}</script>",
            "</body></html>\n",
        ]
    )


def parts(report: GraphReport) -> tuple[str, list[str]]:
    """Returns the drawing of a plan and the details of its nodes, for a page of another frame.

    The page needs the rules of `graph.css`. Elements have no style of their own: the hue of a tile
    is in its attribute `data-hue`.
    """
    figure = figure_of(report)
    short = folded(figure, report)
    details = [_HUE.sub(r'data-hue="\1"', s) for s in _sections(report, figure, short)]
    return draw(short or figure, "The plan's graph"), details


_HUE = re.compile(r'style="--hue:(\d+)"')


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _clean(text: str) -> str:
    """Returns escaped text; characters that are invalid in documents are replaced."""
    return escape(text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd"))


# ---- the parts


_TOTALS = {
    "floats_moved": (
        "floats moved",
        "",
        "EinDecomp's count, in elements: what calls read at worst",
    ),
    "bytes_sent": ("sent", "B", "between different sites"),
    "tra_cost": ("TRA cost", "", "floats that move, by the tensor-relational algebra's count"),
    "flops": ("flops", "", "scalar operations"),
    "seconds": ("predicted", "s", "for the machine that the settings describe"),
    "memory": ("site memory", "B", "the most that one site holds at once"),
}
"""The name, unit and meaning of each total."""


def _header(report: GraphReport) -> str:
    facts = [("sites", f"{report.sites:,}", "")]
    if report.sites > 1:
        facts += [("strategy", str(report.strategy), "the search that chose the cuts")]
        facts += [("cost", str(report.cost), "what the cuts minimise")]
    for key, (name, unit, meaning) in _TOTALS.items():
        if report.sites == 1 and key != "flops":
            continue
        value = getattr(report.total, key)
        shown = duration(value) if unit == "s" else f"{quantity(value)}{unit}".strip()
        facts.append((name, shown, meaning))
    facts.append(("operations", f"{len(report.nodes):,}", ""))
    measured = [m.seconds for m in report.measured]
    if measured:
        facts.append(("measured", duration(sum(measured)), "added up over sites, which take turns"))
    cells = "".join(
        f'<div title="{escape(meaning)}"><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>'
        for k, v, meaning in facts
    )
    return f"<header><h1>Plan</h1><dl>{cells}</dl></header>"


def _tools(report: GraphReport, foldable: bool) -> str:
    fold = '<button id="fold" aria-pressed="true">Fold repetitions</button>' if foldable else ""
    legend = (
        '<span class="legend"><i class="k"></i>key, cut into parts <i class="r"></i>reduced label '
        '<i class="w"></i>whole <i class="m"></i>data moves</span>'
        if report.sites > 1
        else ""
    )
    return (
        '<div class="tools" role="toolbar" aria-label="Graph">'
        '<input id="search" type="search" placeholder="Search operations  ( / )" '
        'aria-label="Search operations"><output id="found"></output>'
        '<button id="out" aria-label="Smaller">−</button>'
        '<button id="in" aria-label="Larger">+</button>'
        f'<button id="fit">Fit</button><button id="real">1:1</button>{fold}{legend}</div>'
    )


def _hint(report: GraphReport) -> str:
    """Returns instructions for the use of the graph."""
    hint = "<p>Choose an operation or a tensor in the graph to see its details.</p>"
    if report.sites > 1:
        hint += (
            "<p>The text under a box's bars has the predictions: scalar operations, EinDecomp's "
            "floats, bytes sent between sites and time; ⇄ names the collectives.</p>"
        )
    if bool(report.measured):
        hint += "<p>Percentages are parts of the measured time.</p>"
    return hint


def _sections(report: GraphReport, figure: Figure, short: Figure | None) -> list[str]:
    """Returns the details of all operations, tensors and repetitions of the drawing."""
    readers: list[list[str]] = [[] for _ in figure.boxes]
    for a in figure.arrows:
        readers[a.source].append(figure.boxes[a.target].id)
    inputs = len(report.inputs)
    sections = [input_details(n, tensor, readers[n]) for n, tensor in enumerate(report.inputs)]
    sections += [
        node_details(node, report, readers[inputs + n]) for n, node in enumerate(report.nodes)
    ]
    if short is not None:
        repeat = next(b for b in short.boxes if b.kind is BoxKind.REPEAT)
        sections.append(repeat_details(repeat.first, repeat.members))
    return sections


def _operations(report: GraphReport) -> str:
    """Returns a table of all operations, the graph's alternative for screen readers."""
    sited = report.sites > 1
    measured = bool(report.measured)
    head = ["operation", "kind", "labels" + " (÷ parts)" * sited, "reads"]
    head += ["collective", "floats", "bytes sent"] if sited else ["kernel", "points"]
    head += ["flops", "seconds"] + ["measured"] * measured
    rows = []
    for node in report.nodes:
        labels = ", ".join(
            f"{x}:{n:,}" + (f"÷{node.partition[x]:,}" if node.partition[x] > 1 else "")
            for x, n in node.labels.items()
        )
        reads = ", ".join(dict.fromkeys(r.id for r in node.reads))
        row: list[object] = [link(node.id), node.op, labels, reads]
        if sited:
            floats = round(node.floats.sum)
            row += [node.collective, floats, node.bytes_sent]
        else:
            row += [node.kernel or "", node.points or 0]
        row += [node.flops, duration(node.seconds)]
        if node.measured is not None:
            row.append(duration(node.measured.seconds))
        rows.append(row)
    return (
        f'<details class="block"><summary>Operations ({len(rows):,})</summary>'
        f'<div class="wide">{table(head, rows, "operations")}</div></details>'
    )


def _rewrites(report: GraphReport) -> str:
    """Returns the changes of each rewrite rule, for VERBOSE."""
    steps = report.program.rewrites
    if steps is None:
        return ""
    shown = []
    for n, step in enumerate(steps, 1):
        lines = "".join(
            f'<span class="{_DIFFERENCE[line[0]]}">{_clean(line)}\n</span>' for line in step.changes
        )
        times = f"{step.fired:,} ×" if step.fired != 1 else "once"
        shown.append(
            f"<details><summary>{n}. <b>{escape(step.rule)}</b> {times} "
            f'<span class="law">{escape(step.law)}</span></summary>'
            f'<pre class="changes">{lines or "only shares what is equal"}</pre></details>'
        )
    return (
        f'<details class="block" id="rewrites" open><summary>Rewrites ({len(steps):,})</summary>'
        f"{''.join(shown)}</details>"
    )


_DIFFERENCE = {"-": "gone", "+": "come", " ": "same"}
