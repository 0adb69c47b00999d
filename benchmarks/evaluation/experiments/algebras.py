"""Other algebras than + and ×, of einsql and of the user, beside array libraries and DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.element_rows import by_duckdb
from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

KEYS = {"a": ("i", "j"), "b": ("k", "j")}
BLOCKS = "2 rows", "4 rows", "16 rows"
"""Numbers of rows of A that a library combines with all of B at once."""
OR_AND = 3
"""The place of or-and in ALGEBRAS, which a product of FLOAT decides, too."""
ALGEBRAS = {
    "min-plus": "MIN(a.val + b.val)",
    "max|x−y|": "MAX(ABS(a.val - b.val))",
    "Σ|x−y|": "SUM(ABS(a.val - b.val))",
    "or-and": "MAX(CASE WHEN a.val > 0 AND b.val > 0 THEN 1 ELSE 0 END)",
    "user's min-plus with the way": "",
}
CDIST = {1: float("inf"), 2: 1.0}
"""The norms of PyTorch's `cdist`, by the places of distances in ALGEBRAS."""
SQL = "SELECT a.i, b.k, {value} AS val FROM a JOIN b ON a.j = b.j GROUP BY a.i, b.k"
OWN = """
CREATE AGGREGATE shortest(length FLOAT, via INTEGER)
STATE (v FLOAT INIT 'inf', who INTEGER INIT 2147483647)
LIFT (length, via)
MERGE (CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.v ELSE a.v END,
       CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.who ELSE a.who END)
FINISH (v AS length, who AS via)
"""
OWN_SQL = SQL.format(value="shortest(a.val + b.val, a.j).via")
BUILT_IN = SQL.format(value="ARG_MIN(a.j, a.val + b.val)")


