"""Plans of the implementation algebra as deterministic text, for EXPLAIN and golden plans."""

from __future__ import annotations

from einsql.ir.einsum.graph import TRUE, Expr
from einsql.ir.einsum.printer import format_expr
from einsql.ir.ia import plan as ia
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.typing import Emit, Tiled
from einsql.ir.layout import Layout
from einsql.ir.tra.block_schema import shown
from einsql.ir.tra.printer import (
    format_cell,
    format_domain,
    format_joined,
    format_kernel,
    format_merge,
    format_scan,
    format_schema,
)


def format_implementation(root: ia.Node) -> str:
    """Formats a plan of the implementation algebra, producers first.

    A relation is printed as in `format_plan`, followed by its layout: the grid of
    sites, the keys along each grid axis, and whether parts must be merged.
    """
    names: dict[int, str] = {}
    blocks: list[str] = []
    for node in ia.walk(root):
        names[id(node)] = name = f"r{len(names)}"
        inner = [names[id(c)] for c in ia.children(node)]
        blocks += [f"{name}{_format_physical(node.schema)}", *_format_local(node, inner)]
    return "\n".join(blocks)


def _format_physical(schema: PhysicalSchema) -> str:
    merge = "" if schema.merge is None else f", parts of a {format_merge(schema.merge)}"
    return f"{format_schema(schema.blocks)} at {schema.layout}{merge}"


def _format_local(node: ia.Node, sources: list[str]) -> list[str]:
    if isinstance(node, ia.Scan):
        return [format_scan(node.tensor)]
    if isinstance(node, ia.LocalJoin):
        line = f"  local join   {format_joined(sources, node.keys)}"
        chain = _format_chain("kernel", node.kernels)
        if node.domain is not None:
            line += format_domain(node.domain)
            chain = [*format_cell(node.kernels[0]), *_format_chain("kernel", node.kernels[1:])]
        return [line + _format_where(node.where), *chain, *_format_keys(node.key_map)]
    source, *also = sources
    match node:
        case ia.Bcast():
            return [f"  bcast        {source}"]
        case ia.Shuffle():
            return [f"  shuffle      {source} BY {shown(node.part_dims)}"]
        case ia.Repartition():
            by = node.part_dims
            to = str(by) if isinstance(by, Layout) else shown(by)
            return [f"  repartition  {', '.join((source, *also))} BY {to}"]
        case ia.Routed():
            return [f"  routed       {source}"]
        case ia.LocalFilter():
            return [f"  local filter {source} {format_expr(node.condition)}"]
        case ia.LocalMap():
            line = f"  local map    {source}{_format_emit(node.emit)}"
            return [line, *_format_chain("kernel", node.kernels), *_format_keys(node.keys)]
        case ia.LocalAggregate():
            line = f"  local agg    {format_merge(node.merge)}({source}) BY {shown(node.group_by)}"
            chains = _format_chain("before", node.inner) + _format_chain("after", node.finish)
            return [line + _format_where(node.where), *chains]
        case ia.LocalStack():
            return [f"  local stack  {source} key {node.key} along dimension {node.dim}"]


def _format_emit(emit: Emit | None) -> str:
    if emit is None:
        return ""
    if isinstance(emit, Tiled):
        return f", tiles of dimension {emit.dim} by {emit.size}"
    return f", {emit.count} times"


def _format_where(where: Expr) -> str:
    return "" if where == TRUE else f" WHERE {format_expr(where)}"


def _format_keys(keys: tuple[Expr, ...] | None) -> list[str]:
    return [] if keys is None else [f"    keys       {shown([format_expr(e) for e in keys])}"]


def _format_chain(name: str, kernels: ia.Kernels) -> list[str]:
    return [line.replace("kernel", name.ljust(6), 1) for k in kernels for line in format_kernel(k)]
