"""The order of a generated kernel's loops, and the placement of its running values."""

from __future__ import annotations

import enum
from dataclasses import replace
from math import prod

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    exprs,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.states import has_order, has_states, point_merges, state_name
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.kernels.scalars import bounds_of, calls_of, derived_axes, fails, labels_read

LONGEST = 2**27
"""Greatest work of one uninterruptible kernel call, in cheap operations."""
STRIP = 4096
"""Greatest row of running values, in elements, so that it fits the L1 cache."""
WIDE = 2048
"""Keys of a result from which threads share it; below, each thread has its own running values."""
LONG = 4096
"""Work per key, in cheap operations, from which the merge of running values is negligible."""
LONG_ROW, BEYOND_CACHE = 2**11, 2**19
"""Least points of the innermost loop and of all loops for which memory is requested ahead."""
LANES = 32
"""Running states of a long innermost loop over a reduced label, which are merged after it."""
LEAST_PIECE = 24
"""Average points of a piece of the innermost loop from which one division per piece pays."""
_LIBRARY_CALL = 12  # a cosine against an addition
_POLYNOMIAL = 6  # an exponential that vectorises
_POLYNOMIALS = frozenset({"exp", "ln", "log2", "tanh", "erf", "sigmoid"})
_OF_SINGLES = frozenset({"sin", "cos", "log10", "pow"})
"""Functions that are vectorised polynomials only for FLOAT."""
POWERS = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 4.0: "({0} * {0}) * ({0} * {0})"}
"""The products that replace powers, by exponent."""


