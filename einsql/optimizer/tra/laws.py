"""Laws of kernels: composition into one kernel, and moves past an operation."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Expr, Operand, Value, labels_of
from einsql.ir.einsum.graph_rewriting import map_exprs, relabel, substitute
from einsql.ir.ia.plan import Kernels
from einsql.ir.tra.kernels import VALUE, operand
from einsql.optimizer.rewrite.inline_producers import compose
from einsql.optimizer.rewrite.node_properties import fresh_names, is_pointwise


def chained(first: Kernels, then: Kernels) -> Kernels:
    """The concatenation of two chains, with neighbours fused if that adds no work."""
    done = list(first)
    for kernel in then:
        one = fused(done[-1], kernel) if done else None
        done[-1:] = [one] if one is not None else [*done[-1:], kernel]
    return tuple(done)


@lru_cache(maxsize=1024)  # equal rewrites return one kernel, which is compiled once
def fused(inner: EinSum, outer: EinSum) -> EinSum | None:
    """`outer` after `inner` as one kernel, or None if that is impossible or more work.

    An outer view (a diagonal, a transpose) selects among inner's keys; any outer kernel
    can read through an inner one that reduces nothing. An outer broadcast would compute
    the inner kernel many times.
    """
    (operand,) = outer.operands
    if {a.label for a in outer.axes} != set(operand.labels) or not is_plain(outer):
        return None
    if is_view(outer) and is_plain(inner):
        return _selected(inner, operand.labels, outer.keys)
    if not (is_plain(inner) and is_pointwise(inner)):
        return None
    over = replace(outer, operands=(Operand(inner, operand.labels),))
    composed = compose(over, 0)
    kept = composed is not None and [o.source for o in composed.operands] == [
        o.source for o in inner.operands
    ]
    return composed if kept else None


def _selected(inner: EinSum, labels: tuple[str, ...], keys: tuple[str, ...]) -> EinSum:
    """The kernel with its keys renamed, possibly to equal labels, and reordered."""
    names = dict(zip(inner.keys, labels, strict=True))
    names |= fresh_names((a.label for a in inner.axes if a.label not in names), labels)
    axes: dict[str, Axis] = {}
    for a in inner.axes:
        axes.setdefault(names[a.label], replace(a, label=names[a.label]))
    operands = (Operand(o.source, tuple(names[x] for x in o.labels)) for o in inner.operands)
    over = map_exprs(inner, partial(relabel, names=names))
    return replace(over, axes=tuple(axes.values()), operands=tuple(operands), keys=keys)


def is_plain(kernel: EinSum) -> bool:
    """True if the kernel has one output and neither conditions nor derived labels."""
    return (
        kernel.guard == TRUE
        and all(a.define is None for a in kernel.axes)
        and len(kernel.outputs) == 1
        and kernel.outputs[0].where == TRUE
    )


def is_view(kernel: EinSum) -> bool:
    """True if a kernel of one array only selects and orders its elements."""
    (output,) = kernel.outputs
    return (
        is_plain(kernel)
        and len(kernel.operands) == 1
        and output.reduction is None
        and isinstance(output.args[0], Value)
    )


def before(kernel: EinSum, view: EinSum) -> EinSum | None:
    """The kernel g' with view(g(x, y)) = g'(view(x), view(y)), or None if none exists.

    It exists for kernels that combine elements at equal positions of arrays of one shape.
    """
    (output,) = kernel.outputs
    alike = all(o.labels == kernel.keys for o in kernel.operands)
    if not (is_plain(kernel) and is_view(view) and alike and output.reduction is None):
        return None
    if labels_of(output.args[0]):
        return None
    labels = tuple(f".{n}" for n in range(len(view.keys)))
    return EinSum(
        tuple(Axis(x, 0, 1) for x in labels),
        tuple(
            operand(n, labels, o.source.schema.dtype(VALUE)) for n, o in enumerate(kernel.operands)
        ),
        TRUE,
        labels,
        kernel.outputs,
    )


def substituted(expr: Expr, keys: tuple[Expr, ...] | None) -> Expr:
    """A function of new keys as a function of the old keys; `keys` has each new key."""
    if keys is None:
        return expr
    return substitute(expr, {f"k{n}": e for n, e in enumerate(keys)})
