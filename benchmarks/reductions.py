"""Plain reductions of a matrix beside reading it, NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.matrices import Array, connected, pytorch, random
from benchmarks.measure import measure
from benchmarks.peak import reading
from benchmarks.report import Finding, Section, against

N = 4096
ROUNDS, SECONDS = 9, 0.4
SHAPES: dict[str, tuple[str, int | None]] = {"row": ("i", 1), "column": ("j", 0), "all": ("", None)}
"""Keys of a result, and the axis that is reduced."""

Reduce = Callable[[Any, int | None], Any]
"""Of an array or a tensor, and the axis."""

CASES: dict[str, tuple[str, Reduce, Reduce]] = {
    "MAX": (
        "MAX(val)",
        lambda x, d: x.max(d),
        lambda x, d: x.amax(d) if d is not None else x.amax(),
    ),
    "MIN": (
        "MIN(val)",
        lambda x, d: x.min(d),
        lambda x, d: x.amin(d) if d is not None else x.amin(),
    ),
    "SUM": ("SUM(val)", lambda x, d: x.sum(d), lambda x, d: x.sum(d)),
    "AVG": (
        "AVG(val)",
        lambda x, d: x.mean(d),
        lambda x, d: x.sum(d) / (x.numel() if d is None else N),
    ),
    "COUNT of positive": (
        "COUNT(*) FILTER (WHERE val > 0)",
        lambda x, d: np.count_nonzero(x > 0, d),
        lambda x, d: (x > 0).sum(d),
    ),
    "BOOL_OR": ("BOOL_OR(val > 1e6)", lambda x, d: (x > 1e6).any(d), lambda x, d: _any(x > 1e6, d)),
}
"""SQL, NumPy and PyTorch."""


def _any(x: Any, axis: int | None) -> Any:
    return x.any() if axis is None else x.any(axis)


def reductions() -> Section:
    """4096² float32, float64 and int32 numbers, by rows, by columns and all of them."""
    torch = pytorch()
    findings = []
    for dtype in (np.float32, np.float64, np.int32):
        x = (random(N, N) * 1000).astype(dtype)
        con = connected({"x": x})
        read = reading(x)
        for shape in SHAPES:
            for name in CASES:
                findings += _compare(
                    f"{shape} {name}, {np.dtype(dtype)}", name, shape, x, con, read, torch
                )
        findings += _extremes(x, con, read, torch)
    return Section(
        f"Reductions over {N}²: the other's time / einsql's time; reading is the limit of memory",
        tuple(findings),
        "" if torch else "PyTorch, which is not installed",
    )


def _compare(
    what: str, name: str, shape: str, x: Array, con: Any, read: Callable[[], None], torch: Any
) -> list[Finding]:
    sql, plain, of_torch = CASES[name]
    keys, axis = SHAPES[shape]
    return _measured(what, sql, keys, lambda: plain(x, axis), x, con, read, torch and (
        lambda tensor: of_torch(tensor, axis)
    ))  # fmt: skip


def _extremes(x: Array, con: Any, read: Callable[[], None], torch: Any) -> list[Finding]:
    """The place of the greatest number in each row."""
    return _measured(f"row ARG_MAX, {x.dtype}", "ARG_MAX(j, val)", "i", lambda: x.argmax(1), x, con,
                     read, torch and (lambda tensor: tensor.argmax(1)))  # fmt: skip


def _measured(
    what: str, sql: str, keys: str, plain: Callable[[], Any], x: Array, con: Any,
    read: Callable[[], None], of_torch: Callable[[Any], Any] | None,
) -> list[Finding]:  # fmt: skip
    query = f"SELECT {keys + ', ' if keys else ''}{sql} AS val FROM x"
    query += f" GROUP BY {keys}" if keys else ""
    expected = np.asarray(plain(), np.float64)
    found = np.asarray(con.execute(query).fetch_numpy(), np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    contestants: dict[str, Callable[[], object]] = {
        "einsql": lambda: con.execute(query).fetch_numpy(),
        "reading": read,
        "numpy": plain,
    }
    if of_torch is not None:
        import torch

        tensor = torch.from_numpy(x)
        contestants["torch"] = lambda: of_torch(tensor)
    taken = measure(contestants, rounds=ROUNDS, seconds=SECONDS)
    return [
        against(f"{what} vs {peer}", taken, peer, medians=None if peer == "reading" else "")
        for peer in list(contestants)[1:]
    ]
