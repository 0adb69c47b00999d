"""Convolutions and pooling in SQL beside PyTorch's on as many threads, and NumPy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import einsql
from benchmarks.matrices import Array, check, pytorch, random
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, against

AIM = 0.8
N, CHANNELS, SIDE = 8, 64, 56

CONVOLUTION = """
SELECT n, o, x.h - f.r AS h, x.w - f.s AS w, SUM(x.val * f.val) AS val
FROM x JOIN f ON x.c = f.c
WHERE x.h - f.r BETWEEN 0 AND {last} AND x.w - f.s BETWEEN 0 AND {last}
GROUP BY n, o, x.h - f.r, x.w - f.s
"""
STRIDED = """
SELECT n, o, p.h AS h, q.w AS w, SUM(x.val * f.val) AS val
FROM range(28) AS p(h), range(28) AS q(w), x JOIN f ON x.c = f.c
WHERE x.h = 2 * p.h + f.r - 1 AND x.w = 2 * q.w + f.s - 1
GROUP BY n, o, p.h, q.w
"""
DEPTHWISE = """
SELECT n, x.c, x.h - f.r AS h, x.w - f.s AS w, SUM(x.val * f.val) AS val
FROM x JOIN f ON x.c = f.c
WHERE x.h - f.r BETWEEN 0 AND 53 AND x.w - f.s BETWEEN 0 AND 53
GROUP BY n, x.c, x.h - f.r, x.w - f.s
"""
POOLING = (
    "SELECT n, c, h // 4 AS h, w // 4 AS w, MAX(val) AS val FROM x GROUP BY n, c, h // 4, w // 4"
)


def windows() -> Section:
    """N = 8, 64 channels, 56², float32, in PyTorch's layout."""
    return Section(
        "Windows, N=8, 64 channels, 56², float32: the other's time / einsql's time",
        (
            _measured("3×3 convolution", CONVOLUTION.format(last=53), 3, AIM),
            _measured("7×7 convolution", CONVOLUTION.format(last=49), 7, AIM),
            _measured("3×3 convolution, stride 2, padding 1", STRIDED, 3, stride=2, padding=1),
            _measured("3×3 depthwise convolution", DEPTHWISE, 3, groups=CHANNELS),
            _pooling(),
        ),
        "" if pytorch() else "torch is not installed",
    )


def _connected(arrays: dict[str, tuple[Array, tuple[str, ...]]]) -> einsql.Connection:
    con = einsql.connect()
    for name, (array, dims) in arrays.items():
        con.register(name, array, dims=dims)
    return con


def _measured(
    what: str, sql: str, side: int, aim: float | None = None, *, groups: int = 1, **how: int
) -> Finding:
    """A convolution beside PyTorch's; `how` is its stride and padding."""
    x = random(N, CHANNELS, SIDE, SIDE)
    shape = (CHANNELS, side, side) if groups > 1 else (CHANNELS, CHANNELS, side, side)
    f = random(*shape, seed=1)
    dims = ("c", "r", "s") if groups > 1 else ("o", "c", "r", "s")
    con = _connected({"x": (x, ("n", "c", "h", "w")), "f": (f, dims)})
    torch = pytorch()
    peers: dict[str, Run] = {}
    if torch:
        a, b = torch.from_numpy(x), torch.from_numpy(f[:, None] if groups > 1 else f)
        peers["torch"] = lambda: torch.nn.functional.conv2d(a, b, groups=groups, **how)
    return _finding(what, lambda: con.execute(sql).fetch_numpy(), peers, aim)


def _pooling() -> Finding:
    x = random(N, CHANNELS, SIDE, SIDE)
    con = _connected({"x": (x, ("n", "c", "h", "w"))})
    tiles = x.reshape(N, CHANNELS, SIDE // 4, 4, SIDE // 4, 4)
    peers: dict[str, Run] = {"numpy": lambda: tiles.max(axis=(3, 5))}
    torch = pytorch()
    if torch:
        a = torch.from_numpy(x)
        peers["torch"] = lambda: torch.nn.functional.max_pool2d(a, 4)
    return _finding("4×4 max pooling", lambda: con.execute(POOLING).fetch_numpy(), peers, None)


def _finding(
    what: str, ours: Callable[[], Array], peers: dict[str, Run], aim: float | None
) -> Finding:
    for run in peers.values():
        check(ours(), np.asarray(run()))
    taken = measure({"einsql": ours, **peers}, rounds=11, seconds=1.0)
    names = list(peers) or ["einsql"]
    best = min(names, key=taken.median)
    return against(f"{what}, vs {best}", taken, best, aim)
