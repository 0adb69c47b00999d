"""Source text of packed kernels: packing of both sides, and the call of the register tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Expr, Label, Output, Value
from einsql.ir.einsum.states import state_of
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.compiler.cpu_features import Machine
from einsql.kernels.loops.expressions import CARRIERS, Builder
from einsql.kernels.packed.functions import FOREVER, SIZES, Tile
from einsql.kernels.packed.layout import BOTH, COLUMNS, ROWS
from einsql.kernels.packed.states import calls_in, number_in, without_nan
from einsql.kernels.packed.terms import Columns, is_slow, kind_of, spell

NUMPY = {"i8": "int8", "i32": "int32", "i64": "int64", "f32": "float32", "f64": "float64"}
BLOCK = 32
"""FLOAT terms of a partial sum in FLOAT; partial sums are added in DOUBLE."""
LINE = 16
"""Consecutive terms that packing reads together: the elements of a cache line."""
SLOW_ROWS = 2
"""Rows of a tile whose terms need many registers."""

Leaf = Value | Label
Store = tuple[int, str, str]
"""The number of a running value, the type of its result, and source that reads it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The data-dependent choices of a kernel.

    Attributes:
        narrow: Whether every integer fits 32 bits.
        tame: Whether no NaN can occur.
        careful: Whether FLOAT sums are computed in DOUBLE, because partial sums may exceed
            FLOAT's range.
        small: Whether the sum of the terms that are packed at a time fits 32 bits.
    """

    narrow: bool
    tame: bool
    careful: bool = False
    small: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel's text and its arguments.

    Attributes:
        leaves: The operands, in the order of the arguments.
        tile: The register tile.
        consts: The literals that are arguments.
        depth: The number of terms that are packed at a time.
        out: The types of the results.
    """

    source: str
    leaves: tuple[Leaf, ...]
    tile: Tile
    consts: tuple[np.generic, ...]
    depth: int
    out: tuple[str, ...]


