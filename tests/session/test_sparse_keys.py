"""Sparse tensors with one key, three and four keys answer what DuckDB does over the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.core.sparse.arrays import dense_array
from einsql.core.sparse.matrix import Sparse
from einsql.kernels import registry
from einsql.kernels.sparse import elements
from einsql.kernels.vectorized import vector
from einsql.storage import sparse_fields
from tests.support.samples import spread

EXTENTS = {"i": 4, "j": 5, "k": 3, "l": 6}
TENSORS = {"v": "j", "r": "ijk", "s": "kij", "q": "ijkl", "m": "ij"}
"""The keys of the tensors without a DEFAULT."""
ALL = TENSORS | {"z": "j", "w": "ijk"}
DEFAULTS = {"z": 2, "w": -1}
Rows = dict[tuple[int, ...], tuple[Any, Any]]

STATEMENTS = (
    # all rows, conditions on keys and values, maps
    "SELECT * FROM q WHERE k > 0 AND l BETWEEN 1 AND 4",
    "SELECT k, j, i, val * 2 + k AS x FROM r WHERE val <> 1 AND j = 2",
    "SELECT j, val + n AS x FROM v WHERE j > 0",
    "SELECT i, j, k, l, val - n AS x FROM q WHERE i <> l",
    "SELECT i, k, val FROM q WHERE j = 2 AND l = 1",
    "SELECT k, i, val + j AS x FROM w WHERE j = 1",
    # aggregates by some keys
    "SELECT COUNT(*) AS c, SUM(val) AS s, MIN(n) AS a FROM r",
    "SELECT AVG(val) AS s, COUNT(*) AS c FROM v WHERE val > 0",
    "SELECT i, SUM(val) AS s, COUNT(*) AS c FROM r GROUP BY i",
    "SELECT k, MAX(val) AS s, BOOL_OR(n > 2) AS o FROM r GROUP BY k",
    "SELECT k, i, AVG(val) AS s FROM r GROUP BY k, i",
    "SELECT l, j, SUM(val) FILTER (WHERE k > 0) AS s FROM q GROUP BY l, j",
    "SELECT l, k, j, SUM(val) AS s FROM q GROUP BY l, k, j HAVING COUNT(*) > 1",
    "SELECT j % 2 AS g, SUM(val) AS s FROM r GROUP BY j % 2",
    "SELECT i, MEDIAN(val) AS s FROM r GROUP BY i",
    "SELECT i, ARG_MAX(j * 8 + k, val * 64 + j * 8 + k, 2) AS best FROM r GROUP BY i",
    "SELECT i, j, SUM(val) OVER (PARTITION BY i, k) AS s, k FROM r",
    "SELECT i, j, k, val FROM r ORDER BY val DESC, i, j, k LIMIT 4",
    # dense factors
    "SELECT r.i, b.f, SUM(r.val * b.val * c.val) AS s FROM r JOIN b USING (j) JOIN c USING (k, f) "
    "GROUP BY r.i, b.f",
    "SELECT r.k, b.f, SUM(r.val * b.val) AS s FROM r JOIN b USING (j) GROUP BY r.k, b.f",
    "SELECT i, j, k, SUM(r.val * b.val * c.val) AS s FROM r JOIN b USING (j) JOIN c USING (k, f) "
    "GROUP BY i, j, k",
    "SELECT i, j, SUM(r.val * c.val) AS s FROM r JOIN c USING (k) WHERE f = 1 GROUP BY i, j",
    "SELECT b.f, SUM(v.val * b.val) AS s FROM v JOIN b USING (j) GROUP BY b.f",
    "SELECT v.j, MIN(v.val + b.val) AS s FROM v JOIN b USING (j) GROUP BY v.j",
    # sparse tensors with each other
    "SELECT m.i, SUM(m.val * v.val) AS s FROM m JOIN v USING (j) GROUP BY m.i",
    "SELECT i, j, m.val * v.val AS x FROM m JOIN v USING (j)",
    "SELECT r.i, r.k, SUM(r.val * v.val) AS s, COUNT(*) AS c FROM r JOIN v USING (j) "
    "WHERE r.k < 2 GROUP BY r.i, r.k",
    "SELECT i, j, k, r.val * s.val AS x FROM r JOIN s USING (i, j, k)",
    "SELECT SUM(r.val * q.val) AS s FROM r JOIN q USING (i, j, k)",
    "SELECT a.i, b.l, SUM(a.val * b.val) AS s FROM r a JOIN q b ON a.j = b.j AND a.k = b.k "
    "GROUP BY a.i, b.l",
    "SELECT a.i, b.k AS h, MAX(a.n + b.n) AS s FROM m a JOIN r b ON a.j = b.i GROUP BY a.i, b.k",
    "SELECT a.j, b.j AS h, a.val * b.val AS x FROM v a, v b WHERE a.j <= b.j",
    "SELECT COUNT(*) AS c FROM r JOIN m USING (i, j) JOIN v USING (j)",
    "SELECT a.i, a.j, a.k, b.val FROM r a JOIN r b ON a.i = b.i AND a.j = b.j AND a.k = b.k + 1",
    # keys plus constants
    "SELECT i + 1 AS i, j, k, val, n FROM r",
    "SELECT k - 2 AS k, j + 5 AS j, i, val FROM r WHERE val > 0",
    "SELECT j + 1 AS j, val FROM v",
    "SELECT i, j + 3 AS j FROM m",
    "SELECT i + 2 AS i, SUM(val) AS s FROM m GROUP BY i + 2",
    "SELECT k + 1 AS k, i, SUM(val) AS s, MAX(n) AS b FROM r GROUP BY k + 1, i",
    "SELECT a.j, a.val - b.val AS x, b.j AS h FROM v a JOIN v b ON a.j = b.j + 1",
    "SELECT a.j + 2 AS j, b.i - 1 AS i, b.val * a.val AS x FROM v a JOIN m b ON b.j = a.j + 1",
    "SELECT a.i, a.k, SUM(a.val * b.val) AS s FROM r a JOIN r b ON a.i = b.i + 1 AND a.k = b.k "
    "AND b.j = a.j - 1 GROUP BY a.i, a.k",
    "WITH x AS (SELECT i + 1 AS i, j, val FROM m), y AS (SELECT i, j + 1 AS j, val FROM m) "
    "SELECT i, j, x.val - y.val AS x FROM x JOIN y USING (i, j)",
    "SELECT m.i, SUM(m.val * b.val) AS s FROM m JOIN b ON m.j = b.j + 1 GROUP BY m.i",
    "SELECT a.i, COUNT(*) AS c FROM m a JOIN m b ON b.i = a.i + 40 GROUP BY a.i",
    "SELECT w.i + 1 AS i, w.j, w.k, w.val FROM w",
    "SELECT y.j, y.k, y.val FROM (SELECT i + 100 AS i, j, val FROM m) x JOIN r y USING (i)",
    # keys without a row that have a DEFAULT
    "SELECT COUNT(*) AS c, SUM(val) AS s, MIN(val) AS a FROM w WHERE val < 3",
    "SELECT k, i, SUM(val + n) AS s FROM w GROUP BY k, i",
    "SELECT i, j, k, val * 2 + 1 AS x FROM w",
    "SELECT w.i, SUM(w.val * z.val) AS s FROM w JOIN z USING (j) GROUP BY w.i",
    "SELECT r.k, SUM(r.val * z.val) AS s FROM r JOIN z USING (j) GROUP BY r.k",
    # keys that determine others, and keys with one value
    "SELECT i - 1 AS g, i, COUNT(*) AS c FROM r GROUP BY i - 1, i",
    "SELECT i - 1 AS g, i, MEDIAN(val) AS s FROM r GROUP BY i - 1, i",
    "SELECT i - 1 AS g, i, SUM(val) AS s FROM w GROUP BY i - 1, i",
    "SELECT l - 1 AS g, j, i, l, MAX(val) AS s FROM q GROUP BY l - 1, j, i, l",
    "SELECT k, i, COUNT(DISTINCT n) AS c FROM r WHERE NOT (i <> 1) GROUP BY k, i",
    "SELECT j - 1 AS g, j, val FROM v",
    "SELECT val + j AS x FROM v WHERE j = 1",
    "SELECT val, n FROM z WHERE j = 2",
    # maps with keys of dense operands, and of tensors with a DEFAULT
    "SELECT m.i, m.j, b.f, m.val * b.val AS x FROM m JOIN b USING (j)",
    "SELECT b.f, r.k, q.l, r.i, r.val - q.val AS x, CASE WHEN b.val > 2 THEN q.n END AS y, r.j "
    "FROM r JOIN b USING (j) JOIN q ON q.i = r.i AND q.k < r.k AND q.j = 1",
    "SELECT v.j, b.f, b.j AS h, c.k, c.f AS g, v.val * b.val - c.val AS x FROM v, b, c "
    "WHERE b.j <> v.j AND v.val < 3",
    "SELECT z.j, v.j AS h, v.val * z.val AS x FROM v, z WHERE z.j > 1",
    "SELECT a.i, b.f, c.k FROM m a JOIN b ON b.j = a.j, c WHERE c.f = 1 AND c.val > a.val",
)
LOOPS = (18, 19, 20, 24, 26, 32)
"""The statements that loops compute, of which some are compiled."""


def rows(keys: str, seed: int) -> Rows:
    """A third of the keys with two values."""
    chance = np.random.default_rng(seed)
    cells = product(*(range(EXTENTS[k]) for k in keys))
    return {
        cell: (int(chance.integers(-4, 5)) / 2, int(chance.integers(0, 4)))
        for cell in cells
        if chance.random() < 0.35
    }


def texts(listed: Rows) -> str:
    """The rows as VALUES."""
    return ", ".join(
        f"({', '.join(map(str, (*cell, *values)))})" for cell, values in listed.items()
    )


def connected(storage: str | None) -> Any:
    """A connection to einsql, or to DuckDB without a storage, over the same rows."""
    con: Any = duckdb.connect() if storage is None else einsql.connect(config={"jit": "never"})
    kind = "TABLE" if storage is None else "TENSOR"
    for seed, (name, keys) in enumerate(ALL.items()):
        listed, default = rows(keys, seed), DEFAULTS.get(name)
        if storage is None:
            bounds, more = ", ".join(f"{k} BIGINT" for k in keys), ""
            every = product(*(range(EXTENTS[k]) for k in keys)) if default else ()
            listed = dict.fromkeys(every, (default, default)) | listed
        else:
            bounds = ", ".join(f"{k} DIM({EXTENTS[k]})" for k in keys)
            more = f"{'' if default is None else f'DEFAULT {default}'} STORAGE {storage}"
        con.execute(f"CREATE {kind} {name} ({bounds}, val DOUBLE, n INTEGER) {more}")
        con.execute(f"INSERT INTO {name} VALUES {texts(listed)}")
    for name, key in (("b", "j"), ("c", "k")):
        con.execute(
            f"CREATE {kind} {name} AS SELECT {key}, f, (({key} * 3 + f) % 5)::DOUBLE AS val "
            f"FROM range({EXTENTS[key]}) x({key}), range(2) y(f)"
        )
    return con


def answer(con: Any, sql: str) -> list[str]:
    return sorted(map(repr, con.execute(sql).fetchall()))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has small tensors read as they are stored."""
    monkeypatch.setattr(registry, "SMALL", 0)
    monkeypatch.setattr(elements, "POINTS_PER_ELEMENT", 0)


