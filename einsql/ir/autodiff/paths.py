"""The fields on which a loss depends, and the fields that depend on a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import Call, EinSum, Expr, Node, Output, Value
from einsql.ir.functions import REDUCTIONS, SCALARS


def shown(reduction: str | None) -> str:
    """The name of a reduction in messages, without the digest of a user's law."""
    return (reduction or "").partition("@")[0].upper()


def refuse_choices(nodes: Sequence[Node], loss: Node, field: str, source: Node) -> None:
    """Rejects a loss that depends on a source through ARG_MIN, ARG_MAX or a user's state.

    Args:
        nodes: The graph of the loss, producers first.
        loss: The node of the loss.
        field: The field of the loss.
        source: The node by which the loss is differentiated.

    Raises:
        ProgrammingError: The loss depends on the source through ARG_MIN, ARG_MAX, or a state.
    """
    choices = [
        (n, o)
        for n in nodes
        if isinstance(n, EinSum)
        for o in n.outputs
        if o.reduction is not None and REDUCTIONS[o.reduction].reads_several
    ]
    if not choices:
        return
    moved = {(id(source), f.name) for f in source.schema.fields}
    for node in nodes:
        if isinstance(node, EinSum) and node is not source:
            moved.update(
                (id(node), o.name)
                for o in node.outputs
                if any(
                    (id(node.operands[v.operand].source), v.field) in moved for v in _read(node, o)
                )
            )
    wanted = {(id(loss), field)}
    for node in reversed(nodes):
        if isinstance(node, EinSum) and node is not source:
            for o in node.outputs:
                if (id(node), o.name) in wanted:
                    wanted.update(
                        (id(node.operands[v.operand].source), v.field) for v in _read(node, o)
                    )
    for node, o in choices:
        if (id(node), o.name) in moved & wanted and node is not source:
            reason = REDUCTIONS[o.reduction or ""].derivative
            raise ProgrammingError(
                f"There is no gradient through {shown(o.reduction)}: {reason}",
                hint="STOP_GRADIENT(…) around its result makes the result a constant.",
            )


def _read(node: EinSum, output: Output) -> Iterator[Value]:
    """The values on which an output depends, except values under STOP_GRADIENT."""
    stack: list[Expr] = [*output.args, output.where, node.guard]
    stack += [a.define for a in node.axes if a.define is not None]
    seen: set[int] = set()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if isinstance(e, Value):
            yield e
        elif isinstance(e, Call) and not (e.fn != "cast" and SCALARS[e.fn].transparent):
            stack.extend(e.args)
