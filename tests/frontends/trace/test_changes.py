"""What a function writes in place is seen wherever NumPy shows it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql

Array = Any
X = np.arange(12.0).reshape(3, 4)


def through_a_slice(x: Array) -> Array:
    y = x * 1
    z = y[:]
    z += 10
    return y, z


def through_a_transpose(x: Array) -> Array:
    y = x * 1
    y.T[1:, ::2] *= -1
    return y


def seen_by_a_row(x: Array) -> Array:
    y = x * 2
    row, turned = y[0], y[::-1]
    y += 1
    return row, turned


def row_by_row(x: Array) -> Array:
    y = x + 0
    for n, row in enumerate(y):
        row *= n
    return y


def elements(x: Array) -> Array:
    y = np.zeros_like(x)
    y[1, :] = x[0]
    y[:, ::2] = -x[:, 1::2]
    y[::-1, 3:0:-2] += 100
    y[-1, -1] += 5
    y[..., 0] = np.array([[7, 8, 9]])
    return y


def overlapping(x: Array) -> Array:
    y = x * 1
    y[1:] += y[:-1]
    y[:, 1:] = y[:, :-1]
    return y


def masks(x: Array) -> Array:
    y = x * 2
    y[x > 4] = 0
    y[y[:, 0] > 0] = x[0]
    y[y.sum(1) > 30] = -np.inf
    return y


def truncated(x: Array) -> Array:
    y = np.zeros_like(x, np.int32)
    y[0] = x[0] + 0.75
    y[:2, 1] += 3
    return y


def copies(x: Array) -> Array:
    y = x * 1
    kept = [y.copy(), y[[0, 1]], y.flatten(), y + 0, y[1, 2], np.take(y, 0, 1), y.astype(float)]
    y *= 3
    y += 1
    return kept, y


def numbers(x: Array) -> Array:
    y = x * 1
    a = y[1, 1]
    a += 5
    return y, a


def totals(x: Array) -> Array:
    a = x.sum()
    b = a
    a += 1
    c = x.mean(1)[0]
    d = c.T
    d *= 2
    e = np.where(a > 0, a, b)
    f = e
    e -= 5
    g = x[0, 0, ...] + 0
    h = np.copy(g)
    i = h
    h += 1
    return a, b, c, d, e, f, i


def reshaped_alone(x: Array) -> Array:
    y = (x * 2).reshape(2, 6)
    y += 1
    y[0] = 3
    return y


def empty(x: Array) -> Array:
    y = x * 1
    y[5:] = 3
    y[1:1] += 2
    return y


FUNCTIONS = [
    through_a_slice, through_a_transpose, seen_by_a_row, row_by_row, elements, overlapping, masks,
    truncated, copies, numbers, totals, reshaped_alone, empty,
]  # fmt: skip


def flat(value: Any) -> list[Array]:
    many = isinstance(value, tuple | list)
    return [x for v in value for x in flat(v)] if many else [value]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_changes_are_seen_where_numpy_shows_them(fn: Callable[..., Any]) -> None:
    for found, expected in zip(flat(einsql.trace(fn, X)(X)), flat(fn(X)), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found, expected)


def test_arrays_a_function_brings_along_are_taken_as_they_are() -> None:
    def fn(x: Array) -> Array:
        c = np.array([1.5, 0.25, 3.75, 9.5])
        y = x + c
        c *= 2
        z = y * c
        for n in range(20):  # arrays whose memory the next ones get
            z = z + np.array([0.5, n, -3.25, 7])
        c[:] = np.nan
        return z

    np.testing.assert_allclose(einsql.trace(fn, X)(X), fn(X))
