"""Kernels that compute with FLOAT, over operands and results of two bytes an element.

HALF and BFLOAT16 are stored, not computed. A kernel that would read each element many times
gets operands of FLOAT, made in one pass over the part that it reads, and its results are
rounded at the end. Views, gathers, the vector tier and generated loops need none of this:
they move such elements as they are, or convert them as they read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from einsql.bfloat16 import narrow, widen
from einsql.buffers import empty
from einsql.einsum import (
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Operand,
    Value,
    exprs,
    map_exprs,
    rewrite,
    subexpressions,
)
from einsql.kernels import pool
from einsql.kernels.kernel import Fields, Kernel, Runner, Tick
from einsql.schema import DType, Field, Key, Schema

PIECE = 2**20
"""Elements that are converted at a time."""


def stores_short(node: EinSum) -> bool:
    """True if an operand or a result of a node may have two bytes an element."""
    return any(o.dtype.is_short for o in node.outputs) or any(
        f.dtype.is_short for o in node.operands for f in o.source.schema.fields
    )


def match_floats(kernel: Kernel, node: EinSum) -> Runner | None:
    """What a kernel makes of a node with such operands or results, given FLOAT for them."""
    wide = _over_floats(node)
    runner = None if wide is None else kernel.match(wide)
    if wide is None or runner is None:
        return None
    reads = tuple(_read(node, n, wide) for n in range(len(node.operands)))
    results = {o.name: o.dtype for o in node.outputs if o.dtype.is_short}

    def run(operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        given = [f if r is None else r.run(f, tick) for r, f in zip(reads, operands, strict=True)]
        fields = runner(given, tick)
        for name, dtype in results.items():
            fields[name] = _narrowed(fields[name], dtype)
        return fields

    return run


def _over_floats(node: EinSum) -> EinSum | None:
    """The node over FLOAT operands and results; None if it rounds in between."""
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
    """A value as FLOAT, and no cast that does nothing then; what rounds stays."""
    if isinstance(e, Value) and e.dtype.is_short:
        return replace(e, dtype=DType.FLOAT)
    if isinstance(e, Const) and e.dtype.is_short:
        return replace(e, dtype=DType.FLOAT)
    if isinstance(e, Call) and e.fn == "cast" and e.args[0].dtype is e.dtype:
        return e.args[0]
    return e


def _operand(node: EinSum, o: Operand) -> Operand:
    """An operand with FLOAT for its short fields, over no more keys than are read."""
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
    """How an operand's fields are made FLOAT.

    Attributes:
        fields: Those that are read, with their types.
        part: What of them is.
    """

    fields: tuple[Field, ...]
    part: tuple[slice, ...]

    def run(self, given: Fields, tick: Tick) -> dict[str, np.ndarray]:
        made: dict[str, np.ndarray] = {}
        for f in self.fields:
            array = given[f.name][self.part]
            made[f.name] = floats(array, f.dtype, tick) if f.dtype.is_short else array
        return made


def _read(node: EinSum, n: int, wide: EinSum) -> _Read | None:
    """How operand `n` is read; None for as it is."""
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
    return _Read(tuple(f for f in old.fields if f.name in read), part)


def floats(array: np.ndarray, dtype: DType, tick: Tick) -> np.ndarray:
    """The float32 numbers of HALF or BFLOAT16, with the axes following each other alike.

    Args:
        array: As a field of the type holds it, of any strides; where it is repeated, so is
            what comes out.
        dtype: The type.
        tick: Called between pieces; raises to cancel.
    """
    shape = array.shape
    array = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]
    order = sorted(range(array.ndim), key=lambda n: -abs(array.strides[n]))
    turned = array.transpose(order)
    out = empty(turned.shape, np.dtype(np.float32))
    source, target = turned, out
    if turned.flags.c_contiguous:
        source, target = turned.reshape(-1), out.reshape(-1)
    if source.size <= PIECE:
        _convert(source, target, dtype, slice(None))
    else:
        step = max(1, PIECE * len(source) // source.size)
        starts = range(0, len(source), step)
        pieces = (slice(n, n + step) for n in starts)
        pool.run(partial(_convert, source, target, dtype), pieces, len(starts), lambda _: tick(0.0))
    back = tuple(int(n) for n in np.argsort(order))
    return np.broadcast_to(out.transpose(back), shape)


def _convert(source: np.ndarray, target: np.ndarray, dtype: DType, piece: slice) -> None:
    if source.ndim == 0:
        target[...] = widen(source) if dtype is DType.BFLOAT16 else source
    elif dtype is DType.BFLOAT16:
        widen(source[piece], target[piece])
    else:
        np.copyto(target[piece], source[piece])


def _narrowed(values: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.BFLOAT16:
        return narrow(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)
