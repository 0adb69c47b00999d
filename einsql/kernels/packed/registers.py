"""Register tiles: what a packed kernel does with one panel of rows and one of columns.

A tile is written as LLVM vector code, not left to the vectoriser: every row of it is one
vector, as long as two registers, which LLVM cuts into registers of the processor. Its text
is compiled into kernels; importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from einsql.kernels.packed.functions import LANES

_TYPES: dict[str, Any] = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i8": ir.IntType(8),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
}
_WORD = ir.IntType(64)
_BIT = ir.IntType(1)
_SIZES = {"f32": 4, "f64": 8, "i8": 1, "i32": 4, "i64": 8}


@dataclass
class Registers:
    """Emits operations on vectors of equal length.

    Sums and differences of floats may be written as x·1 + y, which is the same value: many
    processors add, compare and multiply on different ports, and the less busy one is taken.

    Attributes:
        builder: LLVM's.
        lanes: Elements of every vector.
        tame: True if no NaN can occur, so that comparisons need not look for it.
        one: A 1 of each float type that LLVM does not know to be one; none without FMA.
        adding, multiplying: How many operations each kind of port has been given.
    """

    builder: Any
    lanes: int
    tame: bool
    one: Mapping[Any, Any] = field(default_factory=dict)
    adding: int = 0
    multiplying: int = 0

    def vector(self, element: Any) -> Any:
        """The vector type over an element type."""
        return ir.VectorType(element, self.lanes)

    def splat(self, value: Any) -> Any:
        """A vector that holds one value everywhere."""
        kind = self.vector(value.type)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, mask)

    def literal(self, element: Any, value: Any) -> Any:
        """A vector of a known value."""
        return ir.Constant(self.vector(element), [ir.Constant(element, value)] * self.lanes)

    def load(self, address: Any, element: Any, size: int) -> Any:
        """A vector from memory."""
        pointer = self.builder.inttoptr(address, self.vector(element).as_pointer())
        return self.builder.load(pointer, align=size)

    def store(self, value: Any, address: Any, size: int) -> None:
        """A vector to memory."""
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=size)

    def intrinsic(self, name: str, *args: Any) -> Any:
        """LLVM's function of that name over vectors of one type."""
        kind = args[0].type
        letter = "f" if _is_float(args[0]) else "i"
        width = {"float": 32, "double": 64}.get(str(kind.element)) or kind.element.width
        full = f"llvm.{name}.v{self.lanes}{letter}{width}"
        module = self.builder.module
        function = module.globals.get(full) or ir.Function(
            module, ir.FunctionType(kind, [kind] * len(args)), full
        )
        return self.builder.call(function, args)

    # Arithmetic --------------------------------------------------------------------

    def add(self, a: Any, b: Any) -> Any:
        """A + b."""
        if not _is_float(a):
            return self.builder.add(a, b)
        if self.by_multiplying(a):
            return self.fma(a, self.one[a.type.element], b)
        self.adding += 1
        return self.builder.fadd(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """A - b."""
        if not _is_float(a):
            return self.builder.sub(a, b)
        if self.by_multiplying(a):
            return self.fma(a, self.one[a.type.element], self.builder.fneg(b))
        self.adding += 1
        return self.builder.fsub(a, b)

    def by_multiplying(self, a: Any) -> bool:
        """True if a sum is better made by the ports that multiply."""
        return a.type.element in self.one and self.multiplying < self.adding

    def mul(self, a: Any, b: Any) -> Any:
        """A · b."""
        self.multiplying += 1
        return self.builder.fmul(a, b) if _is_float(a) else self.builder.mul(a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """A · b + c, rounded once."""
        self.multiplying += 1
        return self.intrinsic("fma", a, b, c)

    def div(self, a: Any, b: Any) -> Any:
        """A / b of floats."""
        self.multiplying += 8
        return self.builder.fdiv(a, b)

    def neg(self, a: Any) -> Any:
        """-a."""
        return self.builder.fneg(a) if _is_float(a) else self.builder.neg(a)

    def abs(self, a: Any) -> Any:
        """|a|."""
        if _is_float(a):
            return self.intrinsic("fabs", a)
        return self.choose(self.less(a, self.literal(a.type.element, 0)), self.neg(a), a)

    def rounded(self, name: str, a: Any) -> Any:
        """A function of LLVM's over floats; integers are whole."""
        return self.intrinsic(name, a) if _is_float(a) else a

    # Comparisons and logic: masks have one bit, BOOLEAN values from memory eight ------

    def less(self, a: Any, b: Any) -> Any:
        """A < b, NaN above everything."""
        self.adding += 1
        if not _is_float(a):
            return self.builder.icmp_signed("<", *self._alike(a, b))
        below = self.builder.fcmp_ordered("<", a, b)
        if self.tame:
            return below
        number = self.builder.fcmp_ordered("ord", a, a)
        return self.builder.or_(below, self.builder.and_(number, self.is_nan(b)))

    def same(self, a: Any, b: Any) -> Any:
        """A = b, NaN equal to NaN."""
        self.adding += 1
        if not _is_float(a):
            return self.builder.icmp_signed("==", *self._alike(a, b))
        equal = self.builder.fcmp_ordered("==", a, b)
        if self.tame:
            return equal
        return self.builder.or_(equal, self.builder.and_(self.is_nan(a), self.is_nan(b)))

    def is_nan(self, a: Any) -> Any:
        """True where a is NaN."""
        return self.builder.fcmp_unordered("uno", a, a)

    def choose(self, test: Any, a: Any, b: Any) -> Any:
        """A where the test holds, else b."""
        return self.builder.select(self.mask(test), *self._alike(a, b))

    def both(self, a: Any, b: Any) -> Any:
        """A AND b, of conditions or bit by bit."""
        return self.builder.and_(*self._alike(a, b))

    def either(self, a: Any, b: Any) -> Any:
        """A OR b, of conditions or bit by bit."""
        return self.builder.or_(*self._alike(a, b))

    def differing(self, a: Any, b: Any) -> Any:
        """A XOR b, of conditions or bit by bit."""
        return self.builder.xor(*self._alike(a, b))

    def inverse(self, a: Any) -> Any:
        """NOT of a condition."""
        return self.builder.xor(a, self.literal(a.type.element, 1))

    def mask(self, a: Any) -> Any:
        """A condition as a mask."""
        return a if a.type.element == _BIT else self.builder.trunc(a, self.vector(_BIT))

    def _alike(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Two conditions in one form, as bytes where a mask is one already."""
        if a.type == b.type:
            return a, b
        return self.mask(a), self.mask(b)

    # Conversions -------------------------------------------------------------------

    def cast(self, a: Any, kind: str) -> Any:
        """A value in another type that holds it."""
        target = _TYPES[kind]
        if a.type.element == target:
            return a
        goal = self.vector(target)
        boolean = a.type.element == _BIT or a.type.element == _TYPES["i8"]
        if _is_float(a):
            wider = kind == "f64"
            return self.builder.fpext(a, goal) if wider else self.builder.fptrunc(a, goal)
        if kind in ("f32", "f64"):
            return self.builder.uitofp(a, goal) if boolean else self.builder.sitofp(a, goal)
        if boolean:
            return self.builder.zext(a, goal)
        wider = target.width > a.type.element.width
        return self.builder.sext(a, goal) if wider else self.builder.trunc(a, goal)

    def order(self, a: Any) -> Any:
        """Integers that compare as floats do, NaN above everything; see `runtime.order`."""
        double = a.type.element == _TYPES["f64"]
        kind = self.vector(_TYPES["i64" if double else "i32"])
        width = kind.element.width
        bits = self.builder.bitcast(a, kind)
        sign = self.builder.ashr(bits, self.literal(kind.element, width - 1))
        most = self.literal(kind.element, 2 ** (width - 1) - 1)
        return self.builder.select(
            self.is_nan(a), most, self.builder.xor(bits, self.builder.and_(sign, most))
        )


def _is_float(a: Any) -> bool:
    return isinstance(a.type.element, ir.FloatType | ir.DoubleType)


@dataclass(frozen=True)
class Tile:
    """What a tile computes; generated source spells it out.

    Expressions are `("a", n)` and `("b", n)` for columns, `("const", n)` for arguments,
    `("literal", kind, value)`, and `(function, kind, argument, …)` where the kind is that of
    the result.

    Attributes:
        rows, lanes: How many rows and columns of the result.
        a, b: Kinds of what each side has packed.
        consts: Kinds of the literals that are arguments.
        term: What is reduced.
        where: What selects points, or None.
        reduction: Of `algebra.REDUCTIONS`.
        run: Kind of the running values in registers.
        state: Kind of the running values in memory.
        ordered: Whether running floats are integers of the same order.
        start: What running values begin with, as an element of kind `run`.
        block: How many terms are combined in registers before they meet those in memory.
        tame: Whether no NaN can occur.
        fma: Whether the processor multiplies and adds in one instruction.
    """

    rows: int
    lanes: int
    a: Sequence[str]
    b: Sequence[str]
    consts: Sequence[str]
    term: tuple[Any, ...]
    where: tuple[Any, ...] | None
    reduction: str
    run: str
    state: str
    ordered: bool
    start: float
    block: int
    tame: bool
    fma: bool


def tile(**spec: Any) -> Any:
    """A Numba function that takes a panel of rows and one of columns into a tile.

    Its arguments are `(depth, first, at, a, b, state, consts, one)`: how many terms, whether
    the tile is new, the number of the first term, addresses of the packed columns and of the
    running values, literals, and a float64 1.
    """
    what = Tile(**spec)

    def typed(_: Any, depth: Any, first: Any, at: Any, a: Any, b: Any, state: Any, consts: Any,
              one: Any) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _Writer(what, builder, args).write()
            return context.get_dummy_value()

        return types.void(depth, first, at, a, b, state, consts, one), generate

    return intrinsic(typed)


class _Writer:
    """Writes one tile."""

    def __init__(self, what: Tile, builder: Any, args: Sequence[Any]) -> None:
        self.what, self.builder = what, builder
        self.depth, self.first, self.at, a, b, state, consts, one = args
        self.r = Registers(builder, what.lanes, what.tame)
        if what.fma:
            single = builder.fptrunc(one, _TYPES["f32"])
            self.r.one = {x.type: self.r.splat(x) for x in (one, single)}
        take = builder.extract_value
        self.a = [take(a, n) for n in range(len(what.a))]
        self.b = [take(b, n) for n in range(len(what.b))]
        self.consts = [self.r.splat(take(consts, n)) for n in range(len(what.consts))]
        self.state = [take(state, n) for n in range(1 + self.is_pair)]
        self.run = [what.run, *["i64" if _SIZES[what.run] == 8 else "i32"] * self.is_pair]

    @property
    def is_pair(self) -> bool:
        """True for a value and its argument."""
        return self.what.reduction.startswith("arg_")

    def write(self) -> None:
        """Loops over blocks of terms, and over the terms of each."""
        builder, zero = self.builder, ir.Constant(_WORD, 0)
        before = builder.block
        blocks, terms, after, end = (
            builder.append_basic_block(x) for x in ("blocks", "terms", "after", "end")
        )
        builder.branch(blocks)
        builder.position_at_end(blocks)
        start = builder.phi(_WORD)
        start.add_incoming(zero, before)
        new = builder.phi(_BIT)
        new.add_incoming(self.first, before)
        stop = builder.add(start, ir.Constant(_WORD, self.what.block))
        stop = builder.select(builder.icmp_signed("<", stop, self.depth), stop, self.depth)
        begin = [self.begin(row, new) for row in range(self.what.rows)]
        builder.branch(terms)

        builder.position_at_end(terms)
        k = builder.phi(_WORD)
        k.add_incoming(start, blocks)
        running = [[builder.phi(v.type) for v in row] for row in begin]
        for row, values in zip(running, begin, strict=True):
            for phi, value in zip(row, values, strict=True):
                phi.add_incoming(value, blocks)
        point = self.point(k)
        found = [self.combine(point(row), running[row]) for row in range(self.what.rows)]
        following = builder.add(k, ir.Constant(_WORD, 1))
        k.add_incoming(following, terms)
        for row, values in zip(running, found, strict=True):
            for phi, value in zip(row, values, strict=True):
                phi.add_incoming(value, terms)
        builder.cbranch(builder.icmp_signed("<", following, stop), terms, after)

        builder.position_at_end(after)
        for row in range(self.what.rows):
            self.merge(row, found[row], new)
        start.add_incoming(stop, after)
        new.add_incoming(ir.Constant(_BIT, 0), after)
        builder.cbranch(builder.icmp_signed("<", stop, self.depth), blocks, end)
        builder.position_at_end(end)

    # Running values ----------------------------------------------------------------

    def begin(self, row: int, new: Any) -> list[Any]:
        """What a row's running values begin a block with."""
        starts = [self.identity(), *[self.r.literal(_TYPES[k], 0) for k in self.run[1:]]]
        if self.what.reduction == "sum":
            return starts
        return [
            self.r.choose(self.r.splat(new), start, self.kept(row, n, kind))
            for n, (start, kind) in enumerate(zip(starts, self.run, strict=True))
        ]

    def identity(self) -> Any:
        """The vector of values that change nothing."""
        return self.r.literal(_TYPES[self.what.run], self.what.start)

    def kept(self, row: int, n: int, kind: str) -> Any:
        """A row's running values in memory."""
        return self.r.load(self.place(row, n, kind), _TYPES[kind], _SIZES[kind])

    def place(self, row: int, n: int, kind: str) -> Any:
        """Where a row's running values lie."""
        offset = ir.Constant(_WORD, row * self.what.lanes * _SIZES[kind])
        return self.builder.add(self.state[n], offset)

    def merge(self, row: int, values: Sequence[Any], new: Any) -> None:
        """Takes a block's running values to memory; sums are added to those there."""
        kinds = self.run
        if self.what.reduction == "sum":
            kind = self.what.state
            old = self.r.choose(
                self.r.splat(new), self.r.literal(_TYPES[kind], 0), self.kept(row, 0, kind)
            )
            part = self.r.cast(values[0], kind)
            plus = self.builder.fadd if _is_float(part) else self.builder.add
            values, kinds = [plus(old, part)], [kind]
        for n, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            self.r.store(value, self.place(row, n, kind), _SIZES[kind])

    # Terms -------------------------------------------------------------------------

    def point(self, k: Any) -> Callable[[int], _Point]:
        """What every row reads of term `k`."""
        builder = self.builder
        columns = []
        for kind, address in zip(self.what.b, self.b, strict=True):
            step = ir.Constant(_WORD, self.what.lanes * _SIZES[kind])
            at = builder.add(address, builder.mul(k, step))
            columns.append(self.r.load(at, _TYPES[kind], _SIZES[kind]))
        number = None
        if self.is_pair:
            low = builder.add(k, self.at)
            width = _TYPES[self.run[1]]
            number = self.r.splat(low if width == _WORD else builder.trunc(low, width))
        first = builder.mul(k, ir.Constant(_WORD, self.what.rows))

        def of(row: int) -> _Point:
            index = builder.add(first, ir.Constant(_WORD, row))
            return _Point(self, index, columns, number)

        return of

    def combine(self, point: _Point, old: Sequence[Any]) -> list[Any]:
        """A row's running values with one more term."""
        what, r = self.what, self.r
        r.adding = r.multiplying = 0
        name = what.reduction
        where = None if what.where is None else point.value(what.where)
        if name == "sum":
            return [self.plus(point, old[0], where)]
        if name in ("min", "max", "arg_min", "arg_max"):
            r.adding = 1
        new = point.value(what.term)
        new = r.order(new) if what.ordered else r.cast(new, what.run)
        if where is not None:
            new = r.choose(where, new, self.identity())
        if name == "product":
            return [r.mul(old[0], new)]
        if name in ("bool_or", "bool_and"):
            return [r.either(old[0], new) if name == "bool_or" else r.both(old[0], new)]
        better = self.below(new, old[0]) if name.endswith("min") else self.below(old[0], new)
        values = [self.builder.select(better, new, old[0])]
        if self.is_pair:
            values.append(self.builder.select(better, point.number, old[1]))
        return values

    def below(self, a: Any, b: Any) -> Any:
        """A < b of running values, which are no NaN."""
        if _is_float(a):
            return self.builder.fcmp_ordered("<", a, b)
        return self.builder.icmp_signed("<", a, b)

    def plus(self, point: _Point, old: Any, where: Any) -> Any:
        """A running sum and a term; a product is multiplied and added at once."""
        what, r = self.what, self.r
        term = what.term
        same = _is_float(old) and where is None and term[0] == "mul" and term[1] == what.run
        if same and what.fma:
            r.multiplying = 1
            return r.fma(point.value(term[2]), point.value(term[3]), old)
        new = r.cast(point.value(term), what.run)
        if where is not None:
            new = r.choose(where, new, self.identity())
        return r.add(new, old)


class _Point:
    """The values of expressions at one row and term."""

    def __init__(self, writer: _Writer, index: Any, columns: Sequence[Any], number: Any) -> None:
        self.writer, self.index, self.columns, self.number = writer, index, columns, number
        self.known: dict[tuple[Any, ...], Any] = {}

    def value(self, e: tuple[Any, ...]) -> Any:
        """An expression's vector, built once."""
        if e not in self.known:
            self.known[e] = self.build(e)
        return self.known[e]

    def build(self, e: tuple[Any, ...]) -> Any:
        writer, head = self.writer, e[0]
        if head == "b":
            return self.columns[e[1]]
        if head == "const":
            return writer.consts[e[1]]
        if head == "literal":
            return writer.r.literal(_TYPES[e[1]], e[2])
        if head == "a":
            kind = writer.what.a[e[1]]
            builder = writer.builder
            offset = builder.mul(self.index, ir.Constant(_WORD, _SIZES[kind]))
            pointer = builder.inttoptr(
                builder.add(writer.a[e[1]], offset), _TYPES[kind].as_pointer()
            )
            return writer.r.splat(builder.load(pointer))
        args = [self.value(x) for x in e[2:]]
        if head == "cast":
            return writer.r.cast(args[0], e[1])
        return LANES[head].emit(writer.r, *args)
