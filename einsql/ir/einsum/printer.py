"""EinSum graphs as deterministic text, for EXPLAIN and golden plans."""

from __future__ import annotations

from collections.abc import Iterator

from einsql.core.schema import is_flag
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Node,
    Param,
    Roots,
    Value,
    exprs,
    subexpressions,
    walk,
)
from einsql.ir.einsum.states import has_order
from einsql.ir.functions.python_functions import function_name, shown_name

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "idiv": "//",
    "mod": "%",
    "eq": "=",
    "ne": "<>",
    "lt": "<",
    "le": "<=",
    "and": "AND",
    "or": "OR",
    "bitand": "&",
    "bitor": "|",
}


def format_expr(expr: Expr, names: tuple[str, ...] = ()) -> str:
    """Formats an expression; `names` are the operands' names, in order."""
    match expr:
        case Const():
            return str(expr.value).lower() if isinstance(expr.value, bool) else str(expr.spelling)
        case Label():
            return expr.name
        case Value():
            owner = names[expr.operand] if expr.operand < len(names) else f"#{expr.operand}"
            return f"{owner}.{expr.field.lstrip('.')}"
        case Param():
            return f"?{expr.number}"
    args = [format_expr(a, names) for a in expr.args]
    match expr.fn:
        case "cast":
            return f"{args[0]}::{expr.dtype.value}"
        case "if":
            return f"CASE WHEN {args[0]} THEN {args[1]} ELSE {args[2]} END"
        case "not":
            return f"NOT {args[0]}"
        case fn if fn in _INFIX:
            return f"({f' {_INFIX[fn]} '.join(args)})"
    return f"{shown_name(expr.fn).upper()}({', '.join(args)})"


def _ranges(define: Expr, names: tuple[str, ...]) -> str:
    """The ranges of values that prove the bounds of a derived label, in parentheses."""
    values = dict.fromkeys(e for e in subexpressions(define) if isinstance(e, Value) and e.within)
    ranges = [
        f"{format_expr(v, names)} in {v.within[0]}..{v.within[1]}" for v in values if v.within
    ]
    return f"  ({', '.join(ranges)})" if ranges else ""


def format_node(node: EinSum, name: str, names: tuple[str, ...]) -> list[str]:
    """Formats a node as lines; `names` are its operands' names."""
    axes = {a.label: a for a in node.axes}
    keys = ", ".join(f"{k}:{_bounds(axes[k].lo, axes[k].hi)}" for k in node.keys)
    lines = [f"{name}[{keys}]"]
    operands = [f"{n}[{', '.join(o.labels)}]" for n, o in zip(names, node.operands, strict=True)]
    if operands:
        lines.append(f"  from    {', '.join(operands)}")
    over = [f"{r}:{_bounds(axes[r].lo, axes[r].hi)}" for r in node.reduced]
    if over:
        merged_in_order = ", in this order" if len(over) > 1 and has_order(node) else ""
        lines.append(f"  over    {', '.join(over)}{merged_in_order}")
    lines += [
        f"  let     {a.label} = {format_expr(a.define, names)}{_ranges(a.define, names)}"
        for a in node.axes
        if a.define is not None
    ]
    if node.guard != TRUE:
        lines.append(f"  where   {format_expr(node.guard, names)}")
    if node.hint:
        lines.append(f"  parts   {', '.join(f'{label}:{parts}' for label, parts in node.hint)}")
    for o in node.outputs:
        text = ", ".join(format_expr(a, names) for a in o.args)
        if o.reduction is not None:
            name, _, digest = o.reduction.partition("@")
            text = f"{name.upper()}({text})"
            if digest:
                text += " (laws tested)"
        if o.where != TRUE:
            text += f" FILTER ({format_expr(o.where, names)})"
        shown = o.name if is_flag(o.name) else f"{o.name} {o.dtype.value}"
        lines.append(f"  {shown} := {text}")
    return lines + [f"  laws    {line} (tested)" for line in dict.fromkeys(_laws(node))]


def _laws(node: EinSum) -> Iterator[str]:
    """The declared laws of the Python functions that a node calls."""
    for e in (e for root in exprs(node) for e in subexpressions(root)):
        name = function_name(e.fn) if isinstance(e, Call) else None
        if name is not None and name.function.laws:
            yield f"{shown_name(name).upper()}: {', '.join(name.function.laws)}"


def format_graph(*roots: Node) -> str:
    """Formats a graph, producers first; nodes are numbered r0, r1, … in that order."""
    names = node_names(roots)
    blocks: list[str] = []
    for node in walk(*roots):
        if isinstance(node, Input):
            keys = ", ".join(f"{k.name}:{_bounds(k.lo, k.hi)}" for k in node.schema.keys)
            fields = ", ".join(f"{f.name} {f.dtype.value}" for f in node.schema.values)
            blocks.append(f"{node.name}[{keys}] {fields}".rstrip())
        else:
            inner = tuple(names[id(o.source)] for o in node.operands)
            blocks.append("\n".join(format_node(node, names[id(node)], inner)))
    return "\n".join(blocks)


def node_names(roots: Roots) -> dict[int, str]:
    """Returns the printed name of each node by id: an input's own name, or r0, r1, and so on."""
    names: dict[int, str] = {}
    count = 0
    for node in walk(*roots):
        if isinstance(node, Input):
            names[id(node)] = node.name
        else:
            names[id(node)], count = f"r{count}", count + 1
    return names


def _bounds(lo: int, hi: int) -> str:
    return str(hi) if lo == 0 else f"{lo}..{hi}"