@pytest.fixture(scope="module")
def stored() -> Iterator[list[Any]]:
    """DuckDB, and sparse tensors."""
    cons = [connected(storage) for storage in (None, "SPARSE")]
    yield cons
    for con in cons:
        con.close()


@pytest.mark.parametrize("sql", spread(STATEMENTS, 13))
def test_statements_answer_as_duckdb(sql: str, stored: list[Any]) -> None:
    duck, few = stored
    wanted = answer(duck, sql)
    assert answer(few, sql) == wanted
    few.execute("SET sites = 3; SET cost = 'floats'")
    assert answer(few, sql) == wanted
    few.execute("SET sites = 1; SET cost = 'seconds'")


@pytest.mark.parametrize("number", LOOPS)
def test_compiled_loops_answer_as_duckdb(number: int, stored: list[Any]) -> None:
    duck, few = stored
    few.execute("SET jit = 'wait'")
    assert answer(few, STATEMENTS[number]) == answer(duck, STATEMENTS[number])
    few.execute("SET jit = 'never'")


@pytest.mark.parametrize("name", ["v", "r", "q"])
def test_changes_have_the_same_effect(name: str, stored: list[Any]) -> None:
    keys = TENSORS[name]
    selected, every = ", ".join(keys), ", ".join(f"range({EXTENTS[k]}) {k}({k})" for k in keys)
    duck, few = stored
    for con in stored:
        con.execute(f"CREATE OR REPLACE TABLE every AS SELECT {selected} FROM {every}")
    changes = (
        f"UPDATE {name} SET val = val * 2 + 1 WHERE {keys[-1]} > 1",
        f"UPDATE {name} SET n = n + 1",
        f"DELETE FROM {name} WHERE n > 2 OR {keys[0]} = 0",
        f"INSERT INTO {name} SELECT {selected}, 0.5::DOUBLE AS val, 7 AS n FROM every "
        f"ANTI JOIN {name} USING ({selected})",
        f"DELETE FROM {name} WHERE val <> 0.5",
    )
    for con in stored:
        con.execute("BEGIN")
    for sql in changes:
        duck.execute(sql)
        few.execute(sql)
        assert answer(few, f"SELECT {selected}, val, n FROM {name}") == answer(duck, f"FROM {name}")
        sizes = {row[0]: row[6] for row in few.execute("SHOW TENSORS").fetchall()}
        assert sizes[name] == "sparse"
    for con in stored:
        con.execute("ROLLBACK")