def generate(
    columns: Columns,
    outputs: Sequence[Output],
    terms: Sequence[Expr],
    where: Expr | None,
    variant: Variant,
    machine: Machine,
) -> Program:
    """Writes the kernel of an output, or of some fields of a state.

    Args:
        columns: The columns of both sides.
        outputs: The outputs.
        terms: The term of the output, or all fields of the state merged with one.
        where: The condition that selects points, or None.
        variant: The data-dependent choices.
        machine: The processor.
    """
    spelled = [spell(columns, e, variant.narrow) for e in terms]
    if columns.fields:
        if variant.tame:
            spelled = [without_nan(e, columns.consts) for e in spelled]
        running, stores = _running_state(outputs, spelled, variant)
    else:
        running, out, finish = _running(outputs[0], where is not None, variant)
        stores = [(-1, out, finish)]
    a, b, c = (
        tuple(kind_of(e.dtype, variant.narrow) for e in exprs) for exprs in columns.sides.values()
    )
    consts = tuple(kind_of(c.dtype, variant.narrow) for c in columns.consts)
    inner = {kind_of(e.dtype, variant.narrow) for e in columns.inside} - {"i8"}
    widest = max(SIZES[k] for k in {running["run"], *inner, *a, *b, *c})
    count = len(terms) if columns.fields else 1 + running["reduction"].startswith("arg_")
    slow = is_slow(columns)
    if columns.fields:  # masks stay in one register each
        wide = 1
    else:
        wide = 2 if slow else _wide(machine, machine.width // widest, columns.layout.sizes[2])
    calls = calls_in(spelled) if columns.fields else len(columns.inside)
    rows = SLOW_ROWS if slow else _rows(machine, wide, count, calls, len(b))
    tile = Tile(
        rows=rows,
        lanes=wide * machine.width // widest,
        a=a,
        b=b,
        c=c,
        consts=consts,
        term=spelled[0],
        where=None if where is None else spell(columns, where, variant.narrow),
        tame=variant.tame,
        fma=machine.fma,
        **running,
    )
    literals = tuple(
        np.dtype(NUMPY[k]).type(c.value) for c, k in zip(columns.consts, consts, strict=True)
    )
    types = tuple(t for _, t, _ in stores)
    program = Program("", (), tile, literals, 256 if widest <= 4 else 128, types)
    return _Text(columns, program, stores).program()


def _wide(machine: Machine, lanes: int, columns: int) -> int:
    """The registers of a row of a tile, a power of two.

    Four registers use each element of a row twice as often as two and are a tenth faster, but
    more lanes may be beyond the last column.
    """
    if machine.registers < 32:
        return 2
    filled = {wide: ceil(columns / (wide * lanes)) * wide for wide in (2, 4)}
    return 4 if filled[4] <= 1.1 * filled[2] else 2


def _rows(machine: Machine, wide: int, count: int, calls: int, columns: int) -> int:
    """The rows of a tile: the greatest number that leaves registers for the values of a row."""
    room = machine.registers - wide * columns - 4 - 2 * (calls > 3)
    return max(2, room // (count * wide))


def _running(o: Output, guarded: bool, v: Variant) -> tuple[dict[str, Any], str, str]:
    """The reduction: fields of `Tile`, the type of the results, and source that reads them."""
    name, term = o.reduction or "", o.args[-1].dtype
    kind, out, finish = kind_of(term, v.narrow), CARRIERS[o.dtype], "{0}"
    running: dict[str, Any] = {"reduction": name, "run": kind, "state": kind}
    if name == "sum" and o.dtype.is_float:
        run = kind if kind in ("f32", "f64") and not v.careful else "f64"
        running |= {"run": run, "state": "f64", "block": BLOCK if run == "f32" else FOREVER}
        return running, out, "round_half({0})" if o.dtype is DType.HALF else finish
    if name == "sum":
        return running | {"run": "i32" if v.small else "i64", "state": "i64"}, "int64", finish
    if name == "product":
        return running | {"run": "f64", "state": "f64", "start": 1}, out, finish
    if term is DType.BOOLEAN and name in ("min", "max", "bool_and", "bool_or"):
        every = name in ("min", "bool_and")
        running |= {"reduction": "bool_and" if every else "bool_or", "start": int(every)}
        return running, out, "{0} != 0"
    if kind == "i8" or (guarded and kind == "i32" and term is DType.BIGINT):
        kind = "i32" if kind == "i8" else "i64"
    lowest, pair = name.endswith("min"), name.startswith("arg_")
    exact = term.is_float and (not v.tame or (guarded and lowest))
    if exact:
        kind = "i64" if kind == "f64" else "i32"
        finish = finish if pair else "order_back({0})"
    start = _extreme(kind, term, lowest, exact)
    running |= {"run": kind, "state": kind, "ordered": exact, "start": start}
    return running, "int64" if pair else out, finish


def _running_state(
    outputs: Sequence[Output], merge: Sequence[tuple[Any, ...]], v: Variant
) -> tuple[dict[str, Any], list[Store]]:
    """The fields of `Tile` for a state, and what is stored for each output."""
    fields = state_of(outputs[0].reduction or "").fields
    kinds = [kind_of(f.dtype, v.narrow) for f in fields]
    starts = [
        int(f.start) if k[0] == "i" else float(f.start) for k, f in zip(kinds, fields, strict=True)
    ]
    running = {
        "reduction": "state",
        "run": kinds[0],
        "state": kinds[0],
        "merge": tuple(merge),
        "fields": tuple(zip(kinds, starts, strict=True)),
        "number": number_in(merge),
    }
    places = [REDUCTIONS[o.reduction or ""].place for o in outputs]
    finishes = ["{0} != 0" if o.dtype is DType.BOOLEAN else "{0}" for o in outputs]
    types = [CARRIERS[o.dtype] for o in outputs]
    return running, list(zip(places, types, finishes, strict=True))


def _extreme(kind: str, term: DType, lowest: bool, exact: bool) -> float:
    """The initial value of a running extreme."""
    if exact:
        top = 1 << (8 * SIZES[kind] - 1)
        mantissa = 1 << (23 if kind == "i32" else 52)
        return top - 1 if lowest else mantissa - 1 - top
    if term.is_float:
        return float(REDUCTIONS["max"].identity(term)) * (-1 if lowest else 1)
    if kind == "i32" and term is DType.BIGINT:
        term = DType.INTEGER
    if term is DType.BOOLEAN:
        return 1 if lowest else 0
    start: int = REDUCTIONS["min" if lowest else "max"].identity(term)
    return start


_HEADER = """\
from math import inf, nan

from einsql.kernels.runtime.vector_math import erf, exp, log, log2, sigmoid, tanh
from einsql.kernels.packed.functions import Tile
from einsql.kernels.packed.tile import packed_tile
from einsql.kernels.runtime.compiled_functions import (
    eq, floored_remainder, idiv, less, order_back, ratio, remainder, round_away, round_half,
    scaled_round, truncate,
)
from einsql.kernels.runtime.float32_math import cos, log10, power, sin

"""


class _Text(Builder):
    def __init__(self, columns: Columns, program: Program, stores: Sequence[Store]) -> None:
        super().__init__()
        self.columns, self.what, self.tile, self.stores = columns, program, program.tile, stores
        self.leaves: list[Leaf] = []
        self.side = ROWS

    def start(self, side: str) -> None:
        # Names continue, because a name of both sides would have the type of both.
        self.lines, self.known, self.side = [], {}, side

    def program(self) -> Program:
        w, depth = self.tile, self.what.depth
        rows, lanes = w.rows, w.lanes
        packing = [
            *self.packing(ROWS, f"high = min({rows}, m1 - m0 - panel * {rows})", "i", "high"),
            *self.packing(COLUMNS, f"wide = min({lanes}, n1 - n0 - panel * {lanes})", "j", "wide"),
        ]

        def places(name: str, kinds: Sequence[str], number: str, size: int) -> str:
            each = [f"{name}{n} + {number} * {size * SIZES[k]}, " for n, k in enumerate(kinds)]
            return f"({''.join(each)})"

        arguments = [
            places(f"p{ROWS}", w.a, "ir", depth * rows),
            places(f"p{COLUMNS}", w.b, "jr", depth * lanes),
            places(f"p{BOTH}", w.c, "tile_", rows * lanes) if w.c else "(0,)",
            places("s", w.states, "tile_", rows * lanes),
            f"({''.join(f'q{n}, ' for n in range(len(w.consts)))}one)",
        ]
        body = [
            "for b in range(b0, b1):",
            *(f"    {line}" for line in self.spreading()),
            f"    for k0 in range(0, terms, {depth}):",
            f"        depth = min({depth}, terms - k0)",
            *(f"        {line}" for line in packing),
            "        for jr in range(right):",
            "            for ir in range(left):",
            "                tile_ = jr * left + ir",
            f"                micro(depth, k0 == 0, base + k0, {', '.join(arguments)}, one)",
            *(f"    {line}" for line in self.storing()),
        ]
        return replace(self.what, source=self.assemble(body), leaves=tuple(self.leaves))

    # Packing -----------------------------------------------------------------------

    def packing(self, side: str, size: str, inner: str, count: str) -> list[str]:
        """Writes the loops that compute one side's columns, panel by panel."""
        rows = side == ROWS
        wide = self.tile.rows if rows else self.tile.lanes
        panels = "left" if rows else "right"
        start = f"{'m0' if rows else 'n0'} + panel * {wide}"
        index = f"np.uintp((panel * {self.what.depth} + k) * {wide} + {inner})"
        self.start(side)
        for n, e in enumerate(self.columns.sides[side]):
            self.pack(f"y{side}{n}[{index}]", self.tile.packed[side][n], e)
        element = "m" if rows else "n"
        # Complete cache lines are read if terms are contiguous; neighbours are copied otherwise.
        read = [n for n, x in enumerate(self.leaves) if self.columns.side(x) == side]
        along = " or ".join(f"x{n}k == 1" for n in read) or "False"
        body = [f"            {line}" for line in self.lines]
        place = f"{element} = {start} + {inner}"
        return [
            f"for panel in range({panels}):",
            f"    {size}",
            f"    if {along}:",
            f"        for line in range(0, depth, {LINE}):",
            f"            for {inner} in range({count}):",
            f"                {place}",
            f"                for k in range(line, min(line + {LINE}, depth)):",
            *(f"        {line}" for line in body),
            "    else:",
            "        for k in range(depth):",
            f"            for {inner} in range({count}):",
            f"                {place}",
            *(f"    {line}" for line in body),
        ]

    def spreading(self) -> list[str]:
        """Writes the loops that pack values of rows and columns without terms, tile by tile."""
        self.start(BOTH)
        w = self.tile
        index = f"np.uintp(((jr * left + ir) * {w.rows} + i) * {w.lanes} + j)"
        for n, e in enumerate(self.columns.sides[BOTH]):
            self.pack(f"yc{n}[{index}]", w.c[n], e)
        if not self.lines:
            return []
        return [
            *_tiles(w),
            f"            m = m0 + ir * {w.rows} + i",
            "            for j in range(wide):",
            f"                n = n0 + jr * {w.lanes} + j",
            *(f"                {line}" for line in self.lines),
        ]

    def pack(self, cell: str, kind: str, e: Expr) -> None:
        value = self.value(e)
        if kind == "i8":
            value = f"(1 if {value} else 0)"
        self.lines.append(f"{cell} = np.{NUMPY[kind]}({value})")

    def label(self, e: Label) -> str:
        return self.read(e)

    def load(self, e: Value) -> str:
        return self.read(e)

    def read(self, e: Leaf) -> str:
        if e not in self.leaves:
            self.leaves.append(e)
        n = self.leaves.index(e)
        own = self.columns.own(e) or self.side
        first = "n" if own == COLUMNS else "m"
        last = "n" if own == BOTH else "0" if self.side == BOTH else "(k0 + k)"
        return f"x{n}[np.uintp(b * x{n}b + {first} * x{n}s + {last} * x{n}k)]"

    # The kernel --------------------------------------------------------------------

    def storing(self) -> list[str]:
        w = self.tile
        size = w.rows * w.lanes
        check = w.reduction == "sum" and w.run == "f32"
        storing: list[str] = []
        for n, (place, out, finish) in enumerate(self.stores):
            value = finish.format("v" if n == 0 else f"v{n}")
            stored = value if out == "boolean" else f"np.{out}({value})"
            name = "v" if n == 0 else f"v{n}"
            storing += [
                f"                {name} = c{place % len(w.states)}[np.uintp(source + j)]",
                *(["                wild |= v - v != 0"] if check else []),
                f"                o{n}[np.uintp(goal + j * on)] = {stored}",
            ]
        return [
            *_tiles(w),
            f"            source = (jr * left + ir) * {size} + i * {w.lanes}",
            f"            goal = b * ob + (m0 + ir * {w.rows} + i) * om"
            f" + (n0 + jr * {w.lanes}) * on",
            "            for j in range(wide):",
            *storing,
        ]

    def assemble(self, body: list[str]) -> str:
        w = self.tile
        names, kinds = ["p", "flag"], ["int64[::1]", "int64[::1]"]
        unpack = [
            "b0, b1, m0, m1, n0, n1, terms = p[0], p[1], p[2], p[3], p[4], p[5], p[6]",
            "ob, om, on, base = p[7], p[8], p[9], p[10]",
        ]
        at = 11
        for n, leaf in enumerate(self.leaves):
            names.append(f"x{n}")
            carrier = CARRIERS[leaf.dtype]
            kinds.append(f"Array({carrier}, 1, 'C', readonly=True)")
            unpack.append(f"x{n}b, x{n}s, x{n}k = p[{at}], p[{at + 1}], p[{at + 2}]")
            at += 3
        for name, address, kinds_of in (
            *((f"y{side}", f"p{side}", packed) for side, packed in w.packed.items()),
            ("c", "s", w.states),
        ):
            for n, k in enumerate(kinds_of):
                names.append(f"{name}{n}")
                kinds.append(f"{NUMPY[k]}[::1]")
                unpack.append(f"{address}{n} = p[{at}]")
                at += 1
        names += [f"o{n}" for n in range(len(self.stores))]
        kinds += [f"{out}[::1]" for out in self.what.out]
        names += [*(f"q{n}" for n in range(len(w.consts))), "one"]
        kinds += [*(NUMPY[k] for k in w.consts), "float64"]
        unpack += [
            f"left = (m1 - m0 + {w.rows - 1}) // {w.rows}",
            f"right = (n1 - n0 + {w.lanes - 1}) // {w.lanes}",
            "wild = False",
        ]
        head = f'@njit("void({", ".join(kinds)})")'
        lines = [*unpack, *body, "if wild:", "    flag[0] = 1"]
        return (
            f"{_HEADER}micro = packed_tile({w!r})\n\n\n{head}\ndef kernel({', '.join(names)}):\n"
            + "\n".join(f"    {line}" for line in lines)
            + "\n"
        )


def _tiles(tile: Tile) -> list[str]:
    """Writes the loops over the rows of a piece's register tiles within the result."""
    rows, lanes = tile.rows, tile.lanes
    return [
        "for jr in range(right):",
        f"    wide = min({lanes}, n1 - n0 - jr * {lanes})",
        "    for ir in range(left):",
        f"        high = min({rows}, m1 - m0 - ir * {rows})",
        "        for i in range(high):",
    ]
