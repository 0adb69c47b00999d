"""The verifier: every node a rule leaves behind is well formed, the root's schema kept."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from einsql.core.schema import DType, Schema, is_flag
from einsql.errors import InternalError
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    EinSum,
    Expr,
    Label,
    Node,
    Value,
    exprs,
    subexpressions,
    walk,
)
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.optimizer.rewrite.node_properties import direct_labels, is_pointwise


def verify(root: Node, wanted: Schema, verified: dict[int, EinSum], *, drops_flags: bool) -> None:
    """Checks a graph.

    Args:
        root: The graph.
        wanted: The schema the root had before.
        verified: Nodes already found well formed, by id; new ones are added.
        drops_flags: Whether flags of `wanted` may be missing.

    Raises:
        InternalError: A node is malformed or the root's schema changed.
    """
    for node in walk(root):
        if isinstance(node, EinSum) and id(node) not in verified:
            problem = next(_problems(node), None)
            if problem is not None:
                raise InternalError(f"A malformed EinSum: {problem}")
            verified[id(node)] = node
    got = root.schema
    lost = [f for f in wanted.fields if f not in got.fields]
    kept = tuple(f for f in wanted.fields if f not in lost)
    allowed = not lost or (drops_flags and all(is_flag(f.name) for f in lost))
    if got.keys != wanted.keys or got.fields != kept or not allowed:
        raise InternalError(f"The result's schema changed from {wanted} to {got}")


def _problems(node: EinSum) -> Iterator[str]:
    axes = {a.label: a for a in node.axes}
    if len(axes) < len(node.axes):
        yield "a label occurs twice in the domain"
    if len(set(node.keys)) < len(node.keys) or not set(node.keys) <= set(axes):
        yield f"keys {node.keys} are not distinct labels"
    fields: list[dict[str, DType]] = []
    for o in node.operands:
        schema = o.source.schema
        fields.append({f.name: f.dtype for f in schema.fields})
        if len(o.labels) != len(schema.keys) or not set(o.labels) <= set(axes):
            yield f"labels {o.labels} do not index keys {schema.keys}"
            return
        for label, k in zip(o.labels, schema.keys, strict=True):
            a = axes[label]
            if a.extent and not (k.lo <= a.lo and a.hi <= k.hi):
                yield f"label {label} leaves the bounds of key {k}"
    for top in exprs(node):
        for e in subexpressions(top):
            yield from _expr_problems(e, axes.keys(), fields)
    if not {label for label, _ in node.hint} <= set(axes):
        yield f"the hint {node.hint} is about labels it has not"
    yield from _derived_problems(node)
    yield from _output_problems(node)


def _expr_problems(
    e: Expr, labels: AbstractSet[str], fields: list[dict[str, DType]]
) -> Iterator[str]:
    if isinstance(e, Label) and e.name not in labels:
        yield f"label {e.name} is unknown"
    elif isinstance(e, Value):
        if not 0 <= e.operand < len(fields) or fields[e.operand].get(e.field) is not e.dtype:
            yield f"no operand has the value {e}"
    elif isinstance(e, Call):
        known = e.fn == "cast" or e.fn in SCALARS
        if not known or len(e.args) != (1 if e.fn == "cast" else SCALARS[e.fn].arity):
            yield f"{e.fn} is no function of {len(e.args)} arguments"


def _derived_problems(node: EinSum) -> Iterator[str]:
    known = {a.label for a in node.axes if a.define is None}
    for a in node.axes:
        if a.define is not None:
            if not a.define.dtype.is_integer:
                yield f"label {a.label} is derived from no integer"
            if not direct_labels(node, a.define) <= known:
                yield f"label {a.label} is derived from later labels"
            known.add(a.label)


def _output_problems(node: EinSum) -> Iterator[str]:
    if node.guard.dtype is not DType.BOOLEAN:
        yield "the guard is not BOOLEAN"
    if len({o.name for o in node.outputs}) < len(node.outputs):
        yield "a field occurs twice"
    spread = is_pointwise(node)
    for o in node.outputs:
        if o.where.dtype is not DType.BOOLEAN:
            yield f"the filter of {o.name} is not BOOLEAN"
        if o.reduction is None:
            if not spread or o.where != TRUE or len(o.args) != 1:
                yield f"{o.name} is not reduced, but does not keep every free label"
            elif o.args[0].dtype is not o.dtype:
                yield f"{o.name} is a {o.args[0].dtype.value}, not a {o.dtype.value}"
        elif o.reduction not in REDUCTIONS or len(o.args) != REDUCTIONS[o.reduction].arity:
            yield f"{o.name} is badly reduced"