def test_the_rows_choose_the_storage() -> None:
    con = einsql.connect()
    con.execute(
        "CREATE TABLE x AS SELECT range AS a, range % 9 AS b, 2::FLOAT AS val FROM range(50)"
    )
    for columns, chosen in (
        ("a, b, a // 2 AS c", "dense"), ("a * 9 AS a, b, a AS c", "sparse"),
        ("a * 9 AS a", "dense"), ("a * 30000 AS a", "sparse"),
        ("a * 10000000000 AS a", "sparse"), ("a, b, a AS c, b AS d, a AS e", "sparse"),
    ):  # fmt: skip
        con.execute(f"CREATE OR REPLACE TENSOR t AS SELECT {columns}, val FROM x")
        assert con.execute("SHOW TENSORS").fetchall()[0][6] == chosen, columns
        assert con.execute("SELECT COUNT(*) AS n, SUM(val) AS s FROM t").fetchall() == [(50, 100)]


def test_databases_and_files_keep_the_elements(tmp_path: Path) -> None:
    path, copy = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    with einsql.connect(path) as con:
        for name, keys in TENSORS.items():
            bounds = ", ".join(f"{k} DIM({EXTENTS[k]})" for k in keys)
            con.execute(f"CREATE TENSOR {name} ({bounds}, val DOUBLE, n INTEGER) STORAGE SPARSE")
            con.execute(f"INSERT INTO {name} VALUES {texts(rows(keys, 1))}")
        con.execute(
            "CREATE TENSOR d (i DIM(50), j DIM(60), k DIM(70), x FLOAT) DEFAULT 3 STORAGE SPARSE"
        )
        con.execute("INSERT INTO d VALUES (1, 2, 3, 4)")
        con.execute(f"BACKUP TO '{copy}'")
        wanted = {name: answer(con, f"SELECT * FROM {name}") for name in TENSORS}
        shown = con.execute("SHOW TENSORS").fetchall()
        for name in ("v", "q"):
            for kind in ("parquet", "csv"):
                file = tmp_path / f"{name}.{kind}"
                con.execute(
                    f"COPY {name} TO '{file}'; CREATE OR REPLACE TENSOR back AS FROM '{file}'"
                )
                assert answer(con, "SELECT * FROM back") == wanted[name]
                con.execute(f"DELETE FROM {name}; COPY {name} FROM '{file}'")
                assert answer(con, f"SELECT * FROM {name}") == wanted[name]
    for database in (path, copy):
        with einsql.connect(database) as con:
            con.execute("DROP TENSOR IF EXISTS back")
            assert con.execute("SHOW TENSORS").fetchall() == shown
            assert {name: answer(con, f"SELECT * FROM {name}") for name in TENSORS} == wanted
            found = con.execute("SELECT SUM(x) AS s, COUNT(*) AS c FROM d").fetchall()
            assert found == [(630_001.0, 210_000)]


