"""Storage never changes an answer: the same rows stored dense, sparsely and in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.kernels import registry
from tests.support.samples import spread

ROWS, COLUMNS = 13, 17


Rows = list[tuple[int, int, float]]


def rows() -> Rows:
    """A third of the elements, with an empty row and column, stored zeros, NaN and infinity."""
    rng = np.random.default_rng(3)
    kept = rng.random((ROWS, COLUMNS)) < 0.3
    kept[2], kept[:, 7] = False, False
    i, j = np.nonzero(kept)
    values = rng.integers(-4, 5, len(i)) / 2
    values[[3, 11]], values[20] = np.nan, np.inf
    order = rng.permutation(len(i))
    listed = (array[order].tolist() for array in (i, j, values))
    return list(zip(*listed, strict=True))


STATEMENTS = (
    "SELECT * FROM t",
    "SELECT j, i, val * 2 + i AS v FROM t WHERE val > 0",
    "SELECT i, COUNT(*) AS n, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c FROM t GROUP BY i",
    "SELECT j, SUM(val) AS s, COUNT(*) AS n FROM t GROUP BY j",
    "SELECT COUNT(*) AS n, SUM(val) AS s, MIN(val) AS a FROM t WHERE ISFINITE(val)",
    "SELECT i, j, CASE WHEN val > 0 THEN val END AS v FROM t WHERE j > 5",
    "SELECT i, SUM(t.val * d.val) AS s FROM t JOIN d USING (j) GROUP BY i",
    "SELECT j, SUM(t.val * e.val) AS s FROM t JOIN e USING (i) GROUP BY j",
    "SELECT i, j, t.val * d.val AS v FROM t JOIN d USING (j)",
    "SELECT i, j, t.val + u.val AS v FROM t JOIN t AS u USING (i, j)",
    "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s, COUNT(*) AS n "
    "FROM t AS a JOIN t AS b USING (j) GROUP BY a.i, b.i",
    "SELECT a.i, b.i AS k, MIN(a.val + b.val) AS s FROM t AS a JOIN t AS b USING (j) "
    "GROUP BY a.i, b.i",
    "SELECT COUNT(*) AS n FROM t AS a JOIN t AS b ON a.j = b.i JOIN t AS c ON b.j = c.j "
    "AND a.i = c.i",
    "SELECT a.i, SUM(b.val) AS s FROM t AS a JOIN t AS b ON a.i = b.i GROUP BY a.i",
    "SELECT val FROM t WHERE i = 4",
    "SELECT a.i, a.j, b.i AS k, b.j AS l, a.val FROM t AS a, t AS b "
    "WHERE a.val > 1.5 AND b.val > 1.5",
    "SELECT i, SUM(val) OVER (PARTITION BY i) AS s, j FROM t",
    "SELECT i, MEDIAN(val) AS m FROM t GROUP BY i",
    "SELECT i, j, MEDIAN(val) AS m, COUNT(*) AS n FROM t GROUP BY i, j",
    "SELECT i, j, val FROM t ORDER BY val DESC, i, j LIMIT 5",
    "SELECT t.i, names.name, t.val FROM t JOIN names ON names.id = t.i",
    "SELECT i // 4 AS g, SUM(val) AS s FROM t GROUP BY i // 4",
    "SELECT i, ARG_MAX(j, val * 64 + j) AS k FROM t WHERE ISFINITE(val) AND i < 9 GROUP BY i",
    "SELECT i % 3 AS r, j > 1 AS k, SUM(val) AS s FROM t WHERE j = 4 GROUP BY i % 3, j > 1",
    "SELECT j > 1 AS k, COUNT(*) AS n FROM t WHERE i = 4 AND j = 2 GROUP BY j > 1",
    "SELECT b.i, b.j, b.val FROM t AS b JOIN t AS c ON b.i = c.i WHERE c.j = 4",
    "SELECT b.i, b.j, c.val + b.val AS v FROM t AS b JOIN t AS c ON b.i = c.i AND c.j = b.j + 1",
    "SELECT i, j, val FROM t WHERE val IS NULL",
    "SELECT i, MAX(d.val, 2) AS h FROM t JOIN d USING (j) WHERE t.val + i > 6 AND d.val <= 1 "
    "GROUP BY i",
    "SELECT i, j, SUM(val) AS s FROM t WHERE i > j AND j > i GROUP BY i, j",
)
CHANGES = (
    "UPDATE t SET val = val + 1 WHERE val < 0",
    "UPDATE t SET val = t.val * d.val FROM d WHERE d.j = t.j",
    "UPDATE t SET val = 0.5 WHERE i = 3 AND j < 9",
    "DELETE FROM t WHERE val > 1",
    "DELETE FROM t WHERE i = j",
    "DELETE FROM t",
    "INSERT INTO t VALUES (2, 7, 1.5), (12, 0, 0.0)",
    "INSERT INTO t SELECT i, 7 AS j, val FROM e WHERE i > 8",
    "DELETE FROM t WHERE i IN (SELECT id FROM names WHERE name LIKE 'n1%')",
)


def connected(listed: Rows, storage: str | None, kind: str = "DOUBLE") -> Any:
    """A connection to einsql, or to DuckDB without a storage, over the same rows."""
    con: Any = duckdb.connect() if storage is None else einsql.connect()
    texts = [(i, j, f"'{val}'::{kind}") for i, j, val in listed]
    tables: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
        "source": ("i, j, val", texts),
        "names": ("id, name", [(n, f"'n{n}'") for n in range(ROWS)]),
        "d": ("j, val", [(n, f"{n / 2 - 3}::DOUBLE") for n in range(COLUMNS)]),
        "e": ("i, val", [(n, f"{n / 4}::DOUBLE") for n in range(ROWS)]),
    }
    for name, (columns, content) in tables.items():
        values = ", ".join(f"({', '.join(map(str, row))})" for row in content)
        is_table = storage is None or name in ("source", "names")
        con.execute(
            f"CREATE {'TABLE' if is_table else 'TENSOR'} {name} AS SELECT {columns} "
            f"FROM (VALUES {values}) AS v({columns})"
        )
    if storage is None:
        con.execute("CREATE TABLE t AS FROM source")
    else:
        columns = f"(i DIM({ROWS}), j DIM({COLUMNS}), val {kind})"
        con.execute(f"CREATE TENSOR t {columns} STORAGE {storage} AS SELECT i, j, val FROM source")
    return con


def answer(con: Any, sql: str) -> list[str]:
    return sorted(map(repr, con.execute(sql).fetchall()))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has small matrices read as they are stored."""
    monkeypatch.setattr(registry, "SMALL", 0)


