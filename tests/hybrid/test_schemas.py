"""Views in schemas of DuckDB's."""

from __future__ import annotations

import pytest

import einsql


def test_views_in_other_schemas_are_duckdbs() -> None:
    with einsql.connect() as con:
        con.execute("CREATE SCHEMA s; CREATE TABLE s.t (a INTEGER); INSERT INTO s.t VALUES (3)")
        con.execute("CREATE OR REPLACE VIEW s.v AS SELECT a + 1 AS b FROM s.t")
        assert con.execute("SELECT b FROM s.v").fetchall() == [(4,)]
        con.execute("CREATE TENSOR x AS SELECT i, i AS val FROM range(3) AS r(i)")
        with pytest.raises(einsql.Error, match="no schemas"):
            con.execute("CREATE VIEW s.w AS SELECT SUM(val) AS total FROM x")
        con.execute("DROP VIEW IF EXISTS s.v")
        with pytest.raises(einsql.ProgrammingError):
            con.execute("SELECT b FROM s.v")
