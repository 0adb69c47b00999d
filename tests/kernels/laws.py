"""States of several fields for tests of kernels: laws, and what a point contributes to each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Call, Const, Expr, Output, Value, cast
from einsql.ir.einsum.states import EARLIER, LATER, State, StateField, define

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE


@dataclass(frozen=True)
class Law:
    """A state, and the state of a point.

    Attributes:
        lift: The fields of a point, over two DOUBLE values and a BIGINT that tells points apart.
    """

    state: State
    lift: Callable[[Expr, Expr, Expr], tuple[Expr, ...]]

    def outputs(
        self, x: Expr, y: Expr, at: Expr, where: Expr = TRUE, fields: tuple[str, ...] | None = None
    ) -> tuple[Output, ...]:
        """Outputs of some fields of the state."""
        args = self.lift(x, y, at)
        both = zip(self.state.fields, define(self.state), strict=True)
        return tuple(
            Output(f"s.{f.name}", args, f.dtype, name, where)
            for f, name in both
            if fields is None or f.name in fields
        )


def call(fn: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """A call with the type of its last argument."""
    return Call(fn, args, args[-1].dtype if dtype is None else dtype)


def real(number: float, dtype: DType = D) -> Expr:
    """A literal."""
    return Const(number, dtype)


def _state(
    name: str, fields: list[StateField], merge: Callable[..., list[Expr]], ordered: bool = False
) -> State:
    sides = [[Value(side, f.name, f.dtype) for f in fields] for side in (EARLIER, LATER)]
    return State(name, tuple(fields), tuple(merge(*sides)), ordered)


def _welford(a: list[Expr], b: list[Expr]) -> list[Expr]:
    n = call("add", a[0], b[0])
    d = call("sub", b[1], a[1])
    part = call("div", b[0], call("greatest", n, real(1.0)))
    mean = call("add", a[1], call("mul", d, part))
    spread = call("mul", call("mul", d, d), call("mul", a[0], part))
    return [n, mean, call("add", call("add", a[2], b[2]), spread)]


WELFORD = Law(
    _state("welford", [StateField(f, D, 0.0) for f in ("n", "mean", "m2")], _welford),
    lambda x, y, at: (real(1.0), x, real(0.0)),
)


def _best_three(a: list[Expr], b: list[Expr]) -> list[Expr]:
    def least(*values: Expr) -> Expr:
        return values[0] if len(values) == 1 else call("least", values[0], least(*values[1:]))

    pairs = [[call("greatest", p, q) for q in b] for p in a]
    return [least(a[k], b[k], *(pairs[m][k - 1 - m] for m in range(k))) for k in range(len(a))]


def best(count: int, dtype: DType = D) -> Law:
    """The least values of x + y."""
    fields = [StateField(f"v{n}", dtype, math.inf) for n in range(count)]
    return Law(
        _state(f"best{count}", fields, _best_three),
        lambda x, y, at: (
            call("add", cast(x, dtype), cast(y, dtype)),
            *[real(math.inf, dtype)] * (count - 1),
        ),
    )


def _log_sum(a: list[Expr], b: list[Expr]) -> list[Expr]:
    most = call("greatest", a[0], b[0])
    parts = [call("mul", s, call("exp", call("sub", m, most))) for m, s in (a, b)]
    return [most, call("add", *parts)]


LOGSUMEXP = Law(
    _state("log_sum", [StateField("m", D, -1e300), StateField("s", D, 0.0)], _log_sum),
    lambda x, y, at: (call("mul", x, y), real(1.0)),
)


def _witness(a: list[Expr], b: list[Expr]) -> list[Expr]:
    ties = call("and", call("eq", b[0], a[0], dtype=B), call("lt", b[1], a[1], dtype=B))
    wins = call("or", call("lt", b[0], a[0], dtype=B), ties)
    return [call("if", wins, b[n], a[n]) for n in range(2)]


WITNESS = Law(
    _state(
        "witness",
        [StateField("best", D, math.inf), StateField("who", I64, I64.range[1])],
        _witness,
    ),
    lambda x, y, at: (call("add", x, y), at),
)


def _product(a: list[Expr], b: list[Expr]) -> list[Expr]:
    def element(m: int, n: int) -> Expr:
        terms = (call("mul", a[2 * m + k], b[2 * k + n]) for k in range(2))
        return call("add", *terms)

    return [element(m, n) for m in range(2) for n in range(2)]


MATRICES = Law(
    _state(
        "matrices",
        [StateField(f, D, float(f in "ad")) for f in "abcd"],
        _product,
        ordered=True,
    ),
    lambda x, y, at: (
        real(1.0),
        call("mul", x, real(0.125)),
        call("mul", y, real(-0.125)),
        real(1.0),
    ),
)


def _counts(a: list[Expr], b: list[Expr]) -> list[Expr]:
    ends = call("and", a[0], b[0]), call("or", a[1], b[1])
    return [*ends, call("add", a[2], b[2]), call("least", a[3], b[3])]


COUNTS = Law(
    _state(
        "counts",
        [
            StateField("every", B, True),
            StateField("some", B, False),
            StateField("n", I32, 0),
            StateField("least", I64, I64.range[1]),
        ],
        _counts,
    ),
    lambda x, y, at: (
        call("lt", x, y, dtype=B),
        call("lt", y, x, dtype=B),
        Const(1, I32),
        call("mul", at, at),
    ),
)


def _interval(a: list[Expr], b: list[Expr]) -> list[Expr]:
    return [call("add", a[n], b[n]) for n in range(2)]


def _of_intervals(x: Expr, y: Expr, at: Expr) -> tuple[Expr, ...]:
    lows = [call("mul", p, q) for p in (x, call("neg", x)) for q in (y, real(2.0))]
    low = high = lows[0]
    for e in lows[1:]:
        low, high = call("least", low, e), call("greatest", high, e)
    return low, high


INTERVALS = Law(
    _state("intervals", [StateField("lo", D, 0.0), StateField("hi", D, 0.0)], _interval),
    _of_intervals,
)

LAWS = {
    "welford": WELFORD,
    "best": best(3),
    "best of FLOAT": best(2, F),
    "logsumexp": LOGSUMEXP,
    "witness": WITNESS,
    "matrices": MATRICES,
    "counts": COUNTS,
    "intervals": INTERVALS,
}
