"""Changes overwrite what nobody else can see, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql

CHANGES = [
    "INSERT INTO c SELECT {n} AS t, d, val FROM row",
    "INSERT OR REPLACE INTO c (d, val, t) SELECT d, {n}::DOUBLE, {n} FROM row",
    "UPDATE c SET val = c.val + 1 WHERE t = {n}",
    "UPDATE c SET val = row.val FROM row WHERE row.d = c.d AND c.t <= {n}",
    "UPDATE c SET val = 0 WHERE val > 2",
    "UPDATE c SET val = o.val FROM c AS o WHERE o.t = c.t + 1 AND o.d = c.d",
    "UPDATE c SET val = 1 WHERE t = d",
    "DELETE FROM c WHERE t = {n}",
    "DELETE FROM c WHERE val > 3",
    "INSERT OR REPLACE INTO c VALUES ({n}, 1, 5), (0, 2, 6)",
]


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        prepared(made)
        yield made


def prepared(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR row AS SELECT d, d + 1.5::DOUBLE AS val FROM range(3) AS r(d)")
    con.execute("CREATE TENSOR c (t DIM(6), d DIM(3), val DOUBLE)")
    con.execute(
        "INSERT INTO c SELECT t, d, t - d + 0.5::DOUBLE FROM range(4) AS r(t), range(3) AS s(d)"
    )


def memory(con: einsql.Connection, name: str = "c") -> list[int]:
    """Where the values of a tensor lie, and which of its keys exist."""
    stored: Any = con.store.get(name)
    fields = stored.relation.fields
    return [fields[f].ctypes.data for f in ("val", ".present") if f in fields]


def rows(con: einsql.Connection) -> list[tuple[Any, ...]]:
    return con.execute("SELECT t, d, val + 0 AS val FROM c").fetchall()


@pytest.mark.parametrize("change", CHANGES)
def test_changes_in_place_do_what_changes_of_copies_do(con: einsql.Connection, change: str) -> None:
    first, then = change.format(n=4), change.format(n=5)
    if change.startswith("INSERT INTO"):
        con.execute("DELETE FROM c WHERE t = 3")
    con.execute(first)
    con.execute("UPDATE c SET val = c.val WHERE t = 0 AND d = 0")  # the array is nobody else's now
    con.execute("DELETE FROM c WHERE t = 1 AND d = 0")
    before = memory(con)
    con.execute(then)
    assert memory(con) == before
    with einsql.connect() as other:
        prepared(other)
        if change.startswith("INSERT INTO"):
            other.execute("DELETE FROM c WHERE t = 3")
        for sql in (first, "DELETE FROM c WHERE t = 1 AND d = 0", then):
            other.execute(sql)
            other.execute("SELECT * FROM c").fetchone()  # shares the array, which is left alone
        assert rows(con) == rows(other)


def test_what_is_shown_stays_as_it_was(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w AS SELECT i, i * 1.0::DOUBLE AS val FROM range(9) AS r(i)")
    held, wanted = [], []
    for n in range(4):
        con.execute("UPDATE w SET val = ? WHERE i = 3", [float(n)])
        before = memory(con, "w")
        for sql in ("SELECT * FROM w", "SELECT 2 - i AS k, val FROM w WHERE i < 5", "FROM w"):
            cursor = con.execute(sql)
            held.append(cursor.fetch_numpy())
            wanted.append(held[-1].copy())
        held.append(con.execute("SELECT i, val FROM w ORDER BY val").fetch_df())
        wanted.append(held[-1].copy())
        con.execute("UPDATE w SET val = -1 WHERE i = 4")
        assert memory(con, "w") != before
        before = memory(con, "w")
        con.execute("UPDATE w SET val = val - 1 WHERE i = 4")
        assert memory(con, "w") == before
    for now, then in zip(held, wanted, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_pending_cursor_gives_what_was_there(con: einsql.Connection) -> None:
    con.execute("UPDATE c SET val = 1 WHERE t = 0")
    wanted = con.execute("SELECT * FROM c").fetchall()
    cursor, tiles = con.execute("SELECT * FROM c"), con.execute("SELECT * FROM TILES(row, 1)")
    con.execute("UPDATE c SET val = 2 WHERE t = 0")
    con.execute("UPDATE row SET val = 2 WHERE d = 0")
    con.execute("UPDATE row SET val = 3 WHERE d = 0")
    assert cursor.fetchall() == wanted
    assert float(tiles.fetchall()[0][-1][0]) == 1.5


def test_a_transaction_copies_once_and_can_be_undone(con: einsql.Connection) -> None:
    con.execute("UPDATE c SET val = 1 WHERE t = 0")
    first, before = rows(con), memory(con)
    con.execute("BEGIN")
    con.execute("UPDATE c SET val = 2 WHERE t = 0")
    second = memory(con)
    assert second[0] != before[0]
    for n in range(3):
        con.execute("UPDATE c SET val = val + ? WHERE t = 0", [float(n)])
        assert memory(con) == second
    con.execute("ROLLBACK")
    assert (rows(con), memory(con)) == (first, before)
    con.execute("BEGIN")
    con.execute("DELETE FROM c WHERE t = 0")
    con.execute("COMMIT")
    after = memory(con)
    con.execute("INSERT INTO c SELECT 0 AS t, d, val FROM row")
    assert memory(con)[1] == after[1]
    assert rows(con) == [(0, d, d + 1.5) for d in range(3)] + first[3:]


def test_plans_hold_after_a_rollback_of_values_alone(con: einsql.Connection) -> None:
    change, read = (
        "UPDATE c SET val = c.val + ? WHERE t = ?",
        "SELECT t, SUM(val) FROM c GROUP BY t",
    )
    con.execute(change, [1.0, 0])
    first = con.execute(read).fetchall()
    before = con.planner_calls
    for n in (1.0, 2.0):
        con.execute("BEGIN")
        con.execute(change, [n, 1])
        assert con.execute(read).fetchall()[1][1] == first[1][1] + 3 * n
        con.execute("ROLLBACK")
        assert con.execute(read).fetchall() == first
    assert con.planner_calls == before
    con.execute("BEGIN")
    con.execute("CREATE OR REPLACE TENSOR c AS SELECT d AS t, d, val FROM row")
    assert con.execute(read).fetchall() == [(d, d + 1.5) for d in range(3)]
    con.execute("CREATE TENSOR new AS SELECT d, val FROM row")
    con.execute("ROLLBACK")
    assert con.execute(read).fetchall() == first
    with pytest.raises(einsql.Error):
        con.execute("SELECT d, val FROM new")


def test_a_statement_that_fails_takes_back_what_it_overwrote(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR small (i DIM(2), val TINYINT) DEFAULT 0")
    con.execute("UPDATE c SET val = 1 WHERE t = 0")
    first, before = rows(con), memory(con)
    with pytest.raises(einsql.DataError):
        con.execute("""
            WITH s AS (UPDATE c SET val = 9 WHERE t = 0)
            INSERT INTO small SELECT d AS i, 100 + 100 * d AS val FROM row WHERE d < 2""")
    assert (rows(con), memory(con)) == (first, before)


def test_other_connections_keep_their_snapshot(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    with einsql.connect(path) as con, einsql.connect(path) as other:
        prepared(con)
        other.execute("BEGIN")
        first = rows(other)
        held = other.execute("SELECT * FROM c").fetch_numpy(fill=0)
        wanted = held.copy()
        con.execute("BEGIN")
        for n in range(3):
            con.execute("UPDATE c SET val = val + ? WHERE t = 0", [float(n)])
            assert rows(other) == first
        con.execute("COMMIT")
        con.execute("UPDATE c SET val = 0 WHERE t = 0")
        assert rows(other) == first
        np.testing.assert_array_equal(held, wanted)
        other.execute("COMMIT")
        assert rows(other) == rows(con) != first


def test_the_last_row_makes_a_tensor_dense(con: einsql.Connection) -> None:
    con.execute("INSERT INTO c SELECT 4 AS t, d, val FROM row")
    con.execute("INSERT INTO c SELECT 5 AS t, d, val FROM row")
    assert len(memory(con)) == 1
    with pytest.raises(einsql.IntegrityError, match=r"t = 5, d = 0\) exists"):
        con.execute("INSERT INTO c SELECT 5 AS t, d, val FROM row")
    with pytest.raises(einsql.IntegrityError, match="t = 6 is out of bounds"):
        con.execute("INSERT INTO c SELECT 6 AS t, d, val FROM row")
    con.execute("DELETE FROM c WHERE t = 5 AND d = 2")
    assert len(rows(con)) == 17


def test_nothing_is_copied_where_no_row_is_touched(con: einsql.Connection) -> None:
    con.execute("SELECT * FROM c").fetchone()
    before = memory(con)
    assert con.execute("UPDATE c SET val = 0 WHERE val > 100").rowcount == 0
    assert con.execute("DELETE FROM c WHERE t = 5").rowcount == 0
    assert memory(con) == before


def test_steps_of_a_loop_overwrite_and_the_one_that_fails_is_undone(
    con: einsql.Connection,
) -> None:
    con.execute("CREATE TENSOR n (k DIM(9), val INTEGER)")
    con.execute("UPDATE c SET val = 0 WHERE t = 0")
    seen: list[list[int]] = []
    con.stepped = lambda description, row: seen.append(memory(con))
    with pytest.raises(einsql.IntegrityError, match="steps up to step = 2 are kept"):
        con.execute("""
            FOR step IN range(5) DO
              UPDATE c SET val = c.val + 1 WHERE t = 0;
              UPDATE c SET val = c.val * 2 WHERE t = 0;
              INSERT INTO n SELECT 3 * step AS k, 1 AS val;
              SELECT SUM(val) AS total FROM c;
            END FOR""")
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2] == memory(con)
    assert rows(con)[:3] == [(0, d, 14.0) for d in range(3)]
    assert con.execute("SELECT k FROM n").fetchall() == [(0,), (3,), (6,)]
