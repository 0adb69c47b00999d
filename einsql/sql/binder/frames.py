"""Windows with ORDER BY over a key: frames of keys, and the functions of ordered rows.

A frame is an interval of distances from the current row's key. An aggregate over it is a reduction
with the key twice: once as a key of the result, and once as a reduced label within the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Call, Expr, Label, bigint, call, operands_of
from einsql.sql.binder.aggregates import Aggregation
from einsql.sql.binder.domain import Domain
from einsql.sql.parser.positions import unsupported
from einsql.sql.parser.sql_text import kind
from einsql.sql.typing.typed_expr import Typed, choose, convert

_NUMBERING = (exp.RowNumber, exp.DenseRank)
_ENDS = (exp.FirstValue, exp.LastValue)
_SHIFTS = (exp.Lag, exp.Lead)
FUNCTIONS = (*_NUMBERING, *_ENDS, *_SHIFTS, exp.Rank)
"""Window functions that are no aggregates."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of an ordered window, by their distances from the current row's key.

    Attributes:
        label: The key that orders the rows.
        first: The least distance; None if it is unbounded.
        last: The greatest distance; None if it is unbounded.
        descends: Whether rows with greater keys precede.
        numbered: Whether a partition has one row for each key, so that rows have an order.
        dense: Whether it has one for every key, so that distances of keys are those of rows.
        only: The only key of the frame, for all rows; None if the distances decide.
    """

    label: str
    first: int | None
    last: int | None
    descends: bool
    numbered: bool
    dense: bool
    only: int | None = None

    @property
    def is_never_empty(self) -> bool:
        """Whether the frame has a row for each row: the current one, or always the same one."""
        if self.only is not None:
            return True
        return (self.first is None or self.first <= 0) and (self.last is None or self.last >= 0)

    def between(self, start: int | None, end: int | None) -> Frame:
        """Returns the frame between two distances in the order of the rows."""
        if self.descends:
            start, end = (None if x is None else -x for x in (end, start))
        return replace(self, first=start, last=end)

    def running(self, domain: Domain) -> tuple[Domain, str]:
        """Returns a domain of all pairs of a row and a row of its frame, and the row's key."""
        pairs = domain.copy()
        key = pairs.fresh(self.label, *domain.axes[self.label])
        if self.only is not None:
            pairs.require(call("eq", DType.BOOLEAN, Label(self.label), bigint(self.only)))
            return pairs, key
        if self.first is not None and self.first == self.last:
            pairs.require(call("eq", DType.BOOLEAN, Label(self.label), _moved(key, self.first)))
            return pairs, pairs.find(key)
        if self.first is not None:
            pairs.require(call("le", DType.BOOLEAN, _moved(key, self.first), Label(self.label)))
        if self.last is not None:
            pairs.require(call("le", DType.BOOLEAN, Label(self.label), _moved(key, self.last)))
        return pairs, key


def frame_of(
    node: exp.Window, bind: Callable[[exp.Expr], Typed], domain: Domain, apart: Collection[str]
) -> Frame | None:
    """Returns the frame of a window; None without ORDER BY.

    Args:
        node: The window.
        bind: Binds the expression of ORDER BY.
        domain: The domain of the rows.
        apart: The labels that separate partitions.

    Raises:
        NotSupportedError: The order is not that of a key, or the frame is not one of keys.
    """
    order, spec = node.args.get("order"), node.args.get("spec")
    if order is None:
        if spec is not None:
            raise unsupported("A window with a frame and without ORDER BY", node)
        return None
    if len(order.expressions) != 1:
        raise unsupported("A window with ORDER BY several values", node)
    (ordered,) = order.expressions
    typed = bind(ordered.this)
    moved = domain.shift(domain.canonical(typed.value)) if typed.type is DType.BIGINT else None
    if moved is None or moved[0] not in domain.free or typed.valid != TRUE:
        raise unsupported("A window with ORDER BY a value that is no key", node)
    label, sign, _ = moved
    if domain.edges_of(label):
        raise unsupported("A window over a key that a parameter bounds", node)
    numbered = set(domain.free) <= {*apart, label}
    # A part by an expression, such as i % 2, lacks keys of the other parts.
    dense = numbered and domain.total and domain.defines.keys().isdisjoint(apart)
    descends = bool(ordered.args.get("desc")) != (sign < 0)
    frame = Frame(label, None, None, descends, numbered, dense)
    if label in apart:
        _check_peers(node, frame)
        return None  # the partition
    if spec is None:
        return frame.between(None, 0)
    return _bounded(node, frame, spec)


def _check_peers(node: exp.Window, frame: Frame) -> None:
    """Requires that each row's frame is its partition, whose rows all have the same key.

    Raises:
        NotSupportedError: The window has rows, or its frame does not contain the current one.
    """
    spec = node.args.get("spec")
    by_rows = isinstance(node.this, FUNCTIONS) or (spec and spec.args.get("kind") != "RANGE")
    if by_rows or (spec and not _bounded(node, frame, spec).is_never_empty):
        raise unsupported("A window with ORDER BY a key of its partition", node)