def test_arrays_in_and_out(stored: list[Any]) -> None:
    duck, few = stored
    (total,) = duck.execute("SELECT SUM(val) FROM v").fetchone()
    vector = few.execute("SELECT j, val FROM v").fetch_scipy()
    assert (vector.shape, vector.nnz, vector.sum()) == ((5,), len(rows("j", 0)), total)
    with pytest.raises(einsql.InterfaceError, match="no CSC array of one key"):
        few.execute("SELECT j, val FROM v").fetch_scipy("csc")
    with pytest.raises(einsql.InterfaceError, match="the result has 3") as caught:
        few.execute("SELECT i, j, k, val FROM r").fetch_scipy()
    assert "fetch_arrow_table" in (caught.value.hint or "")
    with pytest.raises(einsql.InterfaceError, match="are absent"):
        few.execute("SELECT i, j, k, val FROM r").fetch_numpy()
    array = few.execute("SELECT i, j, k, val FROM r").fetch_numpy(fill=np.nan)
    for cell in np.ndindex(array.shape):
        assert (cell in rows("ijk", 1)) is not bool(np.isnan(array[cell]))
    coordinates = np.array([[0, 3, 1], [4, 0, 2], [2, 1, 0]])
    given = sparse.coo_array((np.array([1.5, 0.0, 2.0]), tuple(coordinates)), shape=(5, 6, 3))
    few.register("given", given, dims=("a", "b", "c"))
    assert few.execute("SELECT a, b, c, val FROM given WHERE val > 0").fetchall() == [
        (0, 4, 2, 1.5), (1, 2, 0, 2.0),
    ]  # fmt: skip


