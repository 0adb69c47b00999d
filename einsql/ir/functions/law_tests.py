"""Tests of declared laws on fixed samples; a counterexample refuses a function.

Samples have the edge values of each type and values of a fixed seed. Integers and BOOLEAN are
compared exactly. Floats may differ by `TOLERANCE` units in the last place of the greatest number
involved; sums that overflow from finite values are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from math import prod

import numpy as np

from einsql.core.bfloat16 import rounded
from einsql.core.schema import DType
from einsql.errors import Error, ProgrammingError
from einsql.ir.functions.python_functions import Laws

Evaluate = Callable[..., np.ndarray]
"""The function over one-dimensional arrays of its arguments."""

Number = float | int | bool

TOLERANCE = 64
"""Units in the last place by which floats may differ."""
_COUNTED = 2**20
"""The maximum of combinations of samples that are enumerated; others are drawn one by one."""
_SEED = 24  # any number; samples are the same in every run
_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan)


def samples(dtype: DType) -> list[Number]:
    """The sampled values of a type, edge values first."""
    random = np.random.default_rng(_SEED)
    if dtype is DType.BOOLEAN:
        return [False, True]
    if dtype.is_integer:
        low, high = dtype.range
        drawn = [*random.integers(-100, 100, 3).tolist(), int(random.integers(low, high))]
        return [0, 1, -1, 2, low, high, *drawn]
    greatest = 65504.0 if dtype is DType.HALF else float(np.finfo(np.float32).max / 2)
    if dtype is DType.DOUBLE:
        greatest = float(np.finfo(np.float64).max)
    values = np.array([*_EDGES, greatest, -greatest, *random.normal(0, 3, 4)])
    typed = rounded(values) if dtype is DType.BFLOAT16 else values.astype(dtype.numpy)
    return [float(v) for v in typed]


def rows(types: Sequence[DType], most: int = 400) -> list[tuple[Number, ...]]:
    """Sampled arguments: all combinations, or `most` of them."""
    values = [samples(t) for t in types]
    number = prod(map(len, values))
    if number <= most:
        return list(product(*values))
    random = np.random.default_rng(_SEED)
    if number > _COUNTED:
        drawn = zip(*(random.integers(0, len(v), most) for v in values), strict=True)
        return [tuple(v[n] for v, n in zip(values, row, strict=True)) for row in drawn]
    chosen = set(random.choice(number, most, replace=False).tolist())
    return [row for n, row in enumerate(product(*values)) if n in chosen]


def are_equal(
    left: np.ndarray, right: np.ndarray, among: Sequence[np.ndarray], tolerance: float
) -> np.ndarray:
    """Where two sides of a law are equal: integers exactly, floats within a tolerance.

    Args:
        left: The values of one side.
        right: The values of the other side.
        among: The other values involved, arrays of the same shape.
        tolerance: The greatest difference of floats, relative to the greatest finite value.
    """
    equal = np.asarray((left == right) | ((left != left) & (right != right)))
    if left.dtype.kind != "f":
        return equal
    with np.errstate(all="ignore"):
        sizes = [np.where(np.isfinite(x), np.abs(x), 0) for x in (left, right, *among)]
        close = np.abs(left - right) <= tolerance * np.max(sizes, axis=0)
    return np.asarray(equal | (np.isfinite(left) & np.isfinite(right) & close))


class LawTest:
    """Tests laws of one function.

    Args:
        name: Its name.
        types: The types of its arguments.
        result: The type of its result.
        evaluate: The function.
    """

    def __init__(
        self, name: str, types: Sequence[DType], result: DType, evaluate: Evaluate
    ) -> None:
        self.name = name
        self.types = types
        self.result = result
        self.evaluate = evaluate

    def check(self, laws: Laws) -> tuple[str, ...]:
        """Tests the declared laws.

        Returns:
            Their names.

        Raises:
            ProgrammingError: There is a counterexample, or a law is none of such a function.
        """
        declared = {
            "commutative": laws.commutative,
            "associative": laws.associative,
            "identity": laws.identity is not None,
            "annihilator": laws.annihilator is not None,
            "monotone": bool(laws.monotone),
        }
        for law, is_declared in declared.items():
            if not is_declared:
                continue
            self._check_form(law)
            counterexample = next(getattr(self, f"_{law}")(laws), None)
            if counterexample is not None:
                raise ProgrammingError(
                    f"{self.name} is not {_SHOWN[law]}: {counterexample}",
                    hint="Laws are tested on samples when a function declares them.",
                )
        shown = {"identity": f" {laws.identity}", "annihilator": f" {laws.annihilator}"}
        return tuple(
            laws.monotone if law == "monotone" else law + shown.get(law, "")
            for law, is_declared in declared.items()
            if is_declared
        )

    def _check_form(self, law: str) -> None:
        """Refuses a law that functions of such types cannot have."""
        if law == "monotone":
            fits, needed = len(self.types) == 1, "one argument"
        elif law == "commutative":
            fits = len(self.types) == 2 and self.types[0] is self.types[1]
            needed = "two arguments of one type"
        else:
            fits = len(self.types) == 2 and self.types[0] is self.types[1] is self.result
            needed = "two arguments of the type of its result"
        if not fits:
            raise ProgrammingError(f"{self.name} declares {law}, a law of functions of {needed}")

    def _commutative(self, _: Laws) -> Iterator[str]:
        pairs = rows(self.types)
        there, back = self._values(pairs), self._values([p[::-1] for p in pairs])
        for pair, a, b in zip(pairs, there, back, strict=True):
            if not self._same(a, b, pair):
                yield f"{self._shown(pair, a)}, {self._shown(pair[::-1], b)}"

    def _associative(self, _: Laws) -> Iterator[str]:
        triples = rows((*self.types, self.types[0]), 800)
        left = self._values([t[:2] for t in triples])
        right = self._values([t[1:] for t in triples])
        known = [
            (t, x, y)
            for t, x, y in zip(triples, left, right, strict=True)
            if x is not None and y is not None
        ]
        first = self._values([(x, t[2]) for t, x, _ in known])
        second = self._values([(t[0], y) for t, _, y in known])
        f = self.name
        for (t, x, y), a, b in zip(known, first, second, strict=True):
            if a is None or b is None:
                continue  # integers may overflow in one order only
            calls = ((t[0], t[1], x), (t[1], t[2], y), (x, t[2], a), (t[0], y, b))
            if any(np.isfinite(p) and np.isfinite(q) and not np.isfinite(r) for p, q, r in calls):
                continue  # and so may floats
            if not self._same(a, b, (*t, x, y)):
                left_first = f"{f}({f}({t[0]}, {t[1]}), {t[2]}) = {a}"
                yield f"{left_first}, {f}({t[0]}, {f}({t[1]}, {t[2]})) = {b}"

    def _identity(self, laws: Laws) -> Iterator[str]:
        assert laws.identity is not None
        pairs = [(x, laws.identity) for x in samples(self.types[0])]
        for pair, a in zip(pairs, self._values(pairs), strict=True):
            if not self._same(a, pair[0], pair):
                yield self._shown(pair, a)

    def _annihilator(self, laws: Laws) -> Iterator[str]:
        assert laws.annihilator is not None
        pairs = [(x, laws.annihilator) for x in samples(self.types[0]) if np.isfinite(x)]
        for pair, a in zip(pairs, self._values(pairs), strict=True):
            if not self._same(a, laws.annihilator, pair):
                yield self._shown(pair, a)

    def _monotone(self, laws: Laws) -> Iterator[str]:
        if laws.monotone not in ("increasing", "decreasing"):
            raise ProgrammingError(
                f"{self.name} declares monotone='{laws.monotone}'",
                hint="It is 'increasing' or 'decreasing'.",
            )
        ordered = sorted({x for x in samples(self.types[0]) if x == x})
        points = [(x,) for x in ordered]
        values = [(p, a) for p, a in zip(points, self._values(points), strict=True)]
        known = [(p, a) for p, a in values if a is not None and a == a]
        for (p, a), (q, b) in pairwise(known):
            if (a > b) if laws.monotone == "increasing" else (a < b):
                yield f"{self._shown(p, a)}, {self._shown(q, b)}"

    def _values(self, arguments: Sequence[tuple[Number, ...]]) -> list[Number | None]:
        """The function's values; None where it fails."""
        if not arguments:
            return []
        types = [t.carrier for t in self.types]
        columns = [np.array(c, t) for c, t in zip(zip(*arguments, strict=True), types, strict=True)]
        try:
            values: list[Number | None] = self.evaluate(*columns).tolist()
            return values
        except Error:
            return [self._value(n, columns) for n in range(len(arguments))]

    def _value(self, n: int, columns: Sequence[np.ndarray]) -> Number | None:
        try:
            number: Number = self.evaluate(*(c[n : n + 1] for c in columns))[0].item()
        except Error:
            return None
        return number

    def _same(self, a: Number | None, b: Number | None, among: Sequence[Number]) -> bool:
        if a is None or b is None:
            return a is b
        if a == b or not self.result.is_float:
            return a == b
        eps = 2.0**-7 if self.result is DType.BFLOAT16 else np.finfo(self.result.numpy).eps
        left, right, *others = (np.array([float(x)]) for x in (a, b, *among))
        return bool(are_equal(left, right, others, TOLERANCE * float(eps))[0])

    def _shown(self, arguments: Sequence[Number], value: Number | None) -> str:
        call = f"{self.name}({', '.join(map(str, arguments))})"
        return f"{call} fails" if value is None else f"{call} = {value}"


_SHOWN = {
    "commutative": "commutative",
    "associative": "associative",
    "identity": "neutral at its identity",
    "annihilator": "annihilated by its annihilator",
    "monotone": "monotone as declared",
}
