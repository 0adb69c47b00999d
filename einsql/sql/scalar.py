"""Binds scalar SQL expressions to typed values; one handler per kind of syntax node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlglot import exp

from einsql.algebra import SCALARS
from einsql.einsum import FALSE, TRUE, Call, Const, conj, disj, negate
from einsql.errors import Error, NotSupportedError, ProgrammingError, suggest
from einsql.schema import DType
from einsql.sql.aggregates import AGGREGATES
from einsql.sql.typed import (
    NULL,
    Decimal,
    SqlType,
    Typed,
    apply,
    choose,
    convert,
    integer,
    logical_and,
    logical_not,
    logical_or,
    meet,
    number,
    truth,
)

BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.IntDiv: "idiv",
    exp.Mod: "mod", exp.Pow: "pow", exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le",
    exp.Atan2: "atan2", exp.BitwiseAnd: "bitand", exp.BitwiseOr: "bitor", exp.BitwiseXor: "xor",
}  # fmt: skip
UNARY: dict[type[exp.Expr], str] = {
    exp.Neg: "neg", exp.Abs: "abs", exp.Sign: "sign", exp.Floor: "floor", exp.Ceil: "ceil",
    exp.Trunc: "trunc", exp.Exp: "exp", exp.Ln: "ln", exp.Sqrt: "sqrt", exp.Cbrt: "cbrt",
    exp.Sin: "sin", exp.Cos: "cos", exp.Tan: "tan", exp.Asin: "asin", exp.Acos: "acos",
    exp.Atan: "atan", exp.Sinh: "sinh", exp.Cosh: "cosh", exp.Tanh: "tanh", exp.Asinh: "asinh",
    exp.Acosh: "acosh", exp.Atanh: "atanh", exp.Degrees: "degrees", exp.Radians: "radians",
    exp.IsNan: "isnan", exp.IsInf: "isinf",
}  # fmt: skip
NAMED: dict[str, tuple[str, int]] = {
    "erf": ("erf", 1), "lgamma": ("lgamma", 1), "isfinite": ("isfinite", 1), "add": ("add", 2),
    "subtract": ("sub", 2), "multiply": ("mul", 2), "divide": ("idiv", 2), "fmod": ("mod", 2),
    "mod": ("mod", 2), "log2": ("log2", 1), "ceiling": ("ceil", 1),
}  # fmt: skip
"""Functions sqlglot has no node for: their function in the algebra and their arity."""

FUNCTION_NAMES = sorted(
    {c.key for c in (*BINARY, *UNARY)} & set(SCALARS)
    | set(NAMED)
    | {"round", "greatest", "least", "coalesce", "nullif", "if", "log", "log10", "pow", "power",
       "sigmoid", "square", "pi", "cast", "ln"}
)  # fmt: skip
"""What a user can call in an expression; used for hints and completion."""

_TYPES = {
    "BOOLEAN": DType.BOOLEAN, "TINYINT": DType.TINYINT, "INT": DType.INTEGER,
    "BIGINT": DType.BIGINT, "FLOAT": DType.FLOAT, "DOUBLE": DType.DOUBLE,
}  # fmt: skip


class Environment(Protocol):
    """What surrounds an expression: columns, aggregates, windows and subqueries."""

    float_stays: bool
    parameters: Sequence[object]

    def match(self, node: exp.Expr) -> Typed | None:
        """The value of a whole expression that is already known, as a GROUP BY item is."""

    def column(self, node: exp.Column) -> Typed:
        """Resolves a column reference."""

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        """Binds an aggregate call with its FILTER."""

    def window(self, node: exp.Window) -> Typed:
        """Binds an aggregate over a window."""

    def subquery(self, node: exp.Expr) -> Typed:
        """Binds a scalar subquery."""

    def macro(self, name: str, args: list[exp.Expr]) -> exp.Expr | None:
        """The expansion of a scalar macro, or None."""


def position(node: exp.Expr) -> int | None:
    """Offset of the first token of a syntax node that sqlglot remembers."""
    found: list[int] = [
        n.meta["start"] for n in node.walk() if isinstance(n, exp.Expr) and "start" in n.meta
    ]
    return min(found) if found else None


def locate(error: Error, node: exp.Expr) -> Error:
    """Gives an error the node's position unless it has one already."""
    if error.position is None:
        error.position = position(node)
    return error


