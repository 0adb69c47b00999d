"""T1: a product of matrices on ranks, and the schedules of the thesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

N = 2048
PRODUCT = (
    "SELECT {hint}a.i, b.k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY a.i, b.k"
)
SCHEDULES = {
    "rows (n,1,1)": ("i={n}", "a=i:{n} b=j:{n}"),
    "summed key (1,n,1)": ("j={n}", "a=j:{n} b=j:{n}"),
    "columns (1,1,n)": ("k={n}", "a=i:{n} b=k:{n}"),
}
"""Cuts of the iteration space (i, j, k), and how the inputs lie."""
LAID = {"rows": (0, 0), "sums": (1, 0), "columns": (0, 1)}
"""The cut axes of A and B in the same layouts, of DTensor and JAX."""
KEPT = ", kept"
"""The end of JAX's ways whose result is cut as the product is."""
CUBE = "einsql, cube (∛n,∛n,∛n)"


def cases(full: bool) -> list[Case]:
    """One and two ranks for times, four and eight for bytes; eight alone are a cube."""
    n = 2 * N if full else N
    schedules = tuple(f"einsql, {name}" for name in SCHEDULES)
    usual = ("einsql", *schedules, "DTensor", "JAX", "bound")
    return [
        Case(f"{n}², {ranks} rank{'s' * (ranks > 1)}", {"n": n}, ranks, ranks < 3,
             ("einsql", *schedules, CUBE) if ranks == 8 else usual)
        for ranks in (1, 2, 4, 8)
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """Two matrices."""
    shape = case.sizes["n"], case.sizes["n"]
    return {
        name: np.random.default_rng(ord(name)).standard_normal(shape, dtype=np.float32)
        for name in "ab"
    }


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's."""
    found: Array = given["a"].astype(np.float64) @ given["b"]
    return found


def by_einsql(hint: str = "") -> Callable[[Task], Prepared]:
    """einsql, with a schedule or with its own choice."""

    def prepare(task: Task) -> Prepared:
        from benchmarks.evaluation.on_ranks import connected, sent_bytes

        con = connected(task, {"a": ("i", "j"), "b": ("j", "k")})
        side = round(task.ranks ** (1 / 3))
        cuts = hint.format(n=task.ranks, side=side)
        sql = PRODUCT.format(hint=f"/*+ PARTITION({cuts}) */ " if cuts else "")
        return Prepared(
            lambda: con.execute(sql),
            lambda result: result.fetch_numpy(),
            details=lambda: {"sent_bytes": sent_bytes(con, sql)},
        )

    return prepare


def only(layout: str) -> Callable[[Case], tuple[str, ...]]:
    """One layout of the inputs."""
    return lambda case: (layout.format(n=case.ranks),)


def layouts(case: Case) -> tuple[str, ...]:
    """One copy of the inputs by rows or by columns."""
    return tuple(layout.format(n=case.ranks) for _, layout in SCHEDULES.values())


def by_dtensor(task: Task) -> Prepared:
    """PyTorch's DTensor: rows of A beside all of B, columns of B beside all of A, or sums."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (task.ranks,))
    n, me = task.size["n"], task.world.rank
    part = slice(n * me // task.ranks, n * (me + 1) // task.ranks)
    kinds = dict(zip("ab", LAID[task.way], strict=True))

    def placed(name: str) -> Any:
        where = (part,) if kinds[name] == 0 else (slice(None), part)
        local = torch.from_numpy(task.load(name, *where))
        return DTensor.from_local(local, mesh, (Shard(kinds[name]),))

    a, b = map(placed, "ab")

    def run() -> Any:
        if task.way == "rows":
            return a @ b.redistribute(placements=(Replicate(),))
        if task.way == "columns":
            return a.redistribute(placements=(Replicate(),)) @ b
        return (a @ b).redistribute(placements=(Shard(0),))

    return Prepared(run, lambda result: result.full_tensor().numpy())


def by_jax(task: Task) -> Prepared:
    """JAX on as many devices as ranks; XLA's compiler places the exchanges."""
    import os

    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={task.ranks}"
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((task.ranks,), ("p",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("p", None), PartitionSpec(None, "p")
    rows, columns = (NamedSharding(mesh, spec) for spec in specs)
    layout = task.way.removesuffix(KEPT)
    a, b = (
        jax.device_put(task.load(name), (rows, columns)[axis])
        for name, axis in zip("ab", LAID[layout], strict=True)
    )
    kept = {"out_shardings": columns if layout == "columns" else rows}
    product = jax.jit(lambda x, y: x @ y, **(kept if task.way.endswith(KEPT) else {}))
    return Prepared(lambda: product(a, b).block_until_ready(), lambda result: np.asarray(result))


def by_numpy(task: Task) -> Prepared:
    """The multiplication alone: NumPy's product of a share of the rows."""
    n, me = task.size["n"], task.world.rank
    part = slice(n * me // task.ranks, n * (me + 1) // task.ranks)
    a, b = task.load("a", part), task.load("b")
    return Prepared(lambda: a @ b, lambda result: float("nan"))


def dtensor_ways(case: Case) -> list[str]:
    """The layouts of the inputs."""
    return ["rows"] if case.ranks == 1 else list(LAID)


def jax_ways(case: Case) -> list[str]:
    """The layouts of the inputs; the result's is the compiler's choice or the expected one."""
    return [way + kept for way in dtensor_ways(case) for kept in ("", KEPT)[: case.ranks]]


EXPERIMENT = Experiment(
    title="T1: a product of matrices on ranks, under every schedule",
    source="TRA, matrix multiplication; the thesis, schedules of matmul",
    about="One product in FLOAT. Each rank is a process of one thread, and the inputs have one "
    "copy over all ranks, in any of the three layouts that the schedules have. The result stays "
    "where it is made. JAX is one process with a device for each rank. DTensor runs in eager "
    "mode. Columns named after a schedule are einsql with that cut of the iteration space (i, j, "
    "k) and the inputs beside it; `einsql` has its own choice of the cut. `bound` is the "
    "multiplication alone. At eight ranks only bytes are of interest.",
    sql={"The statement": PRODUCT.format(hint="")},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql(), ways=layouts),
        *(
            Contestant(f"einsql, {name}", prepare=by_einsql(hint), ways=only(layout))
            for name, (hint, layout) in SCHEDULES.items()
        ),
        Contestant(CUBE,
                   prepare=by_einsql("i={side}, j={side}, k={side}"), ways=layouts),
        Contestant("DTensor", "torch", by_dtensor, dtensor_ways, "torchrun"),
        Contestant("JAX", "jax", by_jax, jax_ways),
        Contestant("bound", "mpi", by_numpy, launch="mpi", bound=True),
    ),
    inputs=inputs,
    reference=reference,
)  # fmt: skip