class Mode(enum.Enum):
    """The placement of running values during a reduction."""

    REGISTERS = "registers"
    ROW = "row"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over the free labels, outermost first.

    Attributes:
        loops: The free labels.
        kept: The number of leading loops over keys of the result; in a ROW the innermost
            loop is another one.
        mode: The placement: one key's running values in REGISTERS, the innermost key's in a
            ROW, or every key's in MEMORY.
        carry: Whether the running values of REGISTERS are loaded and stored, so that a reduction
            can be cut into several calls.
        scatters: Whether the keys of a point are computed, so that neighbours have any keys.
        reads_ahead: Whether the innermost loop requests memory before it reads it.
        lanes: The number of running states in the innermost loop; 1 unless it is long and reduced.
    """

    loops: tuple[str, ...]
    kept: int
    mode: Mode
    carry: bool
    scatters: bool = False
    reads_ahead: bool = False
    lanes: int = 1

    @property
    def keeps_state(self) -> bool:
        """True if running values outlive a call."""
        return self.carry or self.mode is Mode.MEMORY


def free_labels(node: EinSum) -> dict[str, frozenset[str]]:
    """The free labels that decide each label."""
    decided = {a.label: frozenset((a.label,)) for a in node.axes if a.define is None}
    for axis, define in derived_axes(node):
        decided[axis.label] = frozenset().union(*(decided[x] for x in labels_read(node, define)))
    return decided


def expensive(expr: Expr) -> bool:
    """True if an expression calls into the mathematical library, which does not vectorise."""
    return any(map(_is_library_call, subexpressions(expr)))


def weight(node: EinSum) -> int:
    """Approximate work per point, in cheap operations."""
    return 1 + sum(map(_cost, calls_of(*exprs(node), *point_merges(node))))


def _cost(e: Call) -> int:
    if _is_polynomial(e):
        return _POLYNOMIAL
    return _LIBRARY_CALL if _is_library_call(e) else 1


def product(e: Call) -> str | None:
    """Template of a power with a small integer exponent over its base; None for other calls."""
    if e.fn != "pow" or not isinstance(e.args[1], Const):
        return None
    return POWERS.get(float(e.args[1].value))


def by_constant(e: Expr) -> Const | None:
    """The divisor of an integer quotient or remainder if it is a constant above 1, else None."""
    if not isinstance(e, Call) or e.fn not in ("idiv", "mod") or not e.dtype.is_integer:
        return None
    by = e.args[1]
    return by if isinstance(by, Const) and by.value > 1 else None


def plan_nest(node: EinSum, alone: bool = False) -> Nest:
    """Chooses loop order and mode from the node's structure and extents.

    Args:
        node: Any node.
        alone: Whether all threads are to run it, and may keep state for that.
    """
    nest = _ordered(node, alone)
    extent = node.axis(nest.loops[-1]).extent if nest.loops else 0
    chained = nest.mode is Mode.REGISTERS and len(nest.loops) > nest.kept
    if chained and extent >= 4 * LANES and has_states(node):
        return replace(nest, lanes=LANES)
    long = extent >= LONG_ROW
    waits = node.points >= BEYOND_CACHE and not any(map(expensive, exprs(node)))
    return replace(nest, reads_ahead=True) if long and waits else nest


def _ordered(node: EinSum, alone: bool) -> Nest:
    decided = free_labels(node)
    extent = {a.label: a.extent for a in node.axes}
    kept = [k for k in node.keys if decided[k] == {k}]
    kept = [k for k in kept if node.axis(k).define is None]
    gone = [a.label for a in node.axes if a.define is None and a.label not in kept]
    if not kept and not gone:
        return Nest(loops=(), kept=0, mode=Mode.REGISTERS, carry=False)

    last = gone[-1:] if has_order(node) else [*reversed(gone)]
    inner = min([*reversed(kept), *last], key=lambda x: _cost_inside(node, x, decided))
    reduced_work = prod(extent[x] for x in gone) * weight(node)
    if gone and _scatters(node, decided, set(kept)):
        loops = [x for x in (*kept, *gone) if x != inner] + [inner]
        return Nest(loops=tuple(loops), kept=0, mode=Mode.MEMORY, carry=False, scatters=True)
    outer = [x for x in kept if x != inner]
    if not gone or (node.is_elementwise and inner in kept):  # a label that is no key has one value
        levels = len(outer) if gone else len(kept)
        return Nest(loops=(*outer, *gone, inner), kept=levels, mode=Mode.REGISTERS, carry=False)
    if gone and inner in kept:
        derived_key = any(node.axis(k).define is not None for k in node.keys)
        small = reduced_work * min(STRIP, extent[inner]) <= LONGEST
        width = prod(extent[x] for x in kept)  # few keys make few pieces for threads
        few = alone and width < WIDE and reduced_work > LONG and not _pairs(node)
        mode = Mode.ROW if small and not derived_key and not few else Mode.MEMORY
        levels = len(outer) if mode is Mode.ROW else 0
        return Nest(
            loops=(*outer, *gone, inner), kept=levels, mode=mode, carry=False, scatters=derived_key
        )
    loops = [*kept, *(x for x in gone if x != inner), inner]
    carry = not kept or reduced_work > LONGEST
    return Nest(loops=tuple(loops), kept=len(kept), mode=Mode.REGISTERS, carry=carry)


def _pairs(node: EinSum) -> bool:
    """True if a running value is an argument with its value: in memory, that needs branches."""
    return any(o.reduction and REDUCTIONS[o.reduction].better is not None for o in node.outputs)


def _is_library_call(e: Expr) -> bool:
    if not isinstance(e, Call) or e.fn == "cast" or SCALARS[e.fn].cheap:
        return False
    return not _is_polynomial(e) and product(e) is None


def _is_polynomial(e: Call) -> bool:
    return e.fn in _POLYNOMIALS or (e.fn in _OF_SINGLES and e.dtype is DType.FLOAT)


def _scatters(node: EinSum, decided: dict[str, frozenset[str]], kept: set[str]) -> bool:
    """True if one key of the result is met again after others, or known only inside."""
    derived = [k for k in node.keys if node.axis(k).define is not None]
    if any(not decided[k] <= kept for k in derived):
        return True
    conditions = [node.guard, *(a.define for a in node.axes if a.define is not None)]
    return bool(derived) and any(fails(c, bounds_of(node)) for c in conditions)


def _cost_inside(node: EinSum, label: str, decided: dict[str, frozenset[str]]) -> float:
    """Cost of a point if the label's loop is the innermost, in memory accesses."""
    cost = 0.0 if node.axis(label).extent >= 8 else 6.0
    used = {n for e in exprs(node) for n in operands_of(e)}
    for n in used:
        labels = node.operands[n].labels
        turning = [x for x in labels if label in decided[x]]
        if turning:
            unit = len(turning) == 1 and labels[-1] == turning[0]
            cost += 1 if unit and _steps(node, turning[0], label) else 6
    if label in node.keys:
        last = label == node.keys[-1]
        cost += sum(1 if last else 3 if o.reduction else 6 for o in node.outputs)
    else:
        states = {x for x in map(state_name, node.outputs) if x is not None}
        others = (o for o in node.outputs if state_name(o) is None)
        cost += sum(_chain(o.reduction, o.dtype.is_float) for o in others)
        cost += len(states) * (1 if node.axis(label).extent >= 4 * LANES else 3)
    free = {x for s in decided.values() for x in s}
    for e in (e for e in calls_of(*exprs(node)) if _cost(e) > 1):
        read = {f for x in labels_read(node, e) for f in decided[x]}
        if label in read and read != free:
            cost += _cost(e)
    return cost


def _chain(reduction: str | None, is_float: bool) -> int:
    """Latency of a running value that is updated at every point."""
    if reduction is None:
        return 0
    if REDUCTIONS[reduction].better is not None:
        return 3
    return 1 if is_float and REDUCTIONS[reduction].idempotent else 0


def _steps(node: EinSum, index: str, label: str) -> bool:
    """True if an index grows by one with the label."""
    define = node.axis(index).define
    return index == label or (define is not None and _unit(node, define, label))


def _unit(node: EinSum, e: Expr, label: str) -> bool:
    if isinstance(e, Label):
        return _steps(node, e.name, label)
    if not isinstance(e, Call):
        return False
    by = by_constant(e)
    if by is not None:  # a remainder does in long pieces
        return e.fn == "mod" and by.value >= LEAST_PIECE and _unit(node, e.args[0], label)
    if e.fn not in ("add", "sub"):
        return False
    first, second = e.args
    if label not in labels_read(node, second):
        return _unit(node, first, label)
    return e.fn == "add" and label not in labels_read(node, first) and _unit(node, second, label)
