"""Tensor-relational plans as deterministic text, for EXPLAIN and golden plans."""

from __future__ import annotations

from einsql.ir.einsum.graph import TRUE, EinSum, Input
from einsql.ir.einsum.printer import format_expr
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
        blocks += [f"{name}{format_schema(node.schema)}", *_format_operation(node, inner)]
    return "\n".join(blocks)


def format_schema(schema: BlockSchema) -> str:
    """The bounds of the keys, the extents of the arrays and their type."""
    dims = ", ".join(_format_dim(d, n) for n, d in enumerate(schema.dims))
    text = f"{shown(schema.bounds)}[{dims}] {schema.dtype.value}"
    return text if schema.is_continuous else f"{text}, {schema.count} keys"


def _format_dim(dim: Dim, axis: int) -> str:
    text = "|".join(map(str, dim.extents))
    return text if dim.key in (None, axis) else f"{text}@{dim.key}"


def _format_operation(node: tra.Node, sources: list[str]) -> list[str]:
    if isinstance(node, tra.Scan):
        return [format_scan(node.tensor)]
    if isinstance(node, tra.Join):
        joined = f"  join         {format_joined(sources, node.keys)}"
        return [joined, *format_kernel(node.kernel)]
    (source,) = sources
    match node:
        case tra.Aggregate():
            return [f"  aggregate    {node.reduce.upper()}({source}) BY {shown(node.group_by)}"]
        case tra.ReKey():
            return [f"  rekey        {source} {shown([format_expr(e) for e in node.keys])}"]
        case tra.Filter():
            return [f"  filter       {source} {format_expr(node.condition)}"]
        case tra.Transform():
            return [f"  transform    {source}", *format_kernel(node.kernel)]
        case tra.Tile():
            return [f"  tile         {source} dimension {node.dim} by {node.size}"]
        case tra.Stack():
            return [f"  stack        {source} key {node.key} along dimension {node.dim}"]
        case tra.Repartition():
            return [f"  repartition  {source}"]


def format_scan(tensor: Input) -> str:
    """The line of a scan: the tensor with its keys."""
    extents = ", ".join(f"{k.name}:{k.extent}" for k in tensor.schema.keys)
    return f"  scan         {tensor.name}[{extents}]"


def format_joined(sources: list[str], keys: tuple[tuple[int, ...], ...]) -> str:
    """The operands of a join, each with the key dimensions of the result that it has."""
    return ", ".join(f"{s}{shown(k)}" for s, k in zip(sources, keys, strict=True))


def format_kernel(kernel: EinSum) -> list[str]:
    """The line of a kernel, its operands named x0, x1, …."""
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