def test_a_gradient_has_the_keys_of_its_tensor(stored: list[Any]) -> None:
    few = stored[1]
    few.execute(
        "CREATE OR REPLACE VIEW loss AS SELECT SUM(r.val * r.val * b.val * c.val) AS l FROM r "
        "JOIN b USING (j) JOIN c USING (k, f)"
    )
    found = answer(few, "SELECT * FROM GRADIENT(loss, r)")
    wanted = (
        "SELECT i, j, k, 2 * r.val * s.x AS val{n} FROM r JOIN (SELECT j, k, "
        "SUM(b.val * c.val) AS x FROM b JOIN c USING (f) GROUP BY j, k) s USING (j, k)"
    )
    columns = len(few.execute("SELECT * FROM GRADIENT(loss, r)").fetchone())
    assert found == answer(few, wanted.format(n="" if columns == 4 else ", 0 AS n"))
    few.execute("DROP VIEW loss")


def test_arrays_beyond_memory_are_refused() -> None:
    con = einsql.connect()
    extent = 100_000
    keys = ", ".join(f"{k} DIM({extent})" for k in "ijk")
    con.execute(f"CREATE TENSOR t ({keys}, val FLOAT) DEFAULT 0 STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (1, 2, 3, 4), (5, 6, 7, 8)")
    found = con.execute("SELECT SUM(val) AS s, COUNT(*) AS n FROM t").fetchall()
    assert found == [(12, prod((extent,) * 3))]
    by_key = con.execute("SELECT j, SUM(val) AS s FROM t GROUP BY j HAVING SUM(val) > 0")
    assert by_key.fetchall() == [(2, 4), (6, 8)]
    with pytest.raises(einsql.OperationalError, match="100,000 × 100,000 × 100,000") as caught:
        con.execute("SELECT i, j, k, val FROM t").fetch_numpy()
    assert caught.value.hint
    with pytest.raises(einsql.ProgrammingError, match="more than a tensor may have"):
        con.execute(f"CREATE TENSOR u ({keys}, l DIM({extent}), val FLOAT) STORAGE SPARSE")


