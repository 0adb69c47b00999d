"""Narrow states: fields of a state that are BIGINT and only compared and selected become INTEGER.

Keys are BIGINT, so a state that keeps the key of an extreme has a BIGINT field. Loops over 64-bit
integers process half as many points at a time as those over FLOAT and INTEGER.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Operand,
    Output,
    Value,
    call,
    cast,
)
from einsql.ir.einsum.graph_rewriting import hint_over
from einsql.ir.einsum.intervals import Bounds, bounds_of, fits, interval
from einsql.ir.einsum.states import State, define, has_states, state_name, state_of
from einsql.ir.functions import REDUCTIONS
from einsql.optimizer.rewrite.rules import Rule

_LEAST, _MOST = DType.INTEGER.range
_COMPARISONS = ("eq", "ne", "lt", "le")
_SELECTIONS = ("least", "greatest")


def narrow_states(node: EinSum) -> EinSum:
    """Keeps selected BIGINT values of states as INTEGER where all of them are in its range.

    A start value outside the range, such as the greatest BIGINT, becomes the end of the range. No
    other value of the field is this end, and readers restore the start value.
    """
    if node.grid or not has_states(node):
        return node
    bounds = bounds_of(node)
    outputs: list[Output] = []
    restored: list[Output] = []
    for o in node.outputs:
        narrow = None if state_name(o) is None else _narrowed(o, bounds)
        new, value = narrow or (o, Value(0, o.name, o.dtype))
        outputs.append(new)
        restored.append(Output(o.name, (value,), o.dtype))
    if tuple(outputs) == node.outputs:
        return node
    axes = tuple(replace(node.axis(k), define=None) for k in node.keys)
    hint = hint_over(node.hint, set(node.keys))
    reader = (Operand(replace(node, outputs=tuple(outputs)), node.keys),)
    return EinSum(axes, reader, TRUE, node.keys, tuple(restored), hint)


def _narrowed(o: Output, bounds: Bounds) -> tuple[Output, Expr] | None:
    """An output of a narrow state, and its value in the type of `o`; None if nothing changes."""
    state = state_of(o.reduction or "")
    place = REDUCTIONS[o.reduction or ""].place
    ends = _ends(state, o.args, bounds)
    if ends is None:
        return None
    merge = tuple(map(_Narrowing(ends).any, state.merge))
    if None in merge:
        return None
    fields = tuple(
        replace(f, dtype=DType.INTEGER, start=ends[f.name].inside) if f.name in ends else f
        for f in state.fields
    )
    law = replace(state, fields=fields, merge=tuple(e for e in merge if e is not None))
    args = tuple(cast(a, f.dtype) for a, f in zip(o.args, fields, strict=True))
    new = replace(o, args=args, reduction=define(law)[place])
    name = fields[place].name
    if name not in ends:
        return new, Value(0, o.name, o.dtype)
    new = replace(new, dtype=DType.INTEGER)
    return new, _restored(Value(0, o.name, DType.INTEGER), ends.values())


@dataclass(frozen=True, slots=True)
class _Start:
    """The start value of a field, as a BIGINT and as an INTEGER."""

    outside: int
    inside: int


def _restored(narrow: Value, starts: Iterable[_Start]) -> Expr:
    """The BIGINT value of a field, which may have the start value of any field."""
    wide: Expr = cast(narrow, DType.BIGINT)
    for start in dict.fromkeys(s for s in starts if s.outside != s.inside):
        is_start = call("eq", DType.BOOLEAN, narrow, Const(start.inside, DType.INTEGER))
        wide = call("if", DType.BIGINT, is_start, Const(start.outside, DType.BIGINT), wide)
    return wide


def _ends(state: State, args: Sequence[Expr], bounds: Bounds) -> Mapping[str, _Start] | None:
    """The start values of the BIGINT fields; None without such fields, or if one stays wide."""
    starts: dict[str, _Start] = {}
    for f, a in zip(state.fields, args, strict=True):
        if f.dtype is DType.BIGINT:
            if not fits(interval(a, bounds), _LEAST + 1, _MOST - 1):
                return None
            start = int(f.start)
            starts[f.name] = _Start(start, max(_LEAST, min(start, _MOST)))
    outside = {(s.outside, s.inside) for s in starts.values() if s.inside in (_LEAST, _MOST)}
    one_for_each = len({inside for _, inside in outside}) == len(outside)
    return starts if starts and one_for_each else None


class _Narrowing:
    """Changes expressions of MERGE to fields that are INTEGER.

    Args:
        starts: The start values of these fields.
    """

    def __init__(self, starts: Mapping[str, _Start]) -> None:
        self._starts = starts
        self._consts = {s.outside: s.inside for s in starts.values()}

    def any(self, e: Expr) -> Expr | None:
        """An expression over narrow fields; None if it does more than select and compare them."""
        return self._selected(e) if e.dtype is DType.BIGINT else self._over(e)

    def _selected(self, e: Expr) -> Expr | None:
        if isinstance(e, Value):
            return replace(e, dtype=DType.INTEGER) if e.field in self._starts else None
        if isinstance(e, Const):
            inside = self._consts.get(e.integer)
            if inside is None and _LEAST < e.integer < _MOST:
                inside = e.integer
            return None if inside is None else Const(inside, DType.INTEGER)
        if isinstance(e, Call) and e.fn in ("if", *_SELECTIONS):
            return self._called(e, DType.INTEGER)
        return None

    def _over(self, e: Expr) -> Expr | None:
        if not isinstance(e, Call):
            return e
        wide = any(a.dtype is DType.BIGINT for a in e.args)
        return None if wide and e.fn not in _COMPARISONS else self._called(e, e.dtype)

    def _called(self, e: Call, dtype: DType) -> Expr | None:
        args = [self.any(a) for a in e.args]
        if None in args:
            return None
        return Call(e.fn, tuple(a for a in args if a is not None), dtype)


NARROW_STATES = Rule(
    "narrow-states",
    "⊕ of a state that selects x = ⊕ of the state that selects CAST(x AS INTEGER), for such x",
    node=narrow_states,
)
