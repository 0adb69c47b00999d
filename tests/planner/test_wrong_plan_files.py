"""Wrong plan files, and files that may not be written or read."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

import einsql
from tests.engine.test_sites import QUERIES, connection
from tests.support.plan_files import broken, export, recut, report
from tests.support.samples import spread

PRODUCT = QUERIES[0]
SUMS = "SELECT i, SUM(val) AS s FROM x GROUP BY i"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.json"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"parts": {"z": 2}}, 'r0 has no label "z"', "Known labels of r0: i, j, k."),
    ({"parts": {"i": 14}}, "i has too few values for 14 parts: 13", "1 to 13 parts"),
    ({"parts": {"i": 0}}, "parts must be an integer, at least 1", ""),
    ({"parts": {"i": 4, "j": 4, "k": 1}}, "r0 has 16 cells, too many for 4", "are at most 4"),
    ({"parts": {"i": 2}, "copies": 2}, "r0 has no parts for j, k", "parts of every label"),
    ({"copies": 3}, "r0 has 12 cells, too many for 4 sites", "are at most 4"),
    ({"mesh": []}, "the mesh of r0 lacks i, k", "It lists i, k in any order"),
    ({"mesh": ["i", "k", "q"]}, 'r0 has no label "q"', "Known labels of r0: i, j, k."),
    ({"mesh": ["i", "i", "k"]}, "the mesh has this label twice", ""),
    ({"sites": [0, 1, 2]}, "r0 has 4 cells, and 3 sites are listed", "Each cell needs a site"),
    ({"sites": [0, 1, 2, 4]}, "the site 4 does not exist", "The sites are 0 to 3"),
    ({"sites": [0, 1, 2, 2]}, "the site 2 has a cell already", "at most one cell"),
    ({"labels": {"i": 13, "j": 11}}, "these are not the labels of r0", "order: i 13, j 11, k 9."),
    ({"name": "r7"}, 'the graph has no node "r7"', "Known nodes: r0, r1."),
    ({"part": {}}, 'a node has no "part"', 'Did you mean "parts"?'),
]


@pytest.mark.parametrize(
    ("change", "reason", "hint"), spread(WRONG, 8), ids=spread(range(len(WRONG)), 8)
)
def test_a_wrong_cut_is_refused_with_its_place_and_what_fits(
    change: dict[str, Any], reason: str, hint: str, path: Path
) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    recut(path, parts={"i": 2, "j": 1, "k": 2}, mesh=["i", "k"])
    recut(path, **change)
    text = f"SELECT 1;\nSET plan = '{path}';\n{PRODUCT}"
    with pytest.raises(einsql.ProgrammingError) as caught:
        con.execute(text)
    error = caught.value
    assert reason in error.reason
    assert hint in error.hint
    place, _, _ = error.reason.removeprefix(f"'{path}', line ").partition(":")
    line, column = map(int, place.split(", column "))
    shown = path.read_text().split("\n")[line - 1][column - 1 :]
    assert shown[0] in '"[{0123456789'
    assert error.position in (text.index(f"'{path}'"), text.index(PRODUCT))


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "line 1, column 1", "Expecting value"),
        ("[]", "line 1, column 1", "expected an object"),
        ("{\n  \"format\": 1,\n}", "line 3, column 1", "expected a name in double quotes"),
        ('{"format": 2, "sites": 4, "graphs": []}', "line 1, column 12", "the format 2 is unknown"),
        ('{"format": 1, "sites": 0, "graphs": []}', "line 1, column 24", "sites must be"),
        ('{"format": 1, "sites": 4}', "line 1, column 1", 'a plan needs "graphs"'),
        ('{"format": 1, "sites": 4, "graphs": []} x', "line 1, column 41", "nothing may follow"),
        ('{"format": NaN}', "line 1, column 12", "NaN is no number"),
        ('{"format": "\\ud800"}', "line 1, column 12", "surrogates not allowed"),
        ("[" * 10**5, "line 1, column 18", "it nests deeper than 16"),
        ('{"format": ' + "9" * 5000 + "}", "line 1, column 12", "it is no JSON"),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_file_of_another_form_is_refused_when_it_is_set(
    text: str, place: str, reason: str, path: Path
) -> None:
    path.write_text(text)
    for sites in (1, 4):
        con = connection(sites)
        statement = f"SET plan = '{path}'"
        with pytest.raises(einsql.ProgrammingError) as caught:
            con.execute(statement)
        assert caught.value.reason.startswith(f"'{path}', {place}: ")
        assert reason in caught.value.reason
        assert caught.value.position == statement.index("'")
        assert dict(con.execute("SHOW SETTINGS").fetchall())["plan"] == "none"


@pytest.mark.parametrize("seed", spread(range(6), 3))
def test_a_broken_file_is_an_error_with_its_place_or_a_right_plan(seed: int, path: Path) -> None:
    chance = Random(seed)
    sql = QUERIES[seed]
    expected = connection().execute(sql).fetchall()
    con = connection(4)
    export(con, path, sql)
    text = path.read_text()
    refused: list[einsql.Error] = []
    for _ in range(60):
        path.write_text(broken(text, chance))
        try:
            con.execute(f"SET plan = '{path}'")
            rows = con.execute(sql).fetchall()
        except einsql.Error as error:
            refused.append(error)
        else:
            for row, wanted in zip(rows, expected, strict=True):
                assert row == pytest.approx(wanted, rel=1e-5), path.read_text()
    assert len(refused) > 20
    for refusal in refused:
        assert refusal.position is not None
        assert refusal.reason.startswith(f"'{path}', line ")


def test_a_cell_beyond_site_memory_is_refused(path: Path) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    recut(path, parts={"i": 1, "j": 1, "k": 1}, mesh=[])
    con.execute(f"SET plan = '{path}'; SET site_memory = '1000B'")
    with pytest.raises(einsql.ProgrammingError, match="a cell of r0 takes 1,436 bytes") as caught:
        con.execute(PRODUCT)
    assert "site_memory is 1,000" in caught.value.reason


# ---- files


def test_nothing_is_overwritten_and_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    con = connection(2)
    con.execute("CREATE TENSOR w (i DIM(4), val FLOAT)")
    path = tmp_path / "p.json"
    path.write_text("mine")
    statement = f"EXPORT PLAN '{path}' FOR {PRODUCT}"
    with pytest.raises(einsql.OperationalError, match="exists already") as caught:
        con.execute(statement)
    assert caught.value.position == statement.index("'")
    assert path.read_text() == "mine"
    with pytest.raises(einsql.OperationalError, match="needs the name of a file"):
        con.execute(f"EXPORT PLAN '' FOR {PRODUCT}")
    with pytest.raises(einsql.OperationalError, match="cannot be written"):
        con.execute(f"EXPORT PLAN '{tmp_path}/no/p.json' FOR {PRODUCT}")
    for inner, reason in (
        ("SELECT q FROM x", "q"),
        ("SELECT i, q FROM x ORDER BY q", '"q"'),
        ("SELECT upper('a') AS a", "no plan over elements"),
        ("SHOW TENSORS", "no plan over elements"),
        ("INSERT INTO w VALUES (0, 1)", "no plan over elements"),
        ("EXPLAIN SELECT 1", "EXPLAIN has none"),
        ("FOR i IN range(3) DO SELECT 1; END FOR", "FOR has none"),
        ("", "needs a statement"),
    ):
        with pytest.raises(einsql.Error, match=reason):
            con.execute(f"EXPORT PLAN '{tmp_path}/q.json' FOR {inner}")
    assert os.listdir(tmp_path) == ["p.json"]


def test_external_access(path: Path) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    con.execute(f"SET plan = '{path}'")
    expected = report(con, PRODUCT)
    con.execute("SET enable_external_access = false")
    path.write_text("changed")
    assert report(con, PRODUCT) == expected  # the file is not read again
    for statement in (f"SET plan = '{path}'", f"EXPORT PLAN '{path}.2' FOR {PRODUCT}"):
        with pytest.raises(einsql.OperationalError, match="enable_external_access") as caught:
            con.execute(statement)
        assert caught.value.position == statement.index("'")
    con.execute("RESET plan")


def test_a_read_only_session_exports_what_it_may_run(tmp_path: Path) -> None:
    file = str(tmp_path / "m.db")
    with einsql.connect(file) as con:
        con.execute(
            "CREATE TENSOR x AS SELECT i, j, i + j AS val FROM range(8) i(i), range(6) j(j)"
        )
    path = tmp_path / "p.json"
    before = sorted(os.listdir(tmp_path))
    with einsql.connect(file, read_only=True, config={"sites": 2}) as con:
        export(con, path, SUMS)
        con.execute(f"SET plan = '{path}'")
        con.execute(SUMS)
        with pytest.raises(einsql.OperationalError, match="open for reading only"):
            con.execute(f"EXPORT PLAN '{tmp_path}/q.json' FOR UPDATE x SET val = 0")
        assert con.notices == []
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "p.json"])
