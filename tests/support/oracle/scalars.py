"""Random scalar expressions, each with a sound bound of its rounding error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tests.support.oracle.choices import Choices
from tests.support.oracle.relations import PLACES, RANGES, E, UnsoundError, fits, meet

UNIT = {"FLOAT": 2.0**-23, "DOUBLE": 2.0**-52}
"""Relative error allowed to one rounded operation, twice the true bound."""

TINY = {"FLOAT": "1e-37", "DOUBLE": "1e-307"}
"""Absolute error allowed where results underflow; kernels may flush subnormals."""

MOST = {"FLOAT": 2.0**100, "DOUBLE": 2.0**960}
"""Magnitudes beyond which intermediate results might overflow in one order only."""

FUNCTION_UNITS = 16
"""Units of error allowed to a library function such as SIN."""


class Scalars:
    """Builds scalar expressions over given leaves.

    Args:
        c: Where choices come from.
        float_stays: FLOAT functions give FLOAT, not DOUBLE (`float_math = 'float'`).
        tags: Receives the lines of the semantics table that are touched.

    Attributes:
        may_raise: Expressions that can raise are allowed, for the moment.
    """

    def __init__(self, c: Choices, float_stays: bool, tags: set[str]) -> None:
        self.c = c
        self.float_stays = float_stays
        self.may_raise = False
        self.tags = tags

    # ---- building blocks -------------------------------------------------------------

    def build(self, template: str, args: Sequence[E], like: E) -> E:
        """Fills a template's `{0}`, `{1}` with both texts of the arguments."""
        return replace(
            like,
            sql=template.format(*(a.sql for a in args)),
            oracle=template.format(*(a.oracle for a in args)),
            literal=False,
            nullable=like.nullable or any(a.nullable for a in args),
            raises=like.raises or any(a.raises for a in args),
        )

    def _rounded(
        self,
        template: str,
        args: Sequence[E],
        like: E,
        error: str,
        units: float = 1,
        absolute: bool = False,
    ) -> E:
        """A float result that is rounded once; `error` is the error carried over."""
        if like.magnitude > MOST[like.dtype]:
            raise UnsoundError
        made = self.build(template, args, like)
        unit = units * UNIT[like.dtype]
        scale = f"({made.size} + 1)" if absolute else made.size
        own = f"{unit!r} * {scale} + {TINY[like.dtype]}"
        return replace(made, error=f"({error} + {own})" if error else f"({own})")

    def convert(self, e: E, dtype: str) -> E:
        """The operand as it enters an operation of a wider type."""
        if e.literal and e.bits is None and dtype == "FLOAT":
            # DuckDB may compute in DOUBLE where `float_math = 'float'` rounds to FLOAT.
            return replace(e, error=f"{UNIT[dtype] * e.magnitude!r}")
        if e.is_integer and dtype in PLACES:
            if fits(e.magnitude, 0, dtype):
                return replace(e, signed_zero=True)
            own = f"({UNIT[dtype]!r} * {e.size})"
            return replace(e, error=f"({e.error} + {own})" if e.error else own, bits=None)
        return e

    def arithmetic(self, op: str, a: E, b: E) -> E:
        """`a op b` for +, - and *."""
        dtype = meet(a, b)
        if dtype in PLACES and {a.dtype, b.dtype} != {dtype}:
            self.tags.add("float_mixed")
        x, y = (self.convert(e, dtype) if dtype in PLACES else e for e in (a, b))
        bits: int | None = None
        if op == "*":
            magnitude = x.magnitude * y.magnitude
            if x.bits is not None and y.bits is not None:
                bits = x.bits + y.bits
            if (x.special and not y.exact) or (y.special and not x.exact):
                raise UnsoundError  # 0 or nearly 0 times infinity
            if x.special or y.special:
                self.tags.add("zero_inf")
        else:
            magnitude = x.magnitude + y.magnitude
            if x.bits is not None and y.bits is not None:
                bits = max(x.bits, y.bits)
        like = E("", dtype, magnitude, bits, special=x.special or y.special)
        template = f"({{0}} {op} {{1}})"
        if dtype in RANGES:
            if magnitude >= RANGES[dtype]:
                if not self.may_raise:
                    raise UnsoundError
                self.tags.add("int_overflow")
                like = replace(like, raises=True, magnitude=RANGES[dtype])
            return self.build(template, (a, b), like)
        if x.exact and y.exact:
            if fits(magnitude, bits, dtype):
                return self.build(template, (a, b), like)
            if dtype == "DOUBLE" and magnitude < MOST[dtype]:
                # Element-wise DOUBLE arithmetic is promised to the last bit.
                return self.build(template, (a, b), replace(like, bits=None))
        like = replace(like, bits=None)
        if op == "*":
            error = (
                f"{x.size} * {y.bound} + {y.size} * {x.bound} + {x.bound} * {y.bound}"
                if x.error or y.error
                else ""
            )
        else:
            error = f"{x.bound} + {y.bound}" if x.error or y.error else ""
        return self._rounded(template, (a, b), like, error)

    def divide(self, a: E, b: E) -> E:
        """`a / b`; a divisor that may be zero must be exact, down to its sign."""
        met = meet(a, b)
        dtype = met if met in PLACES else "DOUBLE"
        self.tags.add("division")
        x, y = self.convert(a, dtype), self.convert(b, dtype)
        if b.literal:
            scale, special = abs(float(b.sql)), x.special
            magnitude = x.magnitude / scale
        else:
            if not (x.exact and y.exact and y.signed_zero and y.bits is not None):
                raise UnsoundError
            magnitude, special = x.magnitude * _inverse(y), True
        like = E("", dtype, magnitude, None, special=special)
        if x.exact and y.exact and dtype == "DOUBLE" and magnitude < MOST[dtype]:
            return self.build("({0} / {1})", (a, b), like)
        error = f"{x.error} / abs(({b.oracle})::DOUBLE)" if x.error else ""
        return self._rounded("({0} / {1})", (a, b), like, error)

    def integer_division(self, op: str, a: E, b: E) -> E:
        """`a // b` or `a % b` on integers, or `a % b` on floats."""
        dtype = meet(a, b)
        self.tags.add("division")
        if dtype in PLACES:
            if op == "//" or not (a.exact and b.exact and b.literal):
                raise UnsoundError
            return self.build(
                "({0} % {1})", (a, b), E("", dtype, a.magnitude, None, special=a.special)
            )
        safe = b.literal and float(b.sql) != 0
        if not safe and not self.may_raise:
            self.tags.add("guarded")
            if a.magnitude >= RANGES[dtype]:
                raise UnsoundError  # the least integer divided by -1
            like = E("", dtype, max(a.magnitude, b.magnitude), 0)
            guarded = f"CASE WHEN {{1}} <> 0 THEN {{0}} {op} {{1}} ELSE -1 END"
            return self.build(guarded, (a, b), like)
        magnitude = a.magnitude if op == "//" else max(a.magnitude, b.magnitude)
        return self.build(
            f"({{0}} {op} {{1}})", (a, b), E("", dtype, magnitude, 0, raises=not safe)
        )

    # ---- functions -------------------------------------------------------------------

    def _real(self, e: E) -> str:
        dtype = meet(e)
        if dtype == "FLOAT":
            self.tags.add("float_math")
            return "FLOAT" if self.float_stays else "DOUBLE"
        return "DOUBLE"

    def function(self, name: str, e: E) -> E:
        """A function of one argument; one that is not smooth needs an exact argument."""
        dtype = self._real(e)
        x = self.convert(e, dtype)
        m = x.magnitude
        plain = f"{name}({{0}})"
        if name in ("sin", "cos", "tanh", "atan", "erf", "sigmoid"):
            if name in ("erf", "sigmoid"):
                self.tags.add("ours")
            carried = f"2 * {x.error}" if x.error else ""
            like = E("", dtype, 2.0, None, special=x.special)
            return self._rounded(plain, (e,), like, carried, FUNCTION_UNITS, absolute=True)
        if name in ("sqrt", "ln") and not x.exact:
            # Keep the argument away from the edge of the domain.
            self._fits_negated(e)
            smooth = f"{name}(abs({{0}}) + 1)"
            like = E("", dtype, m + 1, None, special=x.special)
            return self._rounded(smooth, (e,), like, x.error, FUNCTION_UNITS, absolute=True)
        if name == "exp":
            limit = 60.0 if dtype == "FLOAT" else 500.0
            if m > limit:
                raise UnsoundError
            like = E("", dtype, math.exp(m), None, special=x.special)
            made = self._rounded(plain, (e,), like, "", FUNCTION_UNITS)
            if not x.error:
                return made
            return replace(
                made, error=f"({made.error} + {made.size} * (exp(least({x.error}, 50)) - 1))"
            )
        if not x.exact:
            raise UnsoundError
        bounds = {
            "sqrt": m + 1, "ln": 800.0, "log2": 1100.0, "log10": 350.0, "cbrt": m + 1,
            "tan": 1e12, "asin": 2.0, "acos": 4.0, "asinh": 800.0, "acosh": 800.0,
            "atanh": 40.0, "degrees": 60 * m, "radians": m,
            "sinh": math.exp(min(m, 700)), "cosh": math.exp(min(m, 700)),
        }  # fmt: skip
        if name in ("sinh", "cosh", "tan") and m > 40:
            raise UnsoundError
        like = E("", dtype, bounds[name], None, special=True)
        if name in ("degrees", "radians"):
            like = replace(like, special=x.special)
        return self._rounded(plain, (e,), like, "", FUNCTION_UNITS, absolute=True)

    def power(self, e: E, exponent: str) -> E:
        """`pow(e, c)` with a literal exponent."""
        dtype = self._real(e)
        x = self.convert(e, dtype)
        if not x.exact or x.bits is None:
            raise UnsoundError
        top = max(1.0, x.magnitude, _inverse(x))
        magnitude = top * top * top
        like = E("", dtype, magnitude, None, special=True)
        name = self.c.pick(["pow", "power"])
        return self._rounded(f"{name}({{0}}, {exponent})", (e,), like, "", FUNCTION_UNITS)

    def logarithm(self, base: str, e: E) -> E:
        """`log(base, e)` with a literal base."""
        dtype = self._real(e)
        if not self.convert(e, dtype).exact:
            raise UnsoundError
        like = E("", dtype, 1100.0, None, special=True)
        return self._rounded(
            f"log({base}, {{0}})", (e,), like, "", 2 * FUNCTION_UNITS, absolute=True
        )

    def arctangent(self, a: E, b: E) -> E:
        """`atan2(a, b)`, which tells the signs of zeros apart."""
        met = meet(a, b)
        dtype = "FLOAT" if met == "FLOAT" and self.float_stays else "DOUBLE"
        x, y = self.convert(a, dtype), self.convert(b, dtype)
        if not (x.exact and y.exact and x.signed_zero and y.signed_zero):
            raise UnsoundError
        like = E("", dtype, 4.0, None, special=a.special or b.special)
        return self._rounded("atan2({0}, {1})", (a, b), like, "", FUNCTION_UNITS, absolute=True)

    def bitwise(self, template: str, a: E, b: E) -> E:
        """A bitwise operation on integers."""
        dtype = meet(a, b)
        if dtype not in RANGES:
            raise UnsoundError
        magnitude = min(RANGES[dtype], 2 * max(a.magnitude, b.magnitude, 1.0))
        return self.build(template, (a, b), E("", dtype, magnitude, 0))

    def negate(self, e: E) -> E:
        """`-e`."""
        self._fits_negated(e)
        return self.build("(-{0})", (e,), replace(e, key=None))

    def absolute(self, e: E) -> E:
        """`abs(e)`."""
        self._fits_negated(e)
        return self.build("abs({0})", (e,), replace(e, key=None))

    def _fits_negated(self, e: E) -> None:
        if meet(e) in RANGES and e.magnitude >= RANGES[e.dtype]:
            raise UnsoundError

    def rounding(self, name: str, e: E) -> E:
        """FLOOR, CEIL, ROUND, TRUNC or SIGN of an exact value."""
        if not e.exact:
            raise UnsoundError
        if name == "sign":
            meet(e)
            return self.build("sign({0})", (e,), E("", "TINYINT", 1, 0))
        dtype = meet(e)
        if name == "round":
            self.tags.add("cast_round")
        if dtype in RANGES and name in ("floor", "ceil"):
            if not fits(e.magnitude, 0, "DOUBLE"):
                raise UnsoundError
            dtype = "DOUBLE"
        like = E("", dtype, e.magnitude + 1, 0 if e.bits is not None else None, special=e.special)
        return self.build(f"{name}({{0}})", (e,), like)

    def cast(self, e: E, dtype: str) -> E:
        """CAST of a value to another type."""
        form = self.c.pick(["CAST({0} AS %s)", "({0})::%s"]) % dtype
        if dtype == "BOOLEAN":
            if not e.exact:
                raise UnsoundError
            return self.build(form, (e,), E("", dtype, 1, 0))
        if dtype in RANGES:
            if not e.exact or (e.special and not self.may_raise):
                raise UnsoundError
            raises = e.special
            if e.dtype != "BOOLEAN" and e.magnitude + 1 >= RANGES[dtype]:
                if not self.may_raise:
                    raise UnsoundError
                raises = True
            if e.is_float:
                self.tags.add("cast_round")
            magnitude = min(e.magnitude + 1, RANGES[dtype])
            return self.build(form, (e,), E("", dtype, magnitude, 0, raises=raises))
        like = replace(e, dtype=dtype, key=None)
        if e.dtype == "BOOLEAN" or (e.is_integer and fits(e.magnitude, 0, dtype)):
            return self.build(form, (e,), replace(like, magnitude=max(1.0, e.magnitude), bits=0))
        if e.exact and (e.dtype == dtype or fits(e.magnitude, e.bits, dtype)):
            return self.build(form, (e,), like)
        if e.dtype == "FLOAT" and e.exact:
            return self.build(form, (e,), like)
        return self._rounded(form, (e,), replace(like, bits=None), e.error)

    # ---- conditions ------------------------------------------------------------------

    def compare(self, op: str, a: E, b: E) -> E:
        """A comparison of exact values, which must survive the types they meet at."""
        if not (a.exact and b.exact):
            raise UnsoundError
        if a.dtype != "BOOLEAN" or b.dtype != "BOOLEAN":
            dtype = meet(a, b) if not (a.literal or b.literal) else ""
            for e in (a, b):
                if e.is_integer and dtype in PLACES and not fits(e.magnitude, 0, dtype):
                    raise UnsoundError
        if a.special or b.special:
            self.tags.add("nan")
        return self.build(f"({{0}} {op} {{1}})", (a, b), E("", "BOOLEAN", 1, 0))

    def choose(self, template: str, args: Sequence[E], values: Sequence[E], error: str) -> E:
        """An expression whose value is one of `values`; `error` bounds its error."""
        if all(v.dtype == "BOOLEAN" for v in values):
            return self.build(template, args, E("", "BOOLEAN", 1, 0))
        dtype = meet(*values)
        wide = [self.convert(v, dtype) if dtype in PLACES else v for v in values]
        places = [v.bits for v in wide]
        like = E(
            "", dtype, max(v.magnitude for v in wide),
            None if None in places else max(p for p in places if p is not None),
            special=any(v.special for v in wide),
        )  # fmt: skip
        made = self.build(template, args, like)
        if all(v.exact for v in wide):
            return made
        return replace(made, error=error.format(*(v.bound for v in wide)))


def _inverse(e: E) -> float:
    """Bound of the reciprocals of the values that are not zero."""
    return math.inf if e.bits is None or e.bits > 900 else 2.0**e.bits