def test_bounds_of_keys_do_not_limit_joins() -> None:
    """Combinations of all keys would be 10²⁴ and more, and rows of a vector's keys 10¹¹."""
    con = einsql.connect(config={"jit": "wait"})
    bounds = "u DIM(1000000), f DIM(100000), d DIM(4000), val FLOAT"
    con.execute(f"CREATE TENSOR t ({bounds}) STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (7, 5, 3, 2), (999999, 5, 3999, 3), (7, 99999, 8, 4)")
    for sql, wanted in (
        ("SELECT a.u, b.u AS w, SUM(a.val * b.val) AS s FROM t a JOIN t b USING (f) "
         "WHERE a.u < b.u GROUP BY a.u, b.u", [(7, 999999, 6)]),
        ("SELECT a.f, COUNT(*) AS n FROM t a JOIN t b USING (u, f) GROUP BY a.f",
         [(5, 2), (99999, 1)]),
    ):  # fmt: skip
        assert con.execute(sql).fetchall() == wanted
    con.execute("CREATE TENSOR v (i DIM(100000000000), val FLOAT) STORAGE SPARSE")
    con.execute("CREATE TENSOR m (i DIM(3), j DIM(100000000000), val FLOAT) STORAGE SPARSE")
    con.execute("INSERT INTO v VALUES (5, 2), (99999999999, 3)")
    con.execute("INSERT INTO m VALUES (0, 6, 1), (2, 5, 7), (2, 99999999999, 1)")
    products = con.execute(
        "SELECT m.i, SUM(m.val * v.val) AS s FROM m JOIN v ON m.j = v.i GROUP BY m.i"
    )
    assert products.fetchall() == [(2, 17)]


