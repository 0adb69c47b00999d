"""The public-domain compliance suite of DB-API 2.0, over databases in files."""

from __future__ import annotations

import tempfile
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

import einsql
from tests.support.samples import spread

dbapi20: ModuleType = pytest.importorskip("dbapi20", reason="the suite is dbapi-compliance's")
Suite: Any = dbapi20.DatabaseAPI20Test


class TestCompliance(Suite):  # type: ignore[misc]  # the suite has no types
    """Every test of the suite; connections of one test share a file."""

    driver = einsql

    def setUp(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.connect_args = (str(Path(self._directory.name) / "suite.db"),)

    def tearDown(self) -> None:
        super().tearDown()
        self._directory.cleanup()

    def test_nextset(self) -> None:
        """Optional, and drivers must write it: a cursor has one result."""
        assert not hasattr(einsql.Cursor, "nextset")

    def test_setoutputsize(self) -> None:
        """Drivers must write it: sizes change nothing."""
        con = self._connect()
        with con, con.cursor() as cur:
            cur.setoutputsize(3)
            assert cur.execute("SELECT 'longer than three'").fetchall() == [("longer than three",)]


del Suite  # pytest would collect it without a driver


@pytest.mark.parametrize(
    ("expression", "kind"),
    spread(
        [
            ("'a'", einsql.STRING),
            ("'{}'::JSON", einsql.STRING),
            ("'a'::ENUM('a', 'b')", einsql.STRING),
            ("'a'::BLOB", einsql.BINARY),
            ("1.5::DECIMAL(4, 2)", einsql.NUMBER),
            ("1::HUGEINT", einsql.NUMBER),
            ("1::UTINYINT", einsql.NUMBER),
            ("true", einsql.NUMBER),
            ("DATE '2026-01-01'", einsql.DATETIME),
            ("TIME '10:00'", einsql.DATETIME),
            ("TIMESTAMP '2026-01-01'", einsql.DATETIME),
            ("'2026-01-01'::TIMESTAMP_MS", einsql.DATETIME),
            ("'2026-01-01'::TIMESTAMPTZ", einsql.DATETIME),
            ("[1.5::DECIMAL(4, 2)]", None),
            ("{'a': 1}", None),
        ],
        8,
    ),
)
def test_types_of_duckdb_are_of_their_kind(expression: str, kind: object) -> None:
    with einsql.connect() as con:
        cur = con.execute(f"SELECT {expression} AS c FROM (VALUES ('a')) AS t(s)")
        assert cur.description is not None
        kinds = (einsql.STRING, einsql.BINARY, einsql.NUMBER, einsql.DATETIME, einsql.ROWID)
        assert [k for k in kinds if cur.description[0][1] == k] == ([kind] if kind else [])


def test_parameters_of_any_type() -> None:
    given = (None, "a", b"b", 1.5, True, date(2026, 1, 1), Decimal("1.50"), UUID(int=7))
    with einsql.connect() as con:
        types = "a INT, b VARCHAR, c BLOB, d DOUBLE, e BOOLEAN, f DATE, g DECIMAL(4, 2), h UUID"
        con.execute(f"CREATE TABLE t ({types})")
        cur = con.cursor().executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [given] * 2)
        assert (cur.rowcount, cur.description) == (2, None)
        assert con.execute("SELECT * FROM t WHERE b = ?", ["a"]).fetchall() == [given] * 2


def test_nothing_is_fetched_after_close() -> None:
    con = einsql.connect()
    cur = con.execute("SELECT 'a' AS s")
    other = con.execute("SELECT 1 AS n")
    other.close()
    assert (other.rowcount, other.description) == (1, None)
    for fetch in (other.fetchone, other.fetchmany, other.fetchall, other.fetch_arrow_table):
        with pytest.raises(einsql.InterfaceError, match="cursor is closed"):
            fetch()
    with con:
        con.close()  # leaving the block does not close again
    assert con.closed
    for use in (cur.fetchall, con.close, con.commit, con.cursor):
        with pytest.raises(einsql.InterfaceError, match="connection is closed"):
            use()