def _bounded(node: exp.Window, frame: Frame, spec: exp.Expr) -> Frame:
    """The frame with literal bounds.

    Raises:
        NotSupportedError: Its bounds are no literals, or not those of keys.
    """
    start = _distance(node, spec.args.get("start"), spec.args.get("start_side"), "PRECEDING")
    end: int | None = 0
    if spec.args.get("end") is not None:
        end = _distance(node, spec.args["end"], spec.args.get("end_side"), "FOLLOWING")
    by_rows = spec.args.get("kind") == "ROWS"
    bounded = any(x not in (None, 0) for x in (start, end))
    fits = (frame.dense if bounded else frame.numbered) if by_rows else True
    if spec.args.get("kind") not in ("ROWS", "RANGE") or spec.args.get("exclude") or not fits:
        raise unsupported("This frame of a window", node)
    return frame.between(start, end)


def bind_function(
    function: exp.Expr, frame: Frame, bind: Callable[[exp.Expr], Typed], domain: Domain
) -> tuple[Frame, Callable[[Aggregation], Typed]]:
    """Returns the frame of a function of `FUNCTIONS`, and what binds it as an aggregate.

    Args:
        function: The call.
        frame: The frame of its window.
        bind: Binds an argument.
        domain: The domain of the rows.

    Raises:
        NotSupportedError: Rows have no order, an argument may be NULL, or a distance is no literal.
    """
    if isinstance(function, exp.Rank):
        before = frame.between(None, -1)
        return before, lambda aggregation: _next(aggregation.bind("count", [], TRUE))
    if not frame.numbered:
        raise unsupported(f"{kind(function)} of rows that the key does not number", function)
    if isinstance(function, _NUMBERING):
        return frame.between(None, 0), lambda aggregation: aggregation.bind("count", [], TRUE)
    typed = bind(function.this)
    if isinstance(function, _ENDS):
        if typed.valid != TRUE:
            raise unsupported(f"{kind(function)} of a value that may be NULL", function)
        is_least = isinstance(function, exp.FirstValue) != frame.descends
        single = _end(frame, domain, is_least)
        if single is not None:
            return single, lambda aggregation: aggregation.bind("max", [typed], TRUE)
        name, key = "arg_min" if is_least else "arg_max", Typed(Label(frame.label), DType.BIGINT)
        return frame, lambda aggregation: aggregation.bind(name, [typed, key], TRUE)
    return _shifted(function, frame, typed, bind)


def _end(frame: Frame, domain: Domain, is_least: bool) -> Frame | None:
    """The frame of the row with the least or the greatest key, if its distance or key is known.

    None for a frame that may be empty: the value of this row would be one of no row.
    """
    if not frame.is_never_empty:
        return None
    distance = frame.first if is_least else frame.last
    if distance == 0:
        return replace(frame, first=0, last=0)
    if distance is not None or not frame.dense:
        return None
    lo, hi = domain.axes[frame.label]
    return replace(frame, only=lo if is_least else hi - 1)


def _shifted(
    function: exp.Expr, frame: Frame, typed: Typed, bind: Callable[[exp.Expr], Typed]
) -> tuple[Frame, Callable[[Aggregation], Typed]]:
    """LAG and LEAD: the only value of a frame of one row, which may lack."""
    offset, default = function.args.get("offset"), function.args.get("default")
    rows = 1 if offset is None else _integer(offset)
    if rows is None or not frame.dense:
        raise unsupported(f"{kind(function)} of rows at a distance that is no key's", function)
    otherwise = None if default is None else convert(bind(default), typed.type)
    if otherwise is not None and (operands_of(otherwise.value) or operands_of(otherwise.valid)):
        raise unsupported(f"{kind(function)} with a default that reads a column", function)
    if otherwise is not None and typed.valid != TRUE:
        raise unsupported(f"{kind(function)} with a default of a value that may be NULL", function)
    rows = -rows if isinstance(function, exp.Lag) else rows

    def bound(aggregation: Aggregation) -> Typed:
        only = aggregation.bind("max", [typed], TRUE)
        return only if otherwise is None else choose(only.valid, only, otherwise, only.type)

    return frame.between(rows, rows), bound


def _next(count: Typed) -> Typed:
    return Typed(call("add", DType.BIGINT, count.value, bigint(1)), DType.BIGINT, count.valid)


def _moved(key: str, distance: int) -> Expr:
    if distance == 0:
        return Label(key)
    return Call("add", (Label(key), bigint(distance)), DType.BIGINT)


def _distance(node: exp.Window, bound: object, side: object, outer: str) -> int | None:
    """The distance of a bound of a frame in rows; None if it is unbounded."""
    if bound == "CURRENT ROW":
        return 0
    if bound == "UNBOUNDED" and side == outer:
        return None
    distance = _integer(bound) if isinstance(bound, exp.Expr) else None
    if distance is None or distance < 0:
        raise unsupported("This frame of a window", node)
    return -distance if side == "PRECEDING" else distance


def _integer(node: exp.Expr) -> int | None:
    """The value of an integer literal, with or without a sign."""
    sign = -1 if isinstance(node, exp.Neg) else 1
    number = node.this if isinstance(node, exp.Neg) else node
    plain = isinstance(number, exp.Literal) and not number.is_string and number.name.isdigit()
    return sign * int(number.name) if plain else None
