"""EXPLAIN's text of a plan over sites: totals and a table of the operations."""

from __future__ import annotations

from collections.abc import Sequence

from einsql.core.units import EXACT, data_size, duration, plural, quantity
from einsql.explain.operations import CollectiveReport, OperationReport
from einsql.explain.report import GraphReport

_WIDEST = 32
"""The greatest width of a left column; a longer cell shifts the rest of its row."""

_MOST_SITES = 32
"""The most sites whose work is shown."""

_MERGES = ("reduce", "reduce-scatter", "all-reduce")


def cost_lines(report: GraphReport) -> list[str]:
    """Formats a plan over sites as lines of about 100 columns.

    Returns:
        Totals with their units, then a row for each operation with its cut and costs. Under the
        row is a line for each operand and one for the result. The line has the placements along
        the axes of the cut, in the order of the cut, and the collectives that move or merge the
        tensor. The last lines are the work of each site, if it was measured.
    """
    header, *rows = _operations(report.nodes)
    tensors = [_tensors(n) for n in report.nodes]
    width = max((len(name) for lines in tensors for name, _ in lines), default=0)
    lines = [*_totals(report), header]
    for node, row, below in zip(report.nodes, rows, tensors, strict=True):
        lines.append(row)
        lines += [f"   {name:{width}}  {what}".rstrip() for name, what in below]
        lines += [f"   {reason}" for reason in node.reasons]
    return lines + _sites(report)


def table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Formats rows as lines; the first columns are aligned left, the others right.

    Args:
        rows: The cells of each row; the first row is the header.
        left: The number of columns that are aligned left.
    """
    columns = zip(*rows, strict=True)
    widths = [
        max((len(c) for c in column if n >= left or len(c) <= _WIDEST), default=0)
        for n, column in enumerate(columns)
    ]
    aligned = ["<"] * left + [">"] * (len(widths) - left)
    return [
        "  ".join(f"{c:{a}{w}}" for c, a, w in zip(row, aligned, widths, strict=True)).rstrip()
        for row in rows
    ]


def _totals(report: GraphReport) -> list[str]:
    total, measured = report.total, report.measured
    about = "about " if any(_blocks(n) or _is_expected(n) for n in report.nodes) else ""
    lines = [
        f"-- {plural(report.sites, 'site')}, strategy {report.strategy}, cost {report.cost}",
        *([] if report.plan_file is None else [f"plan       {report.plan_file}"]),
        *([] if report.notice is None else [f"notice     {report.notice}"]),
        f"moves      {count(total.floats_moved)} floats by EinDecomp's count, "
        f"{count(total.tra_cost)} by TRA's; {about}{data_size(total.bytes_sent)} sent "
        "between sites",
        f"computes   {count(total.flops)} flops",
        f"holds      {data_size(total.memory)} at the fullest site{_fullest(report)}",
        f"predicted  {duration(total.seconds)}",
    ]
    if measured:
        seconds, sent = sum(m.seconds for m in measured), sum(m.bytes_sent or 0 for m in measured)
        ranks = report.ranks or 1
        where = f"on {ranks:,} ranks" if ranks > 1 else "in all sites"
        plain = any(m.tier == "plain" for m in measured)
        tier = "; on NumPy, while a kernel is being compiled" if plain else ""
        lines.append(f"measured   {duration(seconds)} {where}; {data_size(sent)} sent{tier}")
    return lines


def _operations(nodes: Sequence[OperationReport]) -> list[str]:
    measured = any(n.measured for n in nodes)
    head = ["operation", "cut", "floats", "sent", "flops", "memory", "predicted"]
    return table([head + ["measured", "and sent"] * measured, *map(_row, nodes)], left=2)


def _row(node: OperationReport) -> list[str]:
    columns = [
        f"{node.id} {node.op}",
        " ".join(f"{x}:{parts}" for x, parts in (*node.placements.grid, *_blocks(node))) or "whole",
        count(node.floats.sum),
        data_size(node.bytes_sent),
        count(node.flops),
        data_size(node.memory),
        duration(node.seconds),
    ]
    if node.measured is not None:
        columns += [duration(node.measured.seconds), data_size(node.measured.bytes_sent or 0)]
    return columns


def _is_expected(node: OperationReport) -> bool:
    """Whether the bytes of an operation follow from the number of elements of a sparse result."""
    return any(reason.startswith("bytes of a sparse result") for reason in node.reasons)


def _blocks(node: OperationReport) -> list[tuple[str, int]]:
    """Returns the label that rows choose by a value, with its number of blocks, if there is one."""
    return [(x, parts) for x, parts in node.partition.items() if x not in node.labels]


def _tensors(node: OperationReport) -> list[tuple[str, str]]:
    """Returns the operands and the result with their placements and collectives, and the group."""
    placements, rows = node.placements, []
    group = node.group.nodes if node.group else []
    if group[-1:] == [node.id]:
        how = (node.group and node.group.detail) or "block by block"
        rows.append((f"runs with {', '.join(group[:-1])}", how))
    if not placements.grid and not node.bytes_sent:
        return rows  # one call, at one site
    for read, placed in zip(node.reads, placements.operands, strict=True):
        moved = "" if read.collective in ("none", "slice") else read.collective
        if read.bytes_sent:
            moved += f" {data_size(read.bytes_sent)}"
        rows.append((f"reads {read.id}[{', '.join(read.labels)}]", _moved(placed, moved)))
    merged = ", ".join(
        f"{c.collective} {data_size(c.bytes_sent)}"
        for c in node.collectives
        if c.collective in _MERGES
    )
    return [
        *rows,
        (f"makes {node.id}[{', '.join(node.keys)}]", _moved(placements.result, merged)),
        *((f"  {n.text}", _collectives(n.collectives)) for n in node.notation or ()),
    ]


def _collectives(collectives: Sequence[CollectiveReport]) -> str:
    """Formats collectives as `all-gather over data 40 B, all-to-all over model 8 B`."""
    return ", ".join(
        " ".join(
            (
                c.collective,
                *(("over", ", ".join(c.along)) if c.along else ()),
                data_size(c.bytes_sent),
            )
        )
        for c in collectives
    )


def _fullest(report: GraphReport) -> str:
    """Returns the measured memory of the fullest site; nothing without a measure."""
    measured = [s.memory_measured for s in report.per_site if s.memory_measured is not None]
    return f", {data_size(max(measured))} measured" if measured else ""


def _moved(placed: Sequence[str], moved: str) -> str:
    return "; ".join(filter(None, (", ".join(placed) or "whole", moved)))


def _sites(report: GraphReport) -> list[str]:
    """Returns the work of each site, if it was measured."""
    sites = [s for s in report.per_site if s.seconds is not None]
    if not sites:
        return []
    rows = [
        [
            str(n),
            count(s.flops),
            data_size(s.bytes_sent),
            data_size(s.bytes_received),
            duration(s.seconds or 0.0),
        ]
        for n, s in enumerate(sites[:_MOST_SITES])
    ]
    lines = table([["site", "flops", "sent", "received", "in kernels"], *rows])
    return lines + [f"and {len(sites) - _MOST_SITES:,} more"] * (len(sites) > _MOST_SITES)


def count(n: float) -> str:
    """Formats a number, a large one in powers of ten."""
    return f"{n:,.0f}" if n < EXACT else quantity(n).replace(" ", "")