@pytest.fixture(scope="module")
def stored() -> Iterator[list[Any]]:
    """DuckDB, a dense and a sparse tensor."""
    listed = rows()
    cons = [connected(listed, storage) for storage in (None, "DENSE", "SPARSE")]
    yield cons
    for con in cons:
        con.close()


@pytest.mark.parametrize("sql", spread(STATEMENTS, 12))
def test_storage_never_changes_an_answer(sql: str, stored: list[Any]) -> None:
    duck, dense, few = stored
    wanted = answer(duck, sql)
    assert answer(dense, sql) == wanted
    assert answer(few, sql) == wanted
    for sites, cost in ((2, "seconds"), (3, "floats"), (4, "bytes")):  # the latter cut everything
        few.execute(f"SET sites = {sites}; SET cost = '{cost}'")
        assert answer(few, sql) == wanted
    few.execute("SET sites = 1; SET cost = 'seconds'")


@pytest.mark.parametrize("sql", spread(CHANGES, 5))
def test_changes_have_the_same_effect(sql: str) -> None:
    cons = [connected(rows(), storage) for storage in (None, "DENSE", "SPARSE")]
    duck, dense, few = cons
    placed = connected(rows(), "SPARSE")
    placed.execute("SET sites = 2")
    counts = {con.execute(sql).rowcount for con in (*cons[1:], placed)}
    duck.execute(sql)
    wanted = answer(duck, "FROM t")
    assert answer(dense, "SELECT * FROM t") == wanted
    assert answer(few, "SELECT * FROM t") == wanted
    assert answer(placed, "SELECT * FROM t") == wanted
    assert len(counts) == 1
    assert storage_of(few) == "sparse"


