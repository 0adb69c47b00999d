"""ATen's operators that move elements, index, and make arrays of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from einsql.frontends.trace.array import TracedArray, graph_of, lifted
from einsql.frontends.trace.modules.registry import numpy_dtype, operator, rank, table
from einsql.frontends.trace.refusals import way_out
from einsql.frontends.trace.source import untraceable

Array = Any


@operator("view", "reshape", "_unsafe_view", "unsafe_view")
def _view(x: Array, *shape: Any) -> Array:
    extents = shape[0] if isinstance(shape[0], list | tuple) else shape
    return np.reshape(x, tuple(extents))


@operator("flatten")
def _flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    first, last = start % x.ndim, end % x.ndim
    size = math.prod(x.shape[first : last + 1])
    return np.reshape(x, (*x.shape[:first], size, *x.shape[last + 1 :]))


@operator("unflatten")
def _unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    at = dim % x.ndim
    known = math.prod(n for n in sizes if n != -1)
    parts = [x.shape[at] // known if n == -1 else n for n in sizes]
    return np.reshape(x, (*x.shape[:at], *parts, *x.shape[at + 1 :]))


@operator("t", "numpy_T", "mT")
def _turned(x: Array) -> Array:
    """The last two axes exchanged."""
    return np.swapaxes(x, -1, -2) if rank(x) > 1 else x


@operator("squeeze")
def _squeeze(x: Array, dim: Any = None) -> Array:
    axes = range(rank(x)) if dim is None else dim if isinstance(dim, list | tuple) else [dim]
    return np.squeeze(x, tuple(d % rank(x) for d in axes if x.shape[d] == 1))


@operator("expand")
def _expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    more = len(size) - rank(x)
    shape = [x.shape[n - more] if e == -1 else e for n, e in enumerate(size)]
    return np.broadcast_to(x, tuple(shape))


@operator("expand_as", "view_as", "reshape_as")
def _like(x: Array, other: Array) -> Array:
    return np.broadcast_to(x, other.shape) if x.size != other.size else np.reshape(x, other.shape)


@operator("slice")
def _slice(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x[(*[slice(None)] * (dim % rank(x)), slice(start, end, step))]


@operator("select")
def _select(x: Array, dim: int, index: int) -> Array:
    return x[(*[slice(None)] * (dim % rank(x)), index)]


@operator("split")
def _split(x: Array, size: Any, dim: int = 0) -> list[Array]:
    if isinstance(size, list | tuple):
        return _split_with_sizes(x, size, dim)
    extent = x.shape[dim]
    return [_slice(x, dim, n, min(n + size, extent)) for n in range(0, extent, size)]


@operator("split_with_sizes")
def _split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    edges = np.cumsum([0, *sizes]).tolist()
    return [_slice(x, dim, a, b) for a, b in pairwise(edges)]


@operator("chunk")
def _chunk(x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


@operator("roll")
def _roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    if not dims:
        return np.roll(x, shifts[0])
    for shift, dim in zip(shifts, dims, strict=True):
        x = np.roll(x, shift, dim)
    return x


@operator("constant_pad_nd", "pad")
def _pad(x: Array, widths: Sequence[int], mode: Any = 0.0, value: Any = None) -> Array:
    """A border of one number; widths count from the last axis."""
    if isinstance(mode, str) and mode != "constant":
        return _mirrored(x, widths, mode)
    filler = mode if isinstance(mode, int | float) else value or 0.0
    pairs = [(0, 0)] * rank(x)
    for n in range(len(widths) // 2):
        pairs[-1 - n] = widths[2 * n], widths[2 * n + 1]
    return widened(x, pairs, filler)


def widened(x: Array, sides: Sequence[tuple[int, int]], value: float = 0) -> Array:
    """The array with borders of its last axes, from which negative ones are cut off."""
    before = rank(x) - len(sides)
    kept = [
        slice(max(0, -a), e - max(0, -b)) for e, (a, b) in zip(x.shape[before:], sides, strict=True)
    ]
    widths = [(0, 0)] * before + [(max(0, a), max(0, b)) for a, b in sides]
    padded: Array = np.pad(x[(..., *kept)], widths, constant_values=value)
    return padded


def _mirrored(x: Array, widths: Sequence[int], mode: str) -> Array:
    """A border of the array's own elements, which are gathered."""
    kinds = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    for n in range(len(widths) // 2):
        before, after = widths[2 * n], widths[2 * n + 1]
        axis = rank(x) - 1 - n
        kept = _slice(x, axis, max(0, -before), x.shape[axis] - max(0, -after))
        sides = max(0, before), max(0, after)
        if any(sides):
            numbers: Any = kinds[mode]
            kept = np.take(kept, np.pad(np.arange(kept.shape[axis]), sides, mode=numbers), axis)
        x = kept
    return x


@operator("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample_nearest(x: Array, size: Any, scales: Any = None, *_: Any) -> Array:
    """Each element several times, as often as the new extents ask for."""
    for n, axis in enumerate(range(2, rank(x))):
        extent = x.shape[axis]
        wanted = size[n] if size is not None else int(extent * scales[n])
        by = extent / wanted if size is not None else 1 / scales[n]
        if wanted % extent == 0 and wanted / extent == 1 / by:
            x = np.repeat(x, wanted // extent, axis)
        else:
            places = np.floor(np.arange(wanted, dtype=np.float32) * np.float32(by))
            x = np.take(x, np.minimum(places.astype(np.int64), extent - 1), axis)
    return x


table(
    {
        "permute": lambda x, dims: np.transpose(x, tuple(dims)),
        "transpose swapaxes": np.swapaxes,
        "movedim": np.moveaxis,
        "unsqueeze": np.expand_dims,
        "narrow": lambda x, dim, start, length: _slice(x, dim, start, start + length),
        "unbind": lambda x, dim=0: [_select(x, dim, n) for n in range(x.shape[dim])],
        "cat concat": lambda arrays, dim=0: np.concatenate(
            [a for a in arrays if a.shape != (0,)], axis=dim
        ),
        "stack": lambda arrays, dim=0: np.stack(arrays, axis=dim),
        "repeat": lambda x, repeats: np.tile(x, tuple(repeats)),
        "repeat_interleave": lambda x, repeats, dim=None, **_: np.repeat(x, repeats, axis=dim),
        "flip": lambda x, dims: np.flip(x, tuple(d % rank(x) for d in dims)),
        "tril": lambda x, diagonal=0: np.tril(x, diagonal),
        "triu": lambda x, diagonal=0: np.triu(x, diagonal),
        "diagonal": lambda x, offset=0, dim1=0, dim2=1: np.diagonal(x, offset, dim1, dim2),
        "index_select": lambda x, dim, indices: np.take(x, indices, axis=dim),
        "embedding": lambda rows, indices, *_: rows[indices],
    }
)


# ---- indexes


@operator("index")
def _index(x: Array, indices: Sequence[Any]) -> Array:
    return x[tuple(slice(None) if i is None else i for i in indices)]


def _with(x: Array, key: tuple[Any, ...], part: Array) -> TracedArray:
    """Returns a copy of an array in which a part is overwritten."""
    graph = graph_of((x, part, *key))
    changed = TracedArray(graph, lifted(graph, x).step)
    changed[key] = part
    return changed


@operator("slice_scatter")
def _slice_scatter(
    x: Array, source: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    return _with(x, (*[slice(None)] * (dim % rank(x)), slice(start, end, step)), source)


@operator("select_scatter")
def _select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    return _with(x, (*[slice(None)] * (dim % rank(x)), index), source)


@operator("index_put")
def _index_put(x: Array, indices: Sequence[Any], value: Array, accumulate: bool = False) -> Array:
    """The array with a value where a mask holds."""
    if accumulate:
        raise untraceable("Adding at indices", way_out("put"))
    return _with(x, tuple(slice(None) if i is None else i for i in indices), value)


@operator("gather")
def _gather(x: Array, dim: int, indices: Array, **_: Any) -> Array:
    if x.shape != indices.shape:
        x = x[
            tuple(
                slice(None) if n == dim % x.ndim else slice(0, e)
                for n, e in enumerate(indices.shape)
            )
        ]
    return np.take_along_axis(x, indices, axis=dim)


# ---- arrays of numbers


def _dtype(dtype: Any, otherwise: Any) -> np.dtype:
    return np.dtype(otherwise) if dtype is None else numpy_dtype(dtype)


@operator("arange")
def _arange(*ends: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    integral = all(isinstance(e, int) for e in ends)
    return np.arange(*ends, dtype=_dtype(dtype, np.int64 if integral else np.float32))


def _full(size: Sequence[int], filler: Any, dtype: Any = None, like: Any = None) -> np.ndarray:
    """Returns an array of one number, in the type of an array or by default of the number."""
    own = {bool: np.bool_, int: np.int64}.get(type(filler), np.float32)
    return np.full(tuple(size), filler, _dtype(dtype, own if like is None else like.dtype))


table(
    {
        "full": lambda size, value, dtype=None, **_: _full(size, value, dtype),
        "zeros empty": lambda size, dtype=None, **_: _full(size, 0.0, dtype),
        "ones": lambda size, dtype=None, **_: _full(size, 1.0, dtype),
        "new_zeros": lambda x, size, dtype=None, **_: _full(size, 0, dtype, x),
        "new_ones": lambda x, size, dtype=None, **_: _full(size, 1, dtype, x),
        "new_full": lambda x, size, value, dtype=None, **_: _full(size, value, dtype, x),
        "zeros_like empty_like": lambda x, dtype=None, **_: _full(x.shape, 0, dtype, x),
        "ones_like": lambda x, dtype=None, **_: _full(x.shape, 1, dtype, x),
        "full_like": lambda x, value, dtype=None, **_: _full(x.shape, value, dtype, x),
        "scalar_tensor": lambda value, dtype=None, **_: np.asarray(
            value, _dtype(dtype, np.float32)
        ),
        "eye": lambda n, m=None, dtype=None, **_: np.eye(n, m, dtype=_dtype(dtype, np.float32)),
        "copy": lambda x, source, *_: np.broadcast_to(source, x.shape).astype(x.dtype),
    }
)


@operator(
    "clone",
    "detach",
    "alias",
    "contiguous",
    "lift_fresh_copy",
    "lift_fresh",
    "detach_",
    "_assert_tensor_metadata",
    "positive",
    "unsafe_split",
    "requires_grad_",
    "identity",
)
def _same(x: Array, *_: Any, **__: Any) -> Array:
    """The array: in evaluation these change nothing."""
    return x


@operator("dropout", "feature_dropout", "native_dropout")
def _dropout(x: Array, p: float = 0.5, train: bool | None = True) -> Array:
    """The array; in training it would be a random one."""
    if train and p:
        raise untraceable("Dropout in training", "Call module.eval() before.")
    return x
