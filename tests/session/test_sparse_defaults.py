"""A DEFAULT is the value of every key that a sparse tensor does not store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.kernels import registry
from tests.support.samples import combinations

ROWS, COLUMNS = 7, 9
BIG = "(i DIM(1000000), j DIM(100000), val DOUBLE)"
STATEMENTS = (
    "SELECT * FROM t",
    "SELECT j, i, val * 2 AS v, val + 1 AS w, NULLIF(val, 2) AS n FROM t",
    "SELECT i, j, CASE WHEN val > 1 THEN val ELSE u END AS v, u::FLOAT AS f FROM t WHERE i > 2",
    "SELECT i, j, val FROM t WHERE val > 0.5",
    "SELECT i, j, val FROM t WHERE val <> 1",
    "SELECT i, COUNT(*) AS n, SUM(val) AS s, AVG(u) AS a, MIN(val) AS l, MAX(u) AS h FROM t "
    "GROUP BY i",
    "SELECT j, SUM(val * u) AS s, COUNT(*) FILTER (val > 1) AS n, MIN(val * j) AS m FROM t "
    "WHERE i < 5 GROUP BY j",
    "SELECT COUNT(*) AS n, SUM(i) AS s, BOOL_OR(val > 4) AS b, PRODUCT(u) AS p FROM t "
    "WHERE val < 3",
    "SELECT i, ROUND(STDDEV(u), 9) AS s, MEDIAN(u) AS m, ARG_MAX(j, u * 64 + j) AS k FROM t "
    "GROUP BY i",
    "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s FROM t AS a JOIN t AS b USING (j) "
    "GROUP BY a.i, b.i",
    "SELECT a.i, b.i AS k, MIN(a.u + b.val) AS s FROM t AS a JOIN t AS b USING (j) "
    "GROUP BY a.i, b.i",
    "SELECT i, j, t.val + 2 * o.val AS v FROM t JOIN o USING (i, j)",
    "SELECT j, SUM(t.val * o.val) AS s, COUNT(*) AS n FROM t JOIN o USING (i, j) GROUP BY j",
    "SELECT i, SUM(t.val * d.val) AS s, MAX(t.u - d.val) AS m FROM t JOIN d USING (j) GROUP BY i",
    "SELECT o.i, SUM(o.val * t.val) AS s FROM o JOIN t ON o.i = t.j GROUP BY o.i",
    "SELECT i, MAX(val, 3) AS h, MIN(u, 2) AS l FROM t GROUP BY i",
    "SELECT MAX(val, 4) AS h, MIN(val, 2) AS l, ARG_MAX(i, i * 64 + j, 2) AS k FROM t",
    "SELECT i, j, val + u AS v FROM t WHERE val > val",
    "SELECT a.i, ARG_MAX(a.j, a.j + b.i, 3) AS k FROM t AS a JOIN t AS b ON a.i = b.j AND "
    "a.j = b.i WHERE a.u >= -1 GROUP BY a.i",
    "SELECT i, ARG_MAX(j, j * 5 % 9, 9) AS k FROM t WHERE u > -1 GROUP BY i",
)
CHANGES = (
    "UPDATE t SET val = val * 2 + 1",
    "UPDATE t SET val = u, u = val WHERE val > 0.5",
    "UPDATE t SET u = t.val * d.val FROM d WHERE d.j = t.j AND t.i = 3",
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has small matrices read as they are stored."""
    monkeypatch.setattr(registry, "SMALL", 0)


def written(value: float) -> str:
    return f"'{value}'::DOUBLE"


def cells(name: str, special: bool) -> list[tuple[int, int, float, float]]:
    """A fifth of the elements; special ones have NaN, infinities, -0.0 and explicit zeros."""
    rng = np.random.default_rng(len(name) + special)
    i, j = np.nonzero(rng.random((ROWS, COLUMNS)) < 0.2)
    values = rng.integers(-4, 5, (2, len(i))) / 2
    if special:
        values[0, :4] = np.nan, np.inf, -0.0, 0.0
        values[1, 4:6] = -np.inf, np.nan
    return list(zip(i.tolist(), j.tolist(), *values.tolist(), strict=True))


