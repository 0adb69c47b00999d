"""ATen's operators that move elements, index, and make arrays of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from einsql.frontends.trace.array import TracedArray, graph_of, lifted
from einsql.frontends.trace.modules.registry import numpy_dtype, operator, rank
from einsql.frontends.trace.refusals import way_out
from einsql.frontends.trace.source import untraceable

Array = Any


@operator("view", "reshape", "_unsafe_view", "unsafe_view")
def view(x: Array, *shape: Any) -> Array:
    """The elements in another shape."""
    extents = shape[0] if isinstance(shape[0], list | tuple) else shape
    return np.reshape(x, tuple(extents))


@operator("flatten")
def flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    """Neighbouring axes as one."""
    first, last = start % x.ndim, end % x.ndim
    size = math.prod(x.shape[first : last + 1])
    return np.reshape(x, (*x.shape[:first], size, *x.shape[last + 1 :]))


@operator("unflatten")
def unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    """One axis as several."""
    at = dim % x.ndim
    known = math.prod(n for n in sizes if n != -1)
    parts = [x.shape[at] // known if n == -1 else n for n in sizes]
    return np.reshape(x, (*x.shape[:at], *parts, *x.shape[at + 1 :]))


@operator("permute")
def permute(x: Array, dims: Sequence[int]) -> Array:
    """The axes in another order."""
    return np.transpose(x, tuple(dims))


@operator("transpose", "swapaxes")
def transpose(x: Array, a: int, b: int) -> Array:
    """Two axes exchanged."""
    return np.swapaxes(x, a, b)


@operator("t", "numpy_T", "mT")
def turned(x: Array) -> Array:
    """The last two axes exchanged."""
    return np.swapaxes(x, -1, -2) if rank(x) > 1 else x


@operator("movedim")
def movedim(x: Array, source: Any, destination: Any) -> Array:
    """Axes elsewhere."""
    return np.moveaxis(x, source, destination)


@operator("unsqueeze")
def unsqueeze(x: Array, dim: int) -> Array:
    """One more axis of one element."""
    return np.expand_dims(x, dim)


@operator("squeeze")
def squeeze(x: Array, dim: Any = None) -> Array:
    """Without axes of one element; others stay."""
    axes = range(rank(x)) if dim is None else dim if isinstance(dim, list | tuple) else [dim]
    return np.squeeze(x, tuple(d % rank(x) for d in axes if x.shape[d] == 1))


@operator("expand")
def expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    """Axes of one element repeated; -1 leaves one."""
    more = len(size) - rank(x)
    shape = [x.shape[n - more] if e == -1 else e for n, e in enumerate(size)]
    return np.broadcast_to(x, tuple(shape))


@operator("expand_as", "view_as", "reshape_as")
def like(x: Array, other: Array) -> Array:
    """In another array's shape."""
    return np.broadcast_to(x, other.shape) if x.size != other.size else np.reshape(x, other.shape)


