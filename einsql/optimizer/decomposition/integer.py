"""The best choice as an integer program, and whether it is proven optimal.

Each state is a 0/1 variable and each entry of an edge's table a continuous one whose
marginals are the states' views (the local polytope), solved by HiGHS.
"""

from __future__ import annotations

import numpy as np

from einsql.optimizer.decomposition.model import Choice, Model


def solve(model: Model, seconds: float = 60.0) -> tuple[Choice, bool] | None:
    """The best choice and whether its optimality is proven; None without a solution in time."""
    from scipy import sparse  # 0.2 s, and few statements need it
    from scipy.optimize import Bounds, LinearConstraint, milp

    sizes = [len(a) for a in model.alone]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    costs = [np.concatenate(model.alone)]
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    values: list[np.ndarray] = []
    right: list[float] = []

    def entry(row: np.ndarray, column: np.ndarray, value: float) -> None:
        rows.append(np.asarray(row, np.int64))
        columns.append(np.asarray(column, np.int64))
        values.append(np.full(len(rows[-1]), value))

    for v, size in enumerate(sizes):
        entry(np.full(size, len(right)), starts[v] + np.arange(size), 1.0)
        right.append(1.0)
    at = int(starts[-1])
    for e in model.edges:
        a, b = e.costs.shape
        cells = at + np.arange(a * b).reshape(a, b)
        costs.append(e.costs.reshape(-1))
        for count, view, vertex, lines in (
            (a, e.produced, e.source, cells),
            (b, e.consumed, e.target, cells.T),
        ):
            first = len(right)
            entry(np.repeat(first + np.arange(count), lines.shape[1]), lines.reshape(-1), 1.0)
            entry(first + view, starts[vertex] + np.arange(len(view)), -1.0)
            right += [0.0] * count
        at += a * b
    every = np.concatenate(costs)
    possible = np.isfinite(every)  # a group excludes other vectors of its operations
    every[~possible] = 0.0
    scale = max(1.0, float(every.max()))
    integrality = np.zeros(at)
    integrality[: starts[-1]] = 1
    matrix = sparse.csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(right), at),
    )
    solution = milp(
        every / scale,
        constraints=LinearConstraint(matrix, right, right),
        integrality=integrality,
        bounds=Bounds(0, possible.astype(np.float64)),
        options={"time_limit": seconds, "mip_rel_gap": 1e-9},
    )
    if solution.x is None:
        return None
    x = solution.x
    choice = [int(np.argmax(x[starts[v] : starts[v + 1]])) for v in range(len(sizes))]
    return choice, bool(solution.status == 0)
