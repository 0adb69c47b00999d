"""FLOAT kernels over operands and results with two bytes per element.

HALF and BFLOAT16 are storage types. A kernel that reads each element many times gets FLOAT
operands. They are converted in one pass over the part that the kernel reads, and its results are
rounded at the end. Views and gathers copy such elements unchanged. The vector kernel and
generated loops convert each element on access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from einsql.core.bfloat16 import narrow, widen
from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.core.schema import DType, Field, Key, Schema
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    exprs,
    rewrite,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import map_exprs
from einsql.kernels.kernel import Arrays, Kernel, Runner, Tick
from einsql.kernels.loops import compile_loops
from einsql.kernels.runtime import thread_pool
from einsql.kernels.vectorized.views import unrepeated

PIECE = 2**18
"""Elements that NumPy converts per call; progress is reported between calls."""
LEAST = 2**14
"""Elements above which a generated loop converts faster than NumPy."""
PARALLEL = 2**22
"""Elements from which the loop runs on several threads; it converts a million in 0.1 ms."""

Done = dict[object, tuple[np.ndarray, np.ndarray]]
"""Converted arrays by the identity of the source and its part. The entry references the source,
so that no later array reuses its identity."""


def stores_half(node: EinSum) -> bool:
    """True if an operand or a result of a node may have two bytes per element."""
    return any(o.dtype.is_short for o in node.outputs) or any(
        f.dtype.is_short for o in node.operands for f in o.source.schema.fields
    )


def match_floats(kernel: Kernel, node: EinSum, compiled: bool) -> Runner | None:
    """Creates a runner for a node with two-byte operands or results from a FLOAT kernel.

    Args:
        kernel: A kernel that supports FLOAT.
        node: A node with an operand or result of two bytes per element.
        compiled: Whether a generated loop may convert.

    Returns:
        None if the kernel does not apply or the node rounds intermediate values.
    """
    wide = _over_floats(node)
    runner = None if wide is None else kernel.match(wide)
    if wide is None or runner is None:
        return None
    reads = tuple(_read(node, n, wide, compiled) for n in range(len(node.operands)))
    results = {o.name: o.dtype for o in node.outputs if o.dtype.is_short}

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        done: Done = {}
        as_floats = [
            f if r is None else r.run(f, done, tick) for r, f in zip(reads, operands, strict=True)
        ]
        fields = runner(as_floats, tick)
        for name, dtype in results.items():
            fields[name] = _narrowed(fields[name], dtype, tick, compiled)
        return fields

    return run


def _over_floats(node: EinSum) -> EinSum | None:
    """The node over FLOAT operands and results; None if it rounds intermediate values."""
    wide = map_exprs(node, lambda e: rewrite(e, _widened))
    if any(e.dtype.is_short for root in exprs(wide) for e in subexpressions(root)):
        return None
    return replace(
        wide,
        operands=tuple(_operand(node, o) for o in node.operands),
        outputs=tuple(
            replace(o, dtype=DType.FLOAT) if o.dtype.is_short else o for o in wide.outputs
        ),
    )


def _widened(e: Expr) -> Expr:
    """The expression over FLOAT without no-op casts; casts that round remain."""
    if isinstance(e, Value) and e.dtype.is_short:
        return replace(e, dtype=DType.FLOAT)
    if isinstance(e, Const) and e.dtype.is_short:
        return replace(e, dtype=DType.FLOAT)
    if isinstance(e, Call) and e.fn == "cast" and e.args[0].dtype is e.dtype:
        return e.args[0]
    return e


def _operand(node: EinSum, o: Operand) -> Operand:
    old = o.source.schema
    if not any(f.dtype.is_short for f in old.fields):
        return o
    fields = tuple(Field(f.name, DType.FLOAT) if f.dtype.is_short else f for f in old.fields)
    return Operand(Input("floats", Schema(_keys(node, o), fields)), o.labels)


def _keys(node: EinSum, o: Operand) -> tuple[Key, ...]:
    pairs = zip(o.source.schema.keys, map(node.axis, o.labels), strict=True)
    return tuple(Key(k.name, a.lo, a.hi) if a.define is None else k for k, a in pairs)


@dataclass(frozen=True, slots=True)
class _Read:
    """The conversion of an operand's fields to FLOAT.

    Attributes:
        fields: The fields that the node reads, with their types.
        part: The slices that the node reads.
        compiled: Whether a generated loop may convert them.
    """

    fields: tuple[Field, ...]
    part: tuple[slice, ...]
    compiled: bool

    def run(self, fields: Arrays, done: Done, tick: Tick) -> dict[str, np.ndarray]:
        """Converts the fields; `done` caches conversions that operands share."""
        converted: dict[str, np.ndarray] = {}
        for f in self.fields:
            array = fields[f.name]
            key = id(array), tuple((s.start, s.stop) for s in self.part)
            if not f.dtype.is_short:
                converted[f.name] = array[self.part]
            elif key in done:
                converted[f.name] = done[key][1]
            else:
                converted[f.name] = floats(array[self.part], f.dtype, tick, self.compiled)
                done[key] = array, converted[f.name]
        return converted


def _read(node: EinSum, n: int, wide: EinSum, compiled: bool) -> _Read | None:
    """The conversion of operand `n`; None if it is read unchanged."""
    old, new = node.operands[n].source.schema, wide.operands[n].source.schema
    if old is new:
        return None
    read = {
        e.field
        for root in exprs(node)
        for e in subexpressions(root)
        if isinstance(e, Value) and e.operand == n
    }
    starts = (b.lo - a.lo for a, b in zip(old.keys, new.keys, strict=True))
    part = tuple(slice(s, s + k.extent) for s, k in zip(starts, new.keys, strict=True))
    return _Read(tuple(f for f in old.fields if f.name in read), part, compiled)


def floats(array: np.ndarray, dtype: DType, tick: Tick, compiled: bool) -> np.ndarray:
    """Converts HALF or BFLOAT16 to float32 with the same order of axes in memory.

    Args:
        array: The stored elements, with any strides; broadcast axes stay broadcast.
        dtype: The type.
        tick: Callback between pieces; raises to cancel.
        compiled: Whether a generated loop may convert, several times as fast as NumPy.
    """
    shape = array.shape
    array = unrepeated(array)
    flat, back = _in_memory_order(array)
    if compiled and flat.size > LEAST:
        out = _loop(dtype, DType.FLOAT, flat.size)([{"val": flat}], lambda _: tick(0.0))["val"]
    else:
        out = empty(flat.shape, np.dtype(np.float32))
        starts = range(0, flat.size, PIECE)
        pieces = (slice(n, n + PIECE) for n in starts)
        thread_pool.run(
            partial(_convert, flat, out, dtype), pieces, len(starts), lambda _: tick(0.0)
        )
    return np.broadcast_to(back(out), shape)


def _in_memory_order(array: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The elements in the order of memory, and the function that gives them the axes again."""
    order = sorted(range(array.ndim), key=lambda n: -abs(array.strides[n]))
    turned = array.transpose(order)
    axes = np.argsort(order).tolist()
    flat = np.ascontiguousarray(turned).reshape(-1)
    return flat, lambda values: values.reshape(turned.shape).transpose(axes)


