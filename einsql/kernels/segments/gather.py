"""Gathers: copies of a table's rows by number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Output, Value
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.segments.rows import Rows, inside, numbering, rows_of
from einsql.kernels.vectorized.views import is_presence, window

PIECE = 2**24
"""Greatest bytes of the rows that are copied at a time."""
SMALL = 2**18
"""Elements from which compiling a repeated copy pays."""
PARALLEL = 2**20
"""Bytes from which several threads pay."""
SOURCE = """\
from einsql.kernels.runtime.compiled_functions import copy_bytes, prefetch


@njit("void(Array(int64, 1, 'C', readonly=True), int64, int64, int64, int64, int64, int64, int64)")
def kernel(numbers, lo, hi, count, table, step, out, size):
    '''Copies rows of `size` bytes that begin every `step` bytes; numbers outside are clipped.'''
    for e in range(lo, hi):
        soon = min(max(numbers[np.uintp(min(e + 2, hi - 1))], 0), count - 1)
        for line in range(0, min(size, 512), 64):
            prefetch(table + soon * step + line)
        row = min(max(numbers[np.uintp(e)], 0), count - 1)
        copy_bytes(out + e * size, table + row * step, size)
"""


@dataclass(frozen=True, slots=True)
class _Copy:
    """An output that copies rows of an operand.

    Attributes:
        value: The copied value.
        label: The derived label that selects the row.
        at: The position of the label among the operand's labels.
        first: The number of the first row of the operand.
        part: The slices of the operand that are read; None for the complete operand.
        shape: The copy's shape, with one axis per label.
        turn: The transposition to the result's order; None if the orders are equal.
    """

    value: Value
    label: str
    at: int
    first: int
    part: tuple[slice, ...] | None
    shape: tuple[int, ...]
    turn: tuple[int, ...] | None

    def run(self, table: np.ndarray, numbers: np.ndarray, compiled: bool, tick: Tick) -> np.ndarray:
        """Copies rows of a table by number; returns an array with one axis per key."""
        table, at = table if self.part is None else table[self.part], self.at
        numbers = numbers - self.first if self.first else numbers
        out = empty((*table.shape[:at], len(numbers), *table.shape[at + 1 :]), table.dtype)
        if compiled and at == 0 and table[:1].flags.c_contiguous:
            kernel, size = compile_cache.load(SOURCE, tick), out.nbytes // max(1, len(out))
            table_args = len(table), table.ctypes.data, table.strides[0], out.ctypes.data, size

            def work(piece: slice) -> None:
                kernel(numbers, piece.start, piece.stop, *table_args)
        elif at == 0 and table.flags.c_contiguous:

            def work(piece: slice) -> None:
                table.take(numbers[piece], axis=0, out=out[piece], mode="clip")
        else:  # take() would first copy the complete table
            to, rows = np.moveaxis(out, at, 0), np.moveaxis(table, at, 0)

            def work(piece: slice) -> None:
                to[piece] = rows[numbers[piece]]

        parts = 1
        if out.nbytes >= PARALLEL:
            # The calling thread gets one piece more, because the others have to wake first.
            parts = max(2 * thread_pool.threads() + 1, ceil(out.nbytes / PIECE))
        edges = [len(numbers) * n // parts for n in range(parts + 1)]
        thread_pool.run(work, (slice(*ends) for ends in pairwise(edges)), parts, tick)
        out = out.reshape(self.shape)
        return out if self.turn is None else out.transpose(self.turn)


def compile_gather(node: EinSum, may_compile: bool = True) -> Runner | None:
    """Matches nodes whose outputs are rows of tables, and presence.

    Args:
        node: Any node.
        may_compile: Whether large repeated copies may be compiled.
    """
    rows = rows_of(node)
    if rows is None or set(node.keys) != {*rows.labels, *rows.features}:
        return None
    flags = [o.name for o in node.outputs if is_presence(o)]
    copies: dict[str, _Copy] = {}
    for o in node.outputs:
        if o.name not in flags:
            row_copy = _copy(node, rows, o)
            if row_copy is None:
                return None
            copies[o.name] = row_copy
    if not copies:
        return None
    numbers_of, shape = numbering(node, rows), node.schema.shape
    everywhere = np.broadcast_to(np.True_, shape)
    order = [*rows.labels, *rows.features]
    turn = [order.index(k) for k in node.keys]
    lifted = [node.axis(x).extent if x in rows.labels else 1 for x in order]

    again = False

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        nonlocal again
        compiled, again = again, may_compile and prod(shape) >= SMALL
        numbers = numbers_of(operands, tick)
        exists: np.ndarray | None = None
        for axis in rows.derived:
            here = inside(axis, numbers[axis.label])
            if here is not None:
                exists = here if exists is None else exists & here
                numbers[axis.label] = np.clip(numbers[axis.label], axis.lo, axis.hi - 1)
        flag = everywhere
        if exists is not None and flags:
            flag = np.broadcast_to(exists.reshape(lifted).transpose(turn), shape)
        fields = dict.fromkeys(flags, flag)
        for name, copy in copies.items():
            table = operands[copy.value.operand][copy.value.field]
            fields[name] = copy.run(table, numbers[copy.label], compiled, tick)
        return fields

    return run


def _copy(node: EinSum, rows: Rows, o: Output) -> _Copy | None:
    value = o.args[0]
    if o.reduction is not None or not isinstance(value, Value) or value.dtype is not o.dtype:
        return None
    operand = node.operands[value.operand]
    labels = operand.labels
    derived = [x for x in labels if x not in rows.features]
    if len(derived) != 1 or len(labels) != len(rows.features) + 1:
        return None
    axis, at = node.axis(derived[0]), labels.index(derived[0])
    if axis not in rows.derived or set(rows.features) - set(labels):
        return None
    now = [*labels[:at], *rows.labels, *labels[at + 1 :]]
    turn = tuple(now.index(k) for k in node.keys)
    return _Copy(
        value=value,
        label=axis.label,
        at=at,
        first=axis.lo,
        part=window(node, operand),
        shape=tuple(node.axis(x).extent for x in now),
        turn=None if turn == tuple(range(len(turn))) else turn,
    )
