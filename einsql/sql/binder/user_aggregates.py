"""Aggregates that CREATE AGGREGATE defines, in terms of reductions.

A field whose MERGE is a base reduction of its own values is that reduction. A field with RESCALE is
a second pass: the sum of the points' values, each rescaled from the point's own state to the
state of all points. All other fields, with those on which they depend, are one state.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import TRUE, Const, Expr, Output, Value, conj
from einsql.ir.einsum.graph_rewriting import map_values
from einsql.ir.einsum.states import EARLIER, State, define
from einsql.ir.functions import REDUCTIONS
from einsql.sql.binder.aggregates import Aggregation, first_pass
from einsql.sql.binder.state_binder import NEW_STATE, OLD_STATE, OWN, Law, StateBinder, in_clause
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.parser.aggregate_law import law_of
from einsql.sql.typing.typed_expr import Typed, convert, protected


def bind_state_call(
    call: exp.Anonymous,
    aggregation: Aggregation,
    bind: Callable[[exp.Expr], Typed],
    macros: MacroExpander,
    where: Expr = TRUE,
) -> Typed:
    """Binds the call that aggregates one field of a state.

    Args:
        call: The call, see `aggregate_law.state_call`.
        aggregation: The aggregates over the same rows.
        bind: Binds an expression over the rows.
        macros: Expands macros in the law.
        where: The FILTER condition.

    Raises:
        Error: An expression of the aggregate's definition does not fit its arguments.
    """
    law = law_of(call)
    assert law is not None
    bound = StateBinder(law, aggregation.float_stays, macros).bind()
    count = len(call.expressions) - len(law.order)
    args = [bind(a) for a in call.expressions[:count]]
    if law.order:
        keys = [bind(a) for a in call.expressions[count:]]
        ordered = dict(zip(law.order, keys, strict=True))
        aggregation.order.add(law.name, ordered, aggregation.domain)
    return UserAggregate(aggregation, bound, int(call.args["place"])).bind(args, where)


@dataclass
class UserAggregate:
    """One field of the state of an aggregate's call."""

    aggregation: Aggregation
    law: Law
    place: int

    def bind(self, args: list[Typed], where: Expr) -> Typed:
        """Binds the call.

        Args:
            args: The values of LIFT for each field, and the arguments of the aggregate.
            where: The FILTER condition.

        Raises:
            Error: A value of LIFT has another type than its field.
        """
        state = self.law.state
        selected = conj(where, *(a.valid for a in args))
        lifted: list[Expr] = []
        for f, arg in zip(state.fields, args, strict=False):
            with in_clause(f"LIFT of {state.name}.{f.name}"):
                lifted.append(convert(arg, f.dtype).value)
        dtype = state.fields[self.place].dtype
        known = self.aggregation.found(selected)
        reduced = self._value(self.place, lifted, selected)
        return Typed(protected(reduced, known), dtype, known)

    def _value(self, place: int, lifted: list[Expr], selected: Expr) -> Expr:
        if place in self.law.rescale:
            return self._rescaled(place, lifted, selected)
        together = self.law.together
        if place in together:
            return self._merged(place, together, lifted, selected)
        base = self.law.reduction(place)
        assert base is not None  # the others are merged together
        return self._base(place, base, lifted[place], selected)

    def _base(self, place: int, reduction: str, value: Expr, selected: Expr) -> Expr:
        f, merge = self.law.state.fields[place], self.law.state.merge[place]
        name = self.aggregation.output(reduction, (value,), f.dtype, selected)
        total: Expr = Value(0, name, f.dtype)
        # Both are identities, but the least of INIT and NaN may be INIT.
        if f.start != REDUCTIONS[reduction].identity(f.dtype):
            start = Const(f.start, f.dtype)
            return map_values(merge, lambda v: start if v.operand == EARLIER else total)
        return total

    def _rescaled(self, place: int, lifted: list[Expr], selected: Expr) -> Expr:
        fields = self.law.state.fields
        places = {f.name: n for n, f in enumerate(fields)}

        def term(v: Value) -> Expr:
            if v.operand == OWN or v.operand == OLD_STATE:
                return lifted[places[v.field]]
            assert v.operand == NEW_STATE
            return first_pass(self._value(places[v.field], lifted, selected))

        point = map_values(self.law.rescale[place], term)
        return self.aggregation.second("sum", point, selected)

    def _merged(
        self, place: int, needed: tuple[int, ...], lifted: list[Expr], selected: Expr
    ) -> Expr:
        state = self.law.state
        part = State(
            state.name,
            tuple(state.fields[n] for n in needed),
            tuple(state.merge[n] for n in needed),
            state.ordered,
        )
        outputs = self.aggregation.outputs
        values = tuple(lifted[n] for n in needed)
        reductions = define(part)
        at = needed.index(place)
        wanted = (reductions[at], values, selected)
        for o in outputs:
            if (o.reduction, o.args, o.where) == wanted:
                return Value(0, o.name, o.dtype)
        name = f"{state.name}_{len(outputs)}"
        for f, reduction in zip(part.fields, reductions, strict=True):
            outputs.append(Output(f"{name}.{f.name}", values, f.dtype, reduction, selected))
        return Value(0, f"{name}.{part.fields[at].name}", part.fields[at].dtype)
