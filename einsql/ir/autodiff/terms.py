"""Terms: expressions with operators, which fold constants during construction."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.unknowns import computed
from einsql.ir.einsum.graph import Call, Const, Expr, Scalar, conj
from einsql.ir.einsum.graph_rewriting import negate
from einsql.ir.functions import SCALARS
from einsql.ir.functions.casts import cast_array


def wider(a: DType, b: DType) -> DType:
    """The common type of two float types; 16-bit types compute as FLOAT."""
    return DType.DOUBLE if DType.DOUBLE in (a, b) else DType.FLOAT


def added(terms: Iterable[Term]) -> Term | None:
    """The sum of terms; None without terms."""
    summands = list(terms)
    return reduce(add, summands) if summands else None


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """An expression of floats, integers or truth values.

    Operators take numbers, and terms of other types, which are cast to the wider float.
    """

    expr: Expr

    @property
    def dtype(self) -> DType:
        """The expression's type."""
        return self.expr.dtype

    @property
    def number(self) -> float | None:
        """The term's value if it is a constant."""
        return float(self.expr.value) if isinstance(self.expr, Const) else None

    # ---- arithmetic

    def __add__(self, other: Term | float) -> Term:
        a, b = self.promoted(other)
        if b.number == 0:
            return a
        if a.number == 0:
            return b
        if a.expr == b.expr:
            return a * 2
        minus = b.without_minus()
        return _call("add", a, b) if minus is None else _call("sub", a, minus)

    def __sub__(self, other: Term | float) -> Term:
        a, b = self.promoted(other)
        if b.number == 0:
            return a
        minus = b.without_minus()
        return _call("sub", a, b) if minus is None else _call("add", a, minus)

    def __rsub__(self, other: float) -> Term:
        return self._const(other) - self

    def __mul__(self, other: Term | float) -> Term:
        a, b = self.promoted(other)
        for this, that in ((a, b), (b, a)):
            if that.number == 1:
                return this
            if that.number == -1:
                return -this
            minus = this.without_minus()
            if minus is not None:
                return -(minus * that)
        return _call("mul", a, b)

    def __truediv__(self, other: Term | float) -> Term:
        a, b = self.promoted(other)
        if b.number == 1:
            return a
        top, bottom = a.without_minus(), b.without_minus()
        if top is not None:
            return -(top / b)
        if bottom is not None:
            return -(a / bottom)
        return _call("div", a, b)

    def __rtruediv__(self, other: float) -> Term:
        return self._const(other) / self

    def __neg__(self) -> Term:
        minus = self.without_minus()
        return _call("neg", self) if minus is None else minus

    def call(self, fn: str, *others: Term) -> Term:
        """A call of a scalar function whose result has the type of its arguments."""
        return _call(fn, self, *others)

    # ---- comparisons and choices

    def less(self, other: Term | float) -> Term:
        """The condition self < other."""
        return _test("lt", *self.promoted(other))

    def above(self, other: Term | float) -> Term:
        """The condition self > other."""
        a, b = self.promoted(other)
        return _test("lt", b, a)

    def equal(self, other: Term | float) -> Term:
        """The condition self = other."""
        return _test("eq", *self.promoted(other))

    def differs(self, other: Term | float) -> Term:
        """The condition self <> other."""
        return _test("ne", *self.promoted(other))

    def choose(self, then: Term | float, otherwise: Term | float) -> Term:
        """CASE WHEN self THEN then ELSE otherwise END; two numbers are DOUBLE."""
        if isinstance(then, Term):
            a, b = then.promoted(otherwise)
        elif isinstance(otherwise, Term):
            b, a = otherwise.promoted(then)
        else:
            a, b = (Term(Const(float(x), DType.DOUBLE)) for x in (then, otherwise))
        if isinstance(self.expr, Const):
            return a if self.expr.value else b
        if a.expr == b.expr:
            return a
        return Term(Call("if", (self.expr, a.expr, b.expr), a.dtype))

    def negated(self) -> Term:
        """The condition NOT self."""
        return Term(negate(self.expr))

    def both(self, other: Term) -> Term:
        """The condition self AND other."""
        return Term(conj(self.expr, other.expr))

    def is_nan(self) -> Term:
        """The condition that the term is NaN."""
        return Term(Call("isnan", (self.expr,), DType.BOOLEAN))

    # ---- types

    def cast(self, dtype: DType) -> Term:
        """The term cast to another type."""
        if self.dtype is dtype:
            return self
        if isinstance(self.expr, Const):
            constant = self.expr

            def value(number: Scalar) -> Scalar:
                array = np.asarray(number, constant.dtype.carrier)
                folded: Scalar = cast_array(array, dtype).item()
                return folded

            return Term(Const(computed(value, constant.value), dtype))
        return Term(Call("cast", (self.expr,), dtype))

    def _const(self, value: float) -> Term:
        return Term(Const(float(value) if self.dtype.is_float else int(value), self.dtype))

    def promoted(self, other: Term | float) -> tuple[Term, Term]:
        """Both terms, cast to one type."""
        if not isinstance(other, Term):
            return self, self._const(other)
        if self.dtype is other.dtype:
            return self, other
        floats = [t.dtype for t in (self, other) if t.dtype.is_float]
        met = wider(floats[0], floats[-1])
        return self.cast(met), other.cast(met)

    def without_minus(self) -> Term | None:
        """Returns x for a term -x, None for any other term."""
        e = self.expr
        return Term(e.args[0]) if isinstance(e, Call) and e.fn == "neg" else None


def _call(fn: str, *args: Term) -> Term:
    """A call with the type of its arguments, folded if they are constants."""
    dtype = args[0].dtype
    constants = [t.expr.value for t in args if isinstance(t.expr, Const)]
    if len(constants) == len(args):

        def value(*numbers: Scalar) -> Scalar:
            with np.errstate(all="ignore"):
                values = [np.asarray(number, dtype.carrier) for number in numbers]
                folded: Scalar = cast_array(SCALARS[fn].numpy(*values), dtype).item()
                return folded

        return Term(Const(computed(value, *constants), dtype))
    return Term(Call(fn, tuple(t.expr for t in args), dtype))


def _test(fn: str, a: Term, b: Term) -> Term:
    return Term(Call(fn, (a.expr, b.expr), DType.BOOLEAN))