@pytest.mark.parametrize("jit", ["wait", "never"])
def test_bounds_of_keys_do_not_limit_maps(jit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over all 80 million combinations would take seconds."""
    monkeypatch.undo()
    con = einsql.connect(config={"jit": jit})
    con.execute("CREATE TENSOR t (i DIM(2000), j DIM(5), val FLOAT) STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (7, 1, 2), (1999, 1, 3), (3, 4, 5)")
    con.execute(
        "CREATE TENSOR b AS SELECT j, f, j * 2 + f AS val FROM range(5) x(j), range(4) y(f)"
    )
    sql = (
        "SELECT s.i, t.i AS h, b.f, s.val * b.val - t.val AS x FROM t AS s JOIN b USING (j) "
        "JOIN t USING (j) WHERE b.f > 1 AND s.val < 3"
    )
    assert any("  sparse  " in line for (line,) in con.execute(f"EXPLAIN {sql}").fetchall())
    assert con.execute(sql).fetchall() == [
        (7, 7, 2, 6.0), (7, 7, 3, 8.0), (7, 1999, 2, 5.0), (7, 1999, 3, 7.0),
    ]  # fmt: skip


def test_a_large_tensor_that_becomes_an_array_has_a_notice() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR t (i DIM(300), j DIM(300), k DIM(300), val FLOAT) STORAGE SPARSE")
    con.execute("INSERT INTO t VALUES (1, 2, 2, 4)")
    assert con.execute("SELECT i, val FROM t WHERE k = 2").fetchall() == [(1, 4)]
    assert not con.notices
    assert con.execute("SELECT i, j, val FROM t WHERE j = k").fetchall() == [(1, 2, 4)]
    assert ["becomes an array of 300 × 300 × 300" in text for text in con.notices] == [True]


@pytest.mark.parametrize("jit", ["wait", "never"])
def test_arithmetic_of_keys_is_that_of_bigint(jit: str) -> None:
    """The positions of elements have four bytes."""
    con = einsql.connect(config={"jit": jit})
    con.execute("CREATE TENSOR v (i DIM(2000000), val DOUBLE) STORAGE SPARSE")
    con.execute("CREATE TENSOR m (i DIM(9), j DIM(100000), val DOUBLE) STORAGE SPARSE")
    con.execute("INSERT INTO v VALUES (3, 1), (100000, 2); INSERT INTO m VALUES (1, 60000, 1)")
    squares = con.execute("SELECT i, i * i + 1 AS s FROM v").fetchall()
    assert squares == [(3, 10), (100_000, 10_000_000_001)]
    assert con.execute("SELECT i FROM v WHERE i * i > 5000000000").fetchall() == [(100_000,)]
    assert con.execute("SELECT i, j, j * j + 1 AS s FROM m").fetchall() == [
        (1, 60_000, 60_000**2 + 1)
    ]
    con.execute("UPDATE v SET val = i * i")
    assert con.execute("SELECT i, val FROM v").fetchall() == [(3, 9), (100_000, 1e10)]


def test_keys_begin_beyond_four_bytes() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR x (i DIM(2000000), val DOUBLE); INSERT INTO x VALUES (1, 1), (9, 2)")
    con.execute("CREATE TENSOR s STORAGE SPARSE AS SELECT i + 3000000000 AS i, val FROM x")
    con.execute("UPDATE s SET val = val + i WHERE i >= 3000000000")
    con.execute("DELETE FROM s WHERE i >= 3000000005")
    rows = con.execute("SELECT i, val, i + 1 AS next FROM s").fetchall()
    assert rows == [(3_000_000_001, 3_000_000_002, 3_000_000_002)]


def test_changes_stay_sparse_with_parameters_and_several_parts() -> None:
    con = einsql.connect()
    keys = "i DIM(1000000), j DIM(1000000), val DOUBLE"
    con.execute(f"CREATE TENSOR x ({keys}) STORAGE SPARSE; CREATE TENSOR t ({keys}) STORAGE SPARSE")
    con.execute("INSERT INTO x VALUES (1, 2, 1), (600000, 5, 3)")
    con.execute(
        "WITH a AS (INSERT INTO t SELECT i, j, val FROM x WHERE val < 2) "
        "INSERT INTO t SELECT i, j, val FROM x WHERE val >= 2"
    )
    con.execute("UPDATE t SET val = val * 2 WHERE i >= ?", [500_000])
    assert con.execute("SELECT * FROM t").fetchall() == [(1, 2, 1), (600_000, 5, 6)]
    con.execute("DELETE FROM t WHERE i >= ?", [500_000])
    assert con.execute("SELECT * FROM t").fetchall() == [(1, 2, 1)]


def test_the_array_of_a_sparse_operand_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads it in blocks of points."""
    arrays: list[str] = []

    def counted(fields: Sparse, name: str) -> np.ndarray:
        arrays.append(name)
        return dense_array(fields, name)

    monkeypatch.setattr(vector, "BLOCK", 64)
    monkeypatch.setattr(sparse_fields, "dense_array", counted)
    con = einsql.connect(config={"jit": "never"})
    con.execute("CREATE TENSOR t (i DIM(100), j DIM(50), val DOUBLE) STORAGE SPARSE")
    con.execute("INSERT INTO t SELECT r, r % 50, r FROM range(100) AS x(r)")
    sql = "SELECT SUM(t.val) AS s FROM t JOIN range(100) AS r(i) ON t.i = r.i * r.i % 100"
    assert con.execute(sql).fetchall() == [(sum(n * n % 100 for n in range(100)),)]
    assert sorted(arrays) == sorted(set(arrays)) != []


SHIFTED = (
    "SELECT day + 1 AS day, item, val FROM t",
    "SELECT item - 500 AS item, day + 1 AS day, val FROM t",
    "SELECT a.day, a.item, a.val - b.val AS change FROM t a "
    "JOIN t b ON a.day = b.day + 1 AND a.item = b.item",
    "SELECT a.day, SUM(a.val * b.val) AS s, COUNT(*) AS c FROM t a "
    "JOIN t b ON a.item = b.item AND a.day = b.day - 1 GROUP BY a.day",
)


@pytest.mark.parametrize("sites", [1, 2])
def test_keys_plus_constants_visit_stored_elements(sites: int) -> None:
    """As an array each of the tensors and results would take 8 TB."""
    rows = (
        "SELECT r * 7 % 5000 * 200 AS day, r // 2 * 7919 % 1000000 AS item, r % 9 AS val "
        "FROM range(3000) AS t(r) UNION ALL "
        "SELECT r * 7 % 5000 * 200 + 1, r // 2 * 7919 % 1000000, r % 5 FROM range(2000) AS t(r)"
    )
    duck, con = duckdb.connect(), einsql.connect(config={"sites": sites})
    duck.execute(f"CREATE TABLE t AS {rows}")
    bounds = "day DIM(1000000), item DIM(1000000), val DOUBLE"
    con.execute(f"CREATE TENSOR t ({bounds}) STORAGE SPARSE AS {rows}")
    for sql in SHIFTED:
        few, wanted = con.execute(sql), duck.execute(sql).fetchall()
        assert sorted(few.fetchall()) == sorted(wanted)
        assert wanted
    con.execute(f"CREATE TENSOR changes AS {SHIFTED[2]}")
    stored = con.execute("SELECT COUNT(*) FROM changes").fetchall()
    assert stored == duck.execute(f"SELECT COUNT(*) FROM ({SHIFTED[2]})").fetchall()


def test_a_commit_accepts_what_the_catalog_accepts(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with einsql.connect(str(path)) as con:
        con.execute("CREATE TENSOR a (i DIM(1000), x DOUBLE) STORAGE SPARSE")
        con.execute(f"CREATE TENSOR b (j DIM({2**50}), y DOUBLE) STORAGE SPARSE")
        con.execute("INSERT INTO a VALUES (7, 2); INSERT INTO b VALUES (5, 3)")
        with pytest.raises(einsql.ProgrammingError, match="more than a tensor may have"):
            con.execute("CREATE TENSOR c AS SELECT a.i, b.j, a.x * b.y AS val FROM a, b")
        for columns in ('(i DIM(3), ".v" DOUBLE)', 'AS SELECT i, 1 AS ".v" FROM range(3) AS r(i)'):
            with pytest.raises(einsql.ProgrammingError, match="starts with a dot"):
                con.execute(f"CREATE TENSOR c {columns}")
        last = f"SELECT i, 1 AS val FROM range({2**62 - 4}, {2**62}) AS r(i)"
        con.execute(f"CREATE TENSOR c AS {last}")
    with einsql.connect(str(path)) as con:
        assert con.execute("SELECT * FROM c").fetchall() == con.execute(last).fetchall()
