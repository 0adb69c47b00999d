"""TEMP objects hide permanent ones of the same name until they are dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

import einsql


def rows(con: einsql.Connection, name: str) -> list[tuple[object, ...]]:
    return con.execute(f"SELECT * FROM {name}").fetchall()


def test_a_hidden_tensor_is_not_replaced_by_a_view(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR h AS SELECT i, 5 AS val FROM range(2) r(i)")
        con.execute("CREATE TEMP VIEW h AS SELECT 1 AS one")
        with pytest.raises(einsql.ProgrammingError, match="something named"):
            con.execute("CREATE OR REPLACE VIEW h AS SELECT 2 AS two")
        assert rows(con, "h") == [(1,)]
    with einsql.connect(path) as con:
        assert rows(con, "h") == [(0, 5), (1, 5)]


@pytest.mark.parametrize(
    ("kind", "body", "read"),
    [
        ("TENSOR", "h AS SELECT i, {} AS val FROM range(1) r(i)", "SELECT val FROM h"),
        ("VIEW", "h AS SELECT {} AS val", "FROM h"),
        ("MACRO", "h(x) AS x + {}", "SELECT h(0)"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_permanent_object_is_created_beneath_a_temporary_one(
    kind: str, body: str, read: str, is_first: bool
) -> None:
    con = einsql.connect()
    if is_first:
        con.execute(f"CREATE {kind} {body.format(1)}")
    con.execute(f"CREATE TEMP {kind} {body.format(2)}")
    con.execute(f"CREATE OR REPLACE {kind} {body.format(3)}")
    assert con.execute(read).fetchall() == [(2,)]
    con.execute(f"DROP {kind} h")
    assert con.execute(read).fetchall() == [(3,)]
