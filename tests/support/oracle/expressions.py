"""The random grammar of expressions: what is built, where scalars.py says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.support.oracle.aggregates import Aggregates, Frame
from tests.support.oracle.choices import Choices
from tests.support.oracle.relations import E, UnsoundError, meet
from tests.support.oracle.scalars import Scalars

_UNARY = (
    "sin", "cos", "tanh", "atan", "erf", "exp", "sqrt", "ln", "log2", "log10", "cbrt", "tan",
    "asin", "acos", "asinh", "acosh", "atanh", "degrees", "radians", "sinh", "cosh", "sigmoid",
)  # fmt: skip
_COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=")
_DECIMALS = (("0.5", 1), ("1.5", 1), ("0.25", 2), ("-2.0", 0), ("0.1", None))


def integer(value: int) -> E:
    """An integer literal."""
    return E(str(value), "INTEGER", abs(value), 0, literal=True, signed_zero=True)


def decimal(c: Choices) -> E:
    """A literal with a point."""
    text, bits = c.pick(_DECIMALS)
    return E(text, "DECIMAL", abs(float(text)), bits, literal=True, signed_zero=True)


class Expressions:
    """Random expressions over leaves in scope."""

    def __init__(
        self, c: Choices, float_stays: bool, tags: set[str], macros: Sequence[str] = ()
    ) -> None:
        self.c = c
        self.macros = macros
        self.scalars = Scalars(c, float_stays, tags)
        self.aggregates = Aggregates(self.scalars)
        self.tags = tags

    # ---- numbers ---------------------------------------------------------------------

    def leaf(self, leaves: Sequence[E]) -> E:
        """A numeric leaf: mostly a value, sometimes a key."""
        values = [e for e in leaves if e.key is None and e.dtype not in ("BOOLEAN", "DECIMAL")]
        keys = [e for e in leaves if e.key is not None]
        if values and not (keys and self.c.chance(15)):
            return self.c.pick(values)
        if keys:
            return self.c.pick(keys)
        truths = [e for e in leaves if e.dtype == "BOOLEAN"]
        if truths:
            return self.scalars.cast(self.c.pick(truths), "INTEGER")
        return replace(integer(1), literal=False)

    def literal(self, beside: E) -> E:
        """A number to stand beside another operand."""
        if beside.is_float and self.c.chance(50):
            self.tags.add("float_mixed")
            return decimal(self.c)
        if self.c.chance(10):
            return E("5e-1", "DOUBLE", 0.5, 1, signed_zero=True)
        return integer(self.c.pick([2, 1, 3, -1, 4]))

    def number(self, leaves: Sequence[E], depth: int) -> E:
        """A numeric expression of at most the given depth."""
        first = self.leaf(leaves)
        if depth <= 0:
            return first
        make = self.c.weighted(
            [
                (4, self._as_it_is), (12, self._product), (7, self._sum), (3, self._beside),
                (3, self._quotient), (6, self._function), (4, self._case), (3, self._cast),
                (3, self._null_handling), (3, self._extreme), (3, self._rounding),
                (2, self._integer), (2, self._power), (2, self._two_arguments), (1, self._bits),
                (2, self._cast_product), (2 if self.macros else 0, self._macro),
            ]
        )  # fmt: skip
        try:
            return make(first, leaves, depth - 1)
        except UnsoundError:
            return first

    def _as_it_is(self, e: E, leaves: Sequence[E], depth: int) -> E:
        return e

    def _inner(self, e: E, leaves: Sequence[E], depth: int) -> E:
        return self.number(leaves, depth) if depth > 0 and self.c.chance(50) else e

    def _product(self, e: E, leaves: Sequence[E], depth: int) -> E:
        return self.scalars.arithmetic("*", self._inner(e, leaves, depth),
                                       self.number(leaves, depth))  # fmt: skip

    def _cast_product(self, e: E, leaves: Sequence[E], depth: int) -> E:
        """A product in a wider type than its second factor's."""
        wide = self.scalars.cast(e, self.c.pick(["DOUBLE", "BIGINT", "FLOAT"]))
        pair = (wide, self.leaf(leaves))
        return self.scalars.arithmetic("*", *(pair[::-1] if self.c.chance(30) else pair))

    def _macro(self, e: E, leaves: Sequence[E], depth: int) -> E:
        """A macro of the database, which adds 1 to its argument."""
        name, x = self.c.pick(self.macros), self._inner(e, leaves, depth)
        total = self.scalars.arithmetic("+", x, integer(1))
        return replace(total, sql=f"{name}({x.sql})", oracle=f"{name}({x.oracle})")

    def _sum(self, e: E, leaves: Sequence[E], depth: int) -> E:
        op = self.c.pick(["+", "-"])
        return self.scalars.arithmetic(op, self._inner(e, leaves, depth),
                                       self.number(leaves, depth))  # fmt: skip

    def _beside(self, e: E, leaves: Sequence[E], depth: int) -> E:
        e = self._inner(e, leaves, depth)
        op = self.c.pick(["+", "*", "-"])
        number = self.literal(e)
        pair = (number, e) if self.c.chance(40) else (e, number)
        return self.scalars.arithmetic(op, *pair)

    def _quotient(self, e: E, leaves: Sequence[E], depth: int) -> E:
        e = self._inner(e, leaves, depth)
        divisor = self.leaf(leaves) if self.c.chance(30) else self.literal(e)
        return self.scalars.divide(e, divisor)

    def _function(self, e: E, leaves: Sequence[E], depth: int) -> E:
        return self.scalars.function(self.c.pick(_UNARY), self._inner(e, leaves, depth))

    def _case(self, e: E, leaves: Sequence[E], depth: int) -> E:
        when = self.condition(leaves, 1)
        then = self._inner(e, leaves, depth)
        if self.c.chance(25):
            self.tags.add("no_rows")
            made = self.scalars.choose(
                "CASE WHEN {0} THEN {1} END", (when, then), (then,),
                f"(CASE WHEN {_escaped(when.oracle)} THEN {{0}} END)",
            )  # fmt: skip
            return replace(made, nullable=True)
        other = self.literal(then) if self.c.chance(50) else self.number(leaves, depth)
        test = _escaped(when.oracle)
        return self.scalars.choose(
            self.c.pick(["CASE WHEN {0} THEN {1} ELSE {2} END", "if({0}, {1}, {2})"]),
            (when, then, other), (then, other),
            f"(CASE WHEN {test} THEN {{0}} ELSE {{1}} END)",
        )  # fmt: skip

    def _cast(self, e: E, leaves: Sequence[E], depth: int) -> E:
        if self.c.chance(20):
            truth = self.condition(leaves, 1)
            return self.scalars.cast(truth, self.c.pick(["INTEGER", "DOUBLE", "FLOAT"]))
        dtype = self.c.pick(["DOUBLE", "FLOAT", "INTEGER", "BIGINT", "TINYINT"])
        return self.scalars.cast(self._inner(e, leaves, depth), dtype)

    def _null_handling(self, e: E, leaves: Sequence[E], depth: int) -> E:
        a = self._inner(e, leaves, depth)
        b = self.literal(a) if self.c.chance(60) else self.leaf(leaves)
        if self.c.chance(60):
            return self.scalars.choose(
                "coalesce({0}, {1})", (a, b), (a, b),
                f"(CASE WHEN ({_escaped(a.oracle)}) IS NULL THEN {{1}} ELSE {{0}} END)",
            )  # fmt: skip
        self.scalars.compare("=", a, b)
        self.tags.add("no_rows")
        meet(a, b)
        made = self.scalars.build("nullif({0}, {1})", (a, b), replace(a, key=None))
        return replace(made, nullable=True)

    def _extreme(self, e: E, leaves: Sequence[E], depth: int) -> E:
        a = self._inner(e, leaves, depth)
        b = self.literal(a) if self.c.chance(40) else self.leaf(leaves)
        fn = self.c.pick(["greatest", "least"])
        if a.special or b.special:
            self.tags.add("nan")
        made = self.scalars.choose(f"{fn}({{0}}, {{1}})", (a, b), (a, b), "greatest({0}, {1})")
        return replace(made, signed_zero=False)

    def _rounding(self, e: E, leaves: Sequence[E], depth: int) -> E:
        e = self._inner(e, leaves, depth)
        fn = self.c.pick(["abs", "neg", "floor", "ceil", "round", "trunc", "sign"])
        if fn == "abs":
            return self.scalars.absolute(e)
        return self.scalars.negate(e) if fn == "neg" else self.scalars.rounding(fn, e)

    def _integer(self, e: E, leaves: Sequence[E], depth: int) -> E:
        whole = [x for x in leaves if x.is_integer] or [e]
        a = self.c.pick(whole)
        b = self.c.pick(whole) if self.c.chance(30) else integer(self.c.pick([2, 3, 4]))
        return self.scalars.integer_division(self.c.pick(["//", "%"]), a, b)

    def _power(self, e: E, leaves: Sequence[E], depth: int) -> E:
        return self.scalars.power(e, self.c.pick(["2", "3", "0.5", "-1", "1.5"]))

    def _two_arguments(self, e: E, leaves: Sequence[E], depth: int) -> E:
        if self.c.chance(50):
            return self.scalars.logarithm(self.c.pick(["2", "10", "3"]), e)
        return self.scalars.arctangent(e, self.leaf(leaves))

    def _bits(self, e: E, leaves: Sequence[E], depth: int) -> E:
        whole = [x for x in leaves if x.is_integer]
        if not whole:
            raise UnsoundError
        a, b = self.c.pick(whole), self.c.pick(whole)
        form = self.c.pick(["({0} & {1})", "({0} | {1})", "xor({0}, {1})"])
        return self.scalars.bitwise(form, a, b)

    def risky_total(self, leaves: Sequence[E], frame: Frame) -> E:
        """A SUM that may overflow 64 bits, or of something that raises."""
        whole = [e for e in leaves if e.dtype == "BIGINT" and e.key is None]
        self.scalars.may_raise = True
        try:
            e = self.c.pick(whole) if whole and self.c.chance(60) else self._risky(leaves)
            return self.aggregates.total(e, frame)
        except UnsoundError:
            return self.aggregates.count(None, frame)
        finally:
            self.scalars.may_raise = False

    def risky(self, leaves: Sequence[E]) -> E:
        """An expression that overflows or divides by zero for some values."""
        self.scalars.may_raise = True
        try:
            return self._risky(leaves)
        finally:
            self.scalars.may_raise = False

    def _risky(self, leaves: Sequence[E]) -> E:
        whole = [e for e in leaves if e.dtype in ("INTEGER", "BIGINT") and e.magnitude > 0]
        special = [e for e in leaves if e.special and e.exact]
        if special and self.c.chance(40):
            return self.scalars.cast(self.c.pick(special), "INTEGER")
        if not whole:
            return self.number(leaves, 2)
        a, b = self.c.pick(whole), self.c.pick(whole)
        if self.c.chance(40):
            return self.scalars.integer_division(self.c.pick(["//", "%"]), a, b)
        if a.dtype == "INTEGER":
            large = E("2000000000", "INTEGER", 2e9, 0, literal=True)
        else:
            large = E("9000000000000000000", "BIGINT", 9e18, 0)
        return self.scalars.arithmetic(self.c.pick(["*", "+", "-"]), a, large)

    # ---- conditions ------------------------------------------------------------------

    def condition(self, leaves: Sequence[E], depth: int) -> E:
        """A BOOLEAN expression."""
        if depth > 0 and self.c.chance(30):
            return self._connective(leaves, depth)
        keys = [e for e in leaves if e.key is not None]
        if keys and self.c.chance(50):
            return self.key_condition(keys)
        try:
            return self._value_condition(leaves)
        except UnsoundError:
            if keys:
                return self.key_condition(keys)
            return E("(1 = 1)", "BOOLEAN", 1, 0)

    def _connective(self, leaves: Sequence[E], depth: int) -> E:
        form = self.c.pick(["({0} AND {1})", "({0} OR {1})", "(NOT {0})"])
        terms = [self.condition(leaves, depth - 1) for _ in range(form.count("{"))]
        return self.scalars.build(form, terms, E("", "BOOLEAN", 1, 0))

    def key_condition(self, keys: Sequence[E]) -> E:
        """A condition over keys that is usually true somewhere."""
        a = self.c.pick(keys)
        lo, hi = a.key or (0, 1)
        inside = integer(self.c.between(lo, max(lo, hi - 1)))
        make = self.scalars
        form = self.c.below(7)
        if form == 0:
            return make.compare(self.c.pick(["<=", ">=", "<>", "=", "<", ">"]), a, inside)
        if form == 1 and len(keys) > 1:
            b = self.c.pick([k for k in keys if k is not a])
            return make.compare(self.c.pick(["<=", "=", "<>", ">="]), a, b)
        if form == 2:
            even = make.integer_division("%", a, integer(self.c.pick([2, 3])))
            return make.compare("=", even, integer(self.c.below(2)))
        if form == 3 and len(keys) > 1:
            b = self.c.pick([k for k in keys if k is not a])
            return make.compare("<", make.arithmetic("+", a, b), integer(self.c.between(2, 6)))
        if form == 4:
            return self._truth("{0} BETWEEN {1} AND {2}", a, inside, integer(max(lo, hi - 1)))
        if form == 5:
            return self._truth("{0} IN ({1}, {2})", a, inside, integer(lo))
        return make.compare(">=", a, integer(max(lo, min(1, hi - 1))))

    def _truth(self, form: str, *args: E) -> E:
        return self.scalars.build(f"({form})", args, E("", "BOOLEAN", 1, 0))

    def _value_condition(self, leaves: Sequence[E]) -> E:
        truths = [e for e in leaves if e.dtype == "BOOLEAN"]
        if truths and self.c.chance(40):
            return self.c.pick(truths)
        a = self.leaf(leaves)
        if not a.exact:
            raise UnsoundError
        form = self.c.below(9)
        if form == 1 and not a.nullable:
            form = 0
        if form == 2:
            b = self.leaf(leaves)
            return self.scalars.compare(self.c.pick(_COMPARISONS), a, b)
        if form == 3:
            low, high = integer(self.c.between(-1, 0)), integer(self.c.between(1, 2))
            return self._truth("{0} BETWEEN {1} AND {2}", a, low, high)
        if form == 4:
            return self._truth(
                self.c.pick(["{0} IN ({1}, {2}, {3})", "{0} NOT IN ({1}, {2})"]),
                a, integer(1), integer(0), integer(2),
            )  # fmt: skip
        if form == 5:
            fn = self.c.pick(["IS NOT DISTINCT FROM", "IS DISTINCT FROM"])
            return replace(self.scalars.compare(fn, a, self.leaf(leaves)), nullable=False)
        if form == 6 and a.is_float:
            self.tags.add("nan")
            return self._truth(self.c.pick(["isfinite({0})", "NOT isnan({0})", "isinf({0})"]), a)
        if form == 7:
            test = self.c.pick(["{0} IS NOT NULL", "{0} IS NULL"] if a.nullable else
                               ["{0} IS NOT NULL"])  # fmt: skip
            return replace(self._truth(test, a), nullable=False)
        if form == 8 and a.dtype == "FLOAT" and a.signed_zero:
            self.tags.add("float_literal")
            return self.scalars.compare(self.c.pick(_COMPARISONS), a, decimal(self.c))
        return self.scalars.compare(
            self.c.pick([">", ">=", "<>", "<", "<="]), a, integer(self.c.pick([0, 1, -1]))
        )

    # ---- aggregates ------------------------------------------------------------------

    def aggregate(self, leaves: Sequence[E], frame: Frame, depth: int = 2) -> E:
        """An aggregate over the leaves, or COUNT(*) where the wanted one cannot be held."""
        make = self.c.weighted(
            [
                (14, self._total), (4, self._count), (3, self._count_if), (5, self._min_max),
                (5, self._mean), (2, self._product_of), (4, self._spread), (3, self._logical),
                (3, self._pick), (2, self._lse), (2, self._bitwise), (4, self._quantile),
                (2, self._mode), (4, self._distinct), (3, self._best),
            ]
        )  # fmt: skip
        if not frame.over and self.c.chance(15):
            where = self.condition(leaves, 1)
            frame = replace(frame, where=where)
        try:
            return make(leaves, frame, depth)
        except UnsoundError:
            return self.aggregates.count(None, frame)

    def _argument(self, leaves: Sequence[E], depth: int) -> E:
        return self.number(leaves, self.c.below(depth + 1))

    def _attempt(self, make: Callable[[E], E], leaves: Sequence[E], depth: int) -> E:
        """Tries a composed argument, then a plain one."""
        try:
            return make(self._argument(leaves, depth))
        except UnsoundError:
            return make(self.leaf(leaves))

    def _total(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        return self._attempt(lambda e: self.aggregates.total(e, frame), leaves, depth)

    def _count(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        e = self._argument(leaves, depth) if self.c.chance(50) else None
        return self.aggregates.count(e, frame)

    def _count_if(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        if not frame.over and self.c.chance(50):  # where there is none, the answer is NULL
            frame = replace(frame, where=self.condition(leaves, 1))
        return self.aggregates.count_if(self.condition(leaves, depth), frame)

    def _min_max(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["min", "max"])
        return self._attempt(lambda e: self.aggregates.extreme(fn, e, frame), leaves, depth)

    def _mean(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["avg", "mean"])
        return self._attempt(lambda e: self.aggregates.mean(fn, e, frame), leaves, depth)

    def _product_of(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        return self._attempt(lambda e: self.aggregates.product(e, frame), leaves, depth - 1)

    def _spread(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["variance", "var_pop", "var_samp", "stddev", "stddev_pop", "stddev_samp"])
        return self._attempt(lambda e: self.aggregates.spread(fn, e, frame), leaves, depth)

    def _logical(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["bool_or", "bool_and"])
        return self.aggregates.logical(fn, self.condition(leaves, depth), frame)

    def _bitwise(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["bit_and", "bit_or", "bit_xor"])
        return self._attempt(lambda e: self.aggregates.bitwise(fn, e, frame), leaves, depth)

    def _pick(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        keys = [e for e in leaves if e.key is not None]
        if not keys:
            raise UnsoundError
        fn, key = self.c.pick(["arg_min", "arg_max"]), self.c.pick(keys)
        return self._attempt(lambda e: self.aggregates.pick(fn, key, e, frame), leaves, 1)

    def _quantile(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["median", "quantile_cont", "quantile_disc"])
        fraction = "" if fn == "median" else self.c.pick(["0.25", "0.9", "0", "1", "0.3"])
        return self._attempt(
            lambda e: self.aggregates.quantile(fn, fraction, e, frame), leaves, depth
        )

    def _mode(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        return self._attempt(lambda e: self.aggregates.mode(e, frame), leaves, depth)

    def _best(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn, most = self.c.pick(["max", "min"]), self.c.pick([1, 2, 3, 1000])
        place = 1 + self.c.below(3)
        return self._attempt(
            lambda e: self.aggregates.best(fn, most, place, e, frame), leaves, depth
        )

    def _distinct(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        fn = self.c.pick(["count", "approx_count", "sum", "min", "max"])
        return self._attempt(lambda e: self.aggregates.distinct(fn, e, frame), leaves, depth)

    def _lse(self, leaves: Sequence[E], frame: Frame, depth: int) -> E:
        return self._attempt(lambda e: self.aggregates.log_sum_exp(e, frame), leaves, depth)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
