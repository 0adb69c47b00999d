"""The operations ⊗ and ⊕ of EINSUM, by the names of scalar functions and aggregates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import reduce

import numpy as np
from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError, ProgrammingError, suggest
from einsql.ir.einsum.graph import TRUE, Label
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.ir.functions.functions import INTERNAL
from einsql.sql.binder.aggregates import Aggregation
from einsql.sql.binder.context import ColumnsOnly
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.user_aggregates import bind_state_call
from einsql.sql.functions.aggregate_functions import (
    AGGREGATES,
    CHOOSING,
    OF_PAIRS,
    OF_ROWS,
    QUANTILES,
)
from einsql.sql.functions.scalar_functions import NAMED
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.typing import functions
from einsql.sql.typing.typed_expr import Typed, apply, logical_and, logical_or

_COMBINING = {n: n for n, f in SCALARS.items() if f.arity == 2 and n not in INTERNAL}
_COMBINING |= {"power": "pow"} | {name: fn for name, (fn, arity) in NAMED.items() if arity == 2}
"""Functions of two arguments by their names, which are those of SQL and of the algebra."""
_REDUCING = {str(n): n for n in AGGREGATES.values() if n not in CHOOSING | OF_PAIRS | QUANTILES}
_REDUCING |= {"mean": "avg", "stddev": "stddev_samp", "variance": "var_samp"}
"""Aggregates of one argument by their names."""
_NOTHING = {"min": math.inf, "max": -math.inf, "logsumexp": -math.inf}
"""Results of floats over no values, except those of reductions with an identity and NaN."""


@dataclass(frozen=True, slots=True, eq=False)
class UserFunction:
    """A function of two arguments that CREATE FUNCTION or CREATE MACRO defines.

    Attributes:
        macros: Expands its calls.
        name: Its name.
    """

    macros: MacroExpander
    name: str

    def of(self, a: Typed, b: Typed, float_stays: bool) -> Typed:
        """Returns its value for two values.

        Raises:
            Error: It is a table macro, has another number of arguments, or its expression is no
                tensor work.
        """
        arguments = [exp.column(name, table=_OPERANDS) for name in "ab"]
        call = exp.Anonymous(this=self.name, expressions=arguments)
        return bind_over(self.macros, call, {"a": a, "b": b}, float_stays)


def bind_over(
    macros: MacroExpander, tree: exp.Expr, values: Mapping[str, Typed], float_stays: bool = True
) -> Typed:
    """Binds an expression whose columns are given values.

    Args:
        macros: Expands its calls.
        tree: The expression.
        values: The values by the names of the columns.
        float_stays: Whether functions of FLOAT stay FLOAT.

    Raises:
        Error: The expression is wrong, or is no tensor work.
    """
    return ScalarBinder(_Operands(values, float_stays)).bind(macros.expand_calls(None, tree))


@dataclass(frozen=True, slots=True, eq=False)
class UserReduction:
    """An aggregate of one argument that CREATE AGGREGATE defines.

    Attributes:
        macros: Expands its calls.
        name: Its name.
    """

    macros: MacroExpander
    name: str

    def of(self, term: Typed, aggregation: Aggregation) -> Typed:
        """Returns its value over the points of an aggregation.

        Raises:
            Error: It has another number of arguments or several results, or does not accept the
                type.
        """
        call = exp.Anonymous(this=self.name, expressions=[exp.column("a", table=_OPERANDS)])
        tree = self.macros.call(call)
        return ScalarBinder(
            _Terms({"a": term}, aggregation.float_stays, aggregation=aggregation, reduction=self)
        ).bind(tree)


_OPERANDS = "the operands of EINSUM"
"""The table of the columns that stand for arguments, a name that users cannot write."""


@dataclass
class _Operands(ColumnsOnly):
    """The environment of a user's function, which has two values."""

    place = " in a function of EINSUM"
    values: Mapping[str, Typed]
    float_stays: bool
    parameters: BoundParameters = field(default_factory=BoundParameters)

    def column(self, node: exp.Column) -> Typed:
        if node.name not in self.values:
            raise ProgrammingError(
                f'There is no parameter "{node.name}"',
                hint=suggest(node.name, self.values, "parameters"),
            )
        return self.values[node.name]


