"""Binds the law of a user's aggregate: MERGE and RESCALE over the fields of states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import TRUE, Call, Expr, Value, subexpressions
from einsql.ir.einsum.states import EARLIER as EARLIER_OPERAND
from einsql.ir.einsum.states import LATER as LATER_OPERAND
from einsql.ir.einsum.states import State
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.ir.functions.python_functions import shown_name
from einsql.sql.binder.context import ColumnsOnly
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parser.aggregate_law import EARLIER, LATER, NEW, OLD, AggregateLaw
from einsql.sql.typing.typed_expr import Typed, convert

OLD_STATE, NEW_STATE, OWN = 2, 3, 4
"""Operand numbers in the expressions of RESCALE: the states OLD and NEW, and the changed field."""
_REDUCTION_OF = {
    r.monoid: r.name for r in REDUCTIONS.values() if r.monoid is not None and not r.fields
}
"""The base reduction of each scalar function that is one."""


@dataclass(frozen=True, slots=True)
class Law:
    """A bound law.

    Attributes:
        state: The state with MERGE. A rescaled field is merged as if no other field changed.
        rescale: For each rescaled field its value after a change of other fields.
    """

    state: State
    rescale: dict[int, Expr]

    def reduction(self, place: int) -> str | None:
        """The base reduction that a field is by itself, or None.

        MERGE combines only the field's own two values, by a function that reduces.
        """
        own = self.state.fields[place]
        merge = self.state.merge[place]
        values = tuple(Value(n, own.name, own.dtype) for n in (EARLIER_OPERAND, LATER_OPERAND))
        if isinstance(merge, Call) and merge.args in (values, values[::-1]):
            return _REDUCTION_OF.get(merge.fn)
        return None

    @property
    def together(self) -> tuple[int, ...]:
        """The fields that are not base reductions and not rescaled, and their dependencies."""
        others = (
            n
            for n in range(len(self.state.fields))
            if n not in self.rescale and self.reduction(n) is None
        )
        return tuple(sorted({m for n in others for m in self.closure(n)}))

    def closure(self, place: int) -> tuple[int, ...]:
        """The fields that the merged value of a field depends on, itself included, in order."""
        places = {f.name: n for n, f in enumerate(self.state.fields)}
        known, waiting = set[int](), [place]
        while waiting:
            n = waiting.pop()
            if n not in known:
                known.add(n)
                trees = [self.state.merge[n], *([self.rescale[n]] if n in self.rescale else [])]
                read = (e for t in trees for e in subexpressions(t) if isinstance(e, Value))
                waiting += [places[e.field] for e in read]
        return tuple(sorted(known))


@dataclass
class StateBinder:
    """Binds the law of an aggregate.

    Attributes:
        law: The clauses of its definition.
        float_stays: Whether FLOAT arithmetic stays FLOAT.
        macros: Expands the calls of macros.
    """

    law: AggregateLaw
    float_stays: bool
    macros: MacroExpander
    merged: dict[str, Typed] = field(default_factory=dict)

    def bind(self) -> Law:
        """Returns the bound law.

        Raises:
            Error: An expression has a wrong type, may be NULL, or is no tensor work.
        """
        merge = []
        for n, tree in enumerate(self.law.merge):
            tables = {EARLIER: EARLIER_OPERAND, LATER: LATER_OPERAND}
            typed = self._field(n, self._fields(tables), tree, "MERGE")
            merge.append(typed.value)
            self.merged[self.law.fields[n].name] = typed
        rescale = {}
        for name, tree in self.law.rescale.items():
            place = self.law.place(name)
            assert place is not None  # checked where it was parsed
            tables = {OLD: OLD_STATE, NEW: NEW_STATE, "": OWN}
            rescale[place] = self._field(place, self._fields(tables), tree, "RESCALE").value
        ordered = bool(self.law.order)
        law = Law(State(self.law.name, self.law.fields, tuple(merge), ordered), rescale)
        for n in rescale:
            self._check_rescaled(law, n)
        return law

    def _fields(self, tables: dict[str, int]) -> _Fields:
        return _Fields(self.law, tables, self.merged, self.float_stays)

    def _field(self, place: int, env: _Fields, tree: exp.Expr, clause: str) -> Typed:
        f = self.law.fields[place]
        with in_clause(f"{clause} of {self.law.name}.{f.name}"):
            typed = convert(ScalarBinder(env).bind(self.expanded(tree)), f.dtype)
            if typed.valid != TRUE:
                raise ProgrammingError(
                    "The value may be NULL", hint="Add ELSE to CASE, or COALESCE(…, 0)."
                )
            calls = (e.fn for e in subexpressions(typed.value) if isinstance(e, Call))
            for fn in calls:
                if fn in SCALARS and SCALARS[fn].opaque:
                    raise NotSupportedError(
                        f"{shown_name(fn)} is a Python function, which kernels cannot merge with",
                        hint="Write an expression of SQL, or numpy.where in place of if. "
                        "LIFT and FINISH may call it.",
                    )
        return typed

    def expanded(self, tree: exp.Expr) -> exp.Expr:
        """A copy of an expression without calls of macros."""
        holder = exp.Paren(this=tree.copy())
        self.macros.expand_calls(None, holder)
        expanded: exp.Expr = holder.this
        return expanded

    def _check_rescaled(self, law: Law, place: int) -> None:
        """Requires a sum that is rescaled by a factor of fields that are base reductions.

        Raises:
            ProgrammingError: The law has another form.
        """
        own, rescale = law.state.fields[place], law.rescale[place]
        if law.reduction(place) != "sum" or own.start != 0 or not is_linear(rescale):
            raise ProgrammingError(
                f"RESCALE of {law.state.name}.{own.name} has to be {own.name} times a factor, "
                f"with MERGE a.{own.name} + b.{own.name} and INIT 0",
                hint=f"Write {own.name} * exp(old.m - new.m), where m is a field with a maximum.",
            )
        for n in law.closure(place):
            if n != place and (law.reduction(n) is None or n in law.rescale):
                raise ProgrammingError(
                    f"RESCALE of {law.state.name}.{own.name} reads {law.state.fields[n].name}, "
                    "which is no sum, minimum or maximum of its own values",
                    hint="Read fields whose MERGE is greatest(a.m, b.m), least(a.m, b.m) or a sum.",
                )


def is_linear(expr: Expr) -> bool:
    """True for a product or quotient of the field OWN and factors that do not read it."""
    if isinstance(expr, Value):
        return expr.operand == OWN
    if not isinstance(expr, Call):
        return False
    own = [_reads_own(a) for a in expr.args]
    if expr.fn == "cast":
        return is_linear(expr.args[0])
    if expr.fn == "mul":
        return own in ([True, False], [False, True]) and is_linear(expr.args[own.index(True)])
    return expr.fn == "div" and own == [True, False] and is_linear(expr.args[0])


def _reads_own(expr: Expr) -> bool:
    return any(isinstance(e, Value) and e.operand == OWN for e in subexpressions(expr))


@contextmanager
def in_clause(clause: str) -> Iterator[None]:
    """Adds the name of a clause to the message of an error."""
    try:
        yield
    except Error as error:
        error.reason = f"{clause}: {error.reason}"
        raise


@dataclass
class _Fields(ColumnsOnly):
    """The environment of MERGE and RESCALE: fields of states by table, and merged fields."""

    place = " in the law of an aggregate"
    law: AggregateLaw
    tables: dict[str, int]
    merged: dict[str, Typed]
    float_stays: bool
    parameters: BoundParameters = field(default_factory=BoundParameters)

    def column(self, node: exp.Column) -> Typed:
        name, table = node.name.lower(), node.table.lower()
        if table not in self.tables:
            if name in self.merged:
                return self.merged[name]
            raise ProgrammingError(
                f'The merged value of "{name}" is not known here',
                hint="MERGE reads merged values of earlier fields only.",
            )
        place = self.law.place(name)
        assert place is not None  # checked where it was parsed
        dtype = self.law.fields[place].dtype
        return Typed(Value(self.tables[table], name, dtype), dtype)
