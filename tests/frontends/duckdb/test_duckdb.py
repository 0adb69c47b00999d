"""einsql.attach: functions of tiles in real DuckDB, beside NumPy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.core.schema import DType
from einsql.frontends.duckdb import kernels
from einsql.frontends.duckdb.functions import NAMES, register
from einsql.ir.einsum.graph import EinSum
from einsql.sql.functions.tile_functions import FUNCTIONS
from tests.support.samples import sample, spread

ROOT = Path(__file__).parents[3]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        yield made


@pytest.fixture
def attached(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    einsql.attach(con)
    return con


def array(tile: dict[str, Any]) -> np.ndarray:
    return np.array(tile["data"]).reshape(tile["shape"])


def one(con: duckdb.DuckDBPyConnection, sql: str) -> Any:
    found = con.sql(sql).fetchall()
    assert len(found) == 1
    return array(found[0][0]) if isinstance(found[0][0], dict) else found[0][0]


A, B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, -6.0], [7.0, 8.0]])
FORMS = {
    "lists": "[[1, 2], [3, 4]]",
    "decimals": "[[1.0, 2.0], [3.0, 4.0]]",
    "an array": "[[1, 2], [3, 4]]::FLOAT[2][2]",
    "a list of arrays": "[[1, 2], [3, 4]]::TINYINT[2][]",
    "a struct": "{'shape': [2, 2], 'data': [1, 2, 3, 4]}",
    "a struct the other way round": "{'data': [1.0, 2, 3, 4]::FLOAT[4], 'shape': [2, 2]}",
    "a tile": "tensor_of([1, 2, 3, 4], [2, 2])",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_a_tile_is_read(attached: duckdb.DuckDBPyConnection, form: str) -> None:
    b = "[[5.0, -6.0], [7.0, 8.0]]"
    assert np.array_equal(one(attached, f"SELECT tensor_einsum('ij,jk->ik', {form}, {b})"), A @ B)
    assert np.array_equal(one(attached, f"SELECT tensor_transpose({form})"), A.T)


CALLS = {
    "tensor_add(a, b)": A + B,
    "tensor_sub(a, 1)": A - 1,
    "tensor_mul(2.5, b)": 2.5 * B,
    "tensor_exp(a)": np.exp(A),
    "tensor_relu(b)": np.maximum(B, 0),
    "tensor_sigmoid(a)": 1 / (1 + np.exp(-A)),
    "tensor_greatest(a, b)": np.maximum(A, B),
    "tensor_diag(b)": np.diag(B),
    "tensor_lt(b, a)": (B < A).astype(float),
    "tensor_einsum('ij,ij->', a, b)": (A * B).sum(),
    "tensor_einsum('ij,jk->ik', a, b, 'add', 'min')": (A[:, :, None] + B).min(axis=1),
    "tensor_value(tensor_einsum('ij->', b))": B.sum(),
    "tensor_sum([a, b])": A + B,
    "tensor_min(list_value(tensor_of(a), tensor_of(b)))": np.minimum(A, B),
    "tensor_product([a, b, b])": A * B * B,
    "tensor_and([[true, false], [true, true]])": np.array([1.0, 0.0]),
    "tensor_and([true, false], true)": np.array([1.0, 0.0]),
    "tensor_stack([a, b], 0)": np.concatenate([A, B]),
    "tensor_stack([a, b], 1)": np.concatenate([A, B], axis=1),
    "tensor_of(a, [4])": A.reshape(4),
    "tensor_of([]::FLOAT[])": np.zeros(0),
    "tensor_einsum('ij->', tensor_of([]::FLOAT[], [0, 3]))": 0.0,
}


@pytest.mark.parametrize("call", spread(CALLS, 9))
def test_functions_give_what_numpy_gives(attached: duckdb.DuckDBPyConnection, call: str) -> None:
    row = "SELECT [[1.0, 2.0], [3.0, 4.0]]::DOUBLE[][] AS a, [[5.0, -6.0], [7.0, 8.0]] AS b"
    found = one(attached, f"SELECT {call} FROM ({row})")
    np.testing.assert_allclose(found, CALLS[call], rtol=1e-14)
    assert np.shape(found) == np.shape(CALLS[call])


def test_every_function_of_sql_over_tiles_is_there(attached: duckdb.DuckDBPyConnection) -> None:
    there = attached.sql("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    assert {name for (name,) in there} >= {*FUNCTIONS, *NAMES}


WRONG = {
    "tensor_einsum('ij,jk->ik', [[1, 2]], [[1, 2]])": "shape [1, 2] and [1, 2] do not fit",
    "tensor_einsum('ij,jk->ik', [[1, 2]])": "has 2 operands, but 1 are given",
    "tensor_einsum([1], [2])": "needs its notation as text first",
    "tensor_einsum('i->i', [1], 'no', 'sum')": "combines by no",
    "tensor_add([1], [1, 2])": "an axis has 1 element in one and 2 in the other",
    "tensor_add([[1]], [1])": "rank 1 and 2",
    "tensor_add([1])": "tensor_add takes 2 arguments, not 1",
    "tensor_exp([[1, 2], [3]])": "its lists differ in length",
    "tensor_exp([1, NULL])": "holds NULL",
    "tensor_exp('a')": "elements of type string",
    "tensor_exp({'shape': [3], 'data': [1, 2]})": "has the shape [3] and 2 elements",
    "tensor_exp({'shape': [-1], 'data': [1, 2]})": "negative",
    "tensor_exp({'shape': [0, 1099511627776], 'data': []::FLOAT[]})": "beyond INTEGER",
    "tensor_einsum('i,j->ij', range(399999), range(399999))": "not enough memory",
    "tensor_exp({'a': 1})": "is no tile",
    "tensor_mul([9223372036854775807], 2)": "Overflow in multiplication of BIGINT",
    "tensor_mul([9007199254740993], 1)": "beyond ±9007199254740992",
    "tensor_sum([{'shape': [1], 'data': [1]}, {'shape': [2], 'data': [1, 2]}])": "[1] and [2]",
    "tensor_sum(3)": "no list of tiles",
    "tensor_stack([[1], [2]], 1)": "side by side",
    "tensor_value([1])": "a tile without axes",
    "tensor_of([1, 2], [3])": "it has 2 elements",
}  # fmt: skip


@pytest.mark.parametrize("call", spread(WRONG, 9))
def test_mistakes_are_told(attached: duckdb.DuckDBPyConnection, call: str) -> None:
    with pytest.raises(duckdb.Error, match=re.escape(WRONG[call])) as told:
        attached.sql(f"SELECT {call} AS x").fetchall()
    assert "Error: " in str(told.value)
    assert "InternalError" not in str(told.value)


def test_null_gives_null(attached: duckdb.DuckDBPyConnection) -> None:
    rows = attached.sql("""
        SELECT i, tensor_add(v, v), tensor_value(tensor_einsum('i->', v)), tensor_add(NULL, v)
        FROM (SELECT i, CASE WHEN i % 3 > 0 THEN [i, 1.0] END AS v FROM range(5000) r(i))
        ORDER BY i""").fetchall()
    for i, twice, total, nothing in rows:
        assert twice == ({"shape": [2], "data": [2.0 * i, 2.0]} if i % 3 else None)
        assert total == (i + 1.0 if i % 3 else None)
        assert nothing is None
    merged = attached.sql("""
        SELECT tensor_sum(list(v)) FROM (VALUES (1, [1, 2]), (1, NULL), (2, NULL)) t(g, v)
        GROUP BY g ORDER BY g""").fetchall()
    assert merged == [({"shape": [2], "data": [1.0, 2.0]},), (None,)]


def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of first operands of kernels that run from now on."""
    sizes: list[int] = []
    run = kernels._run

    def noting(template: EinSum, arrays: list[np.ndarray]) -> np.ndarray:
        sizes.append(arrays[0].size)
        return run(template, arrays)

    monkeypatch.setattr(kernels, "_run", noting)
    return sizes


