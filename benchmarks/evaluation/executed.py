"""Statements on virtual sites and on ranks: predicted bytes and memory beside measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

import einsql
from benchmarks.evaluation.experiment import Array, Cell

COLUMNS = (
    "", "sites", "cut by", "bytes predicted", "bytes measured", "memory predicted",
    "memory measured", "difference from NumPy",
)  # fmt: skip
UNITS = dict.fromkeys(
    ("bytes predicted", "bytes measured", "memory predicted", "memory measured"), "B"
)
NOTE = (
    "Bytes are the sum over the sites, memory is the peak of tiles at the worst site. The "
    "difference is the largest one, as a share of the answer's largest element."
)


@dataclass(frozen=True)
class Statement:
    """A query over tensors that are stored in a connection.

    Attributes:
        name: What it is called.
        sql: The query.
        arrays: The tensors by name, each with its keys.
        expected: The answer by NumPy in double precision.
        is_row: Whether the answer is a row of numbers instead of an array.
        cut: Tensors of which each site has a part, by the key that is cut. The others are where
            statements read them.
    """

    name: str
    sql: str
    arrays: Mapping[str, tuple[tuple[str, ...], Array]]
    expected: Callable[[Mapping[str, Array]], Array]
    is_row: bool = False
    cut: Mapping[str, str] = field(default_factory=dict)

    def answer(self, con: einsql.Connection) -> Array:
        """The answer by einsql."""
        cursor = con.execute(self.sql)
        if self.is_row:
            return np.array(cursor.fetchall()[0], np.float64)
        fetched: Array = cursor.fetch_numpy()
        return fetched


@contextmanager
def sites(number: int, ranks: bool) -> Iterator[einsql.Connection]:
    """A connection over virtual sites, or over as many ranks."""
    with einsql.connect(config={"mpi": number} if ranks else {"sites": number}) as con:
        yield con


def store(con: einsql.Connection, statement: Statement, number: int) -> None:
    """Stores the tensors of a statement at some sites."""
    for name, (keys, array) in statement.arrays.items():
        con.register("given", array, dims=keys)
        parts = f"PARTITION BY ({statement.cut[name]} {number})" if name in statement.cut else ""
        con.execute(f"CREATE TENSOR {name} {parts} AS SELECT {', '.join(keys)}, val FROM given")
        con.unregister("given")


def compared(
    statement: Statement, number: int, ranks: bool, strategies: Sequence[str], cost: str = "bytes"
) -> list[list[Cell]]:
    """A row of COLUMNS for each strategy that cuts the statement."""
    arrays = {n: a.astype(np.float64) for n, (_, a) in statement.arrays.items()}
    expected = statement.expected(arrays)
    rows: list[list[Cell]] = []
    with sites(number, ranks) as con:
        con.execute(f"SET cost = '{cost}'")
        store(con, statement, number)
        for strategy in strategies:
            con.execute(f"SET strategy = '{strategy}'")
            answer = statement.answer(con)
            planned = con.explain(statement.sql).to_dict()
            if planned["strategy"] != strategy:
                continue
            done = con.explain(statement.sql, analyze=True).to_dict()["per_site"]
            rows.append([
                statement.name, f"{number} {'ranks' if ranks else 'virtual sites'}", strategy,
                planned["total"]["bytes_sent"], sum(s["bytes_sent"] for s in done),
                planned["total"]["memory"], max(s["memory_measured"] for s in done),
                float(np.abs(answer - expected).max() / np.abs(expected).max()),
            ])  # fmt: skip
    return rows