@operator("slice")
def slice_(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    """A slice of one axis."""
    return x[(*[slice(None)] * (dim % rank(x)), slice(start, end, step))]


@operator("narrow")
def narrow(x: Array, dim: int, start: int, length: int) -> Array:
    """A part of one axis."""
    return slice_(x, dim, start, start + length)


@operator("select")
def select(x: Array, dim: int, index: int) -> Array:
    """One element of an axis."""
    return x[(*[slice(None)] * (dim % rank(x)), index)]


@operator("split")
def split(x: Array, size: Any, dim: int = 0) -> list[Array]:
    """Parts of a size, or of several."""
    if isinstance(size, list | tuple):
        return split_with_sizes(x, size, dim)
    extent = x.shape[dim]
    return [slice_(x, dim, n, min(n + size, extent)) for n in range(0, extent, size)]


@operator("split_with_sizes")
def split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    """Parts of given sizes."""
    edges = np.cumsum([0, *sizes]).tolist()
    return [slice_(x, dim, a, b) for a, b in pairwise(edges)]


@operator("chunk")
def chunk(x: Array, chunks: int, dim: int = 0) -> list[Array]:
    """So many parts, the last one shorter."""
    return split(x, -(-x.shape[dim] // chunks), dim)


@operator("unbind")
def unbind(x: Array, dim: int = 0) -> list[Array]:
    """The elements of an axis."""
    return [select(x, dim, n) for n in range(x.shape[dim])]


@operator("cat", "concat")
def cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Arrays one after the other."""
    return np.concatenate([a for a in arrays if a.shape != (0,)], axis=dim)


@operator("stack")
def stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Arrays along a new axis."""
    return np.stack(arrays, axis=dim)


@operator("repeat")
def repeat(x: Array, repeats: Sequence[int]) -> Array:
    """The whole array many times."""
    return np.tile(x, tuple(repeats))


@operator("repeat_interleave")
def repeat_interleave(x: Array, repeats: int, dim: int | None = None, **_: Any) -> Array:
    """Each element many times."""
    return np.repeat(x, repeats, axis=dim)


@operator("roll")
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Elements turned around."""
    if not dims:
        return np.roll(x, shifts[0])
    for shift, dim in zip(shifts, dims, strict=True):
        x = np.roll(x, shift, dim)
    return x


@operator("flip")
def flip(x: Array, dims: Sequence[int]) -> Array:
    """Axes backwards."""
    return np.flip(x, tuple(d % rank(x) for d in dims))


@operator("tril")
def tril(x: Array, diagonal: int = 0) -> Array:
    """The lower triangle."""
    return np.tril(x, diagonal)


@operator("triu")
def triu(x: Array, diagonal: int = 0) -> Array:
    """The upper triangle."""
    return np.triu(x, diagonal)


@operator("diagonal")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """A diagonal."""
    return np.diagonal(x, offset, dim1, dim2)


@operator("constant_pad_nd", "pad")
def pad(x: Array, widths: Sequence[int], mode: Any = 0.0, value: Any = None) -> Array:
    """A border of one number; widths count from the last axis."""
    if isinstance(mode, str) and mode != "constant":
        return _mirrored(x, widths, mode)
    filler = mode if isinstance(mode, int | float) else value or 0.0
    pairs = [(0, 0)] * rank(x)
    for n in range(len(widths) // 2):
        pairs[-1 - n] = widths[2 * n], widths[2 * n + 1]
    inner = tuple(
        slice(max(0, -a), e - max(0, -b)) for e, (a, b) in zip(x.shape, pairs, strict=True)
    )
    return np.pad(x[inner], [(max(0, a), max(0, b)) for a, b in pairs], constant_values=filler)


def _mirrored(x: Array, widths: Sequence[int], mode: str) -> Array:
    """A border of the array's own elements, which are gathered."""
    kinds = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    for n in range(len(widths) // 2):
        before, after = widths[2 * n], widths[2 * n + 1]
        axis = rank(x) - 1 - n
        kept = slice_(x, axis, max(0, -before), x.shape[axis] - max(0, -after))
        sides = max(0, before), max(0, after)
        if any(sides):
            numbers: Any = kinds[mode]
            kept = np.take(kept, np.pad(np.arange(kept.shape[axis]), sides, mode=numbers), axis)
        x = kept
    return x


@operator("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample_nearest(x: Array, size: Any, scales: Any = None, *_: Any) -> Array:
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


# ---- indexes


@operator("index")
def index(x: Array, indices: Sequence[Any]) -> Array:
    """x[indices], where None leaves an axis."""
    return x[tuple(slice(None) if i is None else i for i in indices)]


@operator("index_select")
def index_select(x: Array, dim: int, indices: Array) -> Array:
    """Elements of an axis by number."""
    return np.take(x, indices, axis=dim)


def _own(x: Array, *others: Array) -> TracedArray:
    """A traced array that may be changed."""
    graph = graph_of((x, *others))
    return TracedArray(graph, lifted(graph, x).step)


@operator("slice_scatter")
def slice_scatter(
    x: Array, source: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    """The array with a slice overwritten."""
    y = _own(x, source)
    y[(*[slice(None)] * (dim % y.ndim), slice(start, end, step))] = source
    return y


@operator("select_scatter")
def select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    """The array with one element of an axis overwritten."""
    y = _own(x, source)
    y[(*[slice(None)] * (dim % y.ndim), index)] = source
    return y


@operator("index_put")
def index_put(x: Array, indices: Sequence[Any], value: Array, accumulate: bool = False) -> Array:
    """The array with a value where a mask holds."""
    if accumulate:
        raise untraceable("Adding at indices", way_out("put"))
    y = _own(x, value, *indices)
    y[tuple(slice(None) if i is None else i for i in indices)] = value
    return y


@operator("gather")
def gather(x: Array, dim: int, indices: Array, **_: Any) -> Array:
    """Along one axis an element for each index."""
    if x.shape != indices.shape:
        x = x[
            tuple(
                slice(None) if n == dim % x.ndim else slice(0, e)
                for n, e in enumerate(indices.shape)
            )
        ]
    return np.take_along_axis(x, indices, axis=dim)


@operator("embedding")
def embedding(table: Array, indices: Array, *_: Any) -> Array:
    """Rows by number."""
    return table[indices]


# ---- arrays of numbers


def _dtype(dtype: Any, otherwise: Any) -> np.dtype:
    return np.dtype(otherwise) if dtype is None else numpy_dtype(dtype)


@operator("arange")
def arange(*ends: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    """Numbers one after the other."""
    integral = all(isinstance(e, int) for e in ends)
    return np.arange(*ends, dtype=_dtype(dtype, np.int64 if integral else np.float32))


@operator("full")
def full(size: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    """One number everywhere."""
    kind = {bool: np.bool_, int: np.int64}.get(type(value), np.float32)
    return np.full(tuple(size), value, _dtype(dtype, kind))


@operator("zeros", "empty")
def zeros(size: Sequence[int], dtype: Any = None, **_: Any) -> np.ndarray:
    """0 everywhere."""
    return np.zeros(tuple(size), _dtype(dtype, np.float32))


@operator("ones")
def ones(size: Sequence[int], dtype: Any = None, **_: Any) -> np.ndarray:
    """1 everywhere."""
    return np.ones(tuple(size), _dtype(dtype, np.float32))


@operator("new_zeros")
def new_zeros(x: Array, size: Sequence[int], dtype: Any = None, **_: Any) -> np.ndarray:
    """0 everywhere, in the type of an array."""
    return np.zeros(tuple(size), _dtype(dtype, x.dtype))


@operator("new_ones")
def new_ones(x: Array, size: Sequence[int], dtype: Any = None, **_: Any) -> np.ndarray:
    """1 everywhere, in the type of an array."""
    return np.ones(tuple(size), _dtype(dtype, x.dtype))


@operator("new_full")
def new_full(x: Array, size: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    """One number everywhere, in the type of an array."""
    return np.full(tuple(size), value, _dtype(dtype, x.dtype))


@operator("zeros_like", "empty_like")
def zeros_like(x: Array, dtype: Any = None, **_: Any) -> np.ndarray:
    """0 in the shape of an array."""
    return np.zeros(x.shape, _dtype(dtype, x.dtype))


@operator("ones_like")
def ones_like(x: Array, dtype: Any = None, **_: Any) -> np.ndarray:
    """1 in the shape of an array."""
    return np.ones(x.shape, _dtype(dtype, x.dtype))


@operator("full_like")
def full_like(x: Array, value: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    """One number in the shape of an array."""
    return np.full(x.shape, value, _dtype(dtype, x.dtype))


@operator("scalar_tensor")
def scalar_tensor(value: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    """One number."""
    return np.asarray(value, _dtype(dtype, np.float32))


@operator("eye")
def eye(n: int, m: int | None = None, dtype: Any = None, **_: Any) -> np.ndarray:
    """The identity."""
    return np.eye(n, m, dtype=_dtype(dtype, np.float32))


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
def same(x: Array, *_: Any, **__: Any) -> Array:
    """The array: in evaluation these change nothing."""
    return x


@operator("dropout", "feature_dropout", "native_dropout")
def dropout(x: Array, p: float = 0.5, train: bool | None = True) -> Array:
    """The array; in training it would be a random one."""
    if train and p:
        raise untraceable("Dropout in training", "Call module.eval() before.")
    return x


@operator("copy")
def copy(x: Array, source: Array, *_: Any) -> Array:
    """What is written over an array."""
    return np.broadcast_to(source, x.shape).astype(x.dtype)
