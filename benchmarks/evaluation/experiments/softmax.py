"""The thesis: softmax of a matrix by rows, on all cores and on ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

KEYS = {"x": ("i", "j")}
SOFTMAX = """
WITH e AS (SELECT i, j, EXP(x.val - MAX(x.val) OVER (PARTITION BY i)) AS val FROM x)
SELECT i, j, val / SUM(val) OVER (PARTITION BY i) AS val FROM e
"""


def cases(full: bool) -> list[Case]:
    """Square, and one with few long rows."""
    shapes = {"4096 × 4096": (4096, 4096), "64 × 262,144": (64, 262_144)}
    return [
        Case(f"{name}, {f'{ranks} ranks' if ranks else 'one process'}", {"n": n, "m": m}, ranks,
             ranks < 3, ("einsql", "JAX") if ranks else ("einsql", "NumPy", "PyTorch", "JAX"))
        for name, (n, m) in shapes.items() for ranks in (0, 2, 4)
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """A matrix."""
    shape = case.sizes["n"], case.sizes["m"]
    return {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's."""
    x = given["x"].astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    found: Array = e / e.sum(axis=1, keepdims=True)
    return found


def by_einsql(task: Task) -> Prepared:
    """einsql, whose result is an array, or stays on the ranks."""
    import einsql
    from benchmarks.evaluation.on_ranks import connected, sent_bytes

    if task.case.ranks:
        con = connected(task, KEYS)
        return Prepared(
            lambda: con.execute(SOFTMAX),
            lambda result: result.fetch_numpy(),
            details=lambda: {"sent_bytes": sent_bytes(con, SOFTMAX)},
        )
    con = einsql.connect()
    con.register("x", task.load("x"), dims=KEYS["x"])
    return Prepared(lambda: con.execute(SOFTMAX).fetch_numpy(), lambda result: result)


def by_numpy(task: Task) -> Prepared:
    """NumPy."""
    x = task.load("x")

    def run() -> Array:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        softmax: Array = e / e.sum(axis=1, keepdims=True)
        return softmax

    return Prepared(run, lambda result: result)


def by_torch(task: Task) -> Prepared:
    """PyTorch's fused function."""
    import torch

    x = torch.from_numpy(task.load("x"))
    return Prepared(lambda: torch.softmax(x, 1), lambda result: result.numpy())


def by_jax(task: Task) -> Prepared:
    """JAX's function, compiled, with rows sharded over as many devices as ranks."""
    import os

    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={task.ranks}"
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((task.ranks,), ("p",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("p", None))
    x = jax.device_put(task.load("x"), rows)
    compiled = jax.jit(lambda x: jax.nn.softmax(x, axis=1), out_shardings=rows)

    def run() -> Any:
        return compiled(x).block_until_ready()

    return Prepared(run, lambda result: np.asarray(result))


EXPERIMENT = Experiment(
    title="Thesis: softmax",
    source="the thesis, warp-tiled softmax",
    about="Softmax of each row in FLOAT, written with window aggregates. On ranks each process "
    "has one thread and a part of the rows. JAX is one process with a device for each rank. "
    "einsql's inputs keep the placements of the previous run, so their movement is not counted. "
    "PyTorch runs in eager mode.",
    sql={"The statement": SOFTMAX},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("NumPy", "mpi", by_numpy),
        Contestant("PyTorch", "torch", by_torch),
        Contestant("JAX", "jax", by_jax),
    ),
    inputs=inputs,
    reference=reference,
)
