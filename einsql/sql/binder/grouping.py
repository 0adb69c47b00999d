"""GROUP BY and PARTITION BY: their expressions as labels, and the order of rows in a group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import Error, ProgrammingError
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Label, Output, labels_of
from einsql.sql.binder.context import ColumnsOnly
from einsql.sql.binder.dependent_values import SharedValues
from einsql.sql.binder.domain import Domain, affine
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.macros.sharing import SharedArgument
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parser.positions import unsupported
from einsql.sql.scope.scope import Scope
from einsql.sql.typing.casts import Decimal
from einsql.sql.typing.typed_expr import Typed, convert

if TYPE_CHECKING:
    from einsql.sql.parser import column_names
else:  # loaded for columns without a name
    column_names = LazyModule("einsql.sql.parser.column_names")

Probe = Callable[[EinSum], tuple[int, int]]
"""Computes the bounds `[lo, hi)` of an expression from the data."""


def check_group(group: exp.Group) -> None:
    """Refuses GROUPING SETS, CUBE, ROLLUP and TOTALS.

    Raises:
        NotSupportedError: The GROUP BY has such a clause; the message names it.
    """
    for arg in ("grouping_sets", "cube", "rollup", "totals"):
        if group.args.get(arg):
            raise unsupported(arg.replace("_", " ").upper(), group)


def key_label(
    domain: Domain, bound: Typed, node: exp.Expr, clause: str, probe: Probe, fixed: set[str]
) -> str | None:
    """The label whose values are those of a key expression; None for a constant.

    Args:
        domain: The domain of the expression; a missing label is added to it.
        bound: The bound expression.
        node: The expression's syntax.
        clause: The clause for messages, GROUP BY or PARTITION BY.
        probe: Function that computes bounds that cannot be proven.
        fixed: The labels that must stay free.

    Raises:
        NotSupportedError: The expression is not an integer, may be NULL, or may be BIGINT's
            greatest value, for which a key has no exclusive upper bound.
    """
    bound = replace(bound, value=domain.parameters.constants(bound.value))
    value = domain.canonical(bound.value)
    exact = isinstance(bound.type, DType) and not bound.type.is_float
    if isinstance(value, Const) and bound.valid == TRUE and not isinstance(bound.type, Decimal):
        return None
    if bound.valid != TRUE:
        raise unsupported(f"{clause} of a value that may be NULL", node)
    if not exact:
        name = "NULL" if bound.type is None else bound.type.value
        raise unsupported(f"{clause} of a {name}", node, "Take an integer expression.")
    if isinstance(value, Label):
        return value.name
    wide = convert(bound, DType.BIGINT).value
    shift = affine(domain.canonical(wide))
    if shift is not None and shift[0] in domain.free and shift[0] not in fixed | domain.outer:
        return domain.rekey(*shift, hint=column_names.column_name(node))
    lo, hi = _bounds(domain, wide, probe)
    _check_bounds(lo, hi, node, clause)
    return domain.derive(column_names.column_name(node), wide, lo, hi)


def _check_bounds(lo: int, hi: int, node: exp.Expr, clause: str) -> None:
    """Refuses keys whose bounds `[lo, hi)` exceed BIGINT.

    Raises:
        NotSupportedError: A bound exceeds BIGINT; DuckDB's groups have no bounds.
    """
    least, most = DType.BIGINT.range
    if lo < hi and (lo < least or hi > most):
        raise unsupported(f"{clause} of values up to {hi - 1}", node)


def _bounds(domain: Domain, value: Expr, probe: Probe) -> tuple[int, int]:
    """The bounds `[lo, hi)` of an integer expression: proven, or computed from the data."""
    domain.refuse_edges(value)
    proven = domain.interval(value)
    lo, hi = domain.limits(value)
    if proven is not None:
        lo, hi = max(lo, proven[0]), min(hi, proven[1] + 1)
    if hi - lo <= 2**20:  # a useful bound, tighter than the range of a type
        low, high = (b if isinstance(b, int) else int(b) for b in (lo, hi))
        return low, max(low, high)
    outputs = [
        Output("lo", (value,), DType.BIGINT, "min"),
        Output("hi", (value,), DType.BIGINT, "max"),
        Output("some", (TRUE,), DType.BOOLEAN, "bool_or"),
    ]
    return probe(domain.node((), outputs))


@dataclass(frozen=True, slots=True)
class Group:
    """A GROUP BY item: the syntax, the value over the rows, and the value over the groups."""

    node: exp.Expr
    row: Typed
    typed: Typed


@dataclass
class Grouping:
    """The GROUP BY items of a SELECT, and its rows before grouping."""

    rows: Domain
    scope: Scope
    float_stays: bool
    parameters: BoundParameters
    groups: list[Group] = field(default_factory=list)

    def add(self, node: exp.Expr, bound: Typed, probe: Probe) -> str | None:
        """Adds an item; returns the label of its key, or None for a constant."""
        row = self._row(bound)
        taken = {name for g in self.groups for name in labels_of(g.row.value)}
        label = key_label(self.rows, bound, node, "GROUP BY", probe, taken)
        typed = bound if label is None else _from_key(label, bound)
        self.groups.append(Group(node, row, typed))
        return label

    def match(self, node: exp.Expr) -> Typed | None:
        """The value over the groups of an expression equal to a GROUP BY item, or None."""
        for group in self.groups:
            if node == group.node:
                return group.typed
        if type(node) not in {type(g.node) for g in self.groups}:
            return None
        try:
            return self.column(ScalarBinder(self._environment()).bind(node))
        except Error:  # the expression reads more than columns of the rows
            return None

    def column(self, bound: Typed) -> Typed | None:
        """The value over the groups of an item with a value over the rows, or None."""
        row = self._row(bound)
        return next((g.typed for g in self.groups if g.row == row), None)

    def _row(self, bound: Typed) -> Typed:
        canonical = self.rows.canonical
        return Typed(canonical(bound.value), bound.type, canonical(bound.valid))

    def _environment(self) -> _Rows:
        return _Rows(self.scope, self.float_stays, self.parameters)


def _from_key(label: str, bound: Typed) -> Typed:
    """A key's value in the type of the GROUP BY expression."""
    value: Expr = Label(label)
    assert isinstance(bound.type, DType)
    if bound.type is DType.BOOLEAN:
        value = Call("eq", (value, Const(1, DType.BIGINT)), DType.BOOLEAN)
    elif bound.type is not DType.BIGINT:
        value = Call("cast", (value,), bound.type)
    return Typed(value, bound.type)


