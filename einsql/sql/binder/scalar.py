"""Binds scalar SQL expressions to typed values, with a method per kind of syntax node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import Error, ProgrammingError, UnknownHere, suggest
from einsql.ir.einsum.graph import FALSE, TRUE, Const
from einsql.ir.einsum.graph_rewriting import negate
from einsql.ir.functions.python_functions import function_name
from einsql.sql.binder.context import Environment
from einsql.sql.functions.aggregate_functions import AGGREGATES
from einsql.sql.functions.scalar_functions import FUNCTION_OF_NODE, NAMED
from einsql.sql.functions.tile_functions import FUNCTIONS as TILE_FUNCTIONS
from einsql.sql.macros.macros import PARAMETER_OF
from einsql.sql.macros.sharing import SharedArgument
from einsql.sql.parser.aggregate_law import law_of
from einsql.sql.parser.arguments import surplus
from einsql.sql.parser.long_literals import LEAST, STAND_IN
from einsql.sql.parser.positions import locate, position, unsupported
from einsql.sql.parser.sql_text import text
from einsql.sql.typing.casts import Decimal, SqlType
from einsql.sql.typing.typed_expr import (
    NULL,
    Typed,
    apply,
    convert,
    logical_and,
    logical_not,
    logical_or,
    passed,
    truth,
)

if TYPE_CHECKING:
    from einsql.sql.functions import descriptions
    from einsql.sql.typing import functions, literals
else:  # loaded for literals, functions and hints
    descriptions = LazyModule("einsql.sql.functions.descriptions")
    literals = LazyModule("einsql.sql.typing.literals")
    functions = LazyModule("einsql.sql.typing.functions")

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


_HINTS = {
    "IN with a subquery": "Join with the subquery instead.",
    "ATAN with a second argument": "ATAN2(y, x) takes two.",
}


@dataclass
class ScalarBinder:
    """Binds expressions in one environment."""

    env: Environment

    def bind(self, node: exp.Expr) -> Typed:
        """Binds one expression.

        Raises:
            Error: The expression is wrong or outside the fragment; the error has a position.
        """
        try:
            known = self.env.match(node)
            return self._bind(node) if known is None else known
        except Error as error:
            raise locate(error, node) from None

    def condition(self, node: exp.Expr) -> Typed:
        """Binds a predicate; integers and floats are cast to BOOLEAN."""
        bound = self.bind(node)
        if bound.type not in (DType.BOOLEAN, None):
            bound = convert(bound, DType.BOOLEAN)
        return bound

    def _bind(self, node: exp.Expr) -> Typed:
        handler, fn = _HANDLERS.get(type(node)), FUNCTION_OF_NODE.get(type(node))
        if type(node) in AGGREGATES or _anonymous_aggregate(node):
            return self.env.aggregate(node, None)
        if isinstance(shared := node.args.get("shared"), SharedArgument):
            return self.env.shared(node, shared)
        if handler is None and fn is None:
            raise unsupported(text(node), node)
        if isinstance(node, exp.Abs) and "name" not in node.meta and _is_of_bits(node.this):
            # sqlglot reads @ x & y as @(x & y), DuckDB as (@x) & y
            raise unsupported("@ before & or |", node, "Write @(x) & y or @(x & y).")
        extra = surplus(node)
        if extra is not None:
            raise unsupported(extra, node, _HINTS.get(extra, ""))
        if isinstance(node, _COMPARISONS) and any(
            isinstance(a, _COMPARISONS) for a in node.iter_expressions()
        ):
            raise ProgrammingError(
                "Comparisons cannot be chained",
                hint="Combine them with AND.",
                position=position(node),
            )
        if handler is not None:
            return handler(self, node)
        assert fn is not None
        return self._call(fn, *node.iter_expressions())

    def _call(self, fn: str, *args: exp.Expr) -> Typed:
        return apply(fn, self._all(*args), self.env.float_stays)

    def _all(self, *args: exp.Expr) -> list[Typed]:
        return [self.bind(a) for a in args]

    def literal(self, node: exp.Expr) -> Typed:
        """Binds a number; text is not a tensor value."""
        if node.args["is_string"]:
            raise unsupported("Text", node, "Tensors contain numbers and booleans.")
        return literals.number(node.name)

    def negation(self, node: exp.Expr) -> Typed:
        """Binds a unary minus; -5 is one literal."""
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string and inner.name.isdecimal():
            return literals.whole_number(inner.name, -1)
        bound = self.bind(inner)
        is_float = isinstance(bound.type, DType) and bound.type.is_float
        constant = isinstance(bound.value, Const) and bound.valid == TRUE
        if constant and (bound.literal or is_float):
            return literals.negated(bound)
        return apply("neg", [bound], self.env.float_stays)

    def boolean(self, node: exp.Expr) -> Typed:
        """TRUE and FALSE."""
        return Typed(TRUE if node.this else FALSE, DType.BOOLEAN)

    def null(self, node: exp.Expr) -> Typed:
        """NULL."""
        return NULL

    def paren(self, node: exp.Expr) -> Typed:
        """(…)."""
        return self.bind(node.this)

    def column(self, node: exp.Expr) -> Typed:
        """Resolves a column reference."""
        assert isinstance(node, exp.Column)
        return self.env.column(node)

    def parameter(self, node: exp.Expr) -> Typed:
        """Binds `?` or `$n`; the parser has numbered it, and the session has its value."""
        if isinstance(node, exp.Placeholder):
            raise unsupported(f"The parameter {node.sql()}", node, "Write ?, $1 or $name.")
        return self.env.parameters.typed(int(node.name))

    def greater(self, node: exp.Expr) -> Typed:
        """Binds `a > b` as `b < a`."""
        fn = "lt" if isinstance(node, exp.GT) else "le"
        a, b = self._all(node.this, node.expression)
        return apply(fn, [b, a], self.env.float_stays)

    def and_(self, node: exp.Expr) -> Typed:
        """Binds a chain of three-valued ANDs."""
        return logical_and([self.condition(t) for t in self._chain(node, exp.And)])

    def or_(self, node: exp.Expr) -> Typed:
        """Binds a chain of three-valued ORs."""
        return logical_or([self.condition(t) for t in self._chain(node, exp.Or)])

    def _chain(self, node: exp.Expr, connective: type[exp.Expr]) -> Iterator[exp.Expr]:
        """The terms of a chain of one connective, left to right, without recursion."""
        waiting = [node.expression, node.this]
        while waiting:
            term = waiting.pop()
            inner = term.this if isinstance(term, exp.Paren) else term
            if isinstance(inner, connective) and self.env.match(inner) is None:
                waiting += [inner.expression, inner.this]
            else:
                yield term

    def is_(self, node: exp.Expr) -> Typed:
        """IS NULL, IS TRUE, IS FALSE."""
        other = node.expression
        if isinstance(other, exp.Null):
            return Typed(negate(self.bind(node.this).valid), DType.BOOLEAN)
        if isinstance(other, exp.Boolean):
            bound = self.condition(node.this)
            want = bound if other.this else logical_not(bound)
            return Typed(truth(want), DType.BOOLEAN)
        raise unsupported(text(node), node)

    def same(self, node: exp.Expr) -> Typed:
        """IS [NOT] DISTINCT FROM."""
        equal = functions.not_distinct(*self._all(node.this, node.expression))
        return logical_not(equal) if isinstance(node, exp.NullSafeNEQ) else equal

    def case(self, node: exp.Expr) -> Typed:
        """Binds both forms of CASE; a missing ELSE is NULL."""
        branches = []
        for branch in node.args["ifs"]:
            test = branch.this
            if node.this is not None:
                test = exp.EQ(this=exp.paren(node.this), expression=exp.paren(test))
            branches.append((test, branch.args["true"]))
        return self._case(branches, node.args.get("default"))

    def _case(self, branches: list[tuple[exp.Expr, exp.Expr]], default: exp.Expr | None) -> Typed:
        tests = [self.condition(test) for test, _ in branches]
        values = self._all(*(value for _, value in branches))
        return functions.case(tests, values, NULL if default is None else self.bind(default))

    def extreme(self, node: exp.Expr) -> Typed:
        """GREATEST and LEAST."""
        fn = "greatest" if isinstance(node, exp.Greatest) else "least"
        return functions.extreme(fn, self._all(node.this, *node.expressions))

    def log(self, node: exp.Expr) -> Typed:
        """Binds LOG(x) and LOG10 with base 10, LOG2, and LOG(b, x) with base b."""
        base, x = node.this, node.expression
        if x is None:
            return self._call("log10", base)
        if isinstance(base, exp.Literal) and "start" not in base.meta:
            return self._call(f"log{base.name}", x)  # sqlglot reads LOG2(x) as LOG(2, x)
        return functions.logarithm(self.bind(base), self.bind(x), self.env.float_stays)

    def round_(self, node: exp.Expr) -> Typed:
        """Binds ROUND, which rounds half away from zero."""
        digits = node.args.get("decimals")
        bound = None if digits is None else self.bind(digits)
        return functions.rounded(self.bind(node.this), bound, self.env.float_stays)

    def cast(self, node: exp.Expr) -> Typed:
        """CAST(x AS type), x::type, and an argument of a macro with typed parameters."""
        target = literals.parse_type(node.args["to"])
        signature = node.meta.get(PARAMETER_OF)
        if signature is None:
            return self._cast(node.this, target)
        return passed(self.bind(node.this), target, signature)

    def _cast(self, node: exp.Expr, target: SqlType) -> Typed:
        if isinstance(node, exp.Literal) and node.is_string and target is not None:
            return literals.read_text(node.name, target)
        bound = self.bind(node)
        if isinstance(target, Decimal):  # the width of a DECIMAL is proven for constants only
            bound = replace(bound, value=self.env.parameters.constants(bound.value))
        return replace(convert(bound, target), literal=False)

    def window(self, node: exp.Expr) -> Typed:
        """agg(…) OVER (…)."""
        assert isinstance(node, exp.Window)
        return self.env.window(node)

    def anonymous(self, node: exp.Expr) -> Typed:
        """Binds a function without a syntax node in sqlglot."""
        name, args = node.name.lower(), node.expressions
        if name == STAND_IN:
            hint = "Join a tensor or a table of the values."
            raise unsupported(f"IN with {LEAST:,} or more literals", node.parent or node, hint)
        if _anonymous_aggregate(node):
            return self.env.aggregate(node, None)
        if name in NAMED and len(args) == NAMED[name][1]:
            return self._call(NAMED[name][0], *args)
        match name, args:
            case "sigmoid", [arg]:
                return functions.sigmoid(self.bind(arg), self.env.float_stays)
            case "cast_to_type", [arg, like]:
                return self._cast(arg, self.bind(like).type)
            case "stop_gradient", [arg]:
                return functions.stopped(self.bind(arg))
            case "square", [arg]:
                return self._call("pow", arg, exp.Literal.number(2))
        python = function_name(name)
        if python is not None:
            return functions.of_python(python, self._all(*args))
        expansion = self.env.macro(name, args)
        if expansion is not None:
            return self.bind(expansion)
        if name in TILE_FUNCTIONS:
            raise ProgrammingError(
                f"{name} is a function of tiles, among elements",
                hint="A SELECT over tiles has TILES(…) in its FROM.",
                position=position(node),
            )
        hint = suggest(name, descriptions.FUNCTION_NAMES, "functions")
        if name in ("gradient", "einsum", "read_tensor"):
            hint = f"{name.upper()} returns a tensor; call it in FROM: SELECT * FROM {name}(…)."
        error = UnknownHere(
            f"There is no function {name} of {len(args)} argument{'s' * (len(args) != 1)}",
            hint=hint,
            position=position(node),
        )
        error.call = f"{name.upper()}()"
        raise error


def _is_of_bits(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.BitwiseAnd | exp.BitwiseOr | exp.BitwiseXor)


def _anonymous_aggregate(node: exp.Expr) -> bool:
    if law_of(node) is not None:
        return True
    return isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES


_HANDLERS: dict[type[exp.Expr], Callable[[ScalarBinder, exp.Expr], Typed]] = {
    exp.Literal: ScalarBinder.literal,
    exp.Boolean: ScalarBinder.boolean,
    exp.Null: ScalarBinder.null,
    exp.Paren: ScalarBinder.paren,
    exp.Column: ScalarBinder.column,
    exp.Placeholder: ScalarBinder.parameter,
    exp.Parameter: ScalarBinder.parameter,
    exp.Neg: ScalarBinder.negation,
    exp.GT: ScalarBinder.greater,
    exp.GTE: ScalarBinder.greater,
    exp.And: ScalarBinder.and_,
    exp.Or: ScalarBinder.or_,
    exp.Not: lambda self, node: logical_not(self.condition(node.this)),
    exp.Between: lambda self, node: functions.between(
        *(self.bind(node.args[k]) for k in ("this", "low", "high"))
    ),
    exp.In: lambda self, node: functions.member(self.bind(node.this), self._all(*node.expressions)),
    exp.Is: ScalarBinder.is_,
    exp.NullSafeEQ: ScalarBinder.same,
    exp.NullSafeNEQ: ScalarBinder.same,
    exp.If: lambda self, node: self._case([(node.this, node.args["true"])], node.args.get("false")),
    exp.Case: ScalarBinder.case,
    exp.Coalesce: lambda self, node: functions.coalesce(self._all(node.this, *node.expressions)),
    exp.Nullif: lambda self, node: functions.nullif(*self._all(node.this, node.expression)),
    exp.Greatest: ScalarBinder.extreme,
    exp.Least: ScalarBinder.extreme,
    exp.Log: ScalarBinder.log,
    exp.Round: ScalarBinder.round_,
    exp.Cast: ScalarBinder.cast,
    exp.Filter: lambda self, node: self.env.aggregate(node.this, node.expression.this),
    exp.Window: ScalarBinder.window,
    exp.Subquery: lambda self, node: self.env.subquery(node),
    exp.Anonymous: ScalarBinder.anonymous,
    exp.Pi: lambda self, node: Typed(Const(math.pi, DType.DOUBLE), DType.DOUBLE),
}
