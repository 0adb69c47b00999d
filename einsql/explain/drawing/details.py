"""The details of operations and stored tensors in the HTML page of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import prod

from einsql.core.units import duration, quantity
from einsql.explain.operations import InputReport, OperationReport
from einsql.explain.plain import plain_attributes
from einsql.explain.report import GraphReport

_BOUND = 4
"""The most sites of a tile that are listed."""


def input_details(number: int, tensor: InputReport, readers: Sequence[str]) -> str:
    """Returns the section of a stored tensor."""
    rows = [(k, f"[{lo:,}, {hi:,})") for k, (lo, hi) in tensor.keys.items()]
    rows += list(tensor.values.items())
    return _section(
        f"input-{number}",
        (tensor.id, "stored tensor"),
        [
            table(("column", "bounds or type"), rows),
            f"<p>{tensor.bytes:,} bytes if dense.</p>",
            _readers(readers),
        ],
    )


def node_details(node: OperationReport, report: GraphReport, readers: Sequence[str]) -> str:
    """Returns the section of an operation."""
    parts = [f"<pre>{escape(chr(10).join(node.text))}</pre>"]
    if report.sites > 1:
        parts += [_labels(node), _operands(node, report), _tiles(node)]
    else:
        parts.append(_operands(node, report))
    if node.origins:
        parts.append(f"<p>Computes {escape(', '.join(node.origins))}.</p>")
    if node.reasons:
        parts.append(f"<p>{'<br>'.join(map(escape, node.reasons))}</p>")
    parts += [_costs(node, report.sites > 1), _readers(readers)]
    return _section(node.id, (node.id, node.op), parts)


def repeat_details(first: Sequence[str], members: Sequence[str]) -> str:
    """Returns the section of the box that represents repetitions of the first operations."""
    period = len(first)
    rows = []
    for n in range(0, len(members), period):
        ids = members[n : n + period]
        rows.append((f"{n // period + 2}", Html(" ".join(link(i) for i in ids))))
    return _section(
        "repeat",
        (f"{len(rows):,} more of the same", ""),
        [
            f"<p>These repeat {' '.join(link(i) for i in first)}: they compute the same from "
            "other tensors, and are cut and placed alike.</p>",
            table(("repetition", "operations"), rows),
        ],
    )


class Html(str):
    """HTML text, which is not escaped again."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    """Returns a table; numbers are aligned right."""
    lines = [f'<table class="{kind}"><thead><tr>']
    lines += [f"<th>{escape(h)}</th>" for h in head]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append("<tr>" + "".join(_cell(c) for c in row) + "</tr>")
    return "".join([*lines, "</tbody></table>"])


def _cell(content: object) -> str:
    if isinstance(content, Html):
        return f"<td>{content}</td>"
    if isinstance(content, float):
        content = round(content, 6)
    if isinstance(content, int | float):
        return f'<td class="number">{content:,}</td>'
    return f"<td>{escape(str(content))}</td>"


def link(name: str) -> Html:
    """Returns a link to an operation."""
    return Html(f'<a href="#{escape(name)}">{escape(name)}</a>')


def _section(key: str, heading: tuple[str, str], parts: Iterable[str]) -> str:
    name, kind = map(escape, heading)
    body = "\n".join(p for p in parts if p)
    return (
        f'<section class="details" id="{key}" aria-label="{name}">'
        f"<h2>{name} <small>{kind}</small></h2>\n{body}</section>"
    )


def _readers(readers: Sequence[str]) -> str:
    if not readers:
        return "<p>This is the result.</p>"
    return f"<p>Read by {', '.join(link(r) for r in readers)}.</p>"


def _labels(node: OperationReport) -> str:
    rows = []
    for label, extent in node.labels.items():
        parts = node.partition[label]
        role = "key" if label in node.keys else "reduced"
        rows.append((label, extent, parts, role))
    return table(("label", "values", "parts", "role"), rows) if rows else ""


def _operands(node: OperationReport, report: GraphReport) -> str:
    """Returns the operands, their placements on the site grid and the collectives before them."""
    if not node.reads:
        return ""
    sited = report.sites > 1
    numbers = {i.id: n for n, i in enumerate(report.inputs)}
    rows = []
    for n, read in enumerate(node.reads):
        name = read.id
        anchor = f"input-{numbers[name]}" if read.stored else name
        shown = f"{name}[{', '.join(read.labels)}]"
        row: list[object] = [Html(f'<a href="#{escape(anchor)}">{escape(shown)}</a>')]
        if sited:
            row.append(", ".join(node.placements.operands[n]) or "whole")
            row += [read.collective, read.bytes_sent]
        rows.append(row)
    head = ("reads", "placement", "collective", "bytes") if sited else ("reads",)
    if sited:
        result = ", ".join(node.placements.result) or "whole"
        grid = " × ".join(f"{x}:{n}" for x, n in node.placements.grid) or "one call"
        more = f"<p>Site grid {escape(grid)}; what the calls make: {escape(result)}."
        if node.copies > 1:
            more += f" {node.copies:,} groups of sites make the same."
        if node.collective != "none":
            more += f" Between sites: {escape(node.collective)}."
        return table(head, rows) + more + "</p>"
    return table(head, rows)


_COSTS = {
    "bytes_sent": "bytes sent",
    "tra_cost": "TRA cost",
    "flops": "flops",
    "seconds": "time",
    "memory": "largest cell",
    "bytes": "result",
    "points": "points",
}
"""The costs of an operation, with their titles."""

_UNITS = {"bytes": "B", "bytes_sent": "B", "memory": "B", "flops": "flop", "points": "points"}
_MOVES = ("bytes_sent", "tra_cost", "memory")
"""Costs that are shown only for plans on several sites."""


def _costs(node: OperationReport, sited: bool) -> str:
    """Returns a table of an operation's costs, predicted beside measured."""
    measured = plain_attributes(node.measured) if node.measured else {}
    predicted = plain_attributes(node.floats) if sited else {}
    names = {key: f"floats: {key}" for key in predicted} | _COSTS
    shown = (key for key in _COSTS if sited or key not in _MOVES)
    counts = ((key, getattr(node, key)) for key in shown)
    predicted |= {key: count for key, count in counts if count is not None}
    rows = []
    for key in dict.fromkeys([*predicted, *measured]):
        row: list[object] = [names.get(key, key), _amount(key, predicted.get(key))]
        if measured:
            row.append(_amount(key, measured.get(key)))
        rows.append(row)
    kernel = f"<p>Kernel {escape(node.kernel)}.</p>" if node.kernel else ""
    head = ("cost", "predicted", "measured") if measured else ("cost", "predicted")
    return kernel + table(head, rows)


