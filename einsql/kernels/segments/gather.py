"""Gathers: rows of a table copied by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from einsql.buffers import empty
from einsql.einsum import Axis, EinSum, Output, Value
from einsql.kernels import pool
from einsql.kernels.kernel import Fields, Runner, Tick
from einsql.kernels.segments.rows import Rows, inside, is_presence, numbering, rows_of, size

PIECE = 2**22
"""Bytes of the rows that are copied at a time."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """An output that copies rows of an operand.

    Attributes:
        value: What is read.
        axis: The derived label that chooses the row.
        at: Its position among the operand's labels.
        turn: The axes of the copy in the order of the result.
    """

    value: Value
    axis: Axis
    at: int
    turn: tuple[int, ...]


def compile_gather(node: EinSum) -> Runner | None:
    """Matches nodes whose outputs are rows of tables, and presence."""
    rows = rows_of(node)
    if rows is None or set(node.keys) != {*rows.labels, *rows.features}:
        return None
    if any(a.label in node.keys for a in rows.derived):
        return None
    copies: dict[str, _Copy] = {}
    flags = [o.name for o in node.outputs if is_presence(o)]
    for o in node.outputs:
        if o.name not in flags:
            found = _copy(node, rows, o)
            if found is None:
                return None
            copies[o.name] = found
    if not copies:
        return None
    numbers_of = numbering(node, rows)
    order = [*rows.labels, *rows.features]
    lift = [node.keys.index(x) for x in order]

    def run(operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        numbers = numbers_of(operands, tick)
        exists: np.ndarray | None = None
        for axis in rows.derived:
            here = inside(axis, numbers[axis.label])
            if here is not None:
                exists = here if exists is None else exists & here
                numbers[axis.label] = np.clip(numbers[axis.label], axis.lo, axis.hi - 1)
        fields: dict[str, np.ndarray] = {}
        for name, copy in copies.items():
            table = operands[copy.value.operand][copy.value.field]
            lo = node.operands[copy.value.operand].source.schema.keys[copy.at].lo
            fields[name] = _taken(node, rows, copy, table, numbers[copy.axis.label], lo, tick)
        for name in flags:
            flag: np.ndarray = (
                np.True_
                if exists is None
                else exists.reshape(
                    [node.axis(x).extent for x in rows.labels] + [1] * len(rows.features)
                ).transpose(np.argsort(lift))
            )  # type: ignore[assignment]  # a scalar broadcasts too
            fields[name] = np.broadcast_to(flag, node.schema.shape)
        return fields

    return run


def _copy(node: EinSum, rows: Rows, o: Output) -> _Copy | None:
    value = o.args[0]
    if o.reduction is not None or not isinstance(value, Value):
        return None
    labels = node.operands[value.operand].labels
    names = {a.label: a for a in rows.derived}
    derived = [x for x in labels if x in names]
    others = [x for x in labels if x not in names]
    if len(derived) != 1 or sorted(others) != sorted(rows.features):
        return None
    at = labels.index(derived[0])
    now = [*labels[:at], *rows.labels, *labels[at + 1 :]]
    return _Copy(value, names[derived[0]], at, tuple(now.index(k) for k in node.keys))


def _taken(
    node: EinSum, rows: Rows, copy: _Copy, table: np.ndarray, numbers: np.ndarray, lo: int,
    tick: Tick,
) -> np.ndarray:  # fmt: skip
    """Rows of a table by number, with one axis per key."""
    operand = node.operands[copy.value.operand]
    part = tuple(
        slice(None) if n == copy.at else slice(node.axis(x).lo - k.lo, node.axis(x).hi - k.lo)
        for n, (x, k) in enumerate(zip(operand.labels, operand.source.schema.keys, strict=True))
    )
    table = table[part]
    at = copy.at
    shape = (*table.shape[:at], len(numbers), *table.shape[at + 1 :])
    out = empty(shape, table.dtype)
    rows_first = np.moveaxis(out, at, 0)
    from_rows = np.moveaxis(table, at, 0)
    if lo:
        numbers = numbers - lo
    contiguous = at == 0 and table.flags.c_contiguous

    def work(piece: slice) -> None:
        if contiguous:
            np.take(table, numbers[piece], axis=0, out=out[piece], mode="clip")
        else:  # take() would first copy the whole table
            rows_first[piece] = from_rows[numbers[piece]]

    step = max(1, PIECE * len(numbers) // out.nbytes)
    pieces = (slice(n, n + step) for n in range(0, len(numbers), step))
    pool.run(work, pieces, ceil(len(numbers) / step), tick)
    extents = [size(node, [x]) for x in rows.labels]
    return out.reshape(*shape[:at], *extents, *shape[at + 1 :]).transpose(copy.turn)
