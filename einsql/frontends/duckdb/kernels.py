"""The functions of tiles as kernels over many rows at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from einsql.core import forks
from einsql.core.bfloat16 import loaded
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.engine.block_program import compiled
from einsql.errors import NotSupportedError, ProgrammingError, suggest
from einsql.frontends.duckdb.tiles import Column, Lists, Shape, groups
from einsql.ir.einsum.cells import sized
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Output, Value
from einsql.ir.functions import SCALARS
from einsql.ir.tra import kernels
from einsql.ir.tra.kernels import VALUE, Tile
from einsql.kernels.kernel import no_progress
from einsql.sql.functions.tile_functions import AGGREGATES, PREFIX
from einsql.sql.typing import functions
from einsql.sql.typing.casts import Decimal
from einsql.sql.typing.typed_expr import Typed, apply, integer
from einsql.storage.out_of_memory import enough_memory, require

AT_ONCE = 2**22
"""The elements of arguments and results per run of a kernel; a run has at least one row."""

ROW = ".row"
"""The label of the axis of a chunk's rows."""

Put = Callable[[np.ndarray, np.ndarray, DType], None]
"""Callback with row numbers, the results of these rows and the type of the results."""

running = threading.RLock()
"""The lock of kernel runs: DuckDB calls functions from several threads, and each kernel uses
all threads of the machine."""


def pointwise(name: str, columns: Sequence[Column], put: Put) -> None:
    """A scalar function of einsql for each element; also tensor_transpose and tensor_diag.

    Raises:
        Error: The arguments do not match the function, or an element overflows.
    """
    what = PREFIX + name
    arity = SCALARS[name].arity if name in SCALARS else 1
    if len(columns) != arity:
        raise ProgrammingError(
            f"{what} takes {arity} argument{'s' * (arity > 1)}, not {len(columns)}",
            hint=f"Of a group: {what}(list(tile))." if name in AGGREGATES else "",
        )
    _each_form(what, columns, lambda kinds: _pointwise(name, kinds), put)


def einsum(notation: str, words: tuple[str, ...], columns: Sequence[Column], put: Put) -> None:
    """tensor_einsum: sums of products, or the operations named by `words`.

    Raises:
        Error: The notation does not match the arguments, or an element overflows.
    """
    what = f"tensor_einsum('{notation}')"
    _each_form(what, columns, lambda kinds: _einsum(notation, words, kinds), put)


def merged(name: str, lists: Lists, put: Put) -> None:
    """Aggregates such as tensor_sum: merges the tiles of each list element by element.

    Raises:
        Error: The tiles of a list differ in shape, have a wrong type, or an element overflows.
    """
    _check_shapes(PREFIX + name, lists)
    reduce = AGGREGATES[name]
    for rows in _alike(lists):
        count = int(lists.count[rows[0]])
        shape = lists.items.shapes[lists.items.form[lists.first[rows[0]]]]
        template = _batched(_merging(reduce, (Tile(len(shape) + 1, lists.items.dtype),)))
        size = count * max(1, prod(shape))
        for part in _parts(rows, size):
            items = (lists.first[part][:, None] + np.arange(count)).reshape(-1)
            tiles = lists.items.take(items).reshape(len(part), count, *shape)
            put(part, _run(template, [tiles]), template.outputs[0].dtype)


def stacked(lists: Lists, dimension: int, put: Put) -> None:
    """tensor_stack: concatenates the tiles of each list along a dimension.

    Raises:
        ProgrammingError: The tiles differ in another dimension, or lack the dimension.
    """
    items = lists.items
    for row in np.flatnonzero(lists.count > 0).tolist():
        own = np.arange(lists.first[row], lists.first[row] + lists.count[row])
        arrays = [items.take(own[n : n + 1])[0] for n in range(len(own))]
        shapes = {(a.shape[:dimension], a.shape[dimension + 1 :]) for a in arrays}
        if len(shapes) > 1 or any(dimension >= a.ndim for a in arrays):
            shown = " and ".join(sorted({str(list(a.shape)) for a in arrays})[:3])
            raise ProgrammingError(
                f"tensor_stack cannot put tiles of shape {shown} side by side along "
                f"dimension {dimension}",
                hint="Dimensions count from 0; the others have to agree.",
            )
        joined = np.concatenate(arrays, axis=dimension)
        put(np.array([row]), joined[None], items.dtype)


# ---- rows of one kernel run


def _each_form(
    what: str, columns: Sequence[Column], make: Callable[[tuple[Tile, ...]], EinSum], put: Put
) -> None:
    for rows in groups(columns):
        shapes = [c.shapes[c.form[rows[0]]] for c in columns]
        tiles_ = tuple(Tile(len(s), c.dtype) for s, c in zip(shapes, columns, strict=True))
        template = make(tiles_)
        extents = _extents(what, template, shapes)
        result = prod(extents[x] for x in template.keys)
        require(result * template.outputs[0].dtype.numpy.itemsize)
        size = result + sum(map(prod, shapes))
        batched = _batched(template)
        for part in _parts(rows, size):
            results = _run(batched, [c.take(part) for c in columns])
            put(part, results, template.outputs[0].dtype)


