"""Any ⊗ and any ⊕ over two matrices, beside SGEMM, the processor's limit, PyTorch and SciPy.

The rate of every ⊗/⊕ is 2·m·n·k operations per second, as SGEMM's is counted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.matrices import Array, connected, fetched, random
from benchmarks.measure import QUIET, Times, measure
from benchmarks.peak import add_min
from benchmarks.report import Finding, Section, against, times

N = 1024
OF_SGEMM, OF_LIMIT, OF_PEERS = 0.45, 0.8, 10.0

EXPRESSIONS = {
    "min-plus": ("MIN(a.val + b.val)", 0.0),
    "max|x−y|": ("MAX(ABS(a.val - b.val))", 0.0),
    "Σ|x−y|": ("SUM(ABS(a.val - b.val))", 1e-5),
    "Σ(x−y)²": ("SUM((a.val - b.val) * (a.val - b.val))", 1e-5),
}
"""What is held to the targets, and how far it may be from float64 relative to the result."""
OTHERS = {
    "max-min": "MAX(LEAST(a.val, b.val))",
    "ARG_MIN": "ARG_MIN(a.j, a.val + b.val)",
    "Π(x+y)": "PRODUCT(a.val + b.val)",
    "or-and": "BOOL_OR(a.val > 0 AND b.val > 0)",
    "count of equal": "COUNT(*) FILTER (WHERE a.val = b.val)",
}
SHAPES = {
    "1000×37×513": ((1000, 37), (513, 37)),
    "8000×3×4000": ((8000, 3), (4000, 3)),
    "64×2000×64": ((64, 2000), (64, 2000)),
}


def _query(expression: str) -> str:
    return f"SELECT a.i, b.i AS k, {expression} AS val FROM a JOIN b ON a.j = b.j GROUP BY a.i, b.i"


def semirings() -> Section:
    """float32 matrices of 1024², both with the reduced label last, and other shapes."""
    findings = [*_square(), *_shapes()]
    return Section(
        "Semirings, float32: the other's time / einsql's time, SGEMM's unless named",
        tuple(findings),
    )


def _square() -> list[Finding]:
    a, b = random(N, N), random(N, N, seed=1)
    con = connected({"a": a, "b": b})
    limit = add_min(2.0 * N**3)
    found = []
    for name, (expression, bound) in EXPRESSIONS.items():
        query = _query(expression)
        _check(con.execute(query).fetch_numpy(), a, b, name, bound)
        taken = measure(
            {
                "einsql": partial(fetched, con, query),
                "sgemm": lambda: a @ b.T,
                "add+min": limit,
                **_peers(name, a, b),
            },
            rounds=9,
            seconds=4.0,
            pause=QUIET,
        )
        found += _judged(name, taken)
    for name, expression in OTHERS.items():
        query = _query(expression)
        taken = measure(
            {"einsql": partial(fetched, con, query), "sgemm": lambda: a @ b.T},
            rounds=9,
            seconds=1.0,
            pause=QUIET,
        )
        found.append(_informs(name, taken))
    wide = connected({"a": a.astype(np.float64), "b": b.astype(np.float64)})
    query = _query(EXPRESSIONS["min-plus"][0])
    c, d = a.astype(np.float64), b.T.astype(np.float64)
    taken = measure(
        {"einsql": lambda: wide.execute(query).fetch_numpy(), "dgemm": lambda: c @ d},
        rounds=9,
        seconds=1.0,
        pause=QUIET,
    )
    return [*found, _informs("min-plus, float64", taken, "dgemm")]


def _judged(name: str, taken: Times) -> list[Finding]:
    """A ⊗/⊕ against its targets."""
    targets: dict[str, float | None] = {"sgemm": OF_SGEMM, "add+min": OF_LIMIT}
    rate = 2 * N**3 / taken.median("einsql") / 1e9
    medians = f"{rate:.0f} Gop/s; {times({n: taken.median(n) for n in taken.seconds})}"
    found = []
    for other in taken.seconds:
        if other == "einsql":
            continue
        distance = OF_PEERS if name in ("max|x−y|", "Σ|x−y|") else None
        aim = targets.get(other, distance)
        told = medians if other == "sgemm" else ""
        found.append(against(f"{name}, {N}³, vs {other}", taken, other, aim, medians=told))
    return found


def _informs(name: str, taken: Times, gemm: str = "sgemm") -> Finding:
    return against(name, taken, gemm, digits=3)


def _shapes() -> list[Finding]:
    found = []
    for name, (shape_a, shape_b) in SHAPES.items():
        a, b = random(*shape_a), random(*shape_b, seed=1)
        found += [_shape(what, name, a, b) for what in ("min-plus", "Σ|x−y|")]
    return [*found, _batch()]


def _shape(what: str, name: str, a: Array, b: Array) -> Finding:
    con, query = connected({"a": a, "b": b}), _query(EXPRESSIONS[what][0])
    contestants = {
        "einsql": lambda: con.execute(query).fetch_numpy(),
        "sgemm": lambda: a @ b.T,
        **_peers(what, a, b),
    }
    return _informs(f"{what}, {name}", measure(contestants, rounds=9, seconds=0.5, pause=QUIET))


def _batch() -> Finding:
    x, y = random(64, 128, 96), random(64, 112, 96, seed=1)
    con = connected({})
    con.register("a", x, dims=("b", "i", "j"))
    con.register("b", y, dims=("b", "i", "j"))
    query = (
        "SELECT a.b, a.i, b.i AS k, MIN(a.val + b.val) AS val FROM a JOIN b"
        " ON a.j = b.j AND a.b = b.b GROUP BY a.b, a.i, b.i"
    )
    taken = measure(
        {
            "einsql": lambda: con.execute(query).fetch_numpy(),
            "sgemm": lambda: x @ y.transpose(0, 2, 1),
        },
        rounds=9,
        seconds=0.5,
        pause=QUIET,
    )
    return _informs("min-plus, 64 of 128×96×112", taken)


def _peers(name: str, a: Array, b: Array) -> dict[str, Callable[[], object]]:
    """PyTorch's and SciPy's distances where they have the same."""
    found: dict[str, Callable[[], object]] = {}
    metric = {"max|x−y|": "chebyshev", "Σ|x−y|": "cityblock", "Σ(x−y)²": "sqeuclidean"}.get(name)
    if metric is None:
        return found
    from scipy.spatial.distance import cdist

    found["scipy cdist"] = lambda: cdist(a, b, metric)
    if importlib.util.find_spec("torch") is not None and metric != "sqeuclidean":
        import torch

        p = float("inf") if metric == "chebyshev" else 1.0
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        found["torch cdist"] = lambda: torch.cdist(x, y, p=p)
    return found


def _check(found: Array, a: Array, b: Array, name: str, bound: float) -> None:
    """Compares some rows with float64."""
    rows = a[:16, None, :].astype(np.float64)
    columns = b[None].astype(np.float64)
    wanted = {
        "min-plus": lambda: (rows.astype(np.float32) + b[None]).min(-1),
        "max|x−y|": lambda: np.abs(rows.astype(np.float32) - b[None]).max(-1),
        "Σ|x−y|": lambda: np.abs(rows - columns).sum(-1),
        "Σ(x−y)²": lambda: ((rows - columns) ** 2).sum(-1),
    }[name]()
    error = float(np.max(np.abs(found[:16] - wanted) / np.maximum(np.abs(wanted), 1e-30)))
    if not error <= bound:
        raise AssertionError(f"{name} is off by {error}")
