"""Element rows in files: CSV, Parquet, Arrow and Matrix Market, there and back by COPY."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse
from pyarrow import csv, parquet

import einsql
from einsql.core.schema import DType
from einsql.storage.files import parquet as files_parquet
from einsql.storage.files.mapped import RegularFile
from tests.support.samples import combinations

TYPES = ["BOOLEAN", "TINYINT", "INTEGER", "BIGINT", "HALF", "BFLOAT16", "FLOAT", "DOUBLE"]
ROWS = ["csv", "tsv", "parquet", "arrow", "mtx"]


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> einsql.Connection:
    monkeypatch.chdir(tmp_path)
    return einsql.connect()


def option(suffix: str) -> str:
    return " (ROWS true)" if suffix == "arrow" else ""


def values(kind: str) -> np.ndarray:
    """Every corner of a type, as bits that are read as numbers."""
    dtype = DType[kind]
    if not dtype.is_float:
        lo, hi = (0, 1) if kind == "BOOLEAN" else dtype.range
        return np.array([[lo, hi, 0], [1, 0, hi]]).astype(dtype.numpy)
    plain = np.array([[0.1, -0.0, math.inf], [-math.inf, 1 / 3, 1e-3]])
    return plain.astype(dtype.carrier)


@pytest.mark.parametrize(("suffix", "kind"), combinations(ROWS, TYPES))
def test_rows_there_and_back(con: einsql.Connection, suffix: str, kind: str) -> None:
    given = values(kind)
    con.register("given", given, dims=("i", "j"))
    con.execute(f"CREATE TENSOR w AS SELECT i, j, CAST(val AS {kind}) AS val FROM given")
    for where in ("", " WHERE NOT (i = 1 AND j = 1)"):
        con.execute(f"CREATE OR REPLACE TENSOR v AS SELECT * FROM w{where}")
        rows = con.execute("SELECT i, j, val FROM v").fetchall()
        assert con.execute(f"COPY v TO 'f.{suffix}'{option(suffix)}").rowcount == len(rows)
        con.execute(f"CREATE OR REPLACE TENSOR r (i DIM(2), j DIM(3), val {kind})")
        assert con.execute(f"COPY r FROM 'f.{suffix}'").rowcount == len(rows)
        back = con.execute("SELECT i, j, val FROM r").fetchall()
        assert list(map(repr, back)) == list(map(repr, rows))
    assert os.listdir() == [f"f.{suffix}"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_floats_are_exact(con: einsql.Connection, suffix: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**63, 20_000).view(np.float64)
    con.register("d", bits, dims=("i",))
    con.register("f", bits.view(np.float32), dims=("i",))
    for name, kind in (("d", "DOUBLE"), ("f", "FLOAT")):
        size = len(con.execute(f"SELECT * FROM {name}").fetch_numpy())
        con.execute(f"COPY {name} TO 'a.{suffix}'{option(suffix)}")
        con.execute(f"CREATE TENSOR {name}r (i DIM({size}), val {kind})")
        con.execute(f"COPY {name}r FROM 'a.{suffix}'")
        found, given = (con.execute(f"SELECT * FROM {n}").fetch_numpy() for n in (name + "r", name))
        assert np.array_equal(found, given, equal_nan=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_several_values_and_any_order_of_columns(con: einsql.Connection, suffix: str) -> None:
    con.execute("""CREATE TENSOR w (i DIM(4), a FLOAT, b BOOLEAN, c BIGINT);
        INSERT INTO w VALUES (3, 0.5, TRUE, 7), (1, -1, FALSE, 9007199254740993)""")
    con.execute(f"COPY (SELECT c, b, i, a FROM w) TO 'f.{suffix}'{option(suffix)}")
    con.execute("CREATE TENSOR r (i DIM(4), a FLOAT, b BOOLEAN, c BIGINT)")
    con.execute(f"COPY r FROM 'f.{suffix}'")
    assert con.execute("SELECT * FROM r").fetchall() == con.execute("SELECT * FROM w").fetchall()


def test_other_libraries_read_what_is_written(con: einsql.Connection) -> None:
    con.register("x", np.arange(6.0).reshape(2, 3), dims=("i", "j"))
    for suffix in ("csv", "parquet", "mtx"):
        con.execute(f"COPY x TO 'f.{suffix}'")
    con.execute("COPY (SELECT * FROM x WHERE val > 3) TO 's.mtx'")
    table = csv.read_csv("f.csv")
    assert table.column_names == ["i", "j", "val"]
    assert table["val"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert parquet.read_table("f.parquet").num_rows == 6
    assert scipy.io.mmread("f.mtx").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert scipy.io.mmread("s.mtx").toarray().tolist() == [[0, 0, 0], [0, 4, 5]]


@pytest.mark.parametrize(
    ("form", "entries", "rows"),
    [
        ("coordinate real general", "2 3 2\n1 1 0.5\n2 3 -1", [(0, 0, 0.5), (1, 2, -1.0)]),
        ("coordinate pattern symmetric", "3 3 2\n2 1\n3 3", [(0, 1, 1), (1, 0, 1), (2, 2, 1)]),
        ("coordinate integer skew-symmetric", "2 2 1\n2 1 4", [(0, 1, -4), (1, 0, 4)]),
        ("array real symmetric", "2 2\n1\n2\n3", [(0, 0, 1), (0, 1, 2), (1, 0, 2), (1, 1, 3)]),
        ("array real skew-symmetric", "2 2\n3", [(0, 0, 0), (0, 1, -3), (1, 0, 3), (1, 1, 0)]),
    ],
)  # fmt: skip
def test_matrices_of_others(
    con: einsql.Connection, form: str, entries: str, rows: list[tuple[float, ...]]
) -> None:
    Path("m.mtx").write_text(f"%%MatrixMarket matrix {form}\n% a comment\n\n{entries}\n")
    assert con.execute("SELECT * FROM 'm.mtx' AS m(i, j)").fetchall() == rows
    con.execute("CREATE TENSOR d (i DIM(3), j DIM(3), val DOUBLE) DEFAULT 0; COPY d FROM 'm.mtx'")
    dense = con.execute("SELECT * FROM d").fetch_numpy()
    assert [(i, j, dense[i, j]) for i, j, _ in rows] == rows
    assert np.count_nonzero(dense) == sum(v != 0 for *_, v in rows)


def test_a_sparse_matrix_of_a_file_stays_sparse(con: einsql.Connection) -> None:
    m = scipy.sparse.random_array((100_000, 200_000), density=1e-7, rng=0)
    scipy.io.mmwrite("m.mtx", m)
    sql = "SELECT COUNT(*) AS n, SUM(val) AS s FROM 'm.mtx'"
    n, s = con.execute(sql).fetchall()[0]
    assert n == m.nnz
    assert s == pytest.approx(m.sum())
    pq = pa.table({"i": m.tocoo().coords[0], "j": m.tocoo().coords[1], "v": m.tocoo().data})
    parquet.write_table(pq, "m.parquet")
    assert con.execute("SELECT COUNT(v) FROM read_tensor('m.parquet')").fetchall() == [(m.nnz,)]


def test_rows_of_a_file_as_a_tensor(con: einsql.Connection) -> None:
    Path("f.csv").write_text("i,j,v,ok\n2,1,0.5,true\n0,3,2,false\n")
    assert con.execute("SELECT * FROM read_tensor('f.csv')").fetchall() == [
        (0, 3, 2.0, False), (2, 1, 0.5, True)
    ]  # fmt: skip
    assert con.execute("SELECT SUM(v) AS s FROM read_tensor('f.csv', 'v')").fetchall() == [(2.5,)]
    Path("f.csv").write_text("i,j,v,ok\n9,1,4,true\n")  # bounds are found anew
    assert con.execute("SELECT * FROM read_tensor('f.csv')").fetchall() == [(9, 1, 4, True)]
    Path("n.csv").write_text("i,v\n-3,1.5\n")
    assert con.execute("SELECT * FROM read_tensor('n.csv')").fetchall() == [(-3, 1.5)]


def test_files_of_rows_are_tables(con: einsql.Connection) -> None:
    """As DuckDB reads them: in their order, with duplicates, NULL and text."""
    con.register("x", np.arange(3.0), dims=("i",))
    con.execute("COPY x TO 'x.npy'; COPY x TO 'tensor.parquet' (TENSOR 'a')")
    table = pa.table({"i": [2, 2, 0], "val": [1.5, None, 3.0], "s": ["a", "b", None]})
    parquet.write_table(table, "d.parquet")
    con.execute("COPY (SELECT * FROM 'd.parquet') TO 'd.csv'")
    con.execute("COPY (SELECT * FROM 'd.parquet') TO 'd.tsv' (DELIMITER '\t')")
    con.execute("COPY (SELECT * FROM 'd.parquet') TO 'd.ndjson' (FORMAT json)")
    for name in ("d.csv", "d.tsv", "d.ndjson", "d.parquet", "d*.csv", "d*.parquet"):
        con.execute("SET fallback = on")
        want = [(2, 1.5, "a"), (2, None, "b"), (0, 3.0, None)]
        assert con.execute(f"SELECT * FROM '{name}'").fetchall() == want
        mixed = f"SELECT s, x.val FROM x JOIN '{name}' AS d ON d.i = x.i WHERE s IS NOT NULL"
        assert con.execute(f"{mixed} ORDER BY s").fetchall() == [("a", 2.0), ("b", 2.0)]
        con.execute("SET fallback = off")
        with pytest.raises(einsql.ProgrammingError, match="is a table") as caught:
            con.execute(f"SELECT SUM(val) AS s FROM '{name}'")
        assert "read_tensor" in caught.value.hint
    for name in ("x.npy", "tensor.parquet"):
        assert con.execute(f"SELECT SUM(val) AS s FROM '{name}' AS f(k, val)").fetchall() == [(3,)]
    con.execute("SET fallback = on")
    with pytest.raises(einsql.OperationalError, match=r"no file 'none\.parquet'"):
        con.execute("SELECT * FROM 'none.parquet'")
    con.execute('CREATE TABLE "v1.0" AS SELECT 1 AS a')
    assert con.execute('SELECT * FROM "v1.0"').fetchall() == [(1,)]


def test_patterns(con: einsql.Connection, tmp_path: Path) -> None:
    con.execute("CREATE TENSOR w (i DIM(6), val INTEGER)")
    for n in range(3):
        Path(f"part-{n}.csv").write_text(f"i,val\n{n},{n * 10}\n")
        con.execute(
            f"COPY (SELECT i + 3 + {n} AS i, val FROM read_tensor('part-0.csv')) TO 'p{n}.parquet'"
        )
    assert con.execute("COPY w FROM 'part-*.csv'").rowcount == 3
    assert con.execute("COPY w FROM 'p[0-9].parquet'").rowcount == 3
    assert con.execute("SELECT * FROM w").fetchall() == [
        (0, 0),
        (1, 10),
        (2, 20),
        (3, 0),
        (4, 0),
        (5, 0),
    ]
    assert con.execute("SELECT SUM(val) AS s FROM read_tensor('part-*.csv')").fetchall() == [(30,)]
    Path("[x].csv").write_text("i,val\n0,1\n")  # a file of the pattern's name is that file
    assert con.execute("SELECT * FROM read_tensor('[x].csv')").fetchall() == [(0, 1)]
    np.save("p1.npy", np.ones(3))
    Path("odd-1.csv").write_text("i,val\n5,1\n")
    Path("odd-2.csv").write_text("i,value\n5,1\n")
    outside = tmp_path.parent / "outside.csv"
    outside.write_text("i,val\n5,1\n")
    os.symlink(outside, "link-1.csv")
    assert con.execute("SELECT * FROM read_tensor('link-1.csv')").fetchall() == [
        (5, 1)
    ]  # it is named
    for pattern, reason in {
        "none-*.csv": "No file matches", "p*.npy": "pattern", "odd-*.csv": "has the columns",
        "link-*.csv": "leads out of",
    }.items():  # fmt: skip
        with pytest.raises(einsql.Error, match=reason):
            con.execute(f"SELECT * FROM read_tensor('{pattern}')")


WRONG = {
    "NULL for val, in its row 2": "i,j,val\n0,0,1\n0,1,\n",
    "NULL for i, in its row 1": "i,j,val\nNULL,0,1\n",
    "i = 2, which is out of bounds": "i,j,val\n1,2,3\n2,0,1\n",
    "j = -1, which is out of bounds": "i,j,val\n1,-1,3\n",
    r"\(i = 0, j = 1\) is twice": "i,j,val\n0,1,1\n0,2,1\n0,1,1\n",
    r"\(i = 1, j = 1\) of 'f.csv' exists in w": "i,j,val\n1,1,1\n",
    "no column j": "i,val\n0,1\n",
    "a column k too many": "i,j,k,val\n0,1,1,1\n",
    "no INTEGER for val, in its row 2: invalid value '-0.26'": "i,j,val\n0,0,3\n0,1,-0.26\n",
    "Expected 3 columns, got 2": "i,j,val\n0,1,1\n0,1\n",
    "two columns of the same name": "i,j,i\n0,1,1\n",
    "is empty": "",
    "invalid value '1.5'": "i,j,val\n0,1.5,2\n",
}


@pytest.mark.parametrize("reason", WRONG)
def test_wrong_rows_are_refused_and_change_nothing(con: einsql.Connection, reason: str) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), j DIM(3), val INTEGER); INSERT INTO w VALUES (1, 1, 5)")
    Path("f.csv").write_text(WRONG[reason])
    with pytest.raises(einsql.Error, match=reason) as caught:
        con.execute("COPY w FROM 'f.csv'")
    assert "f.csv" in caught.value.reason
    assert con.execute("SELECT * FROM w").fetchall() == [(1, 1, 5)]


def test_a_default_is_replaced_and_options_say_what_csv_is(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), val FLOAT) DEFAULT 4")
    Path("f.txt").write_text("1;2.5\n")
    con.execute("COPY w FROM 'f.txt' (FORMAT csv, DELIMITER ';', HEADER false)")
    assert con.execute("SELECT * FROM w").fetchall() == [(0, 4), (1, 2.5)]
    con.execute("COPY w TO 'g.txt' (FORMAT csv, DELIMITER '|', HEADER false)")
    assert Path("g.txt").read_text() == "0|4\n1|2.5\n"
    Path("v.csv").write_text("i,weight\n0,1\n")
    con.execute("COPY w FROM 'v.csv' (TENSOR 'weight')")
    assert con.execute("SELECT val FROM w WHERE i = 0").fetchall() == [(1.0,)]
    for sql, reason in {
        "COPY w FROM 'f.txt'": "no tensor file",
        "COPY w FROM 'f.txt' (FORMAT exe)": "no format",
        "COPY w TO 'f.csv' (DELIMITER 'ab')": "one character",
        "COPY w TO 'f.csv' (HEADER maybe)": "true or false",
        "COPY w TO 'f.npy' (ROWS true)": "cannot hold rows",
        "COPY w TO 'f.csv' (TENSOR 'x')": "no names",
        "COPY w FROM 'v.csv' (ROWS true)": "ROWS is for",
        "COPY w TO 'f.gguf'": "no tensor file einsql writes",
        "COPY w TO 'f.mtx'": "holds a matrix",
        "COPY w TO 'f.csv' (SPEED 9)": "no option",
    }.items():
        with pytest.raises(einsql.Error, match=reason):
            con.execute(sql)


@pytest.mark.parametrize("suffix", ROWS)
def test_no_rows(con: einsql.Connection, suffix: str) -> None:
    con.register("x", np.arange(6.0).reshape(2, 3), dims=("i", "j"))
    empty = "COPY (SELECT * FROM x WHERE val > 9) TO"
    assert con.execute(f"{empty} 'f.{suffix}'{option(suffix)}").rowcount == 0
    con.execute("CREATE TENSOR r (i DIM(2), j DIM(3), val DOUBLE)")
    assert con.execute(f"COPY r FROM 'f.{suffix}'").rowcount == 0
    assert con.execute(f"SELECT * FROM 'f.{suffix}'").fetchall() == []


def test_rows_are_a_bag_and_may_be_null(con: einsql.Connection) -> None:
    con.register("x", np.arange(3), dims=("i",))
    con.execute("COPY (SELECT NULLIF(val, 1) AS v FROM x) TO 'f.csv'")
    assert Path("f.csv").read_text() == '"v"\n0\n\n2\n'


def test_interrupts_and_progress(con: einsql.Connection) -> None:
    con.register("x", np.arange(2.0**20), dims=("i",))
    con.execute("CREATE TENSOR r (i DIM(1048576), val DOUBLE)")
    seen: list[float] = []
    con.progress = seen.append
    for suffix in ("csv", "parquet", "npy", "npz"):
        for sql in (f"COPY x TO 'f.{suffix}'", f"COPY r FROM 'f.{suffix}'; DELETE FROM r"):
            seen.clear()
            con.execute(sql)
            assert seen
            assert max(seen) <= 1
    con.progress = lambda fraction: con.interrupt()
    for sql in ("COPY r FROM 'f.csv'", "COPY x TO 'g.csv'", "COPY x TO 'g.parquet'"):
        with pytest.raises(einsql.OperationalError, match="cancelled"):
            con.execute(sql)
    con.progress = None
    assert con.execute("SELECT COUNT(val) FROM r").fetchall() == [(0,)]
    assert not list(Path().glob("g*"))


def test_a_key_without_a_successor_is_refused(con: einsql.Connection) -> None:
    Path("most.csv").write_text(f"i,val\n{2**63 - 1},1.5\n")
    with pytest.raises(einsql.DataError, match="keys span"):
        con.execute("SELECT * FROM read_tensor('most.csv')")


def test_a_statement_reads_a_footer_once(
    con: einsql.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settled.parquet"
    parquet.write_table(pa.table({"i": [0, 1], "val": [1.0, 2.0]}), path)
    before = path.stat().st_mtime_ns - 10**10
    os.utime(path, ns=(before, before))
    real, opened = files_parquet.opened, []

    def counted(file: RegularFile) -> parquet.ParquetFile:
        opened.append(file)
        return real(file)

    monkeypatch.setattr(files_parquet, "opened", counted)
    assert con.execute("SELECT SUM(val) FROM 'settled.parquet'").fetchall() == [(3.0,)]
    assert len(opened) == 1
    # One that was changed is read again; a tensor now, and no table.
    con.execute("CREATE TENSOR t (i DIM(2), val FLOAT) DEFAULT 5")
    con.execute("COPY t TO 'settled.parquet'")
    assert con.execute("SELECT SUM(val) FROM 'settled.parquet' AS s(i)").fetchall() == [(10.0,)]