def _parts(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Splits the rows of a form into parts of bounded memory, for `size` elements per row."""
    step = max(1, AT_ONCE // max(1, size))
    return [rows[n : n + step] for n in range(0, len(rows), step)]


def _extents(what: str, template: EinSum, shapes: Sequence[Shape]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for o, shape in zip(template.operands, shapes, strict=True):
        for label, extent in zip(o.labels, shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                shown = " and ".join(str(list(s)) for s in shapes)
                raise ProgrammingError(
                    f"{what}: arrays of shape {shown} do not fit, for an axis has "
                    f"{plural(extents[label], 'element')} in one and {extent} in the other"
                )
    return extents


def _check_shapes(what: str, lists: Lists) -> None:
    form, some = lists.items.form, lists.count > 0
    owner = np.repeat(np.arange(len(lists.count)), lists.count)
    first = form[np.where(some, lists.first, 0)[owner]] if len(owner) else form[:0]
    items = np.repeat(lists.first - np.cumsum(lists.count) + lists.count, lists.count)
    items = items + np.arange(len(owner))
    wrong = np.flatnonzero(form[items] != first)
    if len(wrong):
        a, b = (lists.items.shapes[f[wrong[0]]] for f in (first, form[items]))
        raise ProgrammingError(f"{what} merges tiles of one shape, not of {list(a)} and {list(b)}")


def _alike(lists: Lists) -> list[np.ndarray]:
    """Groups of rows whose lists have equal lengths and tile shapes; empty lists are omitted."""
    rows = np.flatnonzero(lists.count > 0)
    if not len(rows):
        return []
    form = lists.items.form[lists.first[rows]]
    _, code = np.unique(np.stack([form, lists.count[rows]]), axis=1, return_inverse=True)
    code = code.reshape(-1)
    return [rows[code == n] for n in range(int(code.max()) + 1)]


def _run(template: EinSum, arrays: list[np.ndarray]) -> np.ndarray:
    with running, enough_memory:
        runner = compiled(sized(template, tuple(a.shape for a in arrays))).run
        array = runner([{VALUE: a} for a in arrays], no_progress)[VALUE]
    return loaded(np.asarray(array), template.outputs[0].dtype)


# ---- templates: compiled kernels are cached by identity, so each template is created once


@lru_cache(maxsize=1024)
def _batched(template: EinSum) -> EinSum:
    """The kernel for many rows, along a new first axis of the operands and the result."""
    return replace(
        template,
        axes=(Axis(ROW, 0, 1), *template.axes),
        operands=tuple(
            kernels.operand(n, (ROW, *o.labels), o.source.schema.dtype(VALUE))
            for n, o in enumerate(template.operands)
        ),
        keys=(ROW, *template.keys),
    )


@lru_cache(maxsize=1024)
def _einsum(notation: str, words: tuple[str, ...], kinds: tuple[Tile, ...]) -> EinSum:
    return kernels.einsum(notation, *words).template(kinds)


@lru_cache(maxsize=1024)
def _merging(reduce: str, kinds: tuple[Tile, ...]) -> EinSum:
    return kernels.einsum("a...->...", reduce=reduce).template(kinds)


@lru_cache(maxsize=1024)
def _pointwise(name: str, kinds: tuple[Tile, ...]) -> EinSum:
    if name in ("transpose", "diag"):
        axes = "abcdefghijklmnopqrstuvwxyz"[: kinds[0].rank]
        notation = f"{axes}->{axes[::-1]}" if name == "transpose" else "ii->i"
        return kernels.einsum(notation).template(kinds)
    axes_ = kernels.element_axes(kinds, f"{PREFIX}{name}: ")
    value = _value(name, [Typed(Value(n, VALUE, k.dtype), k.dtype) for n, k in enumerate(kinds)])
    return EinSum(
        tuple(Axis(x, 0, 1) for x in axes_),
        tuple(kernels.operand(n, axes_ if k.rank else (), k.dtype) for n, k in enumerate(kinds)),
        TRUE,
        axes_,
        (Output(VALUE, (value.value,), value.value.dtype),),
    )


def _value(name: str, args: list[Typed]) -> Typed:
    if name == "relu":
        value = functions.extreme("greatest", [args[0], integer(0, literal=True)])
    elif name == "sigmoid":
        value = functions.sigmoid(args[0], True)
    elif name in SCALARS:
        value = apply(name, args, True)
    else:
        raise ProgrammingError(
            f"There is no function {PREFIX}{name}", hint=suggest(name, SCALARS, "functions")
        )
    if isinstance(value.type, Decimal) or value.valid != TRUE:
        raise NotSupportedError(f"{PREFIX}{name} gives NULLs or DECIMALs, which are no tile")
    return value


def _unlock() -> None:
    """In a forked child: replaces the lock, because its owner thread does not exist there."""
    global running
    running = threading.RLock()


forks.at_fork(_unlock)
