"""Register tiles: the work of a packed kernel on one panel of rows and one of columns.

A tile is written as LLVM vector code, not left to the vectoriser. Its text is compiled into
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic
from einsql.kernels.packed.functions import LANES, SIZES, Tile
from einsql.kernels.packed.registers import TYPES, Registers, is_float
from einsql.kernels.runtime.register_tiles import WORD, repeat, tile
from einsql.kernels.runtime.vector_values import pointer


def packed_tile(what: Tile) -> Any:
    """A function that takes a panel of rows and one of columns into a tile.

    Its arguments are `(depth, first, at, a, b, c, state, consts, one)`: how many terms, whether
    the tile is new, the number of the first term, addresses of the packed columns and of the
    running values, literals, and a float64 1.
    """

    def typed(
        _: Any,
        depth: Any,
        first: Any,
        at: Any,
        a: Any,
        b: Any,
        c: Any,
        state: Any,
        consts: Any,
        one: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _Writer(what, builder, args).write()
            return context.get_dummy_value()

        return types.void(depth, first, at, a, b, c, state, consts, one), generate

    return intrinsic(typed)


class _Writer:
    def __init__(self, what: Tile, builder: Any, args: Sequence[Any]) -> None:
        self.what, self.builder = what, builder
        self.depth, self.first, self.at, a, b, c, state, consts, one = args
        self.r = Registers(builder, what.lanes, what.tame)
        if what.fma:
            single = builder.fptrunc(one, TYPES["f32"])
            self.r.one = {x.type: self.r.splat(x) for x in (one, single)}
        take = builder.extract_value
        self.a = [take(a, n) for n in range(len(what.a))]
        self.b = [take(b, n) for n in range(len(what.b))]
        self.c = [take(c, n) for n in range(len(what.c))]
        self.consts = [self.r.splat(take(consts, n)) for n in range(len(what.consts))]
        self.state = [take(state, n) for n in range(len(what.runs))]

    def write(self) -> None:
        """Emits loops over blocks of terms, and over the terms of each."""
        repeat(self.builder, (WORD(0), self.depth, self.what.block), [], self.block)

    def block(self, start: Any, _: Sequence[Any]) -> list[Any]:
        builder = self.builder
        new = builder.and_(self.first, builder.icmp_signed("==", start, WORD(0)))
        stop = builder.add(start, WORD(self.what.block))
        stop = builder.select(builder.icmp_signed("<", stop, self.depth), stop, self.depth)
        begin = [self.begin(row, new) for row in range(self.what.rows)]
        for row, values in enumerate(tile(builder, (start, stop), begin, self.read, self.combine)):
            self.merge(row, values, new)
        return []

    # Running values ----------------------------------------------------------------

    def begin(self, row: int, new: Any) -> list[Any]:
        """The initial running values of a row in a block."""
        both = zip(self.what.runs, self.what.starts, strict=True)
        starts = [self.r.literal(TYPES[kind], start) for kind, start in both]
        if self.what.reduction == "sum":
            return starts
        return [
            self.r.choose(self.r.splat(new), start, self.kept(row, n, kind))
            for n, (start, kind) in enumerate(zip(starts, self.what.runs, strict=True))
        ]

    def identity(self) -> Any:
        return self.r.literal(TYPES[self.what.run], self.what.start)

    def kept(self, row: int, n: int, kind: str) -> Any:
        return self.r.load(self.place(row, n, kind), kind)

    def place(self, row: int, n: int, kind: str) -> Any:
        offset = WORD(row * self.what.lanes * SIZES[kind])
        return self.builder.add(self.state[n], offset)

    def merge(self, row: int, values: Sequence[Any], new: Any) -> None:
        """Takes a block's running values to memory; sums are added to those there."""
        if self.what.reduction == "sum":
            kind = self.what.state
            old = self.r.choose(
                self.r.splat(new), self.r.literal(TYPES[kind], 0), self.kept(row, 0, kind)
            )
            part = self.r.cast(values[0], kind)
            plus = self.builder.fadd if is_float(part) else self.builder.add
            self.r.store(plus(old, part), self.place(row, 0, kind), kind)
            return
        for n, (value, width) in enumerate(zip(values, self.what.runs, strict=True)):
            self.r.store(value, self.place(row, n, width), width)

    # Terms -------------------------------------------------------------------------

    def read(self, k: Any) -> tuple[Any, list[Any], Any]:
        """The index of the first row's element, the columns, and the number of a term."""
        builder = self.builder
        columns = []
        for kind, address in zip(self.what.b, self.b, strict=True):
            step = WORD(self.what.lanes * SIZES[kind])
            columns.append(self.r.load(builder.add(address, builder.mul(k, step)), kind))
        number = None
        kind = self.what.runs[1] if self.what.is_pair else self.what.number
        if kind:
            low = builder.add(k, self.at)
            width = TYPES[kind]
            number = self.r.splat(low if width == WORD else builder.trunc(low, width))
        return builder.mul(k, WORD(self.what.rows)), columns, number

    def combine(self, row: int, term: tuple[Any, list[Any], Any], old: Sequence[Any]) -> list[Any]:
        """A row's running values with one more term."""
        first, columns, number = term
        point = _Point(self, row, self.builder.add(first, WORD(row)), columns, number)
        what, r = self.what, self.r
        r.adding = r.multiplying = 0
        name = what.reduction
        where = None if what.where is None else point.value(what.where)
        if name == "sum":
            return [self.plus(point, old[0], where)]
        if what.merge:
            return self.merged(point, old, where)
        if name in ("min", "max", "arg_min", "arg_max"):
            r.adding = 1
        new = point.value(what.term)
        if what.ordered and self.what.is_pair:  # -0.0 ties with 0.0
            new = self.builder.fadd(new, r.literal(new.type.element, 0.0))
        new = r.order(new) if what.ordered else r.cast(new, what.run)
        if where is not None:
            new = r.choose(where, new, self.identity())
        if name == "product":
            return [r.mul(old[0], new)]
        if name in ("bool_or", "bool_and"):
            return [r.either(old[0], new) if name == "bool_or" else r.both(old[0], new)]
        better = self.below(new, old[0]) if name.endswith("min") else self.below(old[0], new)
        values = [self.builder.select(better, new, old[0])]
        if self.what.is_pair:
            values.append(self.builder.select(better, point.number, old[1]))
        return values

    def merged(self, point: _Point, old: Sequence[Any], where: Any) -> list[Any]:
        """A running state and a term."""
        point.known |= {("old", n): x for n, x in enumerate(old)}
        point.known["number", self.what.number] = point.number
        both = zip(self.what.merge, self.what.runs, strict=True)
        new = [self.r.cast(point.value(e), kind) for e, kind in both]
        if where is None:
            return new
        return [self.r.choose(where, n, o) for n, o in zip(new, old, strict=True)]

    def below(self, a: Any, b: Any) -> Any:
        """A < b of running values, which are no NaN."""
        if is_float(a):
            return self.builder.fcmp_ordered("<", a, b)
        return self.builder.icmp_signed("<", a, b)

    def plus(self, point: _Point, old: Any, where: Any) -> Any:
        """A running sum and a term; a product is multiplied and added at once."""
        what, r = self.what, self.r
        term = what.term
        same = is_float(old) and where is None and term[0] == "mul" and term[1] == what.run
        if same and what.fma:
            r.multiplying = 1
            return r.fma(point.value(term[2]), point.value(term[3]), old)
        new = r.cast(point.value(term), what.run)
        if where is not None:
            new = r.choose(where, new, self.identity())
        return r.add(new, old)


