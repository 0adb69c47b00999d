"""Tables as operands of fragments: equal to DuckDB over element rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql
from einsql.hybrid import hybrid_plan
from tests.support.samples import sample

FRAGMENTS = (
    "SELECT e.dst, x.f, SUM(x.val) AS val FROM edges e JOIN x ON x.n = e.src GROUP BY e.dst, x.f",
    "SELECT e.dst, SUM(x.val * e.w), COUNT(*), COUNT(e.w) FROM edges e, x WHERE x.n = e.src "
    "GROUP BY e.dst",
    "SELECT e.dst, e.w, e.ok, x.f, x.val FROM edges e JOIN x ON x.n = e.src",
    "SELECT SUM(x.val), MIN(e.w), COUNT(*) FROM edges e JOIN x ON x.n = e.src AND x.f = e.dst",
    "SELECT f, MAX(val) FROM x JOIN edges e ON n = src WHERE e.w > 0.5 OR e.ok GROUP BY f",
    "SELECT l.label, SUM(x.val) FROM x JOIN labels l ON l.id = x.n GROUP BY l.label",
    "SELECT l.label, x.f, AVG(x.val) AS a FROM x JOIN labels l ON l.id + 1 = x.n "
    "GROUP BY l.label, x.f ORDER BY a DESC, 1, 2 LIMIT 5",
    "WITH m AS (SELECT e.dst AS n, x.f, SUM(x.val) AS val FROM edges e JOIN x ON x.n = e.src "
    "GROUP BY e.dst, x.f) SELECT m.n, SUM(m.val * x.val) FROM m JOIN x ON x.n = m.n AND "
    "x.f = m.f GROUP BY m.n",
    "SELECT f, SUM(x.val) AS s FROM x JOIN labels l ON l.id = n GROUP BY f HAVING SUM(x.val) > 4 "
    "ORDER BY s, f",
    "SELECT l.name, t.s FROM labels l JOIN (SELECT e.dst, SUM(x.val) AS s FROM edges e JOIN x "
    "ON x.n = e.src WHERE e.w IS NOT NULL GROUP BY e.dst) t ON t.dst = l.id",
)
OTHERS = (
    "SELECT e.src, x.val FROM edges e JOIN x ON x.n < e.src",
    "SELECT e.w, SUM(x.val) FROM edges e JOIN x ON x.n = e.src GROUP BY e.w",
    "SELECT l.name, SUM(x.val) FROM labels l JOIN x ON x.n = l.id GROUP BY l.name",
    "SELECT * FROM labels l JOIN x ON x.n = l.id",
    "SELECT * FROM labels l NATURAL JOIN x",
    "SELECT a.dst, SUM(x.val) FROM edges a JOIN edges b ON a.dst = b.src JOIN x ON x.n = a.src "
    "GROUP BY a.dst",
    "SELECT dst, SUM(w) FROM edges GROUP BY dst",
    "SELECT l.far, SUM(x.val) FROM x JOIN labels l ON l.id = x.n GROUP BY l.far",
    "SELECT f, SUM(x.val) FROM x JOIN edges e ON n = src LEFT JOIN labels ON id = dst GROUP BY f",
    "SELECT l.small, x.val FROM labels l JOIN x ON x.n = l.id",
    "SELECT COUNT(*) FROM labels, x",
)


def _rows(rng: np.random.Generator, edges: int, nodes: int) -> list[tuple[Any, ...]]:
    """Random edges, with doubles, ids that no node has, and NULLs."""
    found: list[tuple[Any, ...]] = []
    for _ in range(edges):
        src = None if rng.random() < 0.1 else int(rng.integers(-1, nodes + 2))
        w = None if rng.random() < 0.2 else float(rng.integers(-4, 8)) / 4
        found.append((src, int(rng.integers(0, nodes)), w, bool(rng.random() < 0.5)))
    return found + found[: edges // 4]


def _both(seed: int, edges: int) -> tuple[einsql.Connection, duckdb.DuckDBPyConnection]:
    rng = np.random.default_rng(seed)
    x = rng.integers(-8, 8, (6, 3)).astype([np.float32, np.float64][seed % 2]) / 4
    ours, theirs = einsql.connect(), duckdb.connect()
    ours.register("x", x, ("n", "f"))
    kind = "FLOAT" if x.dtype == np.float32 else "DOUBLE"
    theirs.execute(f"CREATE TABLE x (n BIGINT, f BIGINT, val {kind})")
    _insert(theirs, "x", [(n, f, float(value)) for (n, f), value in np.ndenumerate(x)])
    rows = _rows(rng, edges, 6)
    for con in (ours, theirs):
        con.execute("CREATE TABLE edges (src INTEGER, dst BIGINT, w DOUBLE, ok BOOLEAN)")
        con.execute(
            "CREATE TABLE labels (id TINYINT, label INTEGER, name VARCHAR, far BIGINT, "
            "small SMALLINT, val VARCHAR)"
        )
        _insert(con, "edges", rows)
        _insert(
            con,
            "labels",
            [
                (n % 7, n % 3 - 1, f"l{n % 4}", (n % 2) * 2**22, n, "0.25")
                for n in range(min(edges, 8))
            ],
        )
    return ours, theirs


def _insert(
    con: einsql.Connection | duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Inserts rows by one statement."""
    if rows:
        row = f"({', '.join('?' * len(rows[0]))})"
        values = ", ".join([row] * len(rows))
        con.execute(f"INSERT INTO {table} VALUES {values}", [v for r in rows for v in r])


