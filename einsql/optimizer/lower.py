"""From an EinSum and its cut to the tensor-relational algebra (EinDecomp §4.3).

Every operand is cut as its labels are, joined on the labels it shares with the others by
the EinSum itself over tiles, and the partial results are aggregated over the labels that
were reduced:  Z = Σ_⊕ ∘ ⋈_K (Π X, Π Y, …).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from einsql import relational as ra
from einsql.algebra import REDUCTIONS
from einsql.blocks import Cuts, equal_cuts, key_label
from einsql.einsum import (
    TRUE,
    Axis,
    Const,
    EinSum,
    Expr,
    Input,
    Node,
    Operand,
    Value,
    call,
    exprs,
    labels_of,
    map_exprs,
    rewrite,
    walk,
)
from einsql.errors import NotSupportedError
from einsql.schema import DType, Field, Key, Schema, is_flag
from einsql.tiles import VALUE


def lower(
    node: EinSum, parts: Mapping[str, int], sources: Sequence[ra.Node | None] = ()
) -> ra.Node:
    """The plan of one EinSum.

    Args:
        node: Over free axes, with one value that exists everywhere.
        parts: Into how many parts each label is cut; 1 where it is not named. A label of
            no operand is cut only once the result is there.
        sources: The operands' relations, where they are computed; Inputs are scanned.

    Returns:
        A relation whose key i cuts axis i, in as many parts as the result's labels say.

    Raises:
        NotSupportedError: The EinSum is outside what can be cut today.
        ProgrammingError: A label has more parts than values.
    """
    _check(node)
    given = [*sources, *(None for _ in node.operands[len(sources) :])]
    relations: list[ra.Node] = []
    labels: list[tuple[str, ...]] = []
    for operand, source in zip(node.operands, given, strict=True):
        relation = _cut(operand, [parts.get(x, 1) for x in operand.labels], source)
        relations.append(_diagonal(relation, operand.labels))
        labels.append(tuple(dict.fromkeys(operand.labels)))
    order = tuple(dict.fromkeys(x for own in labels for x in own))
    kernel = _kernel(node)
    if len(relations) == 1:
        result: ra.Node = ra.Transform(relations[0], kernel)
    else:
        keys = tuple(tuple(order.index(x) for x in own) for own in labels)
        result = ra.Join(tuple(relations), keys, kernel)
    kept = tuple(x for x in node.keys if x in order)
    if len(kept) < len(order):
        (output,) = node.outputs
        assert output.reduction is not None
        result = ra.Aggregate(result, tuple(order.index(x) for x in kept), output.reduction)
        order = kept
    return _in_order(result, order, node.keys, parts)


def lower_graph(root: Node, parts: Mapping[EinSum, Mapping[str, int]]) -> ra.Node:
    """The plan of a graph whose every EinSum has its parts, as `lower` takes them.

    Raises:
        NotSupportedError: As `lower` does, or the root is an Input.
    """
    done: dict[int, ra.Node] = {}
    for node in walk(root):
        if isinstance(node, EinSum):
            sources = [done.get(id(o.source)) for o in node.operands]
            done[id(node)] = lower(node, parts.get(node, {}), sources)
    if id(root) not in done:
        raise NotSupportedError("There is nothing to compute")
    return done[id(root)]


def _check(node: EinSum) -> None:
    refused = next(_obstacles(node), None)
    if refused is not None:
        raise NotSupportedError(f"An EinSum with {refused} cannot be cut into blocks yet")


def _obstacles(node: EinSum) -> Iterator[str]:
    if not node.operands:
        yield "no operands"
    if any(a.define is not None for a in node.axes):
        yield "computed labels"
    if node.guard != TRUE:
        yield "a condition on its points"
    if len(node.outputs) != 1 or is_flag(node.outputs[0].name):
        yield "more than one result"
    reduction = node.outputs[0].reduction
    if reduction is not None and REDUCTIONS[reduction].arity != 1:
        yield f"the reduction {reduction}"
    if any(labels_of(e) for e in exprs(node)):
        yield "labels among its values"
    for o in node.operands:
        schema = o.source.schema
        if len(schema.fields) != 1:
            yield "an operand of several fields"
        for label, key in zip(o.labels, schema.keys, strict=True):
            axis = node.axis(label)
            if (axis.lo, axis.hi) != (key.lo, key.hi):
                yield "a slice of an operand"


def _cut(operand: Operand, parts: Sequence[int], source: ra.Node | None) -> ra.Node:
    if source is not None:
        return ra.repartition(source, parts)
    if not isinstance(operand.source, Input):
        raise NotSupportedError("An operand is computed; its relation has to be given")
    cuts: Cuts = equal_cuts("Scan", operand.source.schema.shape, parts)
    return ra.Scan(operand.source, cuts)


def _diagonal(relation: ra.Node, labels: tuple[str, ...]) -> ra.Node:
    """The blocks a repeated label meets itself in, under one key for each label."""
    firsts = {x: labels.index(x) for x in labels}
    for n, x in enumerate(labels):
        if firsts[x] != n:
            same = call("eq", DType.BOOLEAN, key_label(firsts[x]), key_label(n))
            relation = ra.Filter(relation, same)
    if len(firsts) == len(labels):
        return relation
    return ra.ReKey(relation, tuple(key_label(n) for n in firsts.values()))


def _kernel(node: EinSum) -> EinSum:
    """The EinSum itself over operands that are tiles."""

    def visit(e: Expr) -> Expr:
        return Value(e.operand, VALUE, e.dtype) if isinstance(e, Value) else e

    operands = []
    for n, o in enumerate(node.operands):
        keys = tuple(Key(f"d{m}", 0, k.extent) for m, k in enumerate(o.source.schema.keys))
        fields = (Field(VALUE, o.source.schema.fields[0].dtype),)
        operands.append(Operand(Input(f"x{n}", Schema(keys, fields)), o.labels))
    local = map_exprs(node, lambda e: rewrite(e, visit))
    return replace(
        local,
        axes=tuple(Axis(a.label, 0, a.extent) for a in node.axes),
        operands=tuple(operands),
        outputs=(replace(local.outputs[0], name=VALUE),),
    )


def _in_order(
    result: ra.Node, has: tuple[str, ...], wanted: tuple[str, ...], parts: Mapping[str, int]
) -> ra.Node:
    """The result with a key for each label, those of labels that only it has included."""
    if has == wanted:
        return result
    zero = Const(0, DType.BIGINT)
    keys = tuple(key_label(has.index(x)) if x in has else zero for x in wanted)
    return ra.repartition(ra.ReKey(result, keys), [parts.get(x, 1) for x in wanted])
