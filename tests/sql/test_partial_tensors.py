"""PARTIAL(SUM) OVER: tensors that stay unreduced on the sites until a reader completes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.storage.objects import Tensor
from tests.sql.test_sharded_einsum import moved

GRADIENT = "SELECT d, k, SUM(x.val * y.val) AS val FROM x JOIN y USING (n) GROUP BY d, k"
KEPT = "CREATE TENSOR g PARTITION BY (k model) PARTIAL(SUM) OVER (data) AS " + GRADIENT


def session(
    rows: int = 8, mesh: str = "data=2, model=2", path: str = ":memory:"
) -> tuple[einsql.Connection, np.ndarray]:
    """A session with x[n, d], y[n, k], w[d, k] and a gradient g that is kept unreduced."""
    con = einsql.connect(path, config={"mesh": mesh, "jit": "never"})
    chance = np.random.default_rng(3)
    x, y, w = (
        chance.integers(-4, 5, shape).astype(np.float32) for shape in ((rows, 6), (rows, 4), (6, 4))
    )
    for name, keys, array in (("x0", "nd", x), ("y0", "nk", y), ("w", "dk", w)):
        con.register(name, array, dims=tuple(keys))
    con.execute("CREATE TENSOR x PARTITION BY (n data) AS SELECT * FROM x0")
    con.execute("CREATE TENSOR y PARTITION BY (n data, k model) AS SELECT * FROM y0")
    con.execute(KEPT)
    return con, x.T @ y


def is_kept(con: einsql.Connection, name: str = "g") -> bool:
    stored = con.store.get(name)
    assert isinstance(stored, Tensor)
    return stored.relation.fields.summands is not None


def values(con: einsql.Connection, sql: str) -> np.ndarray:
    return np.asarray(con.execute(sql).fetch_numpy())


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_a_gradient_is_stored_without_traffic(rows: int) -> None:
    con, g = session(rows)
    assert is_kept(con)
    assert con.execute("DESCRIBE g").fetchall()[-1][-1] == (
        "DeviceMesh(data=2, model=2) [Partial(SUM), Shard(k)]"
    )
    assert con.execute("SHOW TENSORS").fetchall()[0][4] == "k model; PARTIAL(SUM) OVER (data)"
    np.testing.assert_array_equal(values(con, "SELECT * FROM g"), g)
    assert is_kept(con)


def test_a_reader_that_is_not_linear_completes_it() -> None:
    con, g = session()
    sql = "SELECT d, k, GREATEST(val, 0) AS val FROM g"
    assert moved(con, sql) == [("reduce-scatter", ["data"], 6 * 4 * 4)]
    np.testing.assert_array_equal(values(con, sql), np.maximum(g, 0))


def test_linear_readers_are_completed_once_and_late() -> None:
    con, g = session()
    con.execute(
        "CREATE TENSOR a PARTITION BY (k model) PARTIAL(SUM) OVER (data) AS "
        "SELECT d, k, g.val * 2::FLOAT + h.val AS val FROM g JOIN g h USING (d, k)"
    )
    assert is_kept(con, "a")
    sql = "SELECT d, k, a.val - g.val AS val FROM a JOIN g USING (d, k)"
    assert moved(con, sql) == [("reduce-scatter", ["data"], 6 * 4 * 4)]
    np.testing.assert_array_equal(values(con, sql), 2 * g)


def test_an_update_reads_the_parts() -> None:
    con, g = session()
    con.execute("CREATE TENSOR v PARTITION BY (k model) AS SELECT * FROM w")
    start = values(con, "SELECT * FROM v")
    step = "v.val - 0.5::FLOAT * g.val FROM g WHERE v.d = g.d AND v.k = g.k"
    con.execute(f"UPDATE v SET val = {step}")
    np.testing.assert_array_equal(values(con, "SELECT * FROM v"), start - g / 2)


CORNER = np.outer(np.eye(6)[0], np.eye(4)[0])
CHANGES: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("UPDATE g SET val = g.val + 1", lambda g: g + 1),
    ("UPDATE g SET val = 0 WHERE d = 2", lambda g: g * (np.arange(6) != 2)[:, None]),
    ("INSERT OR REPLACE INTO g SELECT d, k, val * 3 AS val FROM g", lambda g: g * 3),
    ("INSERT OR REPLACE INTO g VALUES (0, 0, 7)", lambda g: g + (7 - g[0, 0]) * CORNER),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
@pytest.mark.parametrize("sites", [1, 4])
def test_a_change_completes_it(
    change: str, expected: Callable[[np.ndarray], np.ndarray], sites: int
) -> None:
    con, g = session()
    con.execute(f"SELECT * FROM g; SET sites = {sites}")
    con.execute(change)
    np.testing.assert_array_equal(values(con, "SELECT * FROM g"), expected(g))


def test_other_sites_and_meshes_complete_it(tmp_path: Path) -> None:
    con, g = session()
    for change in ("SET sites = 1", "SET mesh = 'data=4'", "SET sites = 3", "SET mesh = ''"):
        con.execute(change)
        np.testing.assert_array_equal(values(con, "SELECT * FROM g"), g)
    con.execute(f"COPY g TO '{tmp_path}/g.npy'")
    np.testing.assert_array_equal(np.load(tmp_path / "g.npy"), g)
    rows = con.execute("SELECT val FROM g ORDER BY val DESC LIMIT 1").fetchall()
    assert rows == [(g.max(),)]


def test_a_commit_to_a_file_completes_it(tmp_path: Path) -> None:
    path = str(tmp_path / "d.db")
    con, g = session(path=path)
    np.testing.assert_array_equal(values(con, "SELECT * FROM g"), g)
    con.close()
    with einsql.connect(path, config={"mesh": "data=2, model=2"}) as con:
        assert not is_kept(con)
        np.testing.assert_array_equal(values(con, "SELECT * FROM g"), g)
        assert con.execute("SHOW TENSORS").fetchall()[0][4] == "k model; PARTIAL(SUM) OVER (data)"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT d, k, val FROM w",
        "SELECT d, k, MAX(x.val * y.val) AS val FROM x JOIN y USING (n) GROUP BY d, k",
        f"SELECT d, k, val * val AS val FROM ({GRADIENT})",
        f"SELECT d, k, val + 1 AS val FROM ({GRADIENT})",
    ],
)
def test_a_value_that_is_no_sum_is_stored_complete(query: str) -> None:
    con, _ = session()
    con.execute(f"CREATE TENSOR c PARTIAL(SUM) OVER (data) AS {query}")
    assert not is_kept(con, "c")
    np.testing.assert_array_equal(values(con, "SELECT * FROM c"), values(con, query))


def test_a_declaration_without_its_axis_stores_the_value() -> None:
    con, g = session()
    con.execute("SET sites = 1")
    con.execute(KEPT.replace("TENSOR g", "TENSOR c").replace("data", "rack"))
    assert not is_kept(con, "c")
    np.testing.assert_array_equal(values(con, "SELECT * FROM c"), g)


@pytest.mark.parametrize(
    ("clause", "reason"),
    [
        ("PARTIAL(MAX) OVER (data)", "Expected SUM"),
        ("PARTIAL OVER (data)", r"Expected \("),
        ("PARTIAL(SUM) (data)", "Expected OVER"),
        ("PARTIAL(SUM) OVER (rack)", 'no axis "rack"'),
        ("PARTITION BY (d data) PARTIAL(SUM) OVER (data)", "named twice"),
    ],
)
def test_wrong_clauses_are_refused(clause: str, reason: str) -> None:
    con, _ = session()
    with pytest.raises(einsql.ProgrammingError, match=reason) as error:
        con.execute(f"CREATE TENSOR c {clause} AS {GRADIENT}")
    assert error.value.position is not None


def test_a_sum_without_keys_is_kept_in_a_file(tmp_path: Path) -> None:
    con, g = session(path=str(tmp_path / "total.db"))
    con.execute("CREATE TENSOR total PARTIAL(SUM) OVER (data) AS SELECT SUM(val) AS val FROM g")
    assert con.execute("SELECT * FROM total").fetchall() == [(g.sum(),)]
    con.execute("UPDATE total SET val = val + 1")
    con.close()
    with einsql.connect(str(tmp_path / "total.db")) as reopened:
        assert reopened.execute("SELECT * FROM total").fetchall() == [(g.sum() + 1,)]
