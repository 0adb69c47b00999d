"""Tests of the laws of a user's aggregate on fixed states, when it is created.

The states are those of points, which LIFT computes from fixed arguments, and merged states of
them. MERGE has to have INIT as its identity, and to be associative. Without ORDERED BY it has to be
commutative, too. RESCALE has to change nothing if the other fields do not change, and two changes
have to be equal to the complete one. Integers have to be equal, floats within `TOLERANCE`. A
difference does not count if an argument is infinite and a result is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError, ProgrammingError
from einsql.ir.einsum.evaluation import expression_value, wide
from einsql.ir.einsum.graph import TRUE, Expr, Label, Value
from einsql.ir.einsum.states import merged_fields
from einsql.ir.functions.law_tests import are_equal
from einsql.sql.binder.context import ColumnsOnly
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.state_binder import NEW_STATE, OLD_STATE, OWN, Law, StateBinder, in_clause
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parser.aggregate_law import AggregateLaw
from einsql.sql.typing.typed_expr import Typed, convert

TOLERANCE = 1e-9
"""The greatest difference of floats, relative to 1 or the greatest value of a field in a test."""
_FLOATS = (0.0, 1.0, -1.0, 0.5, -2.5, 3.25, 1000.0, -1000.0, 0.001, 7.0, np.inf, -np.inf)
_INTEGERS = (0, 1, -1, 2, 5, -7, 12, 100, -100, 3)
"""Arguments of the tested states, each of which occurs."""
_POINTS, _STATES, _SEED = 40, 120, 20

_COMMUTATIVE = ", and commutative without ORDERED BY"

Fields = tuple[np.ndarray, ...]


def check_laws(law: AggregateLaw, binder: StateBinder) -> None:
    """Tests the laws of an aggregate.

    Args:
        law: The clauses of the definition.
        binder: Binds them.

    Raises:
        ProgrammingError: A law does not hold; the message has a counterexample.
        Error: An expression is wrong.
    """
    bound = binder.bind()
    tests = _Tests(law, bound, *_states(law, bound, binder))
    tests.merge()
    for place in bound.rescale:
        tests.rescale(place)


def _states(law: AggregateLaw, bound: Law, binder: StateBinder) -> tuple[Fields, np.ndarray]:
    """States of points and merged ones, float64 or integers, and which ones have an infinity."""
    draw = np.random.default_rng(_SEED)
    dtypes = {name.lower(): dtype or DType.DOUBLE for name, dtype in law.parameters}
    arguments = {name: _drawn(draw, dtype) for name, dtype in dtypes.items()}
    env = _Parameters(dtypes, binder.float_stays)
    exprs = []
    for f, tree in zip(law.fields, law.lift, strict=True):
        with in_clause(f"LIFT of {law.name}.{f.name}"):
            exprs.append(convert(ScalarBinder(env).bind(binder.expanded(tree)), f.dtype).value)
    dtypes_of_fields = [wide(f.dtype) for f in law.fields]
    at = _points_with_values(law, exprs, arguments)
    arguments = {name: values[at] for name, values in arguments.items()}
    lifted = [
        _values(e, arguments, dtype) for e, dtype in zip(exprs, dtypes_of_fields, strict=True)
    ]
    infinite = np.zeros(_POINTS, bool)
    for values in arguments.values():
        infinite |= ~np.isfinite(values)
    points = tuple(np.broadcast_to(x, (_POINTS,)) for x in lifted)
    left, right = draw.integers(0, _POINTS, (2, _STATES - _POINTS))
    merged = merged_fields(
        bound.state, [p[left] for p in points], [p[right] for p in points], widened=True
    )
    states = tuple(np.concatenate([p, m]) for p, m in zip(points, merged, strict=True))
    return states, np.concatenate([infinite, infinite[left] | infinite[right]])


def _points_with_values(
    law: AggregateLaw, exprs: Sequence[Expr], arguments: dict[str, np.ndarray]
) -> np.ndarray:
    """The numbers of points at which LIFT raises nothing, repeated to `_POINTS` of them.

    Raises:
        ProgrammingError: LIFT raises at every point.
    """
    at, reason = [], ""
    for n in range(_POINTS):
        point = {name: values[n : n + 1] for name, values in arguments.items()}
        try:
            for e in exprs:
                _values(e, point, e.dtype)
            at.append(n)
        except DataError as error:
            reason = error.reason
    if not at:
        raise ProgrammingError(
            f"LIFT of {law.name} raises for all arguments of the test of its laws: {reason}",
            hint="Guard it with CASE.",
        )
    return np.resize(at, _POINTS)


def _drawn(draw: np.random.Generator, dtype: DType) -> np.ndarray:
    if dtype is DType.BOOLEAN:
        return draw.integers(0, 2, _POINTS).astype(bool)
    edges = np.array(_INTEGERS if dtype.is_integer else _FLOATS)
    values = draw.choice(edges, _POINTS)
    values[: len(edges)] = edges
    return values.astype(wide(dtype).numpy)


def _values(expr: Expr, arguments: dict[str, np.ndarray], dtype: DType) -> np.ndarray:
    def leaf(e: Label | Value) -> np.ndarray:
        assert isinstance(e, Value)
        return arguments[e.field]

    with np.errstate(all="ignore"):
        values = expression_value(expr, leaf, np.ones(1, bool))
    return values.astype(wide(dtype).numpy)


@dataclass
class _Parameters(ColumnsOnly):
    """The environment of LIFT: the parameters of the aggregate."""

    place = " in LIFT"
    dtypes: dict[str, DType]
    float_stays: bool
    parameters: BoundParameters = field(default_factory=BoundParameters)

    def column(self, node: exp.Column) -> Typed:
        dtype = self.dtypes[node.name.lower()]
        return Typed(Value(0, node.name.lower(), dtype), dtype, TRUE)


@dataclass
class _Tests:
    law: AggregateLaw
    bound: Law
    states: Fields
    infinite: np.ndarray

    def merge(self) -> None:
        """Tests the identity, commutativity and associativity of MERGE."""
        first, second, third = self._chosen()
        nothing = tuple(
            np.full(_STATES, s.start, x.dtype)
            for s, x in zip(self.bound.state.fields, self.states, strict=True)
        )
        init = {"INIT": nothing}
        a, b, c = (
            {name: self._of(at)} for name, at in zip("abc", (first, second, third), strict=True)
        )
        infinite = self.infinite
        self._equal(
            "INIT ⊕ INIT is not INIT",
            init,
            self._plus(nothing, nothing),
            nothing,
            np.zeros(_STATES, bool),
        )
        x, y, z = a["a"], b["b"], c["c"]
        wild = infinite[first]
        self._equal("INIT ⊕ a is not a", a, self._plus(nothing, x), x, wild)
        self._equal("a ⊕ INIT is not a", a, self._plus(x, nothing), x, wild)
        wild = wild | infinite[second]
        if not self.law.order:
            self._equal("a ⊕ b is not b ⊕ a", a | b, self._plus(x, y), self._plus(y, x), wild)
        wild = wild | infinite[third]
        left, right = self._plus(self._plus(x, y), z), self._plus(x, self._plus(y, z))
        self._equal("(a ⊕ b) ⊕ c is not a ⊕ (b ⊕ c)", a | b | c, left, right, wild)

    def rescale(self, place: int) -> None:
        """Tests that RESCALE is a change of scale from one state of other fields to another."""
        first, second, third = self._chosen()
        x = self._of(first)
        y = self._plus(x, self._of(second))
        z = self._plus(y, self._of(third))
        wild = self.infinite[first] | self.infinite[second] | self.infinite[third]
        own, name = x[place], self.bound.state.fields[place].name
        same = self._rescaled(place, own, x, x)
        shown = {"old": x}
        self._equal_field(
            place, f"RESCALE of {name} from a state to itself changes it", shown, same, own, wild
        )
        twice = self._rescaled(place, self._rescaled(place, own, x, y), y, z)
        once = self._rescaled(place, own, x, z)
        self._equal_field(
            place,
            f"RESCALE of {name} to a state and to a later one is not that to the later one",
            shown | {"new": y, "later": z},
            twice,
            once,
            wild,
        )

    def _chosen(self) -> np.ndarray:
        draw = np.random.default_rng(_SEED + 1)
        return draw.permuted(np.tile(np.arange(_STATES), (3, 1)), axis=1)

    def _of(self, at: np.ndarray) -> Fields:
        return tuple(s[at] for s in self.states)

    def _plus(self, earlier: Fields, later: Fields) -> Fields:
        try:
            return merged_fields(self.bound.state, earlier, later, widened=True)
        except DataError as error:
            raise ProgrammingError(
                f"MERGE of {self.law.name}: {error.reason}",
                hint="MERGE has to be defined for all states; guard it with CASE.",
            ) from error

    def _rescaled(self, place: int, own: np.ndarray, old: Fields, new: Fields) -> np.ndarray:
        places = {f.name: n for n, f in enumerate(self.bound.state.fields)}

        def leaf(e: Label | Value) -> np.ndarray:
            assert isinstance(e, Value)
            if e.operand == OWN:
                return own
            assert e.operand in (OLD_STATE, NEW_STATE)
            return (old if e.operand == OLD_STATE else new)[places[e.field]]

        with np.errstate(all="ignore"):
            return expression_value(self.bound.rescale[place], leaf, np.ones(_STATES, bool))

    def _equal(
        self, law: str, shown: dict[str, Fields], left: Fields, right: Fields, wild: np.ndarray
    ) -> None:
        for place in range(len(left)):
            if place not in self.bound.rescale:
                self._equal_field(place, law, shown, left[place], right[place], wild)

    def _equal_field(
        self,
        place: int,
        law: str,
        shown: dict[str, Fields],
        left: np.ndarray,
        right: np.ndarray,
        wild: np.ndarray,
    ) -> None:
        """Refuses the aggregate if two values of a field differ.

        Raises:
            ProgrammingError: They differ; the message has the states of the first difference.
        """
        among = [np.ones(left.shape), *(s[place] for s in shown.values())]
        equal = are_equal(left, right, among, TOLERANCE)
        if left.dtype.kind == "f":
            equal |= wild & (np.isnan(left) | np.isnan(right))
        if equal.all():
            return
        at = int(np.flatnonzero(~equal)[0])
        names = [f.name for f in self.bound.state.fields]
        states = (
            f"{name} = ({', '.join(f'{f} {s[at]}' for f, s in zip(names, fields, strict=True))})"
            for name, fields in shown.items()
        )
        raise ProgrammingError(
            f"{self.law.name}: {law}: {names[place]} is {left[at]} and {right[at]} for "
            f"{', '.join(states)}",
            hint="The result would depend on how the rows are cut. INIT has to be the identity "
            f"of MERGE, which has to be associative{'' if self.law.order else _COMMUTATIVE}.",
        )