@dataclass
class _Terms(_Operands):
    """The environment of a user's aggregate, whose calls read the term and the keys of a point."""

    aggregation: Aggregation = field(kw_only=True)
    reduction: UserReduction = field(kw_only=True)

    def column(self, node: exp.Column) -> Typed:
        if node.table:
            return super().column(node)
        labels = self.aggregation.domain.free  # of ORDERED BY; arguments have a table
        if node.name not in labels:
            raise ProgrammingError(
                f"{self.reduction.name}() merges rows in the order of {node.name}, "
                "which is no label here",
                hint=f"The labels are {', '.join(labels)}.",
            )
        return Typed(Label(node.name), DType.BIGINT)

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        assert isinstance(node, exp.Anonymous)
        return bind_state_call(
            node, self.aggregation, ScalarBinder(self).bind, self.reduction.macros
        )


@dataclass(frozen=True, slots=True)
class Algebra:
    """⊗ combines the values of operands at a point, ⊕ reduces them over labels.

    Attributes:
        combine: The scalar function ⊗. With more than two operands it is applied from the left.
        reduce: The aggregate ⊕.
        function: The user's function ⊗; None if it is the scalar function.
        aggregate: The user's aggregate ⊕; None if it is the built-in one.
    """

    combine: str = "mul"
    reduce: str = "sum"
    function: UserFunction | None = None
    aggregate: UserReduction | None = None

    @classmethod
    def named(
        cls, combine: object, reduce: object, macros: Callable[[], MacroExpander] | None = None
    ) -> Algebra:
        """Returns the algebra of two names.

        Args:
            combine: The name of a scalar function, or of a user's function.
            reduce: The name of an aggregate, or of a user's aggregate.
            macros: Returns the expander of the user's functions; None if there are none.

        Raises:
            ProgrammingError: A name is no text, or there is no such function or aggregate.
        """
        aggregate = function = None
        if isinstance(reduce, str) and reduce.lower() not in _REDUCING and macros is not None:
            macro = macros().find(reduce)
            if macro is not None and macro.law is not None:
                aggregate = UserReduction(macros(), reduce)
        if isinstance(combine, str) and combine.lower() not in _COMBINING and macros is not None:
            macro = macros().find(combine)
            if macro is not None and macro.law is None:
                function = UserFunction(macros(), combine)
        by, what = str(reduce), "functions of two arguments"
        if aggregate is None:
            by = _known("reduce", reduce, _REDUCING, "aggregates")
        if function is not None:
            return cls(str(combine), by, function, aggregate)
        return cls(_known("combine", combine, _COMBINING, what), by, None, aggregate)

    def reduced(self, term: Typed, aggregation: Aggregation) -> Typed:
        """Returns ⊕ of the terms of all points.

        Raises:
            Error: ⊕ does not accept their type.
        """
        if self.aggregate is not None:
            return self.aggregate.of(term, aggregation)
        return aggregation.bind(self.reduce, [term], TRUE)

    def combined(self, values: list[Typed], float_stays: bool) -> Typed:
        """Returns the values of all operands at a point, combined.

        Raises:
            ProgrammingError: ⊗ does not accept their types.
        """

        def two(a: Typed, b: Typed) -> Typed:
            if self.function is not None:
                return self.function.of(a, b, float_stays)
            match self.combine:
                case "and":
                    return logical_and([a, b])
                case "or":
                    return logical_or([a, b])
                case "greatest" | "least":
                    return functions.extreme(self.combine, [a, b])
            return apply(self.combine, [a, b], float_stays)

        return reduce(two, values)

    @property
    def has_state(self) -> bool:
        """Whether the aggregate consists of several reductions, as AVG does."""
        return self.reduce not in REDUCTIONS

    def empty(self, dtype: DType) -> np.ndarray:
        """Returns the result over no values in an array, where SQL has NULL or no row.

        Raises:
            DataError: There is none: MIN or MAX of integers.
        """
        chooses = self.reduce in ("min", "max", "mode", *OF_ROWS)
        if not chooses and not self.has_state:
            return np.asarray(REDUCTIONS[self.reduce].identity(dtype), dtype.numpy)
        if dtype.is_float:
            return np.asarray(_NOTHING.get(self.reduce, math.nan), dtype.numpy)
        if chooses:
            raise DataError(
                f"{self.reduce.upper()} of no values has no result in {dtype.value}",
                hint="Pass floats, whose result is infinite.",
            )
        return np.zeros((), dtype.numpy)  # a count


SUM_OF_PRODUCTS = Algebra()


def _known(option: str, name: object, names: dict[str, str], what: str) -> str:
    known = names.get(name.lower()) if isinstance(name, str) else None
    if known is None:
        shown = f"'{name}'" if isinstance(name, str) else repr(name)
        raise ProgrammingError(
            f"EINSUM cannot {option} by {shown}",
            hint=suggest(str(name).lower(), names, what),
        )
    return known
