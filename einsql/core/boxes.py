"""Boxes of keys: an interval `[lo, hi)` along each axis, many boxes at once.

Arrays of boxes are int64 (…, axes, 2). A box has keys if none of its intervals is empty. A box
without axes has exactly one key. The parts of an equal split differ by one key at most, and the
longer parts come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np


def split(lo: int, hi: int, parts: int) -> np.ndarray:
    """Cuts `[lo, hi)` into parts of equal length.

    Returns:
        int64 of shape (parts, 2).
    """
    return part(np.array([lo, max(lo, hi)]), np.arange(parts), parts)


def part(intervals: np.ndarray, number: np.ndarray, parts: int) -> np.ndarray:
    """A part of each interval, which is cut into parts of equal length.

    Args:
        intervals: The intervals, int64 (…, 2).
        number: The index of each part from 0, int64 (…).
        parts: The number of parts of an interval.
    """
    lo = intervals[..., 0]
    size, longer = np.divmod(intervals[..., 1] - lo, parts)
    first, last = (lo + n * size + np.minimum(n, longer) for n in (number, number + 1))
    return np.stack([first, last], axis=-1)


def common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The intersections of boxes; the result may have `hi` below `lo` where one is empty."""
    lo, hi = np.maximum(a[..., 0], b[..., 0]), np.minimum(a[..., 1], b[..., 1])
    return np.stack([lo, hi], axis=-1)


def common_volumes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The numbers of keys that boxes have in common, int64 (…); arguments as of `common`."""
    total = np.ones(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), np.int64)
    for axis in range(a.shape[-2]):
        lo = np.maximum(a[..., axis, 0], b[..., axis, 0])
        total *= np.maximum(np.minimum(a[..., axis, 1], b[..., axis, 1]) - lo, 0)
    return total


def extents(boxes: np.ndarray) -> np.ndarray:
    """The numbers of keys along each axis, int64 (…, axes)."""
    return np.asarray(np.maximum(0, boxes[..., 1] - boxes[..., 0]))


def enclosing(boxes: np.ndarray) -> np.ndarray:
    """The smallest box that contains all boxes (n, axes, 2); int64 (axes, 2)."""
    return np.stack([boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)], axis=1)


def volumes(boxes: np.ndarray) -> np.ndarray:
    """The numbers of keys of the boxes, int64 (…)."""
    return np.asarray(extents(boxes).prod(axis=-1))


def runs(box: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Cuts a box into boxes of consecutive keys; the last axis varies fastest.

    Args:
        box: The box, int64 (axes, 2).
        most: The largest number of keys of a resulting box, at least 1.

    Yields:
        Boxes that are not empty, in the order of their keys.
    """
    shape = extents(box).tolist()
    if not prod(shape):
        return
    axis = next((n for n in range(len(shape)) if prod(shape[n + 1 :]) <= most), None)
    if axis is None:
        yield box
        return
    lo, hi = box[axis].tolist()
    step = max(1, most // prod(shape[axis + 1 :]))
    for at in np.ndindex(*shape[:axis]):
        for first in range(lo, hi, step):
            piece = box.copy()
            piece[:axis] = box[:axis, :1] + np.array(at, np.int64).reshape(-1, 1) + [0, 1]
            piece[axis] = first, min(hi, first + step)
            yield piece


def adjoined(boxes: np.ndarray, axes: Iterable[int]) -> np.ndarray:
    """Joins boxes that adjoin along an axis and are equal along all others.

    Args:
        boxes: Disjoint boxes, int64 (boxes, axes, 2).
        axes: The axes along which boxes are joined, one after another.

    Returns:
        The boxes, of the same form and of any order.
    """
    for axis in axes:
        if len(boxes) < 2:
            break
        others = np.delete(boxes, axis, axis=1).reshape(len(boxes), -1)
        order = np.lexsort((boxes[:, axis, 0], *others.T))
        boxes, others = boxes[order], others[order]
        apart = boxes[1:, axis, 0] != boxes[:-1, axis, 1]
        begins = np.flatnonzero(np.r_[True, apart | (others[1:] != others[:-1]).any(axis=1)])
        ends = boxes[np.r_[begins[1:], len(boxes)] - 1, axis, 1]
        boxes = boxes[begins]
        boxes[:, axis, 1] = ends
    return boxes
