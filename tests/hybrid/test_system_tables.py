"""Tensors and views in DuckDB's system tables, and in the hints of errors about names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import spread


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    made = einsql.connect()
    made.register("x", np.zeros((2, 3), np.int32), ("i", "j"))
    made.execute("""
        CREATE TENSOR weight (i DIM(3), val FLOAT);
        CREATE TABLE names (id INTEGER PRIMARY KEY, n VARCHAR);
        CREATE VIEW doubled AS SELECT i, 2 * val AS val FROM weight;
        CREATE VIEW sorted AS SELECT n FROM names ORDER BY n
    """)
    yield made
    made.close()


QUERIES: dict[str, list[tuple[Any, ...]]] = {
    "SELECT table_name, table_type FROM information_schema.tables ORDER BY 1": [
        ("doubled", "VIEW"), ("names", "BASE TABLE"), ("sorted", "VIEW"),
        ("weight", "BASE TABLE"), ("x", "LOCAL TEMPORARY"),
    ],
    "SELECT column_name, ordinal_position, data_type, is_nullable "
    "FROM information_schema.columns AS c WHERE c.table_name = 'weight' ORDER BY 2": [
        ("i", 1, "BIGINT", "NO"), ("val", 2, "FLOAT", "NO"),
    ],
    "SELECT count(*) FROM information_schema.tables JOIN information_schema.columns "
    "USING (table_catalog, table_schema, table_name)": [(9,)],
    "SELECT table_name, estimated_size, columns.column_name FROM duckdb_tables() JOIN "
    "duckdb_columns() AS columns USING (table_name) WHERE column_index = 2 ORDER BY ALL": [
        ("names", 0, "n"), ("weight", 3, "val"), ("x", 6, "j"),
    ],
    "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1": [
        ("doubled",), ("sorted",),
    ],
    "SELECT name, column_types, temporary FROM (SHOW ALL TABLES) WHERE name = 'names'": [
        ("names", ["INTEGER", "VARCHAR"], False),
    ],
    "SELECT name, type, pk FROM pragma_table_info('weight')": [
        ("i", "BIGINT", True), ("val", "FLOAT", False),
    ],
    "PRAGMA table_info('X')": [
        (0, "i", "BIGINT", True, None, True), (1, "j", "BIGINT", True, None, True),
        (2, "val", "INTEGER", True, None, False),
    ],
    "PRAGMA table_info(names)": [
        (0, "id", "INTEGER", True, None, True), (1, "n", "VARCHAR", False, None, False),
    ],
    "PRAGMA show_tables": [("doubled",), ("names",), ("sorted",), ("weight",), ("x",)],
}  # fmt: skip


@pytest.mark.parametrize("sql", spread(QUERIES, 5))
def test_tensors_are_in_the_system_tables(con: einsql.Connection, sql: str) -> None:
    assert con.execute(sql).fetchall() == QUERIES[sql]


@pytest.mark.parametrize("sql", ["SHOW ALL TABLES", "DESCRIBE"])
def test_show_all_tables(con: einsql.Connection, sql: str) -> None:
    listed = {row[2]: row for row in con.execute(sql).fetchall()}
    assert listed["weight"] == (
        *("memory", "main", "weight", ["i", "val"], ["BIGINT", "FLOAT"], False),
    )
    assert listed.keys() == {"x", "weight", "names", "doubled", "sorted"}


def test_a_repeated_query_lists_new_tensors(con: einsql.Connection) -> None:
    sql = "SELECT count(*) FROM information_schema.tables"
    assert con.execute(sql).fetchone() == (5,)
    con.execute("CREATE TENSOR more (k DIM(2), val DOUBLE)")
    assert con.execute(sql).fetchone() == (6,)


@pytest.mark.parametrize(
    ("sql", "meant"),
    spread(
        [
            ("SELECT * FROM wieght", "weight"),
            ("SELECT * FROM nmaes", "names"),
            ("SELECT * FROM sort", "sorted"),
            ("SELECT n, val FROM names, weigth ORDER BY n", "weight"),
            ("DESCRIBE nams", "names"),
            ("INSERT INTO name VALUES (1, 'a')", "names"),
            ("DROP TABLE weights", "weight"),
            ("COPY nams TO 'n.csv'", "names"),
            ("CREATE TENSOR t AS SELECT * FROM nams", "names"),
        ],
        4,
    ),
)
def test_tables_views_and_tensors_are_suggested(
    con: einsql.Connection, sql: str, meant: str
) -> None:
    with pytest.raises(einsql.ProgrammingError) as unknown:
        con.execute(sql)
    assert f'Did you mean "{meant}"?' in unknown.value.hint


def test_a_tensor_without_key_gives_a_notice(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR total (val FLOAT)")
    assert not con.notices
    con.execute("CREATE TENSOR s (i INTEGER, val FLOAT)")
    (notice,) = con.notices
    assert "s has no key" in notice
    assert "i DIM(10)" in notice
    with pytest.raises(einsql.ProgrammingError, match="has a type") as typed:
        con.execute("CREATE TENSOR t (i INTEGER DIM(3), val FLOAT)")
    assert "i DIM(n)" in typed.value.hint
    with pytest.raises(einsql.ProgrammingError, match="is a table, not a tensor"):
        con.execute("DROP TENSOR names")


def test_the_hint_for_absent_keys_helps(con: einsql.Connection, tmp_path: Path) -> None:
    con.execute("INSERT INTO weight VALUES (1, 5)")
    path = tmp_path / "w.npy"
    with pytest.raises(einsql.DataError, match="keys are absent") as absent:
        con.execute(f"COPY weight TO '{path}'")
    assert "tensor with DEFAULT 0" in absent.value.hint
    con.execute("CREATE TENSOR filled (i DIM(3), val FLOAT) DEFAULT 0")
    con.execute("INSERT INTO filled SELECT * FROM weight")
    con.execute(f"COPY filled TO '{path}'")
    assert np.load(path).tolist() == [0, 5, 0]
    nulls = "SELECT i, NULLIF(val, 5) AS val FROM filled"
    with pytest.raises(einsql.DataError, match="are NULL") as null:
        con.execute(f"COPY ({nulls}) TO '{path}'")
    assert "COALESCE" in null.value.hint