@lru_cache(maxsize=64)
def _loop(source: DType, target: DType, size: int) -> Runner:
    """Creates a generated loop that converts `size` elements of a type to another type."""
    array = Input("given", Schema((Key("i", 0, size),), (Field("val", source),)))
    value = Value(0, "val", source)
    wide = Call("cast", (value,), target) if source.is_short else value  # a result is rounded
    output = Output("val", (wide,), target)
    node = EinSum((Axis("i", 0, size),), (Operand(array, ("i",)),), TRUE, ("i",), (output,))
    with thread_pool.alone() if size < PARALLEL else nullcontext():
        return compile_loops(node)


def _convert(source: np.ndarray, target: np.ndarray, dtype: DType, piece: slice) -> None:
    if dtype is DType.BFLOAT16:
        widen(source[piece], target[piece])
    else:
        np.copyto(target[piece], source[piece])


def _narrowed(values: np.ndarray, dtype: DType, tick: Tick, compiled: bool) -> np.ndarray:
    """Rounds FLOAT results to HALF or BFLOAT16; those beyond the largest number are infinite."""
    if compiled and values.size > LEAST and values.dtype == np.float32:
        flat, back = _in_memory_order(values)
        loop = _loop(DType.FLOAT, dtype, flat.size)
        rounded = loop([{"val": flat}], lambda _: tick(1.0))
        return back(rounded["val"])
    if dtype is DType.BFLOAT16:
        return narrow(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)