def connected(storage: str | None, default: float | None, special: bool) -> Any:
    """A connection to einsql, or without a storage to DuckDB, over the same rows."""
    con: Any = duckdb.connect() if storage is None else einsql.connect()
    if storage is not None:
        con.execute("SET jit = 'never'")  # compiled kernels have the same tests elsewhere
    clause = "" if default is None else f"DEFAULT {written(default)}"
    for name in ("t", "o"):
        listed = {(i, j): (a, b) for i, j, a, b in cells(name, special)}
        if storage is None:
            con.execute(f"CREATE TABLE {name} (i BIGINT, j BIGINT, val DOUBLE, u DOUBLE)")
            if default is not None:
                keys = [(i, j) for i in range(ROWS) for j in range(COLUMNS)]
                listed = dict.fromkeys(keys, (default, default)) | listed
        else:
            con.execute(
                f"CREATE TENSOR {name} (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE, u DOUBLE) "
                f"{clause} STORAGE {storage}"
            )
        texts = (f"({i}, {j}, {written(a)}, {written(b)})" for (i, j), (a, b) in listed.items())
        con.execute(f"INSERT INTO {name} VALUES {', '.join(texts)}")
    kind = "TABLE" if storage is None else "TENSOR"
    con.execute(f"CREATE {kind} d AS SELECT j, j / 2 - 2 AS val FROM range({COLUMNS}) AS r(j)")
    return con


def answer(con: Any, sql: str) -> list[str]:
    """The rows in any order; zeros of both signs are equal (docs/reference/semantics.md)."""
    rows = con.execute(sql).fetchall()
    return sorted(repr([v + 0.0 if isinstance(v, float) else v for v in row]) for row in rows)


@pytest.mark.parametrize(("default", "special"), combinations([None, 0, 1, np.nan], [False, True]))
def test_every_statement_answers_what_the_dense_tensor_and_duckdb_answer(
    default: float | None, special: bool
) -> None:
    duck, *cons = (connected(storage, default, special) for storage in (None, "DENSE", "SPARSE"))
    for sql in STATEMENTS:
        if special and ("STDDEV" in sql or "t.j" in sql):
            continue  # DuckDB's STDDEV raises; NaN and infinity may be exchanged (semantics.md)
        wanted = answer(duck, sql)
        for con in cons:
            assert answer(con, sql) == wanted, sql
    for sql in CHANGES:
        duck.execute(sql)
        for con in cons:
            con.execute(sql)
            assert answer(con, "SELECT * FROM t") == answer(duck, "SELECT * FROM t"), sql


def big(default: str) -> einsql.Connection:
    """Tensors that fit into memory only as they are stored."""
    con = einsql.connect()
    for name in ("t", "o"):
        con.execute(f"CREATE TENSOR {name} {BIG} DEFAULT {default} STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (1, 2, 5), (1, 3, 0), (999999, 0, 4)")
    con.execute("INSERT INTO o VALUES (1, 2, 1), (1, 4, 7)")
    return con


def only(con: einsql.Connection, sql: str) -> tuple[Any, ...]:
    (row,) = con.execute(sql).fetchall()
    return tuple(row)


def test_keys_that_are_not_stored_count_by_arithmetic() -> None:
    con, keys = big("2"), 10**11
    total = 2 * (keys - 3) + 9
    assert only(con, "SELECT COUNT(*), SUM(val), MIN(val), MAX(val), AVG(val) FROM t") == (
        keys, total, 0, 5, total / keys,
    )  # fmt: skip
    assert only(con, "SELECT COUNT(*), SUM(val) FROM t WHERE val > 2") == (2, 9)
    assert only(con, "SELECT COUNT(*) FROM t WHERE val = 2") == (keys - 3,)
    sql = "SELECT i, SUM(val) AS s FROM t WHERE i < 3 GROUP BY i"
    assert con.execute(sql).fetchall() == [(0, 200_000), (1, 200_001), (2, 200_000)]
    sql = "SELECT SUM(v), MAX(v) FROM (SELECT i, j, t.val * o.val AS v FROM t JOIN o USING (i, j))"
    assert only(con, sql) == (4 * (keys - 4) + 5 + 0 + 8 + 14, 14)


