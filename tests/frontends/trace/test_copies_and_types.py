"""Programs whose results share or copy elements, and their shapes and types, as in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql

X = np.array([[1.7, 2.7, -0.5], [0.5, -2.5, 3.5]])
WHOLE = np.array([[1, 2, 3], [4, 5, 6]])
AT = np.array([0, 1])
LEAST = -(2**63)


def _changed(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A program that changes what a function returns, and returns the argument of it."""

    def program(x: Any) -> Any:
        y = x.copy()
        other = function(y)
        other += 1
        return y

    return program


def _centred(x: Any) -> Any:
    mean = x.mean(1, keepdims=True)
    return x - mean, mean


def _softmax(x: Any) -> Any:
    powers = np.exp(x)
    total = powers.sum(1, keepdims=True)
    return powers / total, total


def _turned(x: Any) -> Any:
    product = (x @ x.T).T
    return product, product.sum(0)


def _added(x: Any) -> Any:
    total = x.sum(0)[None]
    return total, x * total


PROGRAMS: list[tuple[Callable[[Any], Any], np.ndarray]] = [
    (_centred, X),
    (_softmax, X),
    (_turned, X),
    (_added, X),
    (_changed(np.nan_to_num), WHOLE),
    (_changed(lambda y: np.clip(y, None, None)), X),
    (_changed(lambda y: np.roll(y, (), ())), X),
    (lambda x: x[x[:, 0].argmax()], X),
    (lambda x: x[:, x[0].argmin()], X),
    (lambda x: x[None, AT, ..., AT], X),
    (lambda x: x.sum(dtype=int), X),
    (lambda x: x.sum(axis=1, dtype=np.int32), X),
    (lambda x: np.cov(x[:1]), X),
    (lambda x: np.corrcoef(x[:1]), X),
    (lambda x: np.cov(x), X.astype(np.float32)),
    (lambda x: np.vander(x[0]), X.astype(np.float32)),
    (lambda x: np.vander(x[0]), WHOLE.astype(np.int8)),
    (lambda x: np.select([x > 1, x > 0], [x, 2]), X.astype(np.float32)),
    (lambda x: np.select([x > 1, x > 0], [x, 2]), WHOLE.astype(np.int8)),
    (lambda x: x[0] / np.array([-0.0, 1.0, 2.0]), X),
    (lambda x: x + LEAST, np.array([5, 7])),
    (lambda x: x % LEAST, np.array([5, -7, 2**40, LEAST])),
    (lambda x: x // LEAST, np.array([5, -7, 2**40, LEAST])),
    (lambda x: x % -128, np.array([5, -7], np.int8)),
    (lambda x: x % -(2**31), np.array([5, -7], np.int32)),
    (lambda x: x // 3, np.array([-128, 127, 5], np.int8)),
    (lambda x: x // 3, np.array([-(2**31), 7], np.int32)),
    (lambda x: x // np.array([3, -3, 5]), np.array([-7, 7, LEAST])),
    (lambda x: x + np.array([LEAST, 2**62 - 1]), np.array([0, 1])),
    (lambda x: x + np.array([0, 2**62, LEAST]), np.array([0, 1, 2])),
    (lambda x: np.nanmin(x), np.array([LEAST, 5])),
]


@pytest.mark.parametrize(("program", "given"), PROGRAMS)
def test_results_are_those_of_numpy(program: Callable[[Any], Any], given: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = program(given.copy())
    traced = einsql.trace(program, given)(given.copy())
    pairs = (
        zip(expected, traced, strict=True) if isinstance(expected, tuple) else [(expected, traced)]
    )
    for want, array in pairs:
        assert np.asarray(array).dtype == np.asarray(want).dtype
        np.testing.assert_allclose(array, want, strict=True)


def test_a_row_at_a_traced_index_is_a_view() -> None:
    program = _changed(lambda y: y[y[:, 0].argmax()])
    with pytest.raises(einsql.NotSupportedError, match="reshaped or indexed"):
        einsql.trace(program, X)
