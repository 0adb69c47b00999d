"""E1 on ranks: chains of matrix products beside ScaLAPACK, DTensor, Dask, JAX and SUMMA by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Case, Contestant, Experiment, Prepared, Task

_SUM = """
SELECT ab.i, ab.j, ab.val + cde.val AS val
FROM ab JOIN cde ON ab.i = cde.i AND ab.j = cde.j
"""

PAIRWISE = f"""
WITH ab AS (
  SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM a JOIN b ON a.j = b.i GROUP BY a.i, b.j
), de AS (
  SELECT d.i, e.j, SUM(d.val * e.val) AS val FROM d JOIN e ON d.j = e.i GROUP BY d.i, e.j
), cde AS (
  SELECT c.i, de.j, SUM(c.val * de.val) AS val FROM c JOIN de ON c.j = de.i GROUP BY c.i, de.j
)
{_SUM}"""

THREE_WAY = f"""
WITH ab AS (
  SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM a JOIN b ON a.j = b.i GROUP BY a.i, b.j
), cde AS (
  SELECT c.i, e.j, SUM(c.val * d.val * e.val) AS val
  FROM c JOIN d ON c.j = d.i JOIN e ON d.j = e.i
  GROUP BY c.i, e.j
)
{_SUM}"""

KEPT = ", kept"
"""The end of JAX's ways whose result has the layout of A."""
LAYOUTS, LIKELY = 8, (0, 2, 3, 6, 7)
"""Layouts of the five inputs that einsql and Dask may take, and those that have been fastest."""


def cases(full: bool) -> list[Case]:
    """Square and skewed chains, on 1 and 2 ranks, and on 4 for bytes and memory."""
    sizes = ("", "-2000") if full else ("-2000",)
    return [
        Case(f"{shape}, {ranks} rank{'s' * (ranks > 1)}{size.replace('-', ', s = ')}",
             {"skewed": shape == "skewed", "small": size != ""}, ranks, ranks < 3)
        for size in sizes for shape in ("square", "skewed") for ranks in (1, 2, 4)
    ]  # fmt: skip


def workload(case: Case) -> str:
    """The name of a case's workload."""
    name = "skewed" if case.sizes["skewed"] else "square"
    return f"{name}-2000" if case.sizes["small"] else name


def write(case: Case, folder: Path) -> list[float]:
    """Writes the matrices; the checksum and the norm of the answer."""
    from benchmarks.ranks import workloads

    of = workloads.WORKLOADS[workload(case)]
    return [workloads.write(of, folder), workloads.norm(of)]


def program(name: str) -> Callable[[Case, str, Path], tuple[list[str], dict[str, str]]]:
    """The command of one of the systems of benchmarks/ranks."""

    def command(case: Case, way: str, folder: Path) -> tuple[list[str], dict[str, str]]:
        from benchmarks.ranks.peers import PEERS

        start = PEERS[name].command(case.ranks, way)
        asked = [workload(case), str(folder), str(case.ranks), way]
        return [*start, *asked], PEERS[name].environment()

    return command


def ways(name: str) -> Callable[[Case], Sequence[str]]:
    """The ways of one of the systems of benchmarks/ranks."""

    def of(case: Case) -> Sequence[str]:
        from benchmarks.ranks.peers import PEERS

        every = PEERS[name].options(workload(case), case.ranks)
        layouts = case.sizes["small"] and len(every) == LAYOUTS
        return [every[n] for n in LIKELY] if layouts else every

    return of


def by_jax(task: Task) -> Prepared:
    """Matrices sharded over as many devices as ranks; XLA's compiler places the exchanges."""
    import os

    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={task.ranks}"
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((task.ranks,), ("p",), axis_types=(AxisType.Auto,))
    layouts = {"r": PartitionSpec("p", None), "c": PartitionSpec(None, "p")}
    placed = {
        name: jax.device_put(task.load(name), NamedSharding(mesh, layouts[layout]))
        for name, layout in zip("abcde", task.way[:5], strict=True)
    }
    kept = {"out_shardings": NamedSharding(mesh, layouts[task.way[0]])}
    chain = jax.jit(
        lambda a, b, c, d, e: a @ b + c @ (d @ e), **(kept if task.way.endswith(KEPT) else {})
    )
    compiled = chain.lower(**placed).compile()

    def answer(result: Any) -> float:
        left, right = (np.load(task.folder / f"{side}.npy") for side in ("left", "right"))
        return float(left @ (np.asarray(result).astype(np.float64) @ right))

    return Prepared(lambda: compiled(**placed).block_until_ready(), answer)


def jax_ways(case: Case) -> Sequence[str]:
    """Layouts of A to E by rows or columns; the result's is the compiler's choice or A's."""
    layouts = ("rrrrr",) if case.ranks == 1 else ("rrrrr", "ccccc", "rrrcr", "crcrr")
    return [layout + result for layout in layouts for result in ("", KEPT)[: case.ranks]]


SYSTEMS = {
    "einsql": "einsql", "SUMMA by hand": "mpi", "ScaLAPACK": "scalapack", "DTensor": "torch",
    "Dask": "dask", "bound": "mpi",
}  # fmt: skip

EXPERIMENT = Experiment(
    title="E1: chains of matrix products on ranks",
    source="EinDecomp §9, experiment 1",
    about="(A·B) + (C·(D·E)) in FLOAT. Square: all matrices are s × s. Skewed: A and C are s × "
    "s/10, B is s/10 × s, D is s/10 × 10s, E is 10s × s. Each rank is a process of one thread; "
    "JAX is one process with a device for each rank. DTensor runs in eager mode. Each system has "
    "one copy of the inputs, in the layout that is fastest for it, and the fastest of its "
    "algorithms; the result stays where it is made. `bound` is the multiplications alone.",
    sql={"The statement": PAIRWISE},
    cases=cases,
    contestants=(
        *(
            Contestant(name, peer, program=program(name), ways=ways(name), bound=name == "bound")
            for name, peer in SYSTEMS.items()
        ),
        Contestant("JAX", "jax", by_jax, jax_ways),
    ),
    write=write,
)
