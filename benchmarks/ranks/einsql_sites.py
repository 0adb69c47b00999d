"""einsql's sites on MPI ranks.

The option says how every input is partitioned, in order, one copy of it over all sites: `2x1`
are two parts of the rows and one of the columns. The statement is the one of the other
benchmarks, and its result stays where it is made until it is checked.
"""

from __future__ import annotations

import einsql
from benchmarks.evaluation.experiments.chains import PAIRWISE
from benchmarks.matrices import MATMUL
from benchmarks.ranks.protocol import Task, serve, task


def statement(asked: Task) -> str:
    """The workload in SQL."""
    return MATMUL if asked.name == "matmul" else PAIRWISE


def stored(asked: Task) -> einsql.Connection:
    """A connection whose ranks have the inputs."""
    con = einsql.connect(config={"mpi": asked.ranks})
    for name, cut in zip(asked.workload.shapes, asked.option.split("_"), strict=True):
        rows, columns = cut.split("x")
        con.execute(
            f"CREATE TENSOR {name} PARTITION BY (i {rows}, j {columns}) AS "
            f"SELECT i, j, val FROM '{asked.folder / name}.npy' AS x(i, j)"
        )
    return con


def main() -> None:
    asked = task()
    with stored(asked) as con:
        sql = statement(asked)
        kept: list[einsql.Cursor] = []

        def run() -> None:
            kept.append(con.execute(sql))

        def sent() -> dict[str, int]:
            plan = con.explain(sql, analyze=True).to_dict()
            return {"sent_bytes": sum(site["bytes_sent"] for site in plan["per_site"])}

        serve(
            run,
            lambda: asked.checksum(kept[0].fetch_numpy(), 0, 0),
            between=kept.clear,
            details=sent,
        )


if __name__ == "__main__":
    main()
