"""Plans over blocks as deterministic text, expressions as the printer spells them."""

from __future__ import annotations

from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Input
from einsql.ir.einsum.printer import format_expr
from einsql.ir.ia import plan as ia
from einsql.ir.ia.typing import Emit, PhysicalSchema, Tiled
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import BlockSchema, Dim, shown


def format_plan(root: tra.Node) -> str:
    """A tensor-relational plan, producers first.

    A relation is shown as `r0<2, 2>[3|2, 5]`: the bounds of its keys, then the extents of
    its arrays, `3|2@1` where key 1 decides which.
    """
    names: dict[int, str] = {}
    blocks: list[str] = []
    for node in tra.walk(root):
        names[id(node)] = name = f"r{len(names)}"
        inner = [names[id(c)] for c in tra.children(node)]
        blocks += [f"{name}{_format_schema(node.schema)}", *_format_operation(node, inner)]
    return "\n".join(blocks)


def format_implementation(root: ia.Node) -> str:
    """A plan of the implementation algebra, producers first.

    After what `format_plan` shows of a relation stands where it lies: the grid of sites
    and, for each of its axes, what lies along it; then whether parts are to be merged.
    """
    names: dict[int, str] = {}
    blocks: list[str] = []
    for node in ia.walk(root):
        names[id(node)] = name = f"r{len(names)}"
        inner = [names[id(c)] for c in ia.children(node)]
        blocks += [f"{name}{_format_physical(node.schema)}", *_format_local(node, inner)]
    return "\n".join(blocks)


def _format_physical(schema: PhysicalSchema) -> str:
    merge = "" if schema.merge is None else f", parts of a {schema.merge.upper()}"
    return f"{_format_schema(schema.blocks)} at {schema.placement}{merge}"


def _format_local(node: ia.Node, sources: list[str]) -> list[str]:
    if isinstance(node, ia.Scan):
        return [_format_scan(node.tensor)]
    if isinstance(node, ia.LocalJoin):
        line = f"  local join   {_format_joined(sources, node.keys)}{_format_where(node.where)}"
        return [line, *_format_chain("kernel", node.kernels), *_format_keys(node.key_map)]
    (source,) = sources
    if isinstance(node, ia.Bcast):
        return [f"  bcast        {source}"]
    if isinstance(node, ia.Shuffle):
        return [f"  shuffle      {source} BY {shown(node.part_dims)}"]
    if isinstance(node, ia.Repartition):
        return [f"  repartition  {source} BY {shown(node.part_dims)}"]
    if isinstance(node, ia.LocalFilter):
        return [f"  local filter {source} {format_expr(node.condition)}"]
    if isinstance(node, ia.LocalMap):
        line = f"  local map    {source}{_format_emit(node.emit)}"
        return [line, *_format_chain("kernel", node.kernels), *_format_keys(node.keys)]
    if isinstance(node, ia.LocalAggregate):
        line = f"  local agg    {node.reduce.upper()}({source}) BY {shown(node.group_by)}"
        chains = _format_chain("before", node.inner) + _format_chain("after", node.finish)
        return [line + _format_where(node.where), *chains]
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
    return [line.replace("kernel", name.ljust(6), 1) for k in kernels for line in _format_kernel(k)]


def _format_schema(schema: BlockSchema) -> str:
    dims = ", ".join(_format_dim(d, n) for n, d in enumerate(schema.dims))
    text = f"{shown(schema.bounds)}[{dims}] {schema.dtype.value}"
    return text if schema.is_continuous else f"{text}, {schema.count} keys"


def _format_dim(dim: Dim, axis: int) -> str:
    text = "|".join(map(str, dim.extents))
    return text if dim.key in (None, axis) else f"{text}@{dim.key}"


def _format_operation(node: tra.Node, sources: list[str]) -> list[str]:
    if isinstance(node, tra.Scan):
        return [_format_scan(node.tensor)]
    if isinstance(node, tra.Join):
        return [
            f"  join         {_format_joined(sources, node.keys)}",
            *_format_kernel(node.kernel),
        ]
    (source,) = sources
    if isinstance(node, tra.Aggregate):
        return [f"  aggregate    {node.reduce.upper()}({source}) BY {shown(node.group_by)}"]
    if isinstance(node, tra.ReKey):
        return [f"  rekey        {source} {shown([format_expr(e) for e in node.keys])}"]
    if isinstance(node, tra.Filter):
        return [f"  filter       {source} {format_expr(node.condition)}"]
    if isinstance(node, tra.Transform):
        return [f"  transform    {source}", *_format_kernel(node.kernel)]
    if isinstance(node, tra.Tile):
        return [f"  tile         {source} dimension {node.dim} by {node.size}"]
    if isinstance(node, tra.Stack):
        return [f"  stack        {source} key {node.key} along dimension {node.dim}"]
    return [f"  repartition  {source}"]


def _format_scan(tensor: Input) -> str:
    extents = ", ".join(f"{k.name}:{k.extent}" for k in tensor.schema.keys)
    return f"  scan         {tensor.name}[{extents}]"


def _format_joined(sources: list[str], keys: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(f"{s}{shown(k)}" for s, k in zip(sources, keys, strict=True))


def _format_kernel(kernel: EinSum) -> list[str]:
    names = tuple(f"x{n}" for n in range(len(kernel.operands)))
    read = [f"{n}[{', '.join(o.labels)}]" for n, o in zip(names, kernel.operands, strict=True)]
    (output,) = kernel.outputs
    text = ", ".join(format_expr(a, names) for a in output.args)
    if output.reduction is not None:
        text = f"{output.reduction.upper()}({text})"
    if output.where != TRUE:
        text += f" FILTER ({format_expr(output.where, names)})"
    for a in kernel.axes:
        if a.define is not None:
            text += f" LET {a.label} = {format_expr(a.define, names)}"
    if kernel.guard != TRUE:
        text += f" WHERE {format_expr(kernel.guard, names)}"
    return [f"    kernel     {', '.join(read)} -> [{', '.join(kernel.keys)}] {text}"]