class _Point:
    def __init__(
        self, writer: _Writer, row: int, index: Any, columns: Sequence[Any], number: Any
    ) -> None:
        self.row = row
        self.writer, self.index, self.columns, self.number = writer, index, columns, number
        self.known: dict[tuple[Any, ...], Any] = {}

    def value(self, e: tuple[Any, ...]) -> Any:
        if e not in self.known:
            self.known[e] = self.build(e)
        return self.known[e]

    def build(self, e: tuple[Any, ...]) -> Any:
        writer, head = self.writer, e[0]
        if head == "b":
            return self.columns[e[1]]
        if head == "c":
            kind = writer.what.c[e[1]]
            offset = WORD(self.row * writer.what.lanes * SIZES[kind])
            place = writer.builder.add(writer.c[e[1]], offset)
            return writer.r.load(place, kind)
        if head == "const":
            return writer.consts[e[1]]
        if head == "literal":
            return writer.r.literal(TYPES[e[1]], e[2])
        if head == "a":
            kind = writer.what.a[e[1]]
            builder = writer.builder
            offset = builder.mul(self.index, WORD(SIZES[kind]))
            place = pointer(builder, builder.add(writer.a[e[1]], offset), TYPES[kind])
            return writer.r.splat(builder.load(place))
        args = [self.value(x) for x in e[2:]]
        if head == "cast":
            return writer.r.cast(args[0], e[1])
        return LANES[head].emit(writer.r, *args)
