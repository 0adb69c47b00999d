"""The thesis: an integral by sampling, whose work has a dimension that no data has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

A, B = 0.7548776662466927, 0.5698402909980532
"""Steps of a sequence that fills the unit square evenly: the R2 sequence."""
INTEGRAL = f"""
WITH p AS (SELECT i, (i * {A:.16e}) % 1 AS x, (i * {B:.16e}) % 1 AS y FROM range({{n}}) AS r(i))
SELECT AVG(EXP(-(x * x + y * y))) AS val FROM p
"""


BY_FLOOR = f"""
WITH s AS (SELECT i * {A:.16e} AS x, i * {B:.16e} AS y FROM range({{n}}) AS r(i)),
p AS (SELECT x - FLOOR(x) AS x, y - FLOOR(y) AS y FROM s)
SELECT AVG(EXP(-(x * x + y * y))) AS val FROM p
"""
"""The same integral, for a system whose % is slow."""
BLOCK = 1 << 15
"""Samples whose arrays stay in a core's cache."""
WAYS = "all samples at once", "blocks of samples"
"""How NumPy and PyTorch compute."""


def cases(full: bool) -> list[Case]:
    """Numbers of samples."""
    sizes = (4_000_000, 40_000_000) if full else (4_000_000,)
    return [
        Case(f"{n:,} samples, {f'{ranks} ranks' if ranks else 'one process'}", {"n": n}, ranks,
             ranks < 3, ("einsql", "NumPy by hand on MPI") if ranks else
             ("einsql", "NumPy", "PyTorch", "JAX", "DuckDB"))
        for n in sizes for ranks in (0, 2, 4)
    ]  # fmt: skip


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's."""
    return np.array([sampled(0, case.sizes["n"], "") / case.sizes["n"]])


def sampled(start: int, stop: int, way: str) -> float:
    """The sum over some samples, by NumPy."""
    block = BLOCK if way == WAYS[1] else stop - start
    total = 0.0
    for first in range(start, stop, block):
        i = np.arange(first, min(first + block, stop), dtype=np.float64)
        x, y = i * A, i * B
        x -= np.floor(x)
        y -= np.floor(y)
        total += float(np.exp(-(x * x + y * y)).sum())
    return total


def _number(result: Any) -> Array:
    return np.array([float(result)])


def by_einsql(task: Task) -> Prepared:
    """Einsql."""
    from benchmarks.evaluation.on_ranks import connected, sent_bytes

    con, sql = connected(task, {}), INTEGRAL.format(n=task.size["n"])
    return Prepared(
        lambda: con.execute(sql).fetchall()[0][0],
        _number,
        details=lambda: {"sent_bytes": sent_bytes(con, sql)} if task.case.ranks else {},
    )


def by_numpy(task: Task) -> Prepared:
    """NumPy."""
    n = task.size["n"]
    return Prepared(lambda: sampled(0, n, task.way) / n, _number)


def by_torch(task: Task) -> Prepared:
    """PyTorch."""
    import torch

    n = task.size["n"]
    block = n if task.way == WAYS[0] else BLOCK * torch.get_num_threads()

    def run() -> float:
        total = 0.0
        with torch.inference_mode():
            for first in range(0, n, block):
                i = torch.arange(first, min(first + block, n), dtype=torch.float64)
                x, y = (i * A).frac_(), (i * B).frac_()
                total += torch.exp(-(x * x + y * y)).sum()
        return float(total) / n

    return Prepared(run, _number)


def by_jax(task: Task) -> Prepared:
    """JAX, compiled, in double precision."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def integral() -> Any:
        i = jnp.arange(task.size["n"], dtype=jnp.float64)
        x, y = i * A, i * B
        x, y = x - jnp.floor(x), y - jnp.floor(y)
        return jnp.exp(-(x * x + y * y)).mean()

    compiled = jax.jit(integral)
    return Prepared(lambda: float(compiled()), _number)


def by_duckdb(task: Task) -> Prepared:
    """DuckDB, with the same text or with FLOOR."""
    import duckdb

    text = {"same text": INTEGRAL, "FLOOR": BY_FLOOR}[task.way]
    con, sql = duckdb.connect(), text.format(n=task.size["n"])
    return Prepared(lambda: con.execute(sql).fetchall()[0][0], _number)


def by_hand(task: Task) -> Prepared:
    """NumPy on a part of the samples at each process, and one sum."""
    from mpi4py import MPI

    n, me, ranks = task.size["n"], task.world.rank, task.ranks

    def run() -> float:
        own = sampled(n * me // ranks, n * (me + 1) // ranks, task.way)
        total: float = MPI.COMM_WORLD.allreduce(own)
        return total / n

    return Prepared(run, _number)


EXPERIMENT = Experiment(
    title="Thesis: Monte Carlo integration",
    source="the thesis, work dimensions",
    about="The mean of exp(−x² − y²) over samples of the unit square, in DOUBLE. The samples are "
    "computed from their number, so the statement has no input. The peers take the fraction of x "
    "as x − ⌊x⌋, which NumPy computes faster than x % 1, and DuckDB takes either. NumPy and "
    "PyTorch compute all samples at once or in blocks that stay in cache. PyTorch runs in eager "
    "mode.",
    sql={"The statement": INTEGRAL.format(n=4_000_000)},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("NumPy", "mpi", by_numpy, lambda case: WAYS),
        Contestant("PyTorch", "torch", by_torch, lambda case: WAYS),
        Contestant("JAX", "jax", by_jax),
        Contestant("DuckDB", "duckdb", by_duckdb, lambda case: ("same text", "FLOOR")),
        Contestant("NumPy by hand on MPI", "mpi", by_hand, lambda case: WAYS, "mpi"),
    ),
    reference=reference,
)
