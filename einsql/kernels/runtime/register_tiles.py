"""Register tiles: rows of running values, which stay in registers over a loop of terms.

`tile` emits the loop of every tile. Its callers say how the elements of a term are addressed, how a
term is combined with the running values, and where the values go afterwards. `multiply_tile` and
`dots` are tiles of products; `packed/tile.py` has those of other functions.

This module is compiled into kernels, so its text is part of their name on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic
from einsql.kernels.compiler.llvm_code import alloca_once
from einsql.kernels.runtime.vector_values import declared, pointer, prefetch_line, spread

WORD = ir.IntType(64)
LINE = 64
"""Bytes of a line of memory."""

Rows = Sequence[Sequence[Any]]
"""LLVM values of each row of a tile."""


def repeat(
    builder: Any,
    span: tuple[Any, Any, int],
    values: Sequence[Any],
    body: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> Sequence[Any]:
    """Emits a loop.

    Args:
        builder: Appends to the code.
        span: The first number, the exclusive last number and the step, as of `range`.
        values: The values that the first iteration gets.
        body: Emits an iteration from its number and its values; returns the values for the next.

    Returns:
        The values of the last iteration.
    """
    start, stop, step = span
    before = builder.block
    head, inside, after = (builder.append_basic_block(x) for x in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    number, *carried = (builder.phi(v.type) for v in (start, *values))
    builder.cbranch(builder.icmp_signed("<", number, stop), inside, after)
    builder.position_at_end(inside)
    following = [*body(number, carried)]
    following.insert(0, builder.add(number, WORD(step)))
    for phi, first, later in zip((number, *carried), (start, *values), following, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def tile(
    builder: Any,
    terms: tuple[Any, Any],
    running: Rows,
    read: Callable[[Any], Any],
    combine: Callable[[int, Any, Sequence[Any]], Sequence[Any]],
) -> Rows:
    """Emits the terms of a tile.

    Args:
        builder: Appends to the code.
        terms: The number of the first term, and the exclusive last number.
        running: The initial values of each row.
        read: Emits, from the number of a term, what all rows read of it.
        combine: Emits the new values of a row from its number, the result of `read` and the
            values so far.

    Returns:
        The values of each row after the last term.
    """
    width = len(running[0])

    def step(k: Any, flat: Sequence[Any]) -> list[Any]:
        term = read(k)
        rows = (combine(m, term, r) for m, r in enumerate(_cut(flat, width)))
        return [value for row in rows for value in row]

    values = [value for row in running for value in row]
    return _cut(repeat(builder, (*terms, 1), values, step), width)


def _cut(flat: Sequence[Any], width: int) -> Rows:
    return [flat[n : n + width] for n in range(0, len(flat), width)]


def _parts(builder: Any, values: Any) -> list[Any]:
    """The elements of a tuple."""
    return [builder.extract_value(values, n) for n in range(len(values.type.elements))]


class Floats:
    """Operations on vectors of floats.

    Args:
        builder: Appends to the code.
        element: The type of an element.
        lanes: Elements of a vector.
    """

    def __init__(self, builder: Any, element: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.size = element.bitwidth // 8
        self.element = ir.DoubleType() if self.size == 8 else ir.FloatType()
        self.vector = ir.VectorType(self.element, lanes)
        self.zeros = ir.Constant(self.vector, [ir.Constant(self.element, 0.0)] * lanes)

    def at(self, address: Any, *steps: Any) -> Any:
        """An address after steps: integers, or pairs of a number and a distance."""
        for step in steps:
            far = self.builder.mul(*step) if isinstance(step, tuple) else step
            address = self.builder.add(address, WORD(far) if isinstance(far, int) else far)
        return address

    def load(self, address: Any, kind: Any = None) -> Any:
        """The vector at an address, or a value of another LLVM type."""
        place = pointer(self.builder, address, self.vector if kind is None else kind)
        return self.builder.load(place, align=self.size)

    def store(self, value: Any, address: Any) -> None:
        """Stores a value at an address."""
        place = pointer(self.builder, address, value.type)
        self.builder.store(value, place, align=self.size)

    def last(self, number: Any, depth: Any) -> tuple[Any, Any]:
        """The place of a register of terms, which ends with the last term at the latest.

        Args:
            number: The register's number.
            depth: How many terms there are, at least one register's.

        Returns:
            The distance of the register in bytes, and which of its lanes are not in the one before.
        """
        builder, lanes = self.builder, WORD(self.lanes)
        wanted, end = builder.mul(number, lanes), builder.sub(depth, lanes)
        begin = builder.select(builder.icmp_signed("<", wanted, end), wanted, end)
        numbers = ir.Constant(ir.VectorType(WORD, self.lanes), [WORD(n) for n in range(self.lanes)])
        skipped = spread(builder, builder.sub(wanted, begin), numbers.type)
        return builder.mul(begin, WORD(self.size)), builder.icmp_signed(">=", numbers, skipped)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """The vector a · b + c."""
        name = f"llvm.fmuladd.v{self.lanes}f{8 * self.size}"
        multiply = declared(self.builder, name, self.vector, [self.vector] * 3)
        return self.builder.call(multiply, [a, b, c])


@intrinsic
def multiply_tile(
    _: Any,
    rows: Any,
    nbytes: Any,
    width: Any,
    depth: Any,
    left: Any,
    right: Any,
    out: Any,
    scale: Any,
    adds: Any,
) -> Any:
    """Sets a tile of a result to scale · left · right, or adds that; distances are in bytes.

    Args:
        rows: Rows of the tile; like the next two a literal.
        nbytes: Bytes of a register.
        width: Registers of a row.
        depth: How many terms there are.
        left: `(address, down, along, count)`: the rows' first element, the distances to the next
            row and to the next term, and how many rows there are. Rows beyond them read the last
            row again, and are not stored. Or `(addresses, steps)`: addresses of the rows'
            addresses and of the distances from them to each term, int64.
        right: `(address, below, column, last)`: the columns' first term, the distance to the next
            term, and the distances from the first column to the tile's first and to the last that
            a register may begin at. Registers beyond it begin there, and compute the same columns
            as another one. Columns are contiguous.
        out: `(address, under)`: the rows of the result, and the distance to the next row.
        scale: The factor, of the elements' type.
        adds: Whether the product is added to the result, which may be a literal.
    """
    if not all(isinstance(a, types.IntegerLiteral) for a in (rows, nbytes, width)):
        return None
    high, register, across = (a.literal_value for a in (rows, nbytes, width))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats = Floats(builder, scale, register // (scale.bitwidth // 8))
        at, load = floats.at, floats.load
        first, below, column, last = _parts(builder, args[5])
        into, under = _parts(builder, args[6])
        places = []
        for v in range(across):
            place = at(column, v * register)
            beyond = builder.icmp_signed(">", place, last)
            places.append(builder.select(beyond, last, place))
        lines = [at(into, (under, WORD(m))) for m in range(high)]
        by_table = len(left.items) == 2
        if by_table:
            table, steps = _parts(builder, args[4])
            starts = [load(at(table, 8 * m), WORD) for m in range(high)]
        else:
            start, down, along, count = _parts(builder, args[4])
            final = builder.sub(count, WORD(1))
            there = [builder.icmp_signed("<", WORD(m), count) for m in range(high)]
            near = [builder.select(t, WORD(m), final) for m, t in enumerate(there)]
            starts = [at(start, (down, m)) for m in near]
            spare = alloca_once(builder, ir.ArrayType(floats.vector, across))
            aside = builder.sub(builder.ptrtoint(spare, WORD), places[0])
            lines = [builder.select(t, line, aside) for t, line in zip(there, lines, strict=True)]

        def read(k: Any) -> tuple[Any, list[Any]]:
            step = load(at(steps, (k, WORD(8))), WORD) if by_table else builder.mul(k, along)
            return step, [load(at(first, (k, below), place)) for place in places]

        def combine(m: int, term: tuple[Any, list[Any]], sums: Sequence[Any]) -> list[Any]:
            step, columns = term
            one = spread(builder, load(at(starts[m], step), floats.element), floats.vector)
            return [floats.fma(one, c, s) for c, s in zip(columns, sums, strict=True)]

        zeros = [[floats.zeros] * across] * high
        sums = tile(builder, (WORD(0), args[3]), zeros, read, combine)
        factor = spread(builder, args[7], floats.vector)

        def store(added: bool) -> None:
            for line, row in zip(lines, sums, strict=True):
                for place, total in zip(places, row, strict=True):
                    product = builder.fmul(total, factor)
                    if added:
                        product = builder.fadd(product, load(at(line, place)))
                    floats.store(product, at(line, place))

        if isinstance(adds, types.BooleanLiteral):
            store(adds.literal_value)
        else:
            with builder.if_else(args[8]) as (then, otherwise):
                with then:
                    store(True)
                with otherwise:
                    store(False)
        return context.get_dummy_value()

    return types.void(rows, nbytes, width, depth, left, right, out, scale, adds), generate


@intrinsic
def dots(
    _: Any, rows: Any, lanes: Any, width: Any, depth: Any, left: Any, right: Any, out: Any, one: Any
) -> Any:
    """Multiplies some rows with a vector; distances are in bytes.

    Args:
        rows: How many rows; like the next two a literal.
        lanes: Elements of a register, a power of two.
        width: Registers of running sums of a row, a power of two.
        depth: How many terms there are, at least one register's.
        left: `(address, down, ahead)`: the first row, whose elements are contiguous, the distance
            to the next row, and from an element to the address that is prefetched.
        right: Address of the vector, which is contiguous.
        out: `(address, under, adds)`: the first row's sum, the distance to the next, and whether
            the sums are added to the result.
        one: A number of the elements' type.
    """
    if not all(isinstance(a, types.IntegerLiteral) for a in (rows, lanes, width)):
        return None
    high, many, across = (a.literal_value for a in (rows, lanes, width))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats = Floats(builder, one, many)
        at, load, depth_ = floats.at, floats.load, args[3]
        left_, down, ahead = _parts(builder, args[4])
        out_, under, adds = _parts(builder, args[6])
        starts = [at(left_, (down, WORD(m))) for m in range(high)]
        step = many * floats.size

        def read(k: Any) -> tuple[Any, list[Any]]:
            place = builder.mul(k, WORD(step * across))
            for line in range(0, step * across, LINE):
                for start in starts:
                    prefetch_line(builder, at(start, place, ahead, line), 2)
            return place, [load(at(args[5], place, v * step)) for v in range(across)]

        def combine(m: int, term: tuple[Any, list[Any]], sums: Sequence[Any]) -> list[Any]:
            place, terms = term
            others = [load(at(starts[m], place, v * step)) for v in range(across)]
            return [floats.fma(a, b, s) for a, b, s in zip(others, terms, sums, strict=True)]

        def read_rest(k: Any) -> tuple[Any, Any, Any]:
            place, kept = floats.last(k, depth_)
            return place, kept, builder.select(kept, load(at(args[5], place)), floats.zeros)

        def combine_rest(m: int, term: tuple[Any, Any, Any], sums: Sequence[Any]) -> list[Any]:
            place, kept, column = term
            other = builder.select(kept, load(at(starts[m], place)), floats.zeros)
            return [floats.fma(other, column, sums[0]), *sums[1:]]

        blocks = builder.sdiv(depth_, WORD(many * across))
        sums: Rows = [[floats.zeros] * across] * high
        sums = tile(builder, (WORD(0), blocks), sums, read, combine)
        rest = builder.mul(blocks, WORD(across))
        end = builder.sdiv(at(depth_, many - 1), WORD(many))
        sums = tile(builder, (rest, end), sums, read_rest, combine_rest)
        name = f"llvm.vector.reduce.fadd.v{many}f{8 * floats.size}"
        reduced = declared(builder, name, floats.element, [floats.element, floats.vector])
        none = ir.Constant(floats.element, 0.0)
        for m, row in enumerate(sums):
            parts = list(row)
            while len(parts) > 1:
                parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            total = builder.call(reduced, [none, parts[0]], fastmath=("reassoc",))
            place = at(out_, (under, WORD(m)))
            before = builder.select(adds, load(place, floats.element), none)
            floats.store(builder.fadd(before, total), place)
        return context.get_dummy_value()

    return types.void(rows, lanes, width, depth, left, right, out, one), generate
