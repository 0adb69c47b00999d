"""EXPLAIN shows the stored elements of sparse tensors, and ANALYZE measures those of results."""

from __future__ import annotations

import re

import pytest

import einsql


@pytest.fixture
def con() -> einsql.Connection:
    """A tensor of 2,000 ratings, and one with a DEFAULT."""
    con = einsql.connect()
    con.execute(
        "CREATE TABLE ratings AS SELECT k % 500 AS u, k AS i, k % 5 AS val FROM range(2000) r(k)"
    )
    con.execute("CREATE TENSOR r AS SELECT u, i, val FROM ratings")
    con.execute("CREATE TENSOR d (u DIM(500), i DIM(2000), val BIGINT) DEFAULT 1 STORAGE SPARSE")
    con.execute("INSERT INTO d SELECT u, i, val FROM r WHERE i < 500")
    return con


@pytest.mark.parametrize(
    ("sql", "shown", "measured"),
    [
        (
            "SELECT x.i, y.i AS k, SUM(x.val * y.val) AS s FROM r x JOIN r y USING (u) "
            "GROUP BY x.i, y.i",
            "about 7,992 of 4,000,000 elements (0.2 %)",
            8000,
        ),
        (
            "SELECT u, i, r.val + d.val AS s FROM r JOIN d USING (u, i)",
            "about 2,000 of 1,000,000 elements (0.2 %)",
            2000,
        ),
        ("SELECT u, i, val * 2 AS v FROM d", "about 500 of 1,000,000 elements (0.05 %)", 500),
        (
            "SELECT u, SUM(val) AS s FROM r GROUP BY u",
            "r  2,000 of 1,000,000 elements (0.2 %)",
            None,
        ),
    ],
)
def test_stored_elements_are_shown(
    con: einsql.Connection, sql: str, shown: str, measured: int | None
) -> None:
    assert shown in str(con.explain(sql))
    lines = [row[0] for row in con.execute(f"EXPLAIN ANALYZE {sql}").fetchall()]
    found = re.findall(r"([0-9,]+) stored elements", "\n".join(lines))
    assert {int(n.replace(",", "")) for n in found} == ({measured} if measured else set())


def test_dense_tensors_have_no_lines_of_stored_elements(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(3), val FLOAT) DEFAULT 0")
    assert "stored elements" not in str(con.explain("SELECT SUM(val) AS s FROM w"))
