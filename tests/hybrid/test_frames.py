"""DataFrames and Arrow tables that are registered: tables of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import einsql

COLUMNS = {"i": [0, 1, 1], "y": [1.5, 2.0, None], "name": ["a", "b", None]}
KINDS = (pd.DataFrame, pl.DataFrame, pa.table)


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect()
    made.register("x", np.array([10.0, 20.0]), dims=("i",))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_a_table_of_its_rows(con: einsql.Connection, kind: Any) -> None:
    con.register("t", kind(COLUMNS))
    found = con.execute("SELECT * FROM t").fetchall()
    assert [(i, name) for i, _, name in found] == [(0, "a"), (1, "b"), (1, None)]
    joined = "SELECT x.i, SUM(x.val * t.y) AS s FROM x JOIN t ON t.i = x.i GROUP BY x.i"
    assert con.execute(f"{joined} ORDER BY x.i").fetchall() == [(0, 15.0), (1, 40.0)]
    con.register("t", kind({"i": [1], "y": [0.25]}))
    assert con.execute(f"{joined} ORDER BY x.i").fetchall() == [(1, 5.0)]
    con.execute("CREATE TENSOR w AS SELECT i, y AS val FROM t")
    assert con.execute("SELECT * FROM w").fetchall() == [(1, 0.25)]
    con.unregister("t")
    with pytest.raises(einsql.ProgrammingError):
        con.execute("SELECT * FROM t")
    with pytest.raises(einsql.ProgrammingError, match="registered"):
        con.unregister("t")


def test_names_that_are_taken(con: einsql.Connection) -> None:
    frame = pd.DataFrame({"i": [0], "y": [1.5]})
    con.register("x", frame)  # as another array would, it takes an array's place
    assert con.execute("SELECT * FROM x").fetchall() == [(0, 1.5)]
    con.execute("CREATE TABLE t (i INTEGER)")
    con.execute("CREATE TENSOR w AS SELECT 1.5::DOUBLE AS val")
    con.execute("CREATE VIEW v AS SELECT * FROM w")
    for name in ("t", "w", "v"):
        with pytest.raises(einsql.ProgrammingError, match=name):
            con.register(name, frame)
    con.unregister("x")
    con.execute("CREATE TABLE x (i INTEGER)")
    with pytest.raises(einsql.ProgrammingError, match="x"):
        con.register("x", frame)


def test_with_dims_it_is_a_matrix_and_a_series_is_a_vector(con: einsql.Connection) -> None:
    con.register("m", pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), dims=("r", "c"))
    assert con.execute("SELECT r, c, val FROM m").fetch_numpy().tolist() == [[1, 3], [2, 4]]
    con.register("s", pd.Series([1.0, 2.0]))
    assert con.execute("SELECT SUM(val) FROM s").fetchall() == [(3.0,)]


def test_a_frame_is_no_part_of_a_file(tmp_path: Any) -> None:
    path = str(tmp_path / "model.db")
    with einsql.connect(path) as con:
        con.register("t", pd.DataFrame({"i": [0]}))
    with einsql.connect(path, read_only=True) as con:
        with pytest.raises(einsql.ProgrammingError):
            con.execute("SELECT * FROM t")
        con.register("t", pd.DataFrame({"i": [7]}))
        assert con.execute("SELECT * FROM t").fetchall() == [(7,)]
