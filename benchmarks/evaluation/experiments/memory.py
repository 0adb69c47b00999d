"""E4: a chain of products under limits of memory below its working set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import (
    Array,
    Case,
    Cell,
    Contestant,
    Experiment,
    Prepared,
    Table,
    Task,
)

N = 2400
MATRICES = 7
"""Matrices that the chain reads and makes: its working set."""
PARTS = {"2×": 16, "1×": 8, "1/2": 4, "1/4": 2, "1/8": 1}
"""Eighths of the working set."""
IDLE = 75_000_000
"""Bytes of a worker of Dask before it has data, measured, which its limit counts."""
SPILLS = {"target": 0.6, "spill": 0.7, "pause": 0.9}
"""Parts of the limit, beyond `IDLE`, at which Dask's worker writes to disk and starts no task."""
TIMES = 7
"""Runs on ranks whose median time is shown."""
KEYS = {"a": ("i", "j"), "b": ("j", "k"), "c": ("k", "l"), "d": ("l", "m")}
ON_RANKS = 1200
"""Rows of the matrices whose limits are tried on ranks."""
CHAIN = """
WITH ab AS (SELECT a.i, b.k, SUM(a.val * b.val) AS val
            FROM {a} JOIN {b} USING (j) GROUP BY a.i, b.k),
abc AS (SELECT ab.i, c.l, SUM(ab.val * c.val) AS val
        FROM ab JOIN {c} USING (k) GROUP BY ab.i, c.l)
SELECT abc.i, d.m, SUM(abc.val * d.val) AS val
FROM abc JOIN {d} USING (l) GROUP BY abc.i, d.m
"""


def over_files(folder: object) -> str:
    """The chain over the files in a directory."""
    named = {n: f"'{folder}/{n}.npy' AS {n}({', '.join(keys)})" for n, keys in KEYS.items()}
    return CHAIN.format(**named)


