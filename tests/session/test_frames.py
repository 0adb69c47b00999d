"""pandas, polars and PyTorch, by themselves, on einsql's connections and cursors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import einsql

SUMS = """
    SELECT name, SUM(x.val) AS total FROM x JOIN label ON x.i = label.row
    GROUP BY name ORDER BY total"""
"""Of tensors and tables, with a text column that has a NULL."""

ABOVE = "SELECT i, j, val FROM x WHERE val > ?"
"""Of tensors alone."""


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        made.execute("""CREATE TENSOR x AS SELECT i, j, (3 * i + j)::DOUBLE AS val
                        FROM range(2) AS r(i), range(3) AS s(j)""")
        made.execute("CREATE TABLE label (row BIGINT, name VARCHAR)")
        made.execute("INSERT INTO label VALUES (0, 'a'), (1, NULL)")
        yield made


@pytest.mark.filterwarnings("ignore:pandas only supports SQLAlchemy:UserWarning")
def test_pandas_reads_and_writes(con: einsql.Connection) -> None:
    pd = pytest.importorskip("pandas")
    totals = pd.read_sql(SUMS, con)
    assert totals.to_dict("list") == {"name": ["a", totals.name[1]], "total": [3.0, 12.0]}
    assert totals.name.isna().tolist() == [False, True]
    assert pd.read_sql(ABOVE, con, params=[3.5]).val.tolist() == [4.0, 5.0]
    assert con.execute(SUMS).fetch_df().equals(totals)
    # pandas takes any connection for SQLite's; DuckDB has what it asks for.
    made = pd.DataFrame({"row": [0, 1], "weight": [0.5, None], "name": ["a", None]})
    assert made.to_sql("made", con, index=False) == 2
    assert con.execute("SELECT * FROM made").fetchall() == [(0, 0.5, "a"), (1, None, None)]


def test_polars_reads(con: einsql.Connection) -> None:
    pl = pytest.importorskip("polars")
    expected = pl.DataFrame({"name": ["a", None], "total": [3.0, 12.0]})
    assert pl.read_database(SUMS, con).equals(expected)
    assert pl.DataFrame(con.execute(SUMS)).equals(expected)
    assert pl.from_arrow(con.execute(SUMS).fetch_arrow_table()).equals(expected)
    above = pl.read_database(ABOVE, con, execute_options={"parameters": [3.5]})
    assert above.to_dict(as_series=False) == {"i": [1, 1], "j": [1, 2], "val": [4.0, 5.0]}
    assert pl.DataFrame(con.execute("SHOW TENSORS"))["keys"].to_list() == ["i:2, j:3"]


def test_duckdbs_names_of_frames(con: einsql.Connection) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = con.execute(SUMS).fetch_df()
    assert con.sql(SUMS).df().equals(frame)
    assert con.cursor().execute(SUMS).fetchdf().equals(frame)
    assert con.sql(SUMS).pl().equals(pl.DataFrame(con.execute(SUMS)))
    assert con.sql(ABOVE, params=[3.5]).df().val.tolist() == [4.0, 5.0]
    mine = np.array([1.0, 2.0])
    assert con.sql("SELECT SUM(val) AS s FROM mine").df().equals(pd.DataFrame({"s": [3.0]}))
    assert con.executemany("INSERT INTO label VALUES (?, ?)", [(2, "c"), (3, "d")]).rowcount == 2
    with pytest.raises(einsql.InterfaceError, match="no results"):
        con.sql("SET sites = 1").pl()
    del mine


@pytest.mark.parametrize(("ask", "package"), [("df", "pandas"), ("fetchdf", "pandas"),
                                              ("pl", "polars")])  # fmt: skip
def test_a_missing_package_is_named(
    ask: str, package: str, con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(einsql.InterfaceError, match=f"needs {package}") as caught:
        getattr(con.execute(SUMS), ask)()
    assert f"pip install {package}" in caught.value.hint


def test_arrow_streams_out(con: einsql.Connection) -> None:
    for sql in (SUMS, ABOVE.replace("?", "3.5"), "SHOW TENSORS"):
        cur = con.execute(sql)
        assert pa.table(cur).equals(cur.fetch_arrow_table())


def test_arrays_go_out_without_a_copy(con: einsql.Connection) -> None:
    torch: Any = pytest.importorskip("torch")
    made = con.execute("SELECT i, j, val * 2 AS val FROM x").fetch_numpy()
    given = torch.from_dlpack(made)
    assert given.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert given.data_ptr() == made.ctypes.data
    con.register("y", given, dims=("i", "j"))
    back = torch.from_dlpack(con.execute("SELECT i, j, val FROM y").fetch_numpy())
    assert back.data_ptr() == given.data_ptr()
    # What the database keeps is not for others to change.
    kept = con.execute("SELECT i, j, val FROM x").fetch_numpy()
    assert not kept.flags.writeable
    assert np.from_dlpack(kept).ctypes.data == kept.ctypes.data
    assert torch.tensor(kept).tolist() == kept.tolist()


def test_integers_and_truths_with_nulls_keep_their_digits(con: einsql.Connection) -> None:
    pd = pytest.importorskip("pandas")
    con.register("b", np.array([2**53 + 1, -5, 7]), dims=("i",))
    frame = con.execute(
        "SELECT CASE WHEN i < 2 THEN val END AS v, CASE WHEN i < 2 THEN val > 0 END AS t FROM b"
    ).fetch_df()
    assert frame.v.tolist() == [2**53 + 1, -5, pd.NA]
    assert frame.t.tolist() == [True, False, pd.NA]


def test_nulls_of_arrays_are_refused(con: einsql.Connection) -> None:
    pd = pytest.importorskip("pandas")
    for array in (pa.chunked_array([[1, None, 3]]), pd.Series([1, None], dtype="Int64")):
        with pytest.raises(einsql.InterfaceError, match="1 NULL"):
            con.register("r", array)
    con.register("r", pd.Series([1.0, np.nan]))
    assert con.execute("SELECT COUNT(val) FROM r").fetchone() == (2,)


def test_tiles_have_one_column_for_each_name(con: einsql.Connection) -> None:
    cursor = con.execute("SELECT i, j, val AS a, val * 2 AS a FROM x")
    with pytest.raises(einsql.InterfaceError, match="Two columns are named a"):
        cursor.fetch_tiles()


def test_half_in_scipy_and_in_relations(con: einsql.Connection) -> None:
    con.register("h", np.array([[1.5, 0.0], [0.0, 2.5]], np.float16), dims=("i", "j"))
    assert con.execute("SELECT i, j, val FROM h").fetch_scipy().dtype == np.float32
    relation = con.sql("SELECT i, val FROM h WHERE i = j")
    assert relation.union(relation).fetchall() == [(0, 1.5), (1, 2.5)] * 2