def unsupported(what: str, node: exp.Expr, hint: str = "") -> NotSupportedError:
    """The error for SQL that is no tensor work."""
    return NotSupportedError(
        f"{what} is outside the tensor fragment", hint=hint, position=position(node)
    )


def parse_type(node: exp.Expr) -> SqlType:
    """The value type a SQL type name means.

    Raises:
        NotSupportedError: Tensors have no such type.
    """
    text = node.sql(dialect="duckdb").upper() if isinstance(node, exp.Expr) else str(node)
    kind = node.this.name if isinstance(node, exp.DataType) and hasattr(node.this, "name") else text
    if kind in _TYPES:
        return _TYPES[kind]
    if text in ("HALF", "FLOAT16"):
        return DType.HALF
    if kind == "DECIMAL":
        sizes = [int(p.name) for p in node.expressions]
        return Decimal(sizes[1] if len(sizes) > 1 else 3 if not sizes else 0)
    names = "BOOLEAN, TINYINT, INTEGER, BIGINT, HALF, FLOAT, DOUBLE"
    raise NotSupportedError(f"Tensors have no type {text}", hint=f"Types are {names}.")


@dataclass
class ScalarBinder:
    """Binds expressions within one environment."""

    env: Environment

    def bind(self, node: exp.Expr) -> Typed:
        """Binds one expression.

        Raises:
            Error: The expression is wrong or outside the fragment; it has a position.
        """
        try:
            known = self.env.match(node)
            return self._bind(node) if known is None else known
        except Error as error:
            raise locate(error, node) from None

    def condition(self, node: exp.Expr) -> Typed:
        """Binds a predicate; integers and floats count as their CAST to BOOLEAN."""
        bound = self.bind(node)
        if bound.type not in (DType.BOOLEAN, None):
            bound = convert(bound, DType.BOOLEAN)
        return bound

    def _bind(self, node: exp.Expr) -> Typed:
        kind = type(node)
        if kind in BINARY:
            return self._call(BINARY[kind], node.this, node.expression)
        if kind in UNARY:
            return self._unary(node)
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, node)
        if kind in AGGREGATES or _anonymous_aggregate(node):
            return self.env.aggregate(node, None)
        raise unsupported(node.sql(dialect="duckdb")[:60], node)

    def _call(self, fn: str, *args: exp.Expr) -> Typed:
        return apply(fn, [self.bind(a) for a in args], self.env.float_stays)

    def _unary(self, node: exp.Expr) -> Typed:
        if isinstance(node, exp.Neg):
            inner = node.this
            if isinstance(inner, exp.Literal) and not inner.is_string:
                return _negated_literal(inner)
        if node.args.get("decimals") is not None:
            raise unsupported(f"{node.key.upper()} with digits", node)
        return self._call(UNARY[type(node)], node.this)

    def literal(self, node: exp.Expr) -> Typed:
        """Numbers; text is no tensor value."""
        if node.args["is_string"]:
            raise unsupported("Text", node, "Tensors hold numbers and booleans.")
        return number(node.name)

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
        """A column reference."""
        assert isinstance(node, exp.Column)
        return self.env.column(node)

    def parameter(self, node: exp.Expr) -> Typed:
        """`?` or `$n`; the parser numbers them, and the session has a value for each."""
        if isinstance(node, exp.Placeholder):
            raise unsupported(f"The parameter {node.sql()}", node, "Write ? or $1.")
        return bind_parameter(self.env.parameters[int(node.name) - 1])

    def greater(self, node: exp.Expr) -> Typed:
        """A > b is b < a."""
        fn = "lt" if isinstance(node, exp.GT) else "le"
        a, b = self.bind(node.this), self.bind(node.expression)
        return apply(fn, [b, a], self.env.float_stays)

    def and_(self, node: exp.Expr) -> Typed:
        """Three-valued AND."""
        return logical_and(self.condition(node.this), self.condition(node.expression))

    def or_(self, node: exp.Expr) -> Typed:
        """Three-valued OR."""
        return logical_or(self.condition(node.this), self.condition(node.expression))

    def not_(self, node: exp.Expr) -> Typed:
        """NOT."""
        return logical_not(self.condition(node.this))

    def between(self, node: exp.Expr) -> Typed:
        """X BETWEEN low AND high."""
        x, low, high = (self.bind(node.args[k]) for k in ("this", "low", "high"))
        stays = self.env.float_stays
        return logical_and(apply("le", [low, x], stays), apply("le", [x, high], stays))

    def in_(self, node: exp.Expr) -> Typed:
        """X IN (a, b, …)."""
        if node.args.get("query") is not None or node.args.get("unnest") is not None:
            raise unsupported("IN with a subquery", node, "Join with the subquery instead.")
        x = self.bind(node.this)
        items = [self.bind(e) for e in node.expressions]
        met = meet([x, *items], "IN")
        if isinstance(met, DType):
            x, items = convert(x, met), [convert(i, met) for i in items]
        result = Typed(FALSE, DType.BOOLEAN)
        for item in items:
            same = apply("eq", [x, item], self.env.float_stays)
            result = logical_or(result, convert(same, DType.BOOLEAN))
        return result

    def is_(self, node: exp.Expr) -> Typed:
        """IS NULL, IS TRUE, IS FALSE."""
        other = node.expression
        if isinstance(other, exp.Null):
            return Typed(negate(self.bind(node.this).valid), DType.BOOLEAN)
        if isinstance(other, exp.Boolean):
            bound = self.condition(node.this)
            want = bound if other.this else logical_not(bound)
            return Typed(truth(want), DType.BOOLEAN)
        raise unsupported(node.sql(dialect="duckdb"), node)

    def same(self, node: exp.Expr) -> Typed:
        """IS [NOT] DISTINCT FROM."""
        a, b = self.bind(node.this), self.bind(node.expression)
        both = conj(a.valid, b.valid)
        neither = conj(negate(a.valid), negate(b.valid))
        equal = apply("eq", [a, b], self.env.float_stays)
        value = disj(conj(both, equal.value), neither) if equal.type is not None else neither
        if isinstance(node, exp.NullSafeNEQ):
            value = negate(value)
        return Typed(value, DType.BOOLEAN)

    def if_(self, node: exp.Expr) -> Typed:
        """IF(condition, then, otherwise)."""
        branches = [(node.this, node.args["true"])]
        return self._case(branches, node.args.get("false"))

    def case(self, node: exp.Expr) -> Typed:
        """CASE in both forms; a missing ELSE is NULL."""
        branches = []
        for branch in node.args["ifs"]:
            test = branch.this
            if node.this is not None:
                test = exp.EQ(this=node.this.copy(), expression=test.copy())
            branches.append((test, branch.args["true"]))
        return self._case(branches, node.args.get("default"))

    def _case(
        self,
        branches: list[tuple[exp.Expr, exp.Expr]],
        default: exp.Expr | None,
    ) -> Typed:
        tests = [truth(self.condition(test)) for test, _ in branches]
        values = [self.bind(value) for _, value in branches]
        otherwise = NULL if default is None else self.bind(default)
        # A lone integer literal is INTEGER here, so the literals stop adapting.
        met = meet([replace(t, literal=False) for t in (*values, otherwise)], "CASE")
        result = convert(otherwise, met)
        for test, value in reversed(list(zip(tests, values, strict=True))):
            result = choose(test, value, result, met)
        return result

    def coalesce(self, node: exp.Expr) -> Typed:
        """The first argument that is not NULL."""
        items = [self.bind(a) for a in (node.this, *node.expressions)]
        met = meet(items, "COALESCE")
        result = convert(items[-1], met)
        for item in reversed(items[:-1]):
            result = choose(item.valid, item, result, met)
        return result

    def nullif(self, node: exp.Expr) -> Typed:
        """NULL where both are equal."""
        a, b = self.bind(node.this), self.bind(node.expression)
        same = truth(convert(apply("eq", [a, b], self.env.float_stays), DType.BOOLEAN))
        return replace(a, valid=conj(a.valid, negate(same)), literal=False)

    def extreme(self, node: exp.Expr) -> Typed:
        """GREATEST and LEAST, which skip NULLs."""
        fn = "greatest" if isinstance(node, exp.Greatest) else "least"
        items = [self.bind(a) for a in (node.this, *node.expressions)]
        met = meet(items, fn.upper())
        if met is None:
            return NULL
        items = [convert(i, met) for i in items]
        result = items[0]
        for item in items[1:]:
            if (result.valid, item.valid) == (TRUE, TRUE):
                dtype = DType.BIGINT if isinstance(met, Decimal) else met
                result = Typed(Call(fn, (result.value, item.value), dtype), met)
                continue
            both = Typed(
                apply(fn, [replace(result, valid=TRUE), replace(item, valid=TRUE)], True).value,
                met,
            )
            alone = choose(result.valid, result, item, met)
            result = replace(
                choose(conj(result.valid, item.valid), both, replace(alone, valid=TRUE), met),
                valid=disj(result.valid, item.valid),
            )
        return result

    def log(self, node: exp.Expr) -> Typed:
        """LOG(x) and LOG10 to base 10, LOG(b, x) to base b."""
        if node.expression is None:
            return self._call("log10", node.this)
        base = node.this
        if isinstance(base, exp.Literal) and base.name in ("2", "10"):
            return self._call("log2" if base.name == "2" else "log10", node.expression)
        stays = self.env.float_stays
        top = apply("log10", [self.bind(node.expression)], stays)
        return apply("div", [top, apply("log10", [self.bind(base)], stays)], stays)

    def round_(self, node: exp.Expr) -> Typed:
        """ROUND half away from zero, to whole numbers."""
        digits = node.args.get("decimals")
        if digits is not None and digits.name != "0":
            raise unsupported(
                "ROUND with digits", node, "ROUND(x * 100) / 100 rounds to two digits."
            )
        return self._call("round", node.this)

    def cast(self, node: exp.Expr) -> Typed:
        """CAST(x AS type) and x::type."""
        if isinstance(node, exp.TryCast):
            raise unsupported("TRY_CAST", node)
        if isinstance(node.this, exp.Literal) and node.this.is_string:
            return _parsed(node.this.name, parse_type(node.args["to"]), node)
        return replace(convert(self.bind(node.this), parse_type(node.args["to"])), literal=False)

    def filtered(self, node: exp.Expr) -> Typed:
        """agg(…) FILTER (WHERE …)."""
        return self.env.aggregate(node.this, node.expression.this)

    def window(self, node: exp.Expr) -> Typed:
        """agg(…) OVER (…)."""
        assert isinstance(node, exp.Window)
        return self.env.window(node)

    def subquery(self, node: exp.Expr) -> Typed:
        """(SELECT …) as a value."""
        return self.env.subquery(node)

    def anonymous(self, node: exp.Expr) -> Typed:
        """Functions sqlglot does not know by name."""
        name, args = str(node.this).lower(), node.expressions
        if _anonymous_aggregate(node):
            return self.env.aggregate(node, None)
        if name in NAMED and len(args) == NAMED[name][1]:
            return self._call(NAMED[name][0], *args)
        if name == "sigmoid" and len(args) == 1:
            one = number("1")
            stays = self.env.float_stays
            x = self.bind(args[0])
            if not (isinstance(x.type, DType) and x.type.is_float):
                x = convert(x, DType.DOUBLE)
            decay = apply("exp", [apply("neg", [x], stays)], stays)
            return apply("div", [one, apply("add", [one, decay], stays)], stays)
        if name == "square" and len(args) == 1:
            return self._call("pow", args[0], exp.Literal.number(2))
        expansion = self.env.macro(name, args)
        if expansion is not None:
            return self.bind(expansion)
        raise ProgrammingError(
            f"There is no function {name} of {len(args)} argument{'s' * (len(args) != 1)}",
            hint=suggest(name, FUNCTION_NAMES, "functions"),
            position=position(node),
        )

    def pi(self, node: exp.Expr) -> Typed:
        """PI()."""
        return Typed(Const(math.pi, DType.DOUBLE), DType.DOUBLE)