@dataclass
class _Rows(ColumnsOnly):
    """The environment of the rows before grouping."""

    scope: Scope
    float_stays: bool
    parameters: BoundParameters
    values: SharedValues = field(default_factory=SharedValues)

    def column(self, node: exp.Column) -> Typed:
        typed = self.scope.find(node.name, node.table or None)
        if typed is None:
            raise self.scope.unknown(node.name, node.table or None)
        return typed

    def shared(self, node: exp.Expr, argument: SharedArgument) -> Typed:
        return self.values.small(argument, ScalarBinder(self).bind)


@dataclass
class MergeOrder:
    """The order in which the aggregates of a SELECT merge the rows of a group.

    Attributes:
        orders: The labels of the keys, by the names of the aggregates.
    """

    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, name: str, keys: Mapping[str, Typed], domain: Domain) -> None:
        """Requires that an aggregate merges rows in the order of keys.

        Args:
            name: The name of the aggregate.
            keys: The values of the keys, by their names in ORDERED BY.
            domain: The domain of the rows.

        Raises:
            ProgrammingError: A value is no key, or another call has another order.
        """
        labels = []
        for key, typed in keys.items():
            label = domain.ascending(typed.value) if typed.type is DType.BIGINT else None
            if label is None or typed.valid != TRUE:
                raise ProgrammingError(
                    f"{name}() merges rows in the order of {key}, which is no key here",
                    hint="CREATE TENSOR … AS SELECT with this column as a key DIM(n). "
                    "For a descending order the key is n - 1 - key.",
                )
            labels.append(label)
        order = tuple(labels)
        if self.orders.setdefault(name, order) != order:
            raise ProgrammingError(
                f"{name}() merges rows in two orders in one SELECT",
                hint="Aggregate each order in a subquery of its own.",
            )

    def labels(self, keys: Collection[str]) -> tuple[str, ...]:
        """The labels that order the rows of a group.

        Args:
            keys: The labels of the groups.

        Raises:
            ProgrammingError: Two aggregates need different orders.
        """
        reduced = {n: [x for x in o if x not in keys] for n, o in self.orders.items()}
        name, longest = max(reduced.items(), key=lambda entry: len(entry[1]), default=("", []))
        for other, order in reduced.items():
            if order != longest[: len(order)]:
                raise ProgrammingError(
                    f"{name}() and {other}() merge rows in different orders in one SELECT",
                    hint="Aggregate one of them in a subquery of its own.",
                )
        return tuple(longest)
