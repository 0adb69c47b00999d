"""Folds reductions: constant results, proven flags, labels without effect."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import islice
from itertools import product as cartesian
from math import prod

import numpy as np

from einsql.core.schema import PRESENT, DType, is_flag
from einsql.core.unknowns import computed
from einsql.ir.einsum.affine import Affine, affine_labels, digits
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    Axis,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Roots,
    Scalar,
    Value,
    bigint,
    conj,
    exprs,
    labels_of,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import hint_over, map_values, relabel, renumber, substitute
from einsql.ir.einsum.intervals import bounds_of, can_raise, fits, interval
from einsql.ir.einsum.partial_states import is_holistic
from einsql.ir.einsum.simplification import simplify
from einsql.ir.functions import REDUCTIONS
from einsql.ir.functions.casts import cast_array
from einsql.optimizer.rewrite.node_properties import (
    change_exprs,
    derived_are_total,
    is_cheap,
    is_pointwise,
    is_total,
    unguarded,
    used_labels,
)
from einsql.optimizer.rewrite.rules import NodeRewrite, Rule

_WITNESSES = 64
"""The maximum of witnesses tried for a group: all ends of three labels, and three keys."""


_EXACT = {DType.FLOAT: 2**24, DType.DOUBLE: 2**53}
"""The greatest integer up to which sums of integers are exact in each order, by type."""


def constant(node: EinSum, output: Output) -> Const | None:
    """The constant that an output provably equals at every key, or None."""
    if output.reduction is None:
        (arg,) = output.args
        return arg if isinstance(arg, Const) and arg.dtype is output.dtype else None
    reduction = REDUCTIONS[output.reduction]
    selects = FALSE in (node.guard, output.where)
    reduced = [node.axis(label) for label in node.reduced]
    if selects or any(a.extent == 0 for a in reduced):
        return _const(reduction.identity(output.dtype), output.dtype)
    arg = output.args[0]
    if reduction.better is not None or not isinstance(arg, Const):
        return None
    if reduction.idempotent:
        return _cast(arg, output.dtype) if _group_exists(node, output.where) else None
    if any(node.axis(k).define is not None for k in node.keys):
        return None
    points = prod(a.extent for a in reduced if a.define is None)
    dense = is_total(node) and output.where == TRUE
    if not dense or reduction.monoid != "add":
        return None
    if output.dtype.is_integer and arg.dtype.is_integer:
        total = arg.integer * points
        return _const(total, output.dtype) if fits((total, total), *output.dtype.range) else None
    most = _EXACT.get(output.dtype)
    if most is None or arg.dtype is not output.dtype or not computed(_is_whole, arg.value):
        return None
    total = computed(int, arg.value) * points
    return _const(total, output.dtype) if abs(total) <= most else None


def _is_whole(value: Scalar) -> bool:
    return float(value).is_integer()


def _carried(dtype: DType, value: object) -> Scalar:
    carried: Scalar = np.asarray(value, dtype.carrier).item()
    return carried


def _const(value: object, dtype: DType) -> Const:
    return Const(computed(partial(_carried, dtype), value), dtype)


def _cast(arg: Const, dtype: DType) -> Const:
    def cast(value: Scalar) -> Scalar:
        number: Scalar = cast_array(np.asarray(value, arg.dtype.carrier), dtype).item()
        return number

    return Const(computed(cast, arg.value), dtype)


def _group_exists(node: EinSum, where: Expr) -> bool:
    """True if every result key has a point at which the guard and `where` are true.

    The proof is a witness: reduced labels set to an end of their range or to a key.
    """
    condition = conj(node.guard, where)
    computed = any(node.axis(k).define is not None for k in node.keys)
    settled = set() if derived_are_total(node) and not computed else _settled(node)
    read = labels_of(condition)
    if settled is None or settled & read:
        return False
    bounds = bounds_of(node)
    free = [label for label in node.reduced if node.axis(label).define is None]
    keyed = any(node.operands[n].labels for n in operands_of(condition))
    if keyed or not read <= {*free, *node.keys}:
        return condition == TRUE
    chosen = [label for label in free if label in read]
    if len(chosen) > 3:
        return False
    choices: list[list[Expr]] = []
    for label in chosen:
        lo, hi = bounds[label]
        inside = [Label(k) for k in node.keys if lo <= bounds[k][0] and bounds[k][1] <= hi]
        choices.append([bigint(lo), bigint(hi - 1), *inside])
    witnesses = (dict(zip(chosen, w, strict=True)) for w in cartesian(*choices))
    return any(
        simplify(substitute(condition, witness), bounds) == TRUE
        for witness in islice(witnesses, _WITNESSES)
    )


def _settled(node: EinSum) -> set[str] | None:
    """Free reduced labels that can take values at which every derived label exists.

    Returns:
        The labels whose values this determines, for every result key; None if there may be
        keys without such values.
    """
    axes, bounds = {a.label: a for a in node.axes}, bounds_of(node)
    values = affine_labels(node)
    settled: set[str] = set()
    for a in node.axes:
        is_key = a.label in node.keys
        if a.define is None or (not is_key and fits(interval(a.define, bounds), a.lo, a.hi - 1)):
            continue
        value = values.get(a.label)
        if value is None or can_raise(a.define, bounds) or a.extent == 0:
            return None
        mine = {x for x in value.steps if x not in node.keys}
        if not mine or mine & settled or any(axes[x].extent == 0 for x in value.steps):
            return None
        if is_key and mine != value.steps.keys():
            return None  # another key restricts its values
        if not (_counts(a, value, axes) if is_key else _meets(a, value, axes, mine)):
            return None
        settled |= mine
    return settled


def _counts(key: Axis, value: Affine, axes: Mapping[str, Axis]) -> bool:
    """True if reduced labels are the digits of a key, so that it takes all its values."""
    within = value.least(axes) <= key.lo and key.hi - 1 <= value.most(axes)
    return within and digits(value, axes) is not None


def _meets(axis: Axis, value: Affine, axes: Mapping[str, Axis], chosen: AbstractSet[str]) -> bool:
    """True if at every key some values of the chosen labels put the axis within its bounds."""
    moved = Affine({x: s for x, s in value.steps.items() if x in chosen}, 0)
    rest = Affine({x: s for x, s in value.steps.items() if x not in chosen}, value.offset)
    return (
        max(map(abs, moved.steps.values())) <= axis.extent  # no step exceeds the bounds
        and moved.least(axes) + rest.most(axes) < axis.hi
        and moved.most(axes) + rest.least(axes) >= axis.lo
    )


def read_known(node: EinSum) -> EinSum:
    """Replaces operand fields that are constants, conditions on keys alone, or other fields."""
    known: dict[tuple[int, str], Expr] = {}
    operands = list(node.operands)
    read = {
        (e.operand, e.field) for x in exprs(node) for e in subexpressions(x) if isinstance(e, Value)
    }
    for n, operand in enumerate(node.operands):
        source = operand.source
        if isinstance(source, EinSum):
            for o in source.outputs:
                if (n, o.name) not in read:
                    continue
                expr = (
                    constant(source, o)
                    or _condition(source, o, operand.labels, operands)
                    or _repeated(source, o, operand.labels, operands)
                )
                if expr is not None:
                    known[n, o.name] = expr
    if not known:
        return node
    if len(operands) > len(node.operands):
        node = replace(node, operands=tuple(operands))
    replaced = partial(map_values, change=lambda v: known.get((v.operand, v.field), v))
    return change_exprs(node, replaced)


def _condition(
    source: EinSum, o: Output, labels: tuple[str, ...], operands: list[Operand]
) -> Expr | None:
    """A flag as a condition on the reader's labels, if its only data are scalars.

    Args:
        source: The node of the flag.
        o: The flag.
        labels: The labels with which the reader reads the node.
        operands: The reader's operands; scalars are added.
    """
    if not is_flag(o.name) or not derived_are_total(source):
        return None
    if o.reduction is not None and REDUCTIONS[o.reduction].monoid != "or":
        return None
    condition = o.args[0]
    if o.reduction is not None or o.name == PRESENT:
        condition = conj(source.guard, o.where, condition)
    scalars = {n: source.operands[n] for n in operands_of(condition)}
    if any(s.labels for s in scalars.values()) or not is_cheap(condition):
        return None
    reduced = [source.axis(x) for x in source.reduced]
    if any(a.extent == 0 or a.label in labels_of(condition) for a in reduced):
        return None
    for scalar in scalars.values():
        if scalar not in operands:
            operands.append(scalar)
    condition = renumber(condition, {n: operands.index(scalar) for n, scalar in scalars.items()})
    return relabel(condition, dict(zip(source.keys, labels, strict=True)))


def _repeated(
    source: EinSum, o: Output, labels: tuple[str, ...], operands: list[Operand]
) -> Expr | None:
    """The value that an idempotent reduction repeats: it has no summed label.

    A product of the same node then need not compute the reduction at each of its points.

    Args:
        source: The node of the reduction.
        o: The reduction.
        labels: The labels with which the reader reads the node.
        operands: The reader's operands; the value's operand is added.
    """
    if o.reduction is None or len(o.args) != 1 or not source.reduced:
        return None
    value, reduction = o.args[0], REDUCTIONS[o.reduction]
    if not (isinstance(value, Value) and value.dtype is o.dtype and reduction.idempotent):
        return None
    read, label = source.operands[value.operand], dict(zip(source.keys, labels, strict=True))
    if not set(read.labels) <= label.keys() or not _group_exists(source, o.where):
        return None
    operand = Operand(read.source, tuple(label[x] for x in read.labels))
    if operand not in operands:
        operands.append(operand)
    return replace(value, operand=operands.index(operand))


def drop_unseen(node: EinSum) -> EinSum:
    """Drops conditions on keys and scalars from an element-wise node without flags.

    Its readers do not read the excluded keys, so their values may be arbitrary.
    """
    has_flags = any(is_flag(o.name) for o in node.outputs)
    return node if has_flags or not node.is_elementwise else unguarded(node)


def drop_repeats(node: EinSum) -> EinSum:
    """Drops unread free reduced labels if repetition does not change the reduction."""
    idle = set(node.reduced) - used_labels(node)
    gone = {a.label for a in node.axes if a.label in idle and a.define is None and a.extent > 0}
    if not gone:
        return node
    if any(o.reduction is None or not REDUCTIONS[o.reduction].idempotent for o in node.outputs):
        return node
    kept = tuple(a for a in node.axes if a.label not in gone)
    return replace(node, axes=kept, hint=hint_over(node.hint, {a.label for a in kept}))


def settle_single_points(node: EinSum) -> EinSum:
    """Drops reductions over a single point per key: ⊕{x} = x."""
    if not (is_pointwise(node) and is_total(node)):
        return node
    outputs = tuple(_single(o) for o in node.outputs)
    same = all(a is b for a, b in zip(outputs, node.outputs, strict=True))
    return node if same else replace(node, outputs=outputs)


def _single(o: Output) -> Output:
    if o.reduction is None or len(o.args) != 1 or is_holistic(o):
        return o
    (arg,) = o.args
    if o.dtype is DType.BOOLEAN and REDUCTIONS[o.reduction].monoid == "or":
        return Output(o.name, (conj(o.where, arg),), o.dtype)
    # 0 + (-0.0) is 0.0, so a sum of one float may differ from that float.
    exact = REDUCTIONS[o.reduction].idempotent or not o.dtype.is_float
    return (
        Output(o.name, (arg,), o.dtype) if exact and o.where == TRUE and arg.dtype is o.dtype else o
    )


def settle_constants(node: EinSum) -> EinSum:
    """Turns a node of constant outputs into an element-wise node over its keys."""
    if any(node.axis(k).define is not None for k in node.keys) or not node.reduced:
        return node
    constants = [constant(node, o) for o in node.outputs]
    outputs = tuple(
        Output(o.name, (c,), o.dtype)
        for o, c in zip(node.outputs, constants, strict=True)
        if c is not None
    )
    if len(outputs) < len(node.outputs):
        return node
    axes = tuple(node.axis(k) for k in node.keys)
    return EinSum(axes, (), TRUE, node.keys, outputs, hint_over(node.hint, node.keys))


_STEPS: tuple[NodeRewrite, ...] = (
    read_known,
    drop_unseen,
    drop_repeats,
    settle_single_points,
    settle_constants,
)


def fold_reductions(node: EinSum) -> EinSum:
    """Applies the laws of this module to a node."""
    for step in _STEPS:
        node = step(node)
    return node


def drop_proven_flags(roots: Roots) -> tuple[Roots, int]:
    """Drops the roots' flags proven TRUE, because an absent flag means TRUE."""
    new = tuple(map(_without_proven, roots))
    fired = sum(a is not b for a, b in zip(new, roots, strict=True))
    return (new if fired else roots), fired


def _without_proven(root: Node) -> Node:
    if not isinstance(root, EinSum):
        return root
    kept = tuple(o for o in root.outputs if not (is_flag(o.name) and constant(root, o) == TRUE))
    if not kept or len(kept) == len(root.outputs):
        return root
    return replace(root, outputs=kept)


FOLD_REDUCTIONS = Rule(
    "fold-reductions",
    "Σ_{i<n} c = n·c for integers;  ⊕_{i<n} x = x for idempotent ⊕, n > 0, also for its readers;  "
    "⊕{x} = x;  a flag that is TRUE everywhere, or known from the key, is no data",
    node=fold_reductions,
    graph=drop_proven_flags,
    drops_flags=True,
)