def bind_parameter(value: object) -> Typed:
    """Binds a Python value given for a parameter.

    Raises:
        ProgrammingError: The value is no number, boolean or None.
    """
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        dtype = DType.of(value.dtype)  # type: ignore[attr-defined]  # a NumPy scalar
        if dtype is not None:
            return Typed(Const(value.item(), dtype), dtype)
    if value is None:
        return NULL
    if isinstance(value, bool):
        return Typed(TRUE if value else FALSE, DType.BOOLEAN)
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, float):
        return Typed(Const(value, DType.DOUBLE), DType.DOUBLE)
    raise ProgrammingError(
        f"A parameter cannot be a {type(value).__name__}",
        hint="Numbers, booleans and None can be bound.",
    )


def _parsed(text: str, target: SqlType, node: exp.Expr) -> Typed:
    """A value written as text, as in 'inf'::FLOAT."""
    word = text.strip().lower()
    try:
        if target is DType.BOOLEAN and word in ("true", "false", "t", "f", "1", "0"):
            return Typed(TRUE if word in ("true", "t", "1") else FALSE, DType.BOOLEAN)
        if isinstance(target, DType) and target.is_integer:
            return convert(integer(int(word)), target)
        if isinstance(target, DType) and target.is_float:
            return convert(Typed(Const(float(word), DType.DOUBLE), DType.DOUBLE), target)
    except ValueError:
        pass
    kind = "NULL" if target is None else target.value
    raise ProgrammingError(f"'{text}' is no {kind}", position=position(node))