def test_a_map_has_the_default_of_its_value(tmp_path: Path) -> None:
    con = einsql.connect(str(tmp_path / "m.db"))
    con.execute(f"CREATE TENSOR t {BIG} DEFAULT 2 STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (1, 2, 5), (999999, 0, 4)")
    con.execute(
        "CREATE TENSOR m AS SELECT i, j, val * 3 AS a, val::INTEGER AS b, val > 4 AS c, "
        "(val / 4)::BFLOAT16 AS d, CASE WHEN val = 2 THEN 'nan'::DOUBLE ELSE 1 END AS e FROM t"
    )
    where = "WHERE i = 1 AND j BETWEEN 1 AND 2"
    wanted = [(6.0, 2, False, 0.5, "nan"), (15.0, 5, True, 1.25, "1.0")]
    for _ in range(2):
        found = con.execute(f"SELECT a, b, c, d, e FROM m {where}").fetchall()
        assert [(*row[:4], str(row[4])) for row in found] == wanted
        assert only(con, "SELECT SUM(b), COUNT_IF(c) FROM m") == (2 * 10**11 + 5, 1)
        con.close()
        con = einsql.connect(str(tmp_path / "m.db"))
    with pytest.raises(einsql.IntegrityError, match="exists in m"):
        con.execute("INSERT INTO m VALUES (5, 5, 1, 1, TRUE, 1, 1)")
    with pytest.raises(einsql.DataError, match="99999999999 values of v are NULL"):
        con.execute("CREATE TENSOR n AS SELECT i, j, CASE WHEN val > 4 THEN 1 END AS v FROM t")


def test_a_value_that_raises_at_the_default_raises_if_a_key_has_it() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR t (i DIM(300), j DIM(300), val INTEGER) DEFAULT 0 STORAGE SPARSE")
    con.execute("UPDATE t SET val = i + j + 1 WHERE i < 299")
    for sql in ("SELECT i, j, 10 // val AS v FROM t", "SELECT SUM(10 // val) AS s FROM t"):
        with pytest.raises(einsql.DataError, match="Division by zero"):
            con.execute(sql).fetchall()
        assert con.execute(f"{sql} WHERE val > 0").fetchall()
    con.execute("UPDATE t SET val = 1 WHERE i = 299")
    assert only(con, "SELECT COUNT(10 // val) FROM t") == (90_000,)


def test_products_skip_a_default_that_changes_no_sum() -> None:
    sql = (
        "SELECT a.i, b.i AS k, {}(a.val {} b.val) AS s FROM t AS a JOIN t AS b USING (j) "
        "GROUP BY a.i, b.i"
    )
    con = big("0")
    con.execute(f"CREATE TENSOR p AS {sql.format('SUM', '*')}")
    assert only(con, "SELECT COUNT(*), SUM(s), MAX(s) FROM p") == (10**12, 41, 25)
    con = big("'inf'::DOUBLE")
    con.execute(f"CREATE TENSOR p AS {sql.format('MIN', '+')}")
    assert only(con, "SELECT MIN(s), COUNT_IF(ISFINITE(s)) FROM p") == (0, 2)
    con.execute("INSERT INTO t VALUES (3, 3, '-inf'::DOUBLE)")  # inf - inf is NaN
    with pytest.raises(einsql.OperationalError, match="not enough memory"):
        con.execute(f"CREATE TENSOR q AS {sql.format('MIN', '+')}")


def test_defaults_that_are_no_numbers_are_refused_at_their_place() -> None:
    con = einsql.connect()
    for default, reason in (
        ("NULL", "NULL cannot be stored"),
        ("'nan'", "Expected :: after the text"),
        ("'x'::DOUBLE", "is no DOUBLE"),
    ):
        with pytest.raises(einsql.Error, match=reason) as caught:
            con.execute(f"CREATE TENSOR t (i DIM(3), val DOUBLE) DEFAULT {default}")
        assert caught.value.position is not None


