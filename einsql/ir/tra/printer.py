"""Tensor-relational plans as deterministic text, for EXPLAIN and golden plans."""

from __future__ import annotations

from einsql.core.schema import Field, is_flag
from einsql.core.units import plural
from einsql.ir.einsum.graph import TRUE, EinSum, Input
from einsql.ir.einsum.printer import format_expr, format_node
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import BlockSchema, Dim, Domain, shown
from einsql.ir.tra.kernels import VALUE, Merge, reductions


def format_plan(*roots: tra.Node) -> str:
    """Formats tensor-relational plans, producers first.

    A relation is printed as `r0<2, 2>[3|2, 5]`: the bounds of its keys, then the extents of
    its arrays, `3|2@1` if key 1 determines the extent, and `0..3|2..5` if the intervals do not
    follow one another. The fields follow.
    """
    names: dict[int, str] = {}
    blocks: list[str] = []
    for node in tra.walk(*roots):
        names[id(node)] = name = f"r{len(names)}"
        inner = [names[id(c)] for c in tra.children(node)]
        blocks += [f"{name}{format_schema(node.schema)}", *_format_operation(node, inner)]
    return "\n".join(blocks)


def format_schema(schema: BlockSchema) -> str:
    """Formats the bounds of the keys, the extents of the arrays and their fields."""
    dims = ", ".join(_format_dim(d, n) for n, d in enumerate(schema.dims))
    text = f"{shown(schema.bounds)}[{dims}] {_format_fields(schema.fields)}"
    return text if schema.is_continuous else f"{text}, {plural(schema.count, 'key')}"


def _format_fields(fields: tuple[Field, ...]) -> str:
    if len(fields) == 1 and fields[0].name == VALUE:
        return fields[0].dtype.value
    return ", ".join(f.name if is_flag(f.name) else f"{f.name} {f.dtype.value}" for f in fields)


def _format_dim(dim: Dim, axis: int) -> str:
    extents = dim.relative
    if dim.starts is None or dim.cut is not None:
        one = len(set(dim.extents)) == 1
        text = str(dim.extents[0]) if one else "|".join(map(str, dim.extents))
        keys = extents.keys if dim.keys == (axis,) else dim.keys
    else:
        ends = [f"{lo}..{lo + n}" for lo, n in zip(dim.starts, dim.extents, strict=True)]
        text, keys = "|".join(ends), dim.keys
    return text if keys in ((), (axis,)) else f"{text}@{','.join(map(str, keys))}"


def _format_operation(node: tra.Node, sources: list[str]) -> list[str]:
    if isinstance(node, tra.Scan):
        return [format_scan(node.tensor)]
    if isinstance(node, tra.Join):
        joined = f"  join         {format_joined(sources, node.keys)}"
        if node.domain is None:
            return [joined.rstrip(), *format_kernel(node.kernel)]
        return [f"{joined}{format_domain(node.domain)}".rstrip(), *format_cell(node.kernel)]
    (source,) = sources
    match node:
        case tra.Aggregate():
            merge = format_merge(node.merge)
            return [f"  aggregate    {merge}({source}) BY {shown(node.group_by)}"]
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
    """Formats the line of a scan: the tensor with its keys."""
    extents = ", ".join(f"{k.name}:{k.extent}" for k in tensor.schema.keys)
    return f"  scan         {tensor.name}[{extents}]"


def format_joined(sources: list[str], keys: tuple[tuple[int, ...], ...]) -> str:
    """Formats the operands of a join, each with its key dimensions in the result."""
    return ", ".join(f"{s}{shown(k)}" for s, k in zip(sources, keys, strict=True))


def format_domain(domain: Domain) -> str:
    """Formats the labels that a join cuts, with the number of parts of each."""
    cuts = ", ".join(f"{label}:{len(cut) - 1}" for label, cut in domain)
    return f" OVER {cuts}" if cuts else ""


def format_merge(merge: Merge) -> str:
    """Formats the reductions of a relation's fields."""
    return ", ".join(reductions(merge)).upper()


def format_cell(kernel: EinSum) -> list[str]:
    """Formats the lines of a complete EinSum, with operands x0, x1, …."""
    names = tuple(f"x{n}" for n in range(len(kernel.operands)))
    return [f"    {line}" for line in format_node(kernel, "kernel ", names)]


def format_kernel(kernel: EinSum) -> list[str]:
    """Formats the line of a template, with operands x0, x1, …."""
    names = tuple(f"x{n}" for n in range(len(kernel.operands)))
    read = [f"{n}[{', '.join(o.labels)}]" for n, o in zip(names, kernel.operands, strict=True)]
    texts = []
    for output in kernel.outputs:
        text = ", ".join(format_expr(a, names) for a in output.args)
        if output.reduction is not None:
            text = f"{output.reduction.upper()}({text})"
        if output.where != TRUE:
            text += f" FILTER ({format_expr(output.where, names)})"
        texts.append(text)
    text = ", ".join(texts)
    for a in kernel.axes:
        if a.define is not None:
            text += f" LET {a.label} = {format_expr(a.define, names)}"
    if kernel.guard != TRUE:
        text += f" WHERE {format_expr(kernel.guard, names)}"
    return [f"    kernel     {', '.join(read)} -> [{', '.join(kernel.keys)}] {text}"]
