"""EXPLAIN's text of a plan over sites: totals, and a table of what every operation does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsql.core.units import EXACT, data_size, duration, quantity

Report = dict[str, Any]

_WIDEST_CUT = 32
"""Longer cuts stand as they are, and push the numbers behind them aside."""

_MOST_SITES = 32
"""Of more sites the text does not say what each of them did."""

_MERGES = ("reduce", "reduce-scatter", "all-reduce")


def as_text(report: Report) -> list[str]:
    """A plan over sites as lines of about 100 columns.

    Args:
        report: EXPLAIN's JSON, as a value, with its graph.

    Returns:
        Totals with their units; for each operation a row of its cut and costs, under it a
        line for every tensor it reads and one for what it makes: placements along the
        axes of the cut, in its order, and the collectives that brought or merge it; then
        what each site did, if it was measured.
    """
    nodes = report["nodes"]
    header, rows = _table(nodes)
    tensors = [_tensors(n) for n in nodes]
    width = max((len(name) for lines in tensors for name, _ in lines), default=0)
    lines = [*_totals(report), header]
    for row, below in zip(rows, tensors, strict=True):
        lines.append(row)
        lines += [f"   {name:{width}}  {what}".rstrip() for name, what in below]
    return lines + _sites(report)


def _totals(report: Report) -> list[str]:
    total = report["total"]
    lines = [
        f"-- {report['sites']:,} sites, strategy {report['strategy']}, cost {report['cost']}",
        *([f"notice     {report['notice']}"] if "notice" in report else []),
        f"moves      {_count(total['floats_moved'])} floats by EinDecomp's count, "
        f"{_count(total['tra_cost'])} by TRA's; {data_size(total['bytes_sent'])} sent "
        "between sites",
        f"computes   {_count(total['flops'])} flops",
        f"holds      {data_size(total['memory'])} at the fullest site",
        f"predicted  {duration(total['seconds'])}",
    ]
    measured = [n["measured"] for n in report["nodes"] if "measured" in n]
    if measured:
        seconds, sent = (sum(m[key] for m in measured) for key in ("seconds", "bytes_sent"))
        where = f"on {report['ranks']:,} ranks" if report.get("ranks", 1) > 1 else "in all sites"
        lines.append(f"measured   {duration(seconds)} {where}; {data_size(sent)} sent")
    return lines


def _table(nodes: Sequence[Report]) -> tuple[str, list[str]]:
    """The header and the row of each operation; numbers stand right."""
    measured = any("measured" in n for n in nodes)
    head = ["operation", "cut", "floats", "sent", "flops", "memory", "predicted"]
    cells = [head + ["measured", "and sent"] * measured, *(_row(n) for n in nodes)]
    names = max(len(r[0]) for r in cells)
    cuts = max((len(r[1]) for r in cells if len(r[1]) <= _WIDEST_CUT), default=0)
    numbers = [max(map(len, column)) for column in zip(*(r[2:] for r in cells), strict=True)]
    lines = [
        f"{name:{names}}  {cut:{cuts}}  "
        + "  ".join(f"{text:>{width}}" for text, width in zip(more, numbers, strict=True))
        for name, cut, *more in cells
    ]
    return lines[0], lines[1:]


def _row(node: Report) -> list[str]:
    columns = [
        f"{node['id']} {node['op']}",
        " ".join(f"{x}:{parts}" for x, parts in node["placements"]["grid"]) or "whole",
        _count(sum(node["floats"].values())),
        data_size(node["bytes_sent"]),
        _count(node["flops"]),
        data_size(node["memory"]),
        duration(node["seconds"]),
    ]
    if "measured" in node:
        columns += [
            duration(node["measured"]["seconds"]),
            data_size(node["measured"]["bytes_sent"]),
        ]
    return columns


def _tensors(node: Report) -> list[tuple[str, str]]:
    """Each operand and the result, with its placement and what moves it; what it runs with."""
    placements, rows = node["placements"], []
    group = node.get("group", {}).get("nodes", [])
    if group[-1:] == [node["id"]]:
        rows.append((f"runs with {', '.join(group[:-1])}", "block by block"))
    if not placements["grid"] and not node["bytes_sent"]:
        return rows  # one call, where everything is
    for read, placed in zip(node["reads"], placements["operands"], strict=True):
        moved = "" if read["collective"] in ("none", "slice") else read["collective"]
        if read["bytes_sent"]:
            moved += f" {data_size(read['bytes_sent'])}"
        rows.append((f"reads {read['id']}[{', '.join(read['labels'])}]", _moved(placed, moved)))
    merged = ", ".join(
        f"{c['collective']} {data_size(c['bytes_sent'])}"
        for c in node["collectives"]
        if c["collective"] in _MERGES
    )
    result = f"makes {node['id']}[{', '.join(node['keys'])}]"
    return [*rows, (result, _moved(placements["result"], merged))]


def _moved(placed: Sequence[str], moved: str) -> str:
    return "; ".join(filter(None, (", ".join(placed) or "whole", moved)))


def _sites(report: Report) -> list[str]:
    """What each site did, if it was measured."""
    sites = [s for s in report["per_site"] if "seconds" in s]
    head = ["site", "flops", "sent", "received", "in kernels"]
    rows = [
        [
            str(n),
            _count(s["flops"]),
            data_size(s["bytes_sent"]),
            data_size(s["bytes_received"]),
            duration(s["seconds"]),
        ]
        for n, s in enumerate(sites[:_MOST_SITES])
    ]
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(f"{text:>{w}}" for text, w in zip(r, widths, strict=True)) for r in (head, *rows)
    ]
    return lines + [f"and {len(sites) - _MOST_SITES:,} more"] * (len(sites) > _MOST_SITES)


def _count(n: float) -> str:
    return f"{n:,.0f}" if n < EXACT else quantity(n).replace(" ", "")