def _negated_literal(node: exp.Literal) -> Typed:
    """-5 is one literal, so that the least BIGINT can be written."""
    text = node.name
    if "." in text or "e" in text.lower():
        bound = number(text)
        assert isinstance(bound.value, Const)
        return replace(bound, value=Const(-bound.value.value, bound.value.dtype))
    return integer(-int(text.replace("_", "")), literal=True)


def _anonymous_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in AGGREGATES


_HANDLERS: dict[type[exp.Expr], Callable[[ScalarBinder, exp.Expr], Typed]] = {
    exp.Literal: ScalarBinder.literal,
    exp.Boolean: ScalarBinder.boolean,
    exp.Null: ScalarBinder.null,
    exp.Paren: ScalarBinder.paren,
    exp.Column: ScalarBinder.column,
    exp.Placeholder: ScalarBinder.parameter,
    exp.Parameter: ScalarBinder.parameter,
    exp.GT: ScalarBinder.greater,
    exp.GTE: ScalarBinder.greater,
    exp.And: ScalarBinder.and_,
    exp.Or: ScalarBinder.or_,
    exp.Not: ScalarBinder.not_,
    exp.Between: ScalarBinder.between,
    exp.In: ScalarBinder.in_,
    exp.Is: ScalarBinder.is_,
    exp.NullSafeEQ: ScalarBinder.same,
    exp.NullSafeNEQ: ScalarBinder.same,
    exp.If: ScalarBinder.if_,
    exp.Case: ScalarBinder.case,
    exp.Coalesce: ScalarBinder.coalesce,
    exp.Nullif: ScalarBinder.nullif,
    exp.Greatest: ScalarBinder.extreme,
    exp.Least: ScalarBinder.extreme,
    exp.Log: ScalarBinder.log,
    exp.Round: ScalarBinder.round_,
    exp.Cast: ScalarBinder.cast,
    exp.TryCast: ScalarBinder.cast,
    exp.Filter: ScalarBinder.filtered,
    exp.Window: ScalarBinder.window,
    exp.Subquery: ScalarBinder.subquery,
    exp.Anonymous: ScalarBinder.anonymous,
    exp.Pi: ScalarBinder.pi,
}
