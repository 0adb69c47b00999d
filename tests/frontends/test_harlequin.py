"""Harlequin's adapter: its classes, and the program with it in a terminal of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("harlequin")

from harlequin import Harlequin
from harlequin.exception import (
    HarlequinConfigError,
    HarlequinConnectionError,
    HarlequinQueryError,
)

from einsql.frontends.harlequin import EinsqlAdapter, EinsqlConnection


def opened(adapter: EinsqlAdapter) -> EinsqlConnection:
    made = adapter.connect()
    assert isinstance(made, EinsqlConnection)
    return made


def test_results_and_limits() -> None:
    con = opened(EinsqlAdapter())
    assert (
        con.execute("CREATE TENSOR x AS SELECT i, i::DOUBLE AS val FROM range(5) AS r(i)") is None
    )
    assert con.execute("CREATE TABLE label (i BIGINT, name VARCHAR)") is None
    assert con.execute("INSERT INTO label VALUES (3, 'three'), (4, 'four')") is None
    cur = con.execute("SELECT name, val FROM x JOIN label USING (i) ORDER BY val")
    assert cur is not None
    assert cur.columns() == [("name", "s"), ("val", "#.#")]
    assert cur.fetchall() == [("three", 3.0), ("four", 4.0)]
    cur = con.execute("SELECT i, val FROM x")
    assert cur is not None
    assert cur.set_limit(2).fetchall() == [(0, 0.0), (1, 1.0)]
    cur = con.execute("SELECT i, val FROM x WHERE val > 9")
    assert cur is not None
    assert cur.fetchall() is None
    with pytest.raises(HarlequinQueryError, match="There is no tensor"):
        con.execute("SELECT * FROM y")
    con.cancel()  # nothing runs
    con.close()
    con.close()


def test_catalog_has_tensors_and_tables(tmp_path: Path) -> None:
    path = str(tmp_path / "model.db")
    con = opened(EinsqlAdapter([path], set=["sites=2"]))
    con.execute("CREATE TENSOR x (i DIM(4), j DIM(2), val FLOAT) DEFAULT 0")
    con.execute("CREATE SCHEMA other")
    con.execute('CREATE TABLE other."a b" (c DECIMAL(9, 2))')
    con.execute("CREATE VIEW total AS SELECT SUM(val) AS s FROM x")
    found = {
        schema.label: {
            r.query_name: (r.type_label, [(c.label, c.type_label, c.type_name) for c in r.children])
            for r in schema.children
        }
        for schema in con.get_catalog().items
    }
    columns = [("i", "key", "DIM 0..4"), ("j", "key", "DIM 0..2"), ("val", "#.#", "FLOAT")]
    assert found == {
        "main": {'"total"': ("v", [("s", "#.#", "FLOAT")]), '"x"': ("x", columns)},
        "other": {'"other"."a b"': ("t", [("c", "#.#", "DECIMAL(9,2)")])},
    }
    assert con.connection.settings.sites == 2
    assert "TENSOR" in [c.value for c in con.get_completions()]
    con.close()
    reader = opened(EinsqlAdapter([path], read_only=True))
    with pytest.raises(HarlequinQueryError, match="reading only"):
        reader.execute("DROP TENSOR x")
    reader.close()


def test_wrong_options_are_told() -> None:
    with pytest.raises(HarlequinConfigError, match="one database"):
        EinsqlAdapter(["a.db", "b.db"])
    with pytest.raises(HarlequinConfigError, match="NAME=VALUE"):
        EinsqlAdapter(set=["sites"])
    with pytest.raises(HarlequinConnectionError, match="no_such"):
        EinsqlAdapter(set=["no_such=1"]).connect()


def test_the_program_runs_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    async def session() -> list[tuple[str, ...]]:
        app = Harlequin(EinsqlAdapter([str(tmp_path / "model.db")]))
        async with app.run_test(size=(120, 36)) as pilot:
            while app.editor is None:
                await pilot.pause()
            app.editor.text = "SELECT i, 2 * i AS val FROM range(3) AS r(i)"
            await pilot.press("ctrl+j")
            for _ in range(200):
                await pilot.pause(0.05)
                table = app.results_viewer.get_visible_table()
                if table is not None and table.row_count:
                    return [tuple(map(str, table.get_row_at(n))) for n in range(table.row_count)]
        return []

    assert asyncio.run(session()) == [("0", "0"), ("1", "2"), ("2", "4")]