def _amount(key: str, count: float | str | None) -> Html:
    if count is None:
        return Html("")
    if isinstance(count, str):  # the tier of the kernel
        return Html(escape(count))
    if key == "seconds":
        return Html(f'<span class="number">{escape(duration(count))}</span>')
    exact = f"{count:,.0f}"
    short = f"{quantity(count)}{_UNITS.get(key, '')}" if abs(count) >= 10_000 else exact
    return Html(f'<span class="number" title="{exact}">{escape(short.strip())}</span>')


# ---- tiles


def _tiles(node: OperationReport) -> str:
    """Returns a picture of the tiles and their sites for each operand and for the result."""
    cells, grid = node.cells, node.placements.grid
    if cells is None or not grid:
        return ""
    pictures = [
        _tensor(f"{r.id}[{', '.join(r.labels)}]", r.labels, grid, cells, ", ") for r in node.reads
    ]
    pictures.append(_tensor(f"{node.id}[{', '.join(node.keys)}]", node.keys, grid, cells, "+"))
    unique = list(dict.fromkeys(pictures))
    return (
        '<h3>Tiles, and the sites that have them</h3><div class="tilings">'
        + "".join(unique)
        + "</div>"
    )


def _tensor(
    title: str,
    labels: Sequence[str],
    grid: Sequence[tuple[str, int]],
    cells: Sequence[int],
    joint: str,
) -> str:
    """Returns the tiles of a tensor: the first cut label in rows, the other cut labels in columns.

    A single cut label is in rows only if it is the tensor's first label.
    """
    parts = dict(grid)
    cut = [x for x in dict.fromkeys(labels) if x in parts]
    down = cut[:1] if cut and (len(cut) > 1 or labels[0] == cut[0]) else []
    across = cut[len(down) :]
    rows, columns = (prod(parts[x] for x in axes) for axes in (down, across))
    sites_of_tile: list[list[int]] = [[] for _ in range(rows * columns)]
    number = prod(n for _, n in grid)
    for n, site in enumerate(cells):
        at = _coordinates(n % number, grid)
        tile = 0
        for x in cut:
            tile = tile * parts[x] + at[x]
        if site not in sites_of_tile[tile]:
            sites_of_tile[tile].append(site)
    sites = max(cells) + 1
    lines = [f'<table class="tiles"><caption>{escape(title)}</caption>']
    for r in range(rows):
        lines.append("<tr>")
        for having in sites_of_tile[r * columns : (r + 1) * columns]:
            hue = 360 * min(having, default=0) // sites
            full = joint.join(map(str, having))
            lines.append(f'<td style="--hue:{hue}" title="{full}">{_sites(having, joint)}</td>')
        lines.append("</tr>")
    return "".join([*lines, "</table>"])


def _coordinates(n: int, grid: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Returns the coordinate of a cell on each axis of the grid; the last axis varies fastest."""
    at = {}
    for label, parts in reversed(grid):
        n, at[label] = divmod(n, parts)
    return at


def _sites(tile: Sequence[int], joint: str) -> str:
    if len(tile) > 2 and list(tile) == list(range(tile[0], tile[-1] + 1)):
        return f"{tile[0]}–{tile[-1]}" if joint == ", " else f"{tile[0]}+…+{tile[-1]}"
    shown = joint.join(map(str, tile[:_BOUND]))
    return shown if len(tile) <= _BOUND else f"{shown}{joint}…"
