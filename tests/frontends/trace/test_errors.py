"""What cannot be traced is refused, with the line and a way out; calls are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql

Array = Any
X = np.arange(12.0).reshape(3, 4)


def decides(x: Array) -> Array:
    return x if x.sum() > 0 else -x


def sorts(x: Array) -> Array:
    return np.sort(x)


def assigns(x: Array) -> Array:
    x[0] = 1
    return x


def changes_its_argument(x: Array) -> Array:
    x += 1
    return x


def changes_what_a_reshape_may_show(x: Array) -> Array:
    y = x * 2
    row = y.reshape(-1)
    y += 1
    return row


def changes_a_view_of_its_argument(x: Array) -> Array:
    y = x.T[1:]
    y += 1
    return y


def assigns_by_numbers(x: Array) -> Array:
    y = x * 2
    y[[0, 1]] = 1
    return y


def assigns_one_for_each(x: Array) -> Array:
    y = x * 2
    y[x > 1] = x[0]
    return y


def chooses(x: Array) -> Array:
    return np.add(x, 1, where=x > 0)


def accumulates(x: Array) -> Array:
    return np.maximum.accumulate(x)


def writes_elsewhere(x: Array) -> Array:
    return np.sum(x, out=np.zeros(()))


def leaves(x: Array) -> Array:
    return np.asarray(x)


def counts(x: Array) -> Array:
    return sum(range(int(x[0, 0])))


def selects(x: Array) -> Array:
    return x[x > 1]


def finds(x: Array) -> Array:
    return np.where(x > 1)


def shrinks(x: Array) -> Array:
    return x.astype(np.int16)


def searches(x: Array) -> Array:
    return x.searchsorted(3)


def writes_out(x: Array) -> Array:
    return np.add(x, 1, out=x)


UNTRACEABLE = [
    decides, sorts, assigns, changes_its_argument, changes_what_a_reshape_may_show, leaves, counts,
    selects, finds, shrinks, searches, writes_out, changes_a_view_of_its_argument,
    assigns_by_numbers, assigns_one_for_each, chooses, accumulates, writes_elsewhere,
]  # fmt: skip


@pytest.mark.parametrize("fn", UNTRACEABLE)
def test_what_cannot_be_traced_is_refused_at_its_line(fn: Callable[..., Any]) -> None:
    with pytest.raises(einsql.Error) as info:
        einsql.trace(fn, X.copy())
    assert f"of test_errors.py, in {fn.__name__}: " in info.value.reason
    assert info.value.hint


def gathers_numbers(x: Array) -> Array:
    return np.array([row.sum() for row in x])


def fills_a_plain_array(x: Array) -> Array:
    y = np.zeros(len(x))
    for n, row in enumerate(x):
        y[n] = row.sum()
    return y


def adds_to_a_plain_array(x: Array) -> Array:
    y = np.zeros(len(x))
    for column in x.T:
        y += column
    return y


def looks_up(x: Array) -> Array:
    return np.eye(9)[x.argmax(0)]


WAYS_OUT: list[tuple[Callable[..., Any], str, Callable[..., Any]]] = [
    (gathers_numbers, "np.stack(list)", lambda x: np.stack([row.sum() for row in x])),
    (looks_up, "passed in as an argument", lambda x: x[x.argmax(0)]),
]


@pytest.mark.parametrize("fn", [fills_a_plain_array, adds_to_a_plain_array])
def test_what_is_filled_starts_as_zeros_like(fn: Callable[..., Any]) -> None:
    with pytest.raises(einsql.NotSupportedError, match="cannot be traced") as info:
        einsql.trace(fn, X.copy())
    assert "np.zeros_like(x, shape=…)" in str(info.value.hint)

    def filled(x: Array) -> Array:
        y = np.zeros_like(x, shape=len(x))
        for n, row in enumerate(x):
            y[n] = row.sum()
        for column in x.T:
            y += column
        return y

    np.testing.assert_allclose(einsql.trace(filled, X)(X), filled(X))


@pytest.mark.parametrize(("fn", "hint", "instead"), WAYS_OUT)
def test_ways_out_of_plain_arrays(
    fn: Callable[..., Any], hint: str, instead: Callable[..., Any]
) -> None:
    with pytest.raises(einsql.NotSupportedError, match="plain array") as info:
        einsql.trace(fn, X.copy())
    assert hint in str(info.value.hint)
    np.testing.assert_allclose(einsql.trace(instead, X)(X), instead(X))


MISFITS: dict[str, Callable[..., Any]] = {
    "broadcast": lambda x: x + x.T,
    "matmul": lambda x: x @ x,
    "axis": lambda x: x.sum(axis=2),
    "reshape": lambda x: x.reshape(5, 5),
    "index": lambda x: x[3],
    "indices": lambda x: x[0, 0, 0],
    "einsum": lambda x: np.einsum("ij,jk->ik", x, x),
    "concatenate": lambda x: np.concatenate([x, x.T]),
    "empty maximum": lambda x: x[:0].max(),
    "nothing": lambda x: None,
    "an axis twice": lambda x: np.expand_dims(x, (0, 0)),
    "another axis twice": lambda x: np.moveaxis(x, (0, 0), (0, 1)),
    "a diagonal of one axis": lambda x: np.diagonal(x, 0, 1, 1),
    "negative tile": lambda x: np.tile(x, -1),
    "negative repeat": lambda x: np.repeat(x, -1),
    "negative pad": lambda x: np.pad(x, -1),
    "a triangle of a number": lambda x: np.tril(x.sum()),
    "a number beyond the type": lambda x: x.astype(np.int8) + 300,
    "a type that does not hold it": lambda x: np.add(x, x, dtype=np.int32),
    "read-only": lambda x: np.add(x, 1, out=np.broadcast_to(x[0] * 2, (3, 4))),
    "out of another shape": lambda x: np.add(x, 1, out=x[0] * 2),
    "assigned": lambda x: (x * 2).__setitem__(0, x),
    "neither shape nor axis of weights": lambda x: np.average(x, weights=np.ones(4)),
    "an axis that is no integer": lambda x: x.sum(axis=1.5),
    "a shape that is none": lambda x: x.reshape(3.0, 4),
    "taking nothing": lambda x: x.take(None),
    "a number beyond all types": lambda x: np.full_like(x, 10**20, np.int64),
    "an assigned number beyond all types": lambda x: (x * 2).__setitem__(0, 10**20),
    "an unsafe conversion": lambda x: x.astype(np.int64, "K", "safe"),
    "bits of floats": lambda x: x & 1,
    "not an array": lambda x: object(),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_an_error_of_einsql(name: str) -> None:
    with pytest.raises(einsql.Error):
        einsql.trace(MISFITS[name], X)


def test_arguments_of_a_call_are_as_they_were_traced() -> None:
    traced = einsql.trace(lambda x, n: x * n, X, 2)
    np.testing.assert_array_equal(traced(X + 1, 2), (X + 1) * 2)
    for wrong in ((X,), (X[:2], 2), (X.astype(np.float32), 2), (X, 3), (X, 2.0), (X, X)):
        with pytest.raises(einsql.InterfaceError):
            traced(*wrong)


def test_indices_are_checked_when_a_program_runs() -> None:
    table, rows = X, np.array([0, -3, 2])
    traced = einsql.trace(lambda t, r: t[r] + t[r * 1], table, rows)
    np.testing.assert_array_equal(traced(table, rows), table[rows] * 2)
    for wrong in (3, -4):
        with pytest.raises(einsql.DataError, match=f"The index {wrong}"):
            traced(table, np.array([0, wrong, 0]))


def test_indices_may_be_views() -> None:
    table, rows = X, np.array([0, -3, 2])
    views: list[Callable[..., Array]] = [
        lambda t, r: t[r[::-1]],
        lambda t, r: t[r[1:]] * t[r[:-1]],
    ]
    for fn in views:
        np.testing.assert_array_equal(einsql.trace(fn, table, rows)(table, rows), fn(table, rows))


def test_names_of_axes_are_checked() -> None:
    for dims in ({"y": "i j"}, {"x": "i"}, {"x": "i i"}, {"x": "i val"}, "ij", ["i j", "k"]):
        with pytest.raises(einsql.InterfaceError):
            einsql.trace(lambda x: x * 2, X, dims=dims)


def test_two_programs_do_not_mix() -> None:
    kept: list[Array] = []

    def keeps(x: Array) -> Array:
        kept.append(x)
        return x * 2

    einsql.trace(keeps, X)
    with pytest.raises(einsql.ProgrammingError, match="two traced programs"):
        einsql.trace(lambda x: x + kept[0], X)


def test_names_that_sql_reserves_are_quoted() -> None:
    def program(select: Array, val: Array) -> Array:
        order = select @ val
        group = order * order
        return group + order.max()

    traced = einsql.trace(program, X, X.T, dims={"select": "from where"})
    np.testing.assert_allclose(traced(X, X.T), program(X, X.T))


def test_numbers_and_arrays_may_lie_in_containers() -> None:
    def program(layers: list[dict[str, Array]], x: Array, *, scale: float = 2) -> Array:
        for layer in layers:
            x = np.tanh(x @ layer["w"]) * scale
        return {"x": x, "mean": [x.mean(), 1.5]}

    layers = [{"w": X.T @ X / 500, "name": 1}, {"w": X.T @ X / 400, "name": 2}]
    traced = einsql.trace(program, layers, X)
    found, expected = traced(layers, X), program(layers, X)
    np.testing.assert_allclose(found["x"], expected["x"])
    np.testing.assert_allclose(found["mean"], expected["mean"])
    assert list(traced.tensors) == ["w", "layers_1_w", "x"]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32", "uint64"])
def test_types_that_would_wrap_otherwise_are_refused(dtype: str) -> None:
    narrow = np.array([[250, 3], [7, 9]]).astype(dtype)
    with pytest.raises(einsql.NotSupportedError, match=f"a is {dtype}"):
        einsql.trace(lambda a: a + a, narrow)
    program = einsql.trace(lambda a: a + a, narrow.astype(np.int32))
    with pytest.raises(einsql.NotSupportedError, match=f"a is {dtype}"):
        program(narrow)