def storage_of(con: einsql.Connection, name: str = "t") -> str:
    """The storage of a tensor, seen by its bytes: a dense one has a value and a flag per key."""
    sizes = {row[0]: row[3] for row in con.execute("SHOW TENSORS").fetchall()}
    return "dense" if sizes[name] == ROWS * COLUMNS * 9 else "sparse"


def test_a_default_has_every_key() -> None:
    answers = []
    for storage in ("DENSE", "SPARSE"):
        con = einsql.connect()
        con.execute(
            f"CREATE TENSOR t (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE) DEFAULT 2 "
            f"STORAGE {storage}"
        )
        con.execute("INSERT INTO t VALUES (1, 2, 5), (3, 4, 2), (0, 0, 'nan'::DOUBLE)")
        con.execute("UPDATE t SET val = val - 1 WHERE i = 3 AND j < 6")
        shown = [answer(con, sql) for sql in (
            "SELECT * FROM t",
            "SELECT i, SUM(val) AS s, COUNT(*) AS n FROM t GROUP BY i",
            "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s FROM t AS a JOIN t AS b USING (j) "
            "GROUP BY a.i, b.i",
            "SELECT i, j, val * 2 AS v FROM t",
            "SELECT COUNT(*) AS n FROM t WHERE val = 2",
        )]  # fmt: skip
        with pytest.raises(einsql.IntegrityError, match="has a DEFAULT"):
            con.execute("DELETE FROM t WHERE i = 1")
        con.execute("CREATE TENSOR u AS SELECT i, j, val FROM t")
        with pytest.raises(einsql.IntegrityError, match="exists in u"):
            con.execute("INSERT INTO u VALUES (1, 1, 1)")
        con.execute("DELETE FROM u WHERE i > 0")
        answers.append([*shown, answer(con, "SELECT * FROM u")])
    assert answers[0] == answers[1]


def test_the_rows_of_a_table_choose_the_storage() -> None:
    con = einsql.connect()
    con.execute("CREATE TABLE r AS SELECT k % 500 AS u, k AS i, k / 4 AS val FROM range(2000) s(k)")
    con.execute("CREATE TENSOR t AS SELECT u, i, val, -val AS neg FROM r")
    con.execute("CREATE TENSOR dense STORAGE DENSE AS SELECT u, i, val FROM r")
    sizes = {row[0]: row[3] for row in con.execute("SHOW TENSORS").fetchall()}
    assert sizes["t"] < 50_000 < sizes["dense"] == 500 * 2000 * 9
    assert con.execute("SELECT COUNT(*) AS n, SUM(val + neg) AS s FROM t").fetchall() == [(2000, 0)]
    assert answer(con, "SELECT u, i, val FROM t") == answer(con, "SELECT * FROM dense")
    con.execute("CREATE TENSOR back STORAGE SPARSE AS SELECT u, i, val FROM dense WHERE val > 3")
    con.execute("CREATE TENSOR kept AS SELECT i, u, val FROM t WHERE neg < -3")
    assert answer(con, "SELECT u, i, val FROM kept") == answer(con, "SELECT * FROM back")


def test_bounds_beyond_memory() -> None:
    con = einsql.connect()
    con.execute(
        "CREATE TABLE r AS SELECT k * 997 AS u, k * 99 AS i, 1.5 AS val FROM range(1000) s(k)"
    )
    con.execute("CREATE TENSOR t AS SELECT u, i, val::FLOAT AS val FROM r")
    assert con.execute("SELECT * FROM t WHERE u = 9970").fetchall() == [(9970, 990, 1.5)]
    assert con.execute("UPDATE t SET val = val + u WHERE i > 500").rowcount == 994
    assert con.execute("SELECT MAX(val) AS m, COUNT(*) AS n FROM t").fetchall() == [
        (996004.5, 1000)
    ]
    with pytest.raises(einsql.OperationalError, match=r"458.* GiB") as caught:
        con.execute("SELECT u, i, val FROM t").fetch_numpy(fill=0)
    assert caught.value.hint
    con.execute(
        "CREATE TENSOR e (u DIM(1000000), i DIM(100000), val FLOAT) DEFAULT 0 STORAGE SPARSE"
    )
    with pytest.raises(einsql.OperationalError, match="not enough memory"):
        con.execute("UPDATE e SET val = 1")
    assert con.execute("SELECT COUNT(*) AS n FROM e").fetchall() == [(10**11,)]