def cases(full: bool) -> list[Case]:
    """Every algebra at a size for arrays, and one at a size for rows."""
    n = 1024 if full else 512
    names = list(ALGEBRAS)
    arrays = ("einsql", "NumPy", "PyTorch", "JAX")
    return [
        *(Case(f"{name}, {n}³", {"n": n, "of": k}, only=arrays)
          for k, name in enumerate(names[:-1])),
        Case("min-plus, 128³, rows", {"n": 128, "of": 0}, only=("einsql", "DuckDB")),
        Case(f"{names[-1]}, {n}³", {"n": n, "of": 4}, only=("einsql", "einsql, built in", "NumPy")),
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """Two matrices."""
    shape = case.sizes["n"], case.sizes["n"]
    return {
        name: np.random.default_rng(ord(name)).standard_normal(shape, dtype=np.float32)
        for name in "ab"
    }


def combined(number: int, a: Any, b: Any, of: Any) -> Any:
    """An algebra over rows of A beside all rows of B, by the functions of a library."""
    x, y = a[:, None, :], b[None, :, :]
    if number == 0:
        return of.min(x + y, -1)
    if number == 1:
        return of.max(abs(x - y), -1)
    if number == 2:
        return of.sum(abs(x - y), -1)
    if number == 3:
        return of.max((x > 0) & (y > 0), -1)
    return of.argmin(x + y, -1)


class _Torch:
    """PyTorch's reductions under NumPy's names."""

    def __init__(self, torch: Any) -> None:
        self.min, self.max, self.sum = torch.amin, torch.amax, torch.sum
        self.argmin = torch.argmin


def blocks(number: int, a: Any, b: Any, of: Any, way: str = BLOCKS[-1]) -> list[Any]:
    """An algebra, some rows of A at a time."""
    rows = int(way.split()[0])
    return [combined(number, a[k : k + rows], b, of) for k in range(0, len(a), rows)]


def numpy_ways(case: Case) -> list[str]:
    """Blocks of rows, and for or-and a product."""
    return [*BLOCKS, *["product"] * (case.sizes["of"] == OR_AND)]


def torch_ways(case: Case) -> list[str]:
    """NumPy's, and `cdist` for distances."""
    return [*numpy_ways(case), *["cdist"] * (case.sizes["of"] in CDIST)]


def jax_ways(case: Case) -> list[str]:
    """A map over rows or blocks of them, all rows at once, and for or-and a product."""
    return ["1 row", *numpy_ways(case), f"{case.sizes['n']} rows"]


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's: minima and maxima of FLOAT, sums in double precision."""
    a, b = given["a"], given["b"]
    if case.sizes["of"] == 2:
        a, b = a.astype(np.float64), b.astype(np.float64)
    found: Array = np.concatenate(blocks(case.sizes["of"], a, b, np))
    return found


def by_einsql(task: Task) -> Prepared:
    """Einsql."""
    value = list(ALGEBRAS.values())[task.size["of"]]
    return _by_einsql(task, SQL.format(value=value) if value else OWN_SQL)


def by_built_in(task: Task) -> Prepared:
    """Einsql's ARG_MIN in place of the user's aggregate."""
    return _by_einsql(task, BUILT_IN)


def _by_einsql(task: Task, sql: str) -> Prepared:
    import einsql

    con = einsql.connect()
    con.execute(OWN)
    for name, axes in KEYS.items():
        con.register(name, task.load(name), dims=axes)
    return Prepared(lambda: con.execute(sql).fetch_numpy(), lambda result: result)


def by_numpy(task: Task) -> Prepared:
    """NumPy, some rows at a time, or by a product."""
    a, b, number = task.load("a"), task.load("b"), task.size["of"]

    def run() -> Array:
        if task.way == "product":
            found: Array = (a > 0).astype(np.float32) @ (b > 0).astype(np.float32).T > 0
            return found
        return np.concatenate(blocks(number, a, b, np, task.way))

    return Prepared(run, lambda result: result)


def by_torch(task: Task) -> Prepared:
    """PyTorch, some rows at a time, by `cdist` or by a product."""
    import torch

    a, b = torch.from_numpy(task.load("a")), torch.from_numpy(task.load("b"))
    number = task.size["of"]

    def run() -> Any:
        if task.way == "cdist":
            return torch.cdist(a, b, p=CDIST[number])
        if task.way == "product":
            return (a > 0).float() @ (b > 0).float().T > 0
        return torch.cat(blocks(number, a, b, _Torch(torch), task.way))

    return Prepared(run, lambda result: result.numpy())


def by_jax(task: Task) -> Prepared:
    """JAX, compiled, by rows, by blocks of rows, or by a product."""
    import jax
    import jax.numpy as jnp

    a, b = jnp.asarray(task.load("a")), jnp.asarray(task.load("b"))
    number = task.size["of"]

    def every(a: Any, b: Any) -> Any:
        if task.way == "product":
            return (a > 0).astype(jnp.float32) @ (b > 0).astype(jnp.float32).T > 0
        rows = int(task.way.split()[0])
        if rows == len(a):
            return combined(number, a, b, jnp)
        return jax.lax.map(lambda row: combined(number, row[None], b, jnp)[0], a, batch_size=rows)

    compiled = jax.jit(every)
    return Prepared(lambda: compiled(a, b).block_until_ready(), np.asarray)


EXPERIMENT = Experiment(
    title="Other algebras, and algebras of the user",
    source="benchmarks/semirings.py, benchmarks/user_aggregates.py",
    about="Any ⊗ and any ⊕ over two FLOAT matrices, both with the reduced key last. NumPy and "
    "PyTorch combine 2, 4 or 16 rows at a time, and PyTorch also has `cdist` for distances. JAX "
    "compiles a map over rows or blocks of rows, or all rows at once. All three also compute "
    "or-and as a product of 0 and 1 in FLOAT. PyTorch runs in eager mode. The last algebra is an "
    "aggregate that the user defines.",
    sql={"Min-plus": SQL.format(value=ALGEBRAS["min-plus"]), "The user's aggregate": OWN,
         "Its statement": OWN_SQL},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("einsql, built in", prepare=by_built_in),
        Contestant("NumPy", "mpi", by_numpy, numpy_ways),
        Contestant("PyTorch", "torch", by_torch, torch_ways),
        Contestant("JAX", "jax", by_jax, jax_ways),
        Contestant("DuckDB", "duckdb",
                   by_duckdb(SQL.format(value=ALGEBRAS["min-plus"]), KEYS, ("i", "k"))),
    ),
    inputs=inputs,
    reference=reference,
    reasons={
        "or-and, 512³": "The product in FLOAT takes 1.4 to 1.9 ms by BLAS alone. The rest are "
        "comparisons with 0, flags as numbers and back, and the statement. A product in place of "
        "tiles saved four fifths of the processor's time; no scan of the operands, and truths "
        "without integers in between, saved 1.4 of 4.5 ms on an idle machine. The peers "
        "return truths; the statement returns integers, 0 or 1.",
        **{f"{list(ALGEBRAS)[-1]}, {n}³": "A point of ARG_MIN takes four vector instructions: an "
        "addition, a comparison and two selections. The user's MERGE also orders equal lengths, "
        "which takes two comparisons and a combination of masks more. Seven instructions to four "
        "are 1.75, and both run at the rate of the vector units."
        for n in (512, 1024)},
    },
)  # fmt: skip
