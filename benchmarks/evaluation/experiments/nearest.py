"""T2: the nearest neighbour in a Riemannian metric."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

KEYS = {"x": ("n", "d"), "m": ("d", "e"), "q": ("d",)}
NEAREST = """
WITH apart AS (SELECT x.n, x.d, x.val - q.val AS val FROM x JOIN q USING (d)),
     turned AS (SELECT apart.n, m.e, SUM(apart.val * m.val) AS val
                FROM apart JOIN m USING (d) GROUP BY apart.n, m.e),
     length AS (SELECT turned.n, SUM(turned.val * apart.val) AS val
                FROM turned JOIN apart ON turned.n = apart.n AND turned.e = apart.d
                GROUP BY turned.n)
SELECT ARG_MIN(n, val) AS n, MIN(val) AS val FROM length
"""


def cases(full: bool) -> list[Case]:
    """Few dimensions and many points, and the opposite; on all cores and on ranks."""
    shapes = {"100,000 × 100": (100_000, 100), "4,000 × 2,000": (4_000, 2_000)}
    if full:
        shapes |= {"1,000,000 × 100": (1_000_000, 100), "20,000 × 6,000": (20_000, 6_000)}
    return [
        Case(f"{name}, {f'{ranks} ranks' if ranks else 'one process'}", {"n": n, "d": d}, ranks,
             ranks < 3, ("einsql", "Dask", "JAX") if ranks else ())
        for name, (n, d) in shapes.items() for ranks in (0, 2, 4)
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """Points, the metric, which is positive definite, and a query."""
    n, d = case.sizes["n"], case.sizes["d"]
    chance = np.random.default_rng(0)
    root = chance.standard_normal((d, d), dtype=np.float32) / np.float32(d**0.5)
    return {
        "x": chance.standard_normal((n, d), dtype=np.float32),
        "m": root @ root.T + np.eye(d, dtype=np.float32),
        "q": chance.standard_normal(d, dtype=np.float32),
    }


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """The nearest point and its squared distance."""
    apart = given["x"].astype(np.float64) - given["q"]
    length = np.einsum("nd,nd->n", apart @ given["m"], apart)
    return checked(case, [length.argmin(), length.min()])


def checked(case: Case, found: Any) -> Array:
    """A point and its squared distance as two numbers near 1, so that each one is checked.

    The fractions of near points' numbers times the golden ratio are far apart.
    """
    place, length = (float(value) for value in found)
    return np.array([place * 0.6180339887498949 % 1, length / case.sizes["d"]])


def by_einsql(task: Task) -> Prepared:
    """Einsql."""
    from benchmarks.evaluation.on_ranks import connected, sent_bytes

    con = connected(task, KEYS)
    return Prepared(
        lambda: con.execute(NEAREST).fetchall(),
        lambda result: checked(task.case, result[0]),
        details=lambda: {"sent_bytes": sent_bytes(con, NEAREST)} if task.case.ranks else {},
    )


def by_numpy(task: Task) -> Prepared:
    """NumPy."""
    x, m, q = (task.load(name) for name in "xmq")

    def run() -> Array:
        apart = x - q
        length = np.einsum("nd,nd->n", apart @ m, apart)
        return np.array([length.argmin(), length.min()])

    return Prepared(run, partial(checked, task.case))


def by_torch(task: Task) -> Prepared:
    """PyTorch."""
    import torch

    x, m, q = (torch.from_numpy(task.load(name)) for name in "xmq")

    def run() -> Array:
        apart = x - q
        length = ((apart @ m) * apart).sum(1)
        value, place = length.min(0)
        return np.array([place.item(), value.item()])

    return Prepared(run, partial(checked, task.case))


def by_jax(task: Task) -> Prepared:
    """JAX, points sharded over as many devices as ranks."""
    import os

    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={task.ranks}"
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((task.ranks,), ("p",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("p", None))
    x, m = (jax.device_put(task.load(name), rows) for name in "xm")
    q = jax.device_put(task.load("q"), NamedSharding(mesh, PartitionSpec()))

    def nearest(x: Any, m: Any, q: Any) -> Any:
        apart = x - q
        length = ((apart @ m) * apart).sum(1)
        return length.argmin(), length.min()

    compiled = jax.jit(nearest)
    return Prepared(lambda: [float(v) for v in compiled(x, m, q)], partial(checked, task.case))


def by_dask(task: Task) -> Prepared:
    """Dask with a block of the points for each thread.

    It has one worker process with a thread for each core, or on ranks a worker of one thread each.
    """
    import os

    import dask
    import dask.array as da
    from dask.distributed import Client, LocalCluster, wait

    dask.config.set({f"distributed.worker.memory.{k}": False for k in ("target", "spill", "pause")})
    threads = 1 if task.case.ranks else len(os.sched_getaffinity(0))
    cluster = LocalCluster(
        n_workers=task.ranks, threads_per_worker=threads, memory_limit=0, dashboard_address=None
    )
    client = Client(cluster)
    block = -(-task.size["n"] // (task.ranks * threads))
    x = da.from_array(task.load("x"), chunks=(block, -1)).persist()
    m, q = (da.from_array(task.load(name), chunks=-1).persist() for name in "mq")
    wait([x, m, q])
    kept = [client, cluster]

    def run() -> Array:
        apart = x - q
        length = ((apart @ m) * apart).sum(axis=1)
        place, value = dask.compute(length.argmin(), length.min())
        return np.array([place, value], np.float64)

    return Prepared(run, partial(checked, task.case), lambda: len(kept))


EXPERIMENT = Experiment(
    title="T2: the nearest neighbour in a Riemannian metric",
    source="TRA, nearest neighbour search",
    about="The point x with the least (x − q)ᵀ M (x − q) of all points, in FLOAT. On ranks each "
    "process has one thread and a part of the points. JAX is one process with a device for each "
    "rank. Dask has a block of the points for each thread. PyTorch runs in eager mode. einsql's "
    "inputs keep the placements of the previous run, so their movement is not counted.",
    sql={"The statement": NEAREST},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("NumPy", "mpi", by_numpy),
        Contestant("PyTorch", "torch", by_torch),
        Contestant("JAX", "jax", by_jax),
        Contestant("Dask", "dask", by_dask),
    ),
    inputs=inputs,
    reference=reference,
    reasons={
        "": "A product of 100,000 × 100 by 100 × 100 takes 16 to 17 ms by NumPy's BLAS alone on "
        "both cores; XLA has a product of its own. JAX has both devices in one process; einsql's "
        "ranks also wait for the driver's statement, which takes 0.7 ms without a product. Its "
        "1.2 ms of processor time are taken from the two cores of the ranks. With nothing else on "
        "the machine the ranks take 15.5 to 16.2 ms, one process 13.8 to 15.5.",
    },
)
