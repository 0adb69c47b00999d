"""Gathers by values whose range is known: dense plans, and plans that replace them in time."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import sample, spread

ROWS = 30
EMBEDDED = "SELECT i.s AS s, e.d AS d, e.val AS val FROM ids i JOIN emb e ON e.v = i.val"
PRODUCT = (
    f"WITH x AS ({EMBEDDED}) SELECT x.s AS s, w.o AS o, SUM(x.val * w.val) AS val "
    "FROM x JOIN w ON w.d = x.d GROUP BY x.s, w.o"
)
TOTAL = "SELECT SUM(e.val) AS val FROM ids i JOIN emb e ON e.v = i.val"
QUERIES = [
    EMBEDDED,
    PRODUCT,
    "SELECT e.d AS d, SUM(e.val) AS val FROM ids i JOIN emb e ON e.v = i.val GROUP BY e.d",
    "SELECT i.s AS s, e.d AS d, e.val AS val FROM ids i JOIN emb e ON e.v = i.val + 1",
    "SELECT i.s AS s, e.d AS d, e.val AS val FROM ids i JOIN emb e ON e.v = 29 - i.val",
    "SELECT i.s AS s, e.d AS d, e.val AS val FROM ids i JOIN emb e ON e.v = i.val // 2",
    "SELECT i.s AS s, e.d AS d, e.val AS val FROM ids i JOIN emb e ON e.v = i.val WHERE e.v < 9",
    "SELECT i.s AS s, e.d AS d, e.val AS val FROM ids i JOIN emb e ON e.v = NULLIF(i.val, 7)",
    "WITH j AS (SELECT s AS t, val AS id FROM ids) "
    "SELECT j.t AS s, e.d AS d, e.val AS val FROM j JOIN emb e ON e.v = j.id",
    "SELECT i.s AS s, k.s AS d, e.val AS val FROM ids i, ids k, emb e "
    "WHERE e.v = i.val - i.val + k.val AND e.d = 1",
]
CONTENTS = {
    "inside": [0, 29, 7, 7, 12, 3],
    "above": [0, 30, 7, 7, 12, 3],
    "below": [0, 29, 7, -1, 12, 3],
    "inner": [1, 28, 7, 7, 12, 3],
    "far": [2**40, -(2**40), 7, 7, 12, 3],
}

EACH = list(product(QUERIES, CONTENTS, (1, 4)))
DIAGONAL = [EACH[(2 * len(CONTENTS) + 3) * n % len(EACH)] for n in range(2 * len(QUERIES))]
"""Each query twice, each time with other contents: both numbers of sites meet all contents."""
rng = np.random.default_rng(5)
EMB = rng.integers(-8, 8, (ROWS, 4)).astype(np.float32)
W = rng.integers(-8, 8, (4, 3)).astype(np.float32)


def connected(ids: np.ndarray, sites: int = 1) -> einsql.Connection:
    con = einsql.connect(config={"sites": sites})
    con.register("ids", ids, dims=("s",))
    con.register("emb", EMB, dims=("v", "d"))
    con.register("w", W, dims=("d", "o"))
    return con


def expected(sql: str, ids: list[int]) -> list[tuple[object, ...]]:
    """The sorted rows of DuckDB on the same elements."""
    con = duckdb.connect()
    con.execute("CREATE TABLE ids (s BIGINT, val BIGINT)")
    con.executemany("INSERT INTO ids VALUES (?, ?)", list(enumerate(ids)))
    for name, array, keys in (("emb", EMB, "v BIGINT, d BIGINT"), ("w", W, "d BIGINT, o BIGINT")):
        con.execute(f"CREATE TABLE {name} ({keys}, val FLOAT)")
        rows = [(*at, float(x)) for at, x in np.ndenumerate(array)]
        con.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", [(a, b, x) for a, b, x in rows])
    return sorted(con.execute(sql).fetchall())


def is_dense(con: einsql.Connection, sql: str) -> bool:
    return "present" not in str(con.explain(sql))


@pytest.mark.parametrize(("sql", "contents", "sites"), spread(sample(DIAGONAL, EACH), 8))
def test_registered_ids(sql: str, contents: str, sites: int) -> None:
    ids = CONTENTS[contents]
    con = connected(np.array(ids), sites)
    assert sorted(con.execute(sql).fetchall()) == expected(sql, list(ids))


@pytest.mark.parametrize(
    ("sql", "sites"),
    sample(
        list(zip(QUERIES[::3], (1, 4) * len(QUERIES), strict=False)), list(product(QUERIES, (1, 4)))
    ),
)
def test_changed_arrays(sql: str, sites: int) -> None:
    ids = np.array(CONTENTS["inside"])
    con = connected(ids, sites)
    for contents in ("inside", "inner", "above", "inside", "far", "below", "inner"):
        ids[:] = CONTENTS[contents]
        assert sorted(con.execute(sql).fetchall()) == expected(sql, ids.tolist()), contents


def test_dense_plans() -> None:
    con = connected(np.array(CONTENTS["inside"]))
    assert is_dense(con, PRODUCT)
    assert "r1  blas" in str(con.explain(PRODUCT))
    con = connected(np.array(CONTENTS["above"]))
    assert not is_dense(con, PRODUCT)


def stored(con: einsql.Connection, ids: list[int]) -> None:
    con.register("emb", EMB, dims=("v", "d"))
    con.register("w", W, dims=("d", "o"))
    con.execute(f"CREATE TENSOR ids (s DIM({len(ids)}), val BIGINT)")
    values = ", ".join(f"({s}, {v})" for s, v in enumerate(ids))
    con.execute(f"INSERT INTO ids VALUES {values}")


@pytest.mark.parametrize("sites", sample([4], [1, 4]))
def test_stored_ids(sites: int, tmp_path: Path) -> None:
    con = einsql.connect(str(tmp_path / "model.db"), config={"sites": sites})
    ids = [0, 29, 7, 7, 12, 3]
    stored(con, ids)

    def check(now: list[int]) -> None:
        for sql in (EMBEDDED, PRODUCT):
            assert sorted(con.execute(sql).fetchall()) == expected(sql, now)

    check(ids)
    con.execute("UPDATE ids SET val = 30 WHERE s = 2")
    check([0, 29, 30, 7, 12, 3])
    con.execute("UPDATE ids SET val = 4 WHERE s = 2")
    check([0, 29, 4, 7, 12, 3])
    con.execute("BEGIN")
    check([0, 29, 4, 7, 12, 3])
    con.execute("UPDATE ids SET val = -1 WHERE s = 5")
    check([0, 29, 4, 7, 12, -1])
    con.execute("UPDATE ids SET val = 5 WHERE s = 5")
    check([0, 29, 4, 7, 12, 5])
    con.execute("UPDATE ids SET val = 100")
    check([100] * 6)
    con.execute("ROLLBACK")
    check([0, 29, 4, 7, 12, 3])
    with pytest.raises(einsql.Error):
        con.execute("UPDATE ids SET val = 9000000000000000000 * (val + 1) WHERE s < 4")
    check([0, 29, 4, 7, 12, 3])
    con.execute("DELETE FROM ids WHERE s = 0")
    assert len(con.execute(EMBEDDED).fetchall()) == 20
    con.close()
    con = einsql.connect(str(tmp_path / "model.db"))
    con.register("emb", EMB, dims=("v", "d"))
    assert len(con.execute(EMBEDDED).fetchall()) == 20


def test_stored_ids_are_dense_after_they_return_into_range() -> None:
    con = einsql.connect()
    stored(con, [0, 29, 30])
    assert not is_dense(con, PRODUCT)
    con.execute("UPDATE ids SET val = 29 WHERE s = 2")
    assert is_dense(con, PRODUCT)


def test_ids_that_leave_the_range_one_after_another() -> None:
    con = einsql.connect()
    stored(con, [27, 28])
    for n in range(4):
        rows = con.execute(TOTAL).fetchall()
        inside = [v for v in (27 + n, 28 + n) if v < ROWS]
        assert rows == [(float(EMB[inside].sum()) if inside else None,)]
        con.execute("UPDATE ids SET val = val + 1")


def test_other_ids_in_range_keep_the_plan() -> None:
    ids = np.array(CONTENTS["inside"])
    con = connected(ids)
    con.execute(EMBEDDED).fetchall()
    planned = con.context.plans.planned
    ids[:] = CONTENTS["inner"]
    con.execute(EMBEDDED).fetchall()
    assert con.context.plans.planned == planned
    ids[:] = CONTENTS["above"]
    con.execute(EMBEDDED).fetchall()
    ids[:] = CONTENTS["below"]
    con.execute(EMBEDDED).fetchall()
    assert con.context.plans.planned == planned + 1


def declared(con: einsql.Connection, ids: list[int], check: str) -> None:
    con.register("emb", EMB, dims=("v", "d"))
    con.register("w", W, dims=("d", "o"))
    con.execute(f"CREATE TENSOR ids (s DIM({len(ids)}), val BIGINT CHECK ({check})) DEFAULT 2")
    con.execute("UPDATE ids SET val = CASE s " + "".join(
        f"WHEN {s} THEN {v} " for s, v in enumerate(ids)) + "END")  # fmt: skip


@pytest.mark.parametrize("sites", sample([4], [1, 4]))
def test_a_declared_range_needs_no_data(sites: int) -> None:
    con = einsql.connect(config={"sites": sites})
    ids = [0, 29, 7, 7, 12, 3]
    declared(con, ids, "val BETWEEN 0 AND 29")
    assert is_dense(con, PRODUCT)
    for sql in QUERIES:
        assert sorted(con.execute(sql).fetchall()) == expected(sql, ids)
    planned = con.context.plans.planned
    con.execute("UPDATE ids SET val = 29 - val")
    for sql in QUERIES:
        assert sorted(con.execute(sql).fetchall()) == expected(sql, [29 - v for v in ids])
    assert con.context.plans.planned <= planned + 1


def test_a_wide_declared_range_is_narrowed_by_the_data() -> None:
    con = einsql.connect()
    declared(con, [0, 29, 7], "val < 1000")
    assert is_dense(con, EMBEDDED)
    con.execute("UPDATE ids SET val = 30 WHERE s = 2")
    assert not is_dense(con, EMBEDDED)
    assert sorted(con.execute(EMBEDDED).fetchall()) == expected(EMBEDDED, [0, 29, 30])


def test_a_tensor_with_another_check_has_other_plans() -> None:
    con = einsql.connect()
    for most, ids in ((29, [29, 4]), (40, [40, 4])):
        declared(con, ids, f"val BETWEEN 0 AND {most}")
        assert sorted(con.execute(EMBEDDED).fetchall()) == expected(EMBEDDED, ids)
        con.execute("DROP TENSOR ids")


def test_a_smaller_table_makes_a_declared_range_too_wide() -> None:
    con = einsql.connect()
    ids = [0, 29, 7, 4]
    declared(con, ids, "val BETWEEN 0 AND 29")
    total = con.execute(TOTAL).fetchone()
    con.register("emb", EMB[:20], dims=("v", "d"))
    assert con.execute(TOTAL).fetchone() == (float(EMB[[0, 7, 4]].sum()),)
    con.register("emb", EMB, dims=("v", "d"))
    assert con.execute(TOTAL).fetchone() == total == (float(EMB[ids].sum()),)


def test_tables_with_a_check() -> None:
    con = einsql.connect()
    con.register("emb", EMB, dims=("v", "d"))
    con.execute("CREATE TABLE ids (s BIGINT, val BIGINT CHECK (val BETWEEN 0 AND 29))")
    con.execute("INSERT INTO ids VALUES (0, 29), (1, 7)")
    assert is_dense(con, TOTAL)
    with pytest.raises(einsql.IntegrityError, match="CHECK constraint failed"):
        con.execute("INSERT INTO ids VALUES (2, 30)")
    assert con.execute(TOTAL).fetchone() == (float(EMB[[29, 7]].sum()),)
