"""Quotients and remainders by constants in the innermost loop, without dividing at each point.

Between two places where it wraps, `(a * x + c) % m` is a line in x and `(a * x + c) // m` is
constant. So the loop over x is cut there: each piece divides once, and reads operands one after
another or in the same place. Where pieces would be short, several points are divided at a time
as floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const, EinSum, Expr, Label, rewrite
from einsql.ir.einsum.intervals import interval
from einsql.kernels.loops.expressions import typed
from einsql.kernels.loops.loop_nest import LEAST_PIECE, Nest, by_constant
from einsql.kernels.loops.points import Points
from einsql.kernels.scalars import labels_read

_LARGEST = 2**62
"""Magnitude below which a dividend and the next multiple of its divisor fit BIGINT."""


@dataclass(frozen=True, slots=True)
class _Wrap:
    """A division by a constant, and the change of its dividend along the innermost loop.

    Attributes:
        dividend: The dividend over labels of the outer loops and the innermost loop's label.
        divisor: The divisor, above 0.
        step: The signed increment of the dividend from a point of a piece to the next.
        inner: Other values at whose wraps the loop is cut.
    """

    dividend: Expr
    divisor: Const
    step: int
    inner: tuple[_Wrap, ...]


class Wraps(Points):
    """Loop statements with an innermost loop that may be cut into pieces.

    Attributes:
        wraps: The divisions whose quotients `q`, and products `g` of quotient and divisor, are
            constant within a piece; a division's number is its position in this list.
        starts: The statements at the start of each piece.
    """

    def __init__(
        self, node: EinSum, nest: Nest, strided: frozenset[tuple[int, str]], near: bool = False
    ) -> None:
        super().__init__(node, nest, strided, near)
        self.wraps: list[_Wrap] = []
        self.starts: list[str] = []
        self.pieces = 1
        self._known_ahead: dict[Expr, str] = {}

    def call(self, e: Call) -> str:
        """Computes a function; values that are constant in a piece are computed at its start."""
        wrap = self.wrap(e)
        if wrap is None:
            return super().call(e)
        n = self.number(wrap)
        if e.fn == "idiv":
            return self.temp(typed(e.dtype, f"q{n}"))
        return self.temp(typed(e.dtype, f"{self.value(e.args[0])} - g{n}"))

    def wrap(self, e: Call) -> _Wrap | None:
        """The wrap that makes a quotient constant or a remainder linear within pieces, or None."""
        divisor = by_constant(e)
        if not self.has_ends or divisor is None or self.level_of(e) < self.depth:
            return None
        dividend = self.spelled_out(e.args[0])
        inner: list[_Wrap] = []
        step = self.step(dividend, inner)
        within = interval(dividend, self.bounds)
        if not step or self.fails(dividend) or within is None:
            return None
        if max(-within[0], within[1]) + int(divisor.value) + abs(step) > _LARGEST:
            return None
        wrap = _Wrap(dividend, divisor, step, tuple(inner))
        more = sum(self.times(w) for w in {wrap, *inner} if w not in self.wraps)
        extent = self.node.axis(self.nest.loops[-1]).extent
        return wrap if extent >= LEAST_PIECE * (self.pieces + more) else None

    def spelled_out(self, e: Expr) -> Expr:
        """An expression with the labels of the innermost loop replaced by their definitions."""

        def visit(e: Expr) -> Expr:
            define = self.computed(e)
            return e if define is None else self.spelled_out(define)

        return rewrite(e, visit)

    def computed(self, e: Expr) -> Expr | None:
        """The definition of a label that is computed only in the innermost loop."""
        if not isinstance(e, Label) or self.level[e.name] < self.depth:
            return None
        return self.node.axis(e.name).define

    def step(self, e: Expr, inner: list[_Wrap]) -> int | None:
        """The constant increment of an expression from a point of a piece to the next, or None.

        Args:
            e: The expression.
            inner: The list to which values are added at whose wraps the loop is cut.
        """
        if self.level_of(e) < self.depth:
            return 0
        if isinstance(e, Label):
            return 1
        if not isinstance(e, Call) or not e.dtype.is_integer:
            return None
        if e.fn in ("idiv", "mod"):
            wrap = self.wrap(e)
            if wrap is None:
                return None
            inner += [*wrap.inner, wrap]
            return 0 if e.fn == "idiv" else wrap.step
        if e.fn not in ("add", "sub", "mul", "neg", "cast"):
            return None
        steps = [self.step(a, inner) for a in e.args]
        if any(s is None for s in steps):
            return None
        first, *rest = (s or 0 for s in steps)
        if e.fn == "neg":
            return -first
        if e.fn == "cast":
            return first
        if e.fn == "mul":
            return _product(e, first, rest[0])
        return first + rest[0] if e.fn == "add" else first - rest[0]

    def times(self, wrap: _Wrap) -> int:
        """The greatest number of multiples of the divisor that the dividend passes in the loop."""
        axis = self.node.axis(self.nest.loops[-1])
        by = int(wrap.divisor.value)
        if labels_read(self.node, wrap.dividend) == {axis.label}:
            low, high = interval(wrap.dividend, self.bounds) or (0, 0)
            if low >= 0 and high - low == abs(wrap.step) * (axis.extent - 1):
                return high // by - low // by
        return abs(wrap.step) * (axis.extent - 1) // by + 1

    # Pieces ------------------------------------------------------------------------

    def number(self, wrap: _Wrap) -> int:
        """The number of a division; its first use writes the end of its pieces."""
        if wrap in self.wraps:
            return self.wraps.index(wrap)
        for w in wrap.inner:
            self.number(w)
        self.pieces += self.times(wrap)
        n = len(self.wraps)
        self.wraps.append(wrap)
        within = interval(wrap.dividend, self.bounds)
        positive = within is not None and within[0] >= 0
        last = self.depth - 1
        with self.ahead():
            first = self.temp(f"np.int64({self.value(wrap.dividend)})")
            by = self.constant(Const(int(wrap.divisor.value), DType.BIGINT))
            self.emit(f"q{n} = idiv({first}, {by})")
            self.emit(f"g{n} = q{n} * {by}")
            if wrap.step > 0:
                beyond = by if positive else f"({by} if q{n} >= 0 else 1)"
                room = f"g{n} + {beyond} - {first}"
            else:
                beyond = "1" if positive else f"(1 if q{n} > 0 else {by})"
                room = f"{first} - g{n} + {beyond}"
            if abs(wrap.step) != 1:
                size = self.constant(Const(abs(wrap.step), DType.BIGINT))
                room = f"idiv({room} + {size} - 1, {size})"
            self.emit(f"j{last} = min(j{last}, i{last} + {room})")
        return n

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Adds statements to the start of a piece, at the innermost label's first value."""
        inner = self.depth
        saved = self.at, self.lazy, self.before[inner], self.names[inner]
        self.at, self.lazy = inner, []
        self.before[inner], self.names[inner] = self.starts, self._known_ahead
        yield
        self.at, self.lazy, self.before[inner], self.names[inner] = saved

    def ends(self) -> tuple[str, str]:
        """The start and end of the innermost loop: the complete loop or a piece."""
        n = self.depth - 1
        return (f"i{n}", f"j{n}") if self.wraps else (f"b{n}", f"e{n}")

    def in_pieces(self, loop: Sequence[str]) -> list[str]:
        """The innermost loop, from `ends`, for each piece."""
        if not self.wraps:
            return list(loop)
        n = self.depth - 1
        return [
            f"i{n} = b{n}",
            f"while i{n} < e{n}:",
            f"    l{n} = i{n}",
            f"    j{n} = e{n}",
            *(f"    {line}" for line in (*self.starts, *loop)),
            f"    i{n} = j{n}",
        ]


def _product(e: Call, first: int, second: int) -> int | None:
    """The step of a product with one constant factor."""
    for step, by in ((first, e.args[1]), (second, e.args[0])):
        if isinstance(by, Const):
            return step * int(by.value)
    return None