def test_shapes_and_notations_may_differ_from_row_to_row(
    attached: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = noted(monkeypatch)
    rows = attached.sql("""
        SELECT n, tensor_einsum(CASE WHEN n > 1 THEN 'ij,kj->ik' ELSE 'ij,ij->j' END, x, x)
        FROM (SELECT i, i % 3 + 1 AS n, tensor_of(range(i, i + 2 * n), [n, 2]) AS x
              FROM range(300) r(i)) ORDER BY i""").fetchall()
    for i, (n, tile) in enumerate(rows):
        x = (np.arange(2 * n) + i).reshape(n, 2)
        assert np.array_equal(array(tile), x @ x.T if n > 1 else (x * x).sum(axis=0))
    assert len(runs) <= 3 * 2  # rows of one shape run together, whatever DuckDB's chunks


def test_big_tiles_run_in_parts(
    attached: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = noted(monkeypatch)
    monkeypatch.setattr(kernels, "AT_ONCE", 10_000)
    ((total,),) = attached.sql("""
        SELECT sum(tensor_value(tensor_einsum('ij,ij->', x, x)))
        FROM (SELECT tensor_of(range(i - i, 1000), [10, 100]) AS x FROM range(3000) r(i))
        """).fetchall()
    assert total == 3000 * (np.arange(1000.0) ** 2).sum()
    assert len(sizes) >= 600
    assert max(sizes) <= 10_000


def test_many_rows_on_several_threads(attached: duckdb.DuckDBPyConnection) -> None:
    attached.execute("SET threads = 4")
    attached.execute(
        "CREATE TABLE e AS SELECT i, [i % 7, i % 11, 1]::FLOAT[3] AS v FROM range(300000) r(i)"
    )
    sql = "SELECT count(*), sum(tensor_value(tensor_einsum('i,i->', v, v))) FROM e"
    i = np.arange(300000)
    total = float(((i % 7) ** 2 + (i % 11) ** 2 + 1).sum())
    assert attached.sql(sql).fetchall() == [(300000, total)]


def test_tiles_are_stored_and_pass_through_arrow(attached: duckdb.DuckDBPyConnection) -> None:
    attached.execute("CREATE TABLE t AS SELECT tensor_of([[1, 2], [3, 4]]) AS x")
    attached.execute("INSERT INTO t VALUES ({'shape': [2, 1], 'data': [5, 6]}), (NULL)")
    stored = attached.sql("SELECT * FROM t").to_arrow_table()
    assert stored.schema.field("x").type.field("data").type.value_type == pa.float64()
    rows = attached.sql("SELECT tensor_einsum('ij->i', x) FROM stored").fetchall()
    assert [r and r["data"] for (r,) in rows] == [[3.0, 7.0], [5.0, 6.0], None]
    blocks = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    values = pa.FixedSizeListArray.from_arrays(pa.array(blocks.reshape(-1)), 4)
    given = pa.table({"x": pa.ExtensionArray.from_storage(kind, values)})  # noqa: F841 - named in SQL
    shaped = attached.sql("SELECT tensor_transpose(tensor_of(x, [2, 2])) FROM given").fetchall()
    assert np.array_equal([array(t) for (t,) in shaped], blocks.transpose(0, 2, 1))


def test_elements_may_be_float(con: duckdb.DuckDBPyConnection) -> None:
    einsql.attach(con, element="float")
    assert str(con.sql("SELECT tensor_exp([1]) AS x").types[0]).endswith("FLOAT[])")
    with pytest.raises(einsql.InterfaceError, match="FLOAT or DOUBLE"):
        einsql.attach(con, element="TEXT")
    with pytest.raises(einsql.ProgrammingError, match="attached already"):
        einsql.attach(con.cursor())


# ---- the connection


def test_cursors_share_the_functions(con: duckdb.DuckDBPyConnection) -> None:
    edb = einsql.attach(con)
    cursor = con.cursor()
    with einsql.attach(cursor) as other:
        assert other.sql("SELECT tensor_add([1], [1]).data[1] AS x").fetchall() == [(2.0,)]  # type: ignore[union-attr]  # a SELECT has rows
    assert cursor.sql("SELECT tensor_add([1], [1]).data[1] AS x").fetchall() == [(2.0,)]
    edb.close()
    with pytest.raises(duckdb.CatalogException):
        cursor.sql("SELECT tensor_add([1], [1])")


def test_the_last_attachment_of_a_connection_takes_the_functions_away(
    con: duckdb.DuckDBPyConnection,
) -> None:
    first, second = einsql.attach(con), einsql.attach(con)
    first.close()
    first.close()
    assert one(con, "SELECT tensor_value(tensor_of(3.0))") == 3
    second.close()
    with pytest.raises(duckdb.CatalogException):
        con.sql("SELECT tensor_value(tensor_of(3.0))")


def test_nothing_stays_in_the_database(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with duckdb.connect(path) as con, einsql.attach(con) as edb:
        con.execute("CREATE TABLE t AS SELECT i, i * 1.0 AS v FROM range(3) r(i)")
        edb.execute("CREATE TABLE s AS FROM einsql('SELECT i, EXP(v) AS e FROM t')")
    with duckdb.connect(path, read_only=True) as con:
        own = "database_name = 'a' AND NOT internal"
        assert con.sql(f"SELECT * FROM duckdb_functions() WHERE {own}").fetchall() == []
        assert con.sql("SHOW TABLES").fetchall() == [("s",), ("t",)]


def test_a_transaction_is_refused(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TABLE t AS SELECT 1 AS x")
    con.begin()
    con.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(einsql.InterfaceError, match="A transaction is running"):
        einsql.attach(con)
    con.commit()
    assert con.sql("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_a_name_that_is_taken_is_refused(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE MACRO tensor_add(a, b) AS a + b")
    with pytest.raises(einsql.ProgrammingError, match="has a macro named tensor_add already"):
        einsql.attach(con)
    con.execute("DROP MACRO tensor_add")
    assert register(con, DType.DOUBLE)


def test_other_things_are_no_connection() -> None:
    wrong: Any = einsql.connect()
    with pytest.raises(einsql.InterfaceError, match="attach takes a DuckDB connection"):
        einsql.attach(wrong)


EXITS = {
    "nothing is closed": "",
    "the relation was never scanned": "r = edb.sql(\"FROM einsql('SELECT 1 AS x')\")",
    "the connection is closed": "con.close()",
    "einsql is closed": "edb.close()",
    "both are": "con.close(); edb.close()",
    "a function has failed": """
try:
    con.sql("SELECT tensor_add([1], [1, 2])").fetchall()
except duckdb.Error as error:
    kept = error""",
}


@pytest.mark.parametrize("last", sample(["nothing is closed", "a function has failed"], EXITS))
def test_a_process_ends_without_a_word(last: str) -> None:
    program = f"""
import duckdb, einsql
con = duckdb.connect()
edb = einsql.attach(con)
first = edb.sql("SELECT tensor_add([1], [x]) FROM einsql('SELECT 1 AS x')")
assert len(first.fetchall()) == 1
{EXITS[last]}
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_einsql_imports_no_duckdb() -> None:
    program = "import sys, einsql; assert einsql.attach and 'duckdb' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