def cases(full: bool) -> list[Case]:
    """A limit each."""
    n = 4 * N if full else N
    return [
        Case(f"{name} the working set, {MATRICES * n * n * 4 * eighths // 8_000_000:,} MB",
             {"n": n, "limit": MATRICES * n * n * 4 * eighths // 8})
        for name, eighths in PARTS.items()
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """Four matrices."""
    shape = case.sizes["n"], case.sizes["n"]
    return {
        name: np.random.default_rng(ord(name)).standard_normal(shape, dtype=np.float32)
        for name in "abcd"
    }


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's."""
    a, b, c, d = (given[name].astype(np.float64) for name in "abcd")
    found: Array = a @ b @ c @ d
    return found


def by_einsql(task: Task) -> Prepared:
    """Einsql over the files, with memory_limit."""
    import einsql

    con = einsql.connect(config={"memory_limit": f"{task.size['limit']}B"})
    sql = over_files(task.folder)
    return Prepared(lambda: con.execute(sql).fetch_numpy(), lambda result: result)


def block_sizes(case: Case) -> list[str]:
    """The rows of Dask's blocks; an eighth took three times as long as a quarter or more."""
    n = case.sizes["n"]
    return [str(n // parts) for parts in ((2, 4, 8) if n > N else (2, 4))]


def loaded(file: Path, where: tuple[slice, slice]) -> Array:
    """A block of a file, in memory of its own."""
    return np.array(np.load(file, mmap_mode="r")[where], order="C")


def by_dask(task: Task) -> Prepared:
    """Dask on a worker that reads blocks of the files, spills to disk and has the limit."""
    import dask
    import dask.array as da
    from dask.distributed import Client, LocalCluster, wait

    most = task.size["limit"] + IDLE
    parts_of = {name: (IDLE + part * task.size["limit"]) / most for name, part in SPILLS.items()}
    limits = {**parts_of, "terminate": False}
    dask.config.set({f"distributed.worker.memory.{k}": v for k, v in limits.items()})
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=2, memory_limit=most, dashboard_address=None
    )
    client = Client(cluster)
    block = int(task.way)
    parts = [slice(k, k + block) for k in range(0, task.size["n"], block)]

    def matrix(name: str) -> Any:
        read = partial(dask.delayed(loaded, pure=False), task.folder / f"{name}.npy")
        shape = (block, block)
        rows = [[da.from_delayed(read((i, j)), shape, np.float32) for j in parts] for i in parts]
        return da.block(rows)

    a, b, c, d = map(matrix, "abcd")
    chain = a @ b @ c @ d

    def run() -> Any:
        result = chain.persist()
        wait(result)
        return result

    def between() -> None:
        while client.run_on_scheduler(tasks):  # a result that is dropped is released later
            time.sleep(0.01)

    return Prepared(run, lambda result: result.compute(), between)


def tasks(dask_scheduler: Any = None) -> int:
    """How many tasks Dask's scheduler knows."""
    return len(dask_scheduler.tasks)


def by_numpy(task: Task) -> Prepared:
    """NumPy over mapped files, with as much memory as it likes."""
    a, b, c, d = (np.load(task.folder / f"{name}.npy", mmap_mode="r") for name in "abcd")
    return Prepared(lambda: a @ b @ c @ d, lambda result: result)


def computed(full: bool) -> list[Table]:
    """The chain on ranks under site_memory: what a rank is predicted to need, and what it does."""
    import einsql

    n = ON_RANKS
    working = MATRICES * n * n * 4
    sql = CHAIN.format(**{name: name for name in KEYS})
    rows: list[tuple[Cell, ...]] = []
    for ranks in (2, 4):
        with einsql.connect(config={"mpi": ranks}) as con:
            for name, keys in KEYS.items():
                con.register("source", np.ones((n, n), np.float32), dims=keys)
                cut = f"PARTITION BY ({keys[0]} {ranks})"
                con.execute(f"CREATE TENSOR {name} {cut} AS SELECT * FROM source")
            for limit, eighths in PARTS.items():
                con.execute(f"SET site_memory = '{working * eighths // 8}B'")
                times = TIMES if ranks == 2 else 0
                rows.append((f"{limit} the working set, {ranks} ranks", *_site(con, sql, times)))
    columns = ("limit of a rank", "predicted", "measured", "sent", "time")
    note = (
        f"Matrices of {n}². Memory is that of the tiles of the rank that has most, its parts of "
        "the inputs included. A statement that fits no rank is refused before it runs, and its "
        f"cells are empty. The time is the median of {TIMES} runs. Four ranks on two cores have "
        "none."
    )
    units = {**dict.fromkeys(columns[1:], "B"), "time": "s"}
    return [Table("The chain on ranks under site_memory", columns, rows, units, note=note)]


def _site(con: Any, sql: str, times: int) -> tuple[Cell, ...]:
    """Memory, bytes and seconds of a statement, or nothing if it is refused."""
    from einsql.errors import Error

    try:
        sites = con.explain(sql, analyze=True).to_dict()["per_site"]
    except Error:
        return (None, None, None, None)
    memory = (max(site[key] for site in sites) for key in ("memory", "memory_measured"))
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        con.execute(sql)
        seconds.append(time.perf_counter() - begin)
    sent = sum(site["bytes_sent"] for site in sites)
    return (*memory, sent, median(seconds) if seconds else None)


EXPERIMENT = Experiment(
    title="E4: time under a limit of memory",
    source="EinDecomp §9, experiment 4",
    about="A·B·C·D in FLOAT over files of n × n. The working set is the seven matrices that are "
    "read and made. einsql has `memory_limit`, which counts neither the result that is fetched nor "
    "the mapped input files. Dask has a worker of two threads that reads blocks of the files, "
    "spills to disk and keeps the result. Its limit counts all of the worker's memory, and is "
    "larger by the 75 MB of an idle worker; spilling begins at 0.6 of the rest. Its blocks have "
    "n/2 or n/4 rows. The bound is NumPy without a limit.",
    sql={"The statement": over_files("data")},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("Dask", "dask", by_dask, block_sizes),
        Contestant("NumPy without a limit", "mpi", by_numpy, bound=True),
    ),
    inputs=inputs,
    reference=reference,
    computed=computed,
)