def test_an_update_of_every_key_changes_the_value_of_those_that_are_not_stored() -> None:
    con, keys = big("2"), 10**11
    assert con.execute("UPDATE t SET val = val * 3 + 1").rowcount == keys
    assert only(con, "SELECT SUM(val), MAX(val) FROM t") == (7 * (keys - 3) + 16 + 1 + 13, 16)
    con.execute("BEGIN")
    con.execute("UPDATE t SET val = t.val + o.val FROM o WHERE t.i = o.i AND t.j = o.j")
    assert only(con, "SELECT SUM(val) FROM t") == (9 * (keys - 4) + 17 + 3 + 15 + 14,)
    con.execute("ROLLBACK")
    assert only(con, "SELECT MAX(val), MIN(val) FROM t") == (16, 1)
    con.execute("CREATE TENSOR c AS SELECT i, j, val FROM t")
    assert con.execute("DELETE FROM c").rowcount == keys
    con.execute("INSERT INTO c VALUES (7, 8, 9)")
    assert con.execute("SELECT * FROM c").fetchall() == [(7, 8, 9.0)]


def test_checks_hold_for_keys_that_are_not_stored() -> None:
    con = einsql.connect()
    columns = BIG.replace("DOUBLE", "INTEGER CHECK (val < 9)")
    con.execute(f"CREATE TENSOR t {columns} DEFAULT 4 STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (0, 0, 1), (0, 1, 2), (5, 5, 8)")
    for change, at in (
        ("val = val + 2", "val = 10 at \\(i = 5, j = 5\\)"),
        ("val = CASE WHEN val = 4 THEN 77 ELSE 0 END", "val = 77 at \\(i = 0, j = 2\\)"),
    ):
        with pytest.raises(einsql.IntegrityError, match=at):
            con.execute(f"UPDATE t SET {change}")
        assert only(con, "SELECT MAX(val) FROM t") == (8,)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TENSOR p AS SELECT i, j, val + i AS v FROM t",
        "CREATE TENSOR p AS SELECT i, j, val FROM t WHERE val > 1",
        "CREATE TENSOR p STORAGE DENSE AS SELECT i, j, val FROM t",
        "UPDATE t SET val = val + j",
        "UPDATE t SET val = 3 WHERE i < 900000",
        "INSERT OR REPLACE INTO t SELECT i, j, val FROM o",
        "SELECT * FROM t",
    ],
)
def test_what_would_make_a_tensor_dense_is_refused_before(sql: str) -> None:
    con = big("2")
    with pytest.raises(einsql.OperationalError, match=r"not enough memory.* (GB|GiB)") as e:
        con.execute(sql).fetchall()
    assert "WHERE" in str(e.value.hint)
    assert only(con, "SELECT SUM(val) FROM t") == (2 * (10**11 - 3) + 9,)
    for fetch in ("fetch_numpy", "fetch_arrow_table"):
        with pytest.raises(einsql.OperationalError, match="not enough memory"):
            getattr(con.execute("SELECT i, j, val FROM t"), fetch)()


def test_results_over_a_callers_matrix_do_not_change_with_it() -> None:
    matrix = sparse.random(300, 400, 0.01, format="csr", random_state=2)
    before, con = matrix.toarray(), einsql.connect()
    con.register("m", matrix, dims=("i", "j"), fill=0)
    same = "SELECT i, j, val AS v FROM m"
    both = "SELECT i, j, a.val + b.val AS v FROM m AS a JOIN m AS b USING (i, j)"
    results = [con.execute("SELECT i, j, val FROM m"), con.execute(same), con.execute(both)]
    con.execute(f"CREATE TENSOR t AS {same}")
    matrix.data[:] = 9
    for result, wanted in zip(results, (before, before, 2 * before), strict=True):
        np.testing.assert_array_equal(result.fetch_numpy(), wanted)
    np.testing.assert_array_equal(con.execute("SELECT * FROM t").fetch_numpy(), before)