def _sorted(rows: list[Any]) -> list[str]:
    return sorted(repr(tuple(float(v) if isinstance(v, float) else v for v in r)) for r in rows)


@pytest.mark.parametrize(
    ("seed", "edges"), sample([(1, 40), (4, 0)], [(1, 40), (2, 7), (3, 1), (4, 0)])
)
def test_equal_to_duckdb(seed: int, edges: int) -> None:
    ours, theirs = _both(seed, edges)
    for sql in FRAGMENTS + OTHERS:
        expected = _sorted(theirs.execute(sql).fetchall())
        assert _sorted(ours.execute(sql).fetchall()) == expected, sql
        assert _sorted(ours.execute(sql).fetchall()) == expected, sql
        if edges > 10:
            tables = "(table)" in str(ours.explain(sql))
            assert tables == (sql in FRAGMENTS), sql


def test_changed_rows_are_read() -> None:
    ours, theirs = _both(5, 20)
    for change in (
        "UPDATE edges SET src = 2 WHERE dst = 1",
        "UPDATE edges SET dst = 900 WHERE dst = 0",
        "INSERT INTO edges VALUES (1, 3, 0.5, true)",
        "UPDATE edges SET src = NULL WHERE src = 1",
        "DELETE FROM edges WHERE dst = 2",
        "ALTER TABLE edges ALTER src TYPE BIGINT",
        "ALTER TABLE edges ADD COLUMN val VARCHAR",
        "DELETE FROM edges",
    ):
        for con in (ours, theirs):
            con.execute(change)
        for sql in FRAGMENTS[:3]:
            expected = _sorted(theirs.execute(sql).fetchall())
            assert _sorted(ours.execute(sql).fetchall()) == expected, (change, sql)


def test_a_table_is_read_once_and_planned_once() -> None:
    ours, _ = _both(6, 30)
    first = ours.execute(FRAGMENTS[0]).fetch_numpy(fill=0)
    planned = ours.planner_calls
    assert np.array_equal(ours.execute(FRAGMENTS[0]).fetch_numpy(fill=0), first)
    assert first.shape[1] == 3
    assert ours.planner_calls == planned
    made = hybrid_plan.split(ours.context, FRAGMENTS[0])
    assert made.is_whole


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (OTHERS[0], "edges stays in DuckDB: its join is by no key of a tensor"),
        (
            "SELECT s.f FROM (SELECT f, COUNT(*) AS c FROM x GROUP BY f) s JOIN (SELECT dst, "
            "SUM(w) AS w FROM edges GROUP BY dst) t ON t.w < s.c",
            "edges stays in DuckDB: its join is by no key of a tensor",
        ),
        (OTHERS[7], "labels stays in DuckDB: its groups are far apart"),
        (OTHERS[2], "no tensor has the type of labels.name"),
        (FRAGMENTS[0], "edges is a table"),
    ],
)
def test_explain_says_why(sql: str, reason: str) -> None:
    ours, _ = _both(1, 40)
    assert reason in str(ours.explain(sql))


def test_a_hidden_text_column_stays_ambiguous() -> None:
    ours, theirs = _both(7, 5)
    sql = "SELECT f, SUM(val) FROM x JOIN labels l ON l.id = n GROUP BY f"
    for con in (ours, theirs):
        with pytest.raises(Exception, match=r"(?i)ambiguous"):
            con.execute(sql)
