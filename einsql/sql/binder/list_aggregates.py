"""Aggregates whose result is a LIST: the best values of a group, or the arguments of these.

MAX(v, n), MIN(v, n), ARG_MAX(a, v, n) and ARG_MIN(a, v, n) are reductions to a place of the list,
NTH_MAX and NTH_MIN. A node with the key `position` has all places. A SELECT item that is such a
call is a LIST column: the rows of the result do not contain this key. Under UNNEST it is a key, and
`generate_subscripts(list, 1)` is its column. `list[1]` reads one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from math import prod

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    Const,
    EinSum,
    Expr,
    Label,
    Output,
    Value,
    bigint,
    call,
    conj,
    disj,
)
from einsql.sql.binder.aggregates import Aggregation
from einsql.sql.binder.calls import MOST_BEST, aggregate_call, list_call, list_slice
from einsql.sql.binder.domain import Domain
from einsql.sql.macros.expansion import is_subscripts
from einsql.sql.parameters.host_expr import parameters_of
from einsql.sql.parser.positions import position, unsupported
from einsql.sql.typing.casts import held
from einsql.sql.typing.typed_expr import Typed, convert, truth

POSITION = "position"
"""The name of the key that numbers the values of lists, from 0."""
SMALL = 1 << 22
"""Places of all lists together that are always computed."""


@dataclass(frozen=True, slots=True)
class _List:
    """A bound aggregate.

    Attributes:
        node: Its syntax.
        output: The reduction, over the rows and the key `position`.
        kind: The type of its values.
        count: The number of values to choose from, over the groups.
        most: The greatest length.
    """

    node: exp.Expr
    output: Output
    kind: DType
    count: Expr
    most: int

    def has(self, place: Expr) -> Expr:
        """Whether the list has a value at a place."""
        return conj(_less(place, bigint(self.most)), _less(place, self.count))


@dataclass
class ListAggregates:
    """The aggregates of a SELECT that return a LIST.

    Attributes:
        lists: The bound calls, by their syntax.
        keys: The keys of the groups.
        node: The node that has all places of all lists.
        label: The label of the places in the domain of the groups; None if nothing reads it.
        operand: The number of the node in this domain, with this label.
        unnested: The lists under UNNEST and generate_subscripts.
    """

    lists: dict[exp.Expr, _List] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    node: EinSum | None = None
    label: str | None = None
    operand: int = 0
    unnested: list[_List] = field(default_factory=list)

    def bind(
        self, aggregation: Aggregation, node: exp.Expr, bind: Callable[[exp.Expr], Typed]
    ) -> None:
        """Binds a call, unless an equal one is bound.

        Args:
            aggregation: The aggregates of the SELECT.
            node: The call, with its FILTER.
            bind: Binds an expression over the rows.

        Raises:
            ProgrammingError: The count is not one of values.
            NotSupportedError: The count is no constant, or a value has no type of tensors.
        """
        if node in self.lists:
            return
        where: Expr = TRUE
        part = list_slice(node)
        inner = node if part is None else part[0]
        if isinstance(inner, exp.Filter):
            where = truth(convert(bind(inner.expression.this), DType.BOOLEAN))
            inner = inner.this
        if isinstance(inner.this, exp.Distinct):
            raise unsupported("A LIST of DISTINCT values", node)
        name, arguments = _ordered(inner) if part is not None else _counted(inner)
        most = _count(name, part[1] if part is not None else inner.args["count"], aggregation, bind)
        args = [bind(a) for a in arguments]
        if any(a.type is None for a in args):
            raise unsupported("A LIST of NULL", node)
        args = [convert(a, a.type) for a in args]
        if part is not None and any(a.valid != TRUE for a in args):
            raise unsupported("A LIST in the order of a value, where one may be NULL", node)
        selected = conj(where, *(a.valid for a in args))
        argument, compared = args[0], args[-1]
        assert argument.type is not None
        reduction = "nth_max" if name.endswith("max") else "nth_min"
        terms = (argument.value, compared.value, Label(POSITION))
        output = Output(
            f"{name}_{len(self.lists)}", terms, held(argument.type), reduction, selected
        )
        if not isinstance(argument.type, DType):
            raise unsupported("A LIST of DECIMAL", node, "CAST the value to DOUBLE.")
        count = aggregation.bind("count", args, where).value
        self.lists[node] = _List(node, output, argument.type, count, most)

    def attach(self, rows: Domain, keys: tuple[str, ...], items: Iterable[exp.Expr]) -> None:
        """Builds the node of all lists.

        Args:
            rows: The domain of the rows.
            keys: The keys of the groups.
            items: The expressions of SELECT.
        """
        if not self.lists:
            return
        unnested = (self._find(call) for item in items for call in _unnested(item))
        self.unnested = [x for x in unnested if x is not None]
        self.keys, rows = keys, rows.copy()
        label = rows.fresh(POSITION, 0, self._places(rows))
        outputs = (
            replace(x.output, args=(*x.output.args[:2], Label(label))) for x in self.lists.values()
        )
        self.node = rows.node((*keys, label), outputs)

    def _places(self, rows: Domain) -> int:
        """The number of places: no list is longer than its group.

        Raises:
            NotSupportedError: Most places of all groups together would have no value.
        """
        extents = {x: hi - lo for x, (lo, hi) in rows.axes.items()}
        points = prod(extents[x] for x in rows.free)
        longest = max(self.lists.values(), key=lambda x: x.most)
        members = prod(extents[x] for x in rows.free if x not in self.keys)
        places = min(longest.most, max(1, members))
        if places * prod(extents[k] for k in self.keys) > max(SMALL, 4 * points):
            raise unsupported(f"A LIST of up to {longest.most:,} values", longest.node)
        return places

    def match(self, node: exp.Expr, groups: Domain) -> Typed | None:
        """The value of an expression of one list over the groups; None for another expression.

        Raises:
            NotSupportedError: The expression is a list itself, or reads one in another way.
        """
        match node:
            case exp.Explode() if (aggregate := self._find(node.this)) is not None:
                label = self._positions(groups)
                return self._at(aggregate, label, self.operand)
            case exp.Anonymous(expressions=[of, dimension]) if (
                is_subscripts(node) and (aggregate := self._find(of)) is not None
            ):
                if not isinstance(dimension, exp.Literal) or dimension.name != "1":
                    raise unsupported("generate_subscripts() of another dimension than 1", node)
                place = Label(self._positions(groups))
                return Typed(call("add", DType.BIGINT, place, bigint(1)), DType.BIGINT)
            case exp.Bracket(expressions=[index]) if (
                aggregate := self._find(node.this)
            ) is not None:
                return self._element(aggregate, index, node, groups)
        if self._find(node) is not None:
            raise unsupported("A LIST inside of an expression", node)
        return None

    def column(self, node: exp.Expr, groups: Domain) -> tuple[Typed, str] | None:
        """The values of an item that is a list, and the label of their places; or None."""
        found = self._find(node)
        if found is None:
            return None
        label = self._positions(groups)
        values = self._at(found, label, self.operand)
        return replace(values, valid=found.has(Label(label))), label

    def restrict(self, groups: Domain, columns: bool, select: exp.Select) -> None:
        """Restricts the rows to the places of the longest list under UNNEST.

        Raises:
            NotSupportedError: The SELECT has LIST columns, too.
        """
        if not self.unnested:
            return
        if columns:
            raise unsupported("A LIST beside UNNEST", select)
        assert self.label is not None
        groups.require(disj(*dict.fromkeys(x.has(Label(self.label)) for x in self.unnested)))

    def _find(self, node: exp.Expr) -> _List | None:
        called = list_call(node) if self.lists else None
        return None if called is None else self.lists.get(called)

    def _positions(self, groups: Domain) -> str:
        """The label of the places of all lists."""
        if self.label is None:
            assert self.node is not None
            self.label = groups.fresh(POSITION, 0, self.node.schema.keys[-1].hi)
            self.operand = groups.lookup(self.node, (*self.keys, self.label))
        return self.label

    def _at(self, found: _List, label: str, operand: int) -> Typed:
        field_ = Value(operand, found.output.name, found.kind)
        longest = all(x.has(Label(label)) == found.has(Label(label)) for x in self.unnested)
        return Typed(field_, found.kind, TRUE if longest else found.has(Label(label)))

    def _element(self, found: _List, index: exp.Expr, node: exp.Expr, groups: Domain) -> Typed:
        """The value at a constant index; DuckDB counts from 1, and sqlglot from 0."""
        if not isinstance(index, exp.Literal) or not index.name.isdecimal():
            raise unsupported("An element of a LIST at a place that is no literal", node)
        assert self.node is not None
        place, most = int(index.name), self.node.schema.keys[-1].hi
        if place >= min(most, found.most):
            return Typed(Const(0, found.kind), found.kind, FALSE)
        label = groups.derive(POSITION, bigint(place), 0, most)
        operand = groups.lookup(self.node, (*self.keys, label))
        element = Value(operand, found.output.name, found.kind)
        return Typed(element, found.kind, found.has(bigint(place)))


def _counted(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """The name and the arguments of an aggregate of n values."""
    plain = node.copy()
    plain.set("count", None)
    return aggregate_call(plain)


def _ordered(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """ARG_MAX or ARG_MIN, and its arguments, in place of LIST(a ORDER BY v).

    Raises:
        NotSupportedError: The order is that of several values.
    """
    (first, *more), argument = node.this.expressions, node.this.this
    ties = [o.this for o in more if not o.args.get("desc")]
    if len(ties) < len(more) or any(t != argument for t in ties):
        raise unsupported("A LIST in the order of several values", node)
    return "arg_max" if first.args.get("desc") else "arg_min", [argument, first.this]


def _unnested(item: exp.Expr) -> Iterator[exp.Expr]:
    """The arguments of UNNEST and generate_subscripts in an expression."""
    for node in item.walk():
        if isinstance(node, exp.Explode):
            yield node.this
        elif is_subscripts(node):
            yield from node.expressions[:1]


def _less(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.integer < b.integer, DType.BOOLEAN)
    return call("lt", DType.BOOLEAN, a, b)


def _count(
    name: str, node: exp.Expr, aggregation: Aggregation, bind: Callable[[exp.Expr], Typed]
) -> int:
    """The greatest length of a list.

    Raises:
        ProgrammingError: It is no integer from 1 to `MOST_BEST` - 1.
        NotSupportedError: It is no constant.
    """
    typed = bind(node)
    number = aggregation.domain.parameters.constants(typed.value)
    if typed.type is None or typed.valid != TRUE:
        raise ProgrammingError(
            f"The count of {name.upper()}() cannot be NULL", position=position(node)
        )
    if not isinstance(typed.type, DType) or not typed.type.is_integer:
        raise ProgrammingError(
            f"{name.upper()}() needs an integer as the count", position=position(node)
        )
    if not isinstance(number, Const) or parameters_of(number):
        raise unsupported(f"{name.upper()}() with a count that is no constant", node)
    if not 0 < number.integer < MOST_BEST:
        raise ProgrammingError(
            f"The count of {name.upper()}() must be greater than 0 and less than {MOST_BEST:,}",
            hint="It is the greatest length of the LIST.",
            position=position(node),
        )
    return number.integer