def test_rows_that_are_no_sparse_tensor_are_refused() -> None:
    con = einsql.connect()
    con.execute("CREATE TABLE r AS SELECT 1 AS u, 2 AS i, 3 AS k, 0.5::FLOAT AS val FROM range(2)")
    for sql, reason in (
        ("CREATE TENSOR t STORAGE SPARSE AS SELECT u, i, val FROM r", "is inserted twice"),
        ("CREATE TENSOR t STORAGE SPARSE AS SELECT u, i, k, val FROM r", "is inserted twice"),
        ("CREATE TENSOR t STORAGE SPARSE AS SELECT u, -i AS i, val FROM r", "has the value -2"),
        ("CREATE TENSOR t (val FLOAT) STORAGE SPARSE", "needs a key"),
        ("CREATE TENSOR t STORAGE PACKED AS SELECT 1 AS i", "Expected SPARSE or DENSE"),
    ):
        with pytest.raises(einsql.Error, match=reason):
            con.execute(sql)


def test_scipy_in_and_out() -> None:
    con = connected(rows(), "SPARSE")
    for form in ("csr", "csc", "coo"):
        found = con.execute("SELECT j, i, val FROM t").fetch_scipy(form)
        assert (found.format, found.shape, found.nnz) == (form, (COLUMNS, ROWS), len(rows()))
        m = sparse.coo_array(found)
        listed = sorted(map(repr, zip(*(a.tolist() for a in (*m.coords, m.data)), strict=True)))
        assert listed == answer(con, "SELECT j, i, val FROM t")
    both = con.execute("SELECT i, j, val, val > 0 AS pos FROM t").fetch_scipy()
    assert (
        both["pos"].sum() == con.execute("SELECT COUNT(*) AS n FROM t WHERE val > 0").fetchone()[0]
    )
    dense = con.execute("SELECT i, j, d.val * e.val AS v FROM d, e").fetch_scipy()
    assert dense.nnz == ROWS * COLUMNS
    for sql in (
        "SELECT val FROM t",
        "SELECT i, j FROM t",
        "SELECT i, j, NULLIF(val, 1) AS v FROM t",
        "SHOW TENSORS",
    ):
        with pytest.raises(einsql.InterfaceError):
            con.execute(sql).fetch_scipy()
    own = sparse.csr_array(found)
    con.register("own", own, dims=("j", "i"))
    con.execute("CREATE TENSOR kept AS SELECT i, j, val FROM own WHERE i < 99")
    con.execute("CREATE TENSOR same AS SELECT j, i, val FROM own")
    before = [answer(con, f"SELECT * FROM {name}") for name in ("kept", "same")]
    own.data[:] = 9
    assert [answer(con, f"SELECT * FROM {name}") for name in ("kept", "same")] == before
    with pytest.raises(einsql.InterfaceError, match="no format"):
        con.execute("SELECT * FROM t").fetch_scipy("qr")


def test_copy_keeps_the_storage(tmp_path: Path) -> None:
    con = connected(rows(), "SPARSE")
    con.execute(f"COPY t TO '{tmp_path}/t.csv'")
    con.execute(f"CREATE TENSOR z (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE) STORAGE SPARSE")
    assert con.execute(f"COPY z FROM '{tmp_path}/t.csv'").rowcount == len(rows())
    assert answer(con, "SELECT * FROM z") == answer(con, "SELECT * FROM t")
    assert storage_of(con, "z") == "sparse"
    with pytest.raises(einsql.IntegrityError, match="exists in z"):
        con.execute(f"COPY z FROM '{tmp_path}/t.csv'")
    (tmp_path / "twice.csv").write_text("i,j,val\n1,1,2\n1,1,3\n")
    con.execute("DELETE FROM z")
    with pytest.raises(einsql.IntegrityError, match="is twice in"):
        con.execute(f"COPY z FROM '{tmp_path}/twice.csv'")
