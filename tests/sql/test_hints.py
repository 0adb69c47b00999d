"""PARTITION hints: keys are cut as told, the rest follows by cost, mistakes are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import einsql

MATMUL = "i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
STRATEGIES = ("eindecomp", "exact", "paper", "equal", "data:i")


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect()
    chance = np.random.default_rng(1)
    for name in ("ij", "jk", "kl"):
        array = chance.integers(-4, 4, (8, 8)).astype(np.float32)
        made.register({"ij": "a", "jk": "b", "kl": "c"}[name], array, dims=tuple(name))
    made.register("ids", np.array([1, 5, 2]), dims=("t",))
    return made


def parts(con: einsql.Connection, sql: str, sites: int = 8) -> list[dict[str, int]]:
    """The cut of every operation."""
    return [n["partition"] for n in nodes(con, sql, sites)]


def nodes(con: einsql.Connection, sql: str, sites: int = 8) -> list[dict[str, Any]]:
    (text,) = con.execute(f"EXPLAIN (SITES {sites}, FORMAT json) {sql}").fetchone() or ("{}",)
    found: list[dict[str, Any]] = json.loads(text)["nodes"]
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("PARTITION(i=2, j=2, k=2)", {"i": 2, "j": 2, "k": 2}),
        ("PARTITION(j=8)", {"j": 8}),
        ("PARTITION(a.i = 4)", {"i": 4}),
        ('PARTITION("K"=1) PARTITION(b.j=2)', {"k": 1, "j": 2}),
        ("PARTITION(i=3)", {"i": 3}),
        ("PARTITION(i=1, j=1, k=1)", {"i": 1, "j": 1, "k": 1}),
    ],
)
def test_hinted_labels_are_cut_as_told_and_answers_stay(
    con: einsql.Connection, strategy: str, hint: str, told: dict[str, int]
) -> None:
    expected = con.execute(f"SELECT {MATMUL}").fetchall()
    con.execute(f"SET strategy = '{strategy}'")
    sql = f"SELECT /*+ {hint} */ {MATMUL}"
    cut = parts(con, sql)[0]
    assert {x: cut[x] for x in told} == told
    assert np.prod(list(cut.values())) <= 8
    con.execute("SET sites = 8")
    assert con.execute(sql).fetchall() == expected


def test_what_a_hint_leaves_open_follows_by_cost(con: einsql.Connection) -> None:
    inner = f"WITH m AS (SELECT /*+ PARTITION(i=8) */ {MATMUL}) "
    sql = inner + "SELECT i, l, SUM(m.val * c.val) AS val FROM m JOIN c USING (k) GROUP BY i, l"
    cuts = parts(con, sql)
    assert [c["i"] for c in cuts] == [8, 8, 8]  # the reader takes the rows where they are
    assert sum(n["bytes_sent"] for n in nodes(con, sql)) == 0
    assert parts(con, f"SELECT /*+ PARTITION(i=4) */ {MATMUL}")[0] == {"i": 4, "j": 1, "k": 2}


def test_pieces_of_a_join_inherit_what_concerns_them(con: einsql.Connection) -> None:
    sql = (
        "SELECT /*+ PARTITION(i=2, l=4) */ i, l, SUM(a.val * b.val * c.val) AS val "
        "FROM a JOIN b USING (j) JOIN c USING (k) GROUP BY i, l"
    )
    first, second, _ = nodes(con, sql)
    hint = {"i": 2, "l": 4}
    own = {label: n for label, n in hint.items() if label in first["partition"]}
    assert len(own) == 1  # whichever product the search takes first
    assert [first["hint"], second["hint"]] == [own, hint]
    assert {label: first["partition"][label] for label in own} == own
    assert (second["partition"]["i"], second["partition"]["l"]) == (2, 4)


def test_inlined_blocks_bring_their_hints_as_far_as_the_sites_go(con: einsql.Connection) -> None:
    sql = (
        "WITH t AS (SELECT /*+ PARTITION({}) */ j AS n, i AS m, val FROM a) "
        "SELECT /*+ PARTITION({}) */ t.m, b.k, SUM(t.val * b.val) AS val FROM t, b "
        "WHERE t.n = b.j GROUP BY t.m, b.k"
    )
    assert parts(con, sql.format("j=2", "t.m=4"))[0] == {"i": 4, "j": 2, "k": 1}
    # A hint of the block itself comes first; what the other one asks for is too much.
    assert parts(con, sql.format("i=4, j=2", "k=8"))[0] == {"i": 1, "j": 1, "k": 8}


def test_equal_blocks_with_other_hints_are_not_shared(con: einsql.Connection) -> None:
    block = "(SELECT /*+ PARTITION({}) */ " + MATMUL + ")"
    sql = "SELECT p.i, p.k, p.val + q.val AS val FROM " + block + " p JOIN " + block + " q "
    count = [
        sum(n["op"] == "contraction" for n in nodes(con, sql.format(*hints) + "USING (i, k)"))
        for hints in (("i=2", "i=2"), ("i=2", "k=2"))
    ]
    assert count == [1, 2]


def test_hints_follow_their_keys(con: einsql.Connection) -> None:
    con.execute(f"CREATE VIEW v AS SELECT /*+ PARTITION(k=4) */ {MATMUL}")
    assert parts(con, "SELECT * FROM v")[0]["k"] == 4
    window = "SELECT /*+ PARTITION(i=2) */ i, j, SUM(val) OVER (PARTITION BY i) AS s FROM a"
    assert [c["i"] for c in parts(con, window, 4)] == [2, 2]
    shifted = "SELECT /*+ PARTITION(i=2) */ i + 3 AS n, j, val FROM a"
    assert [c["n"] for c in parts(con, shifted, 4)] == [2]


def test_one_site_and_explain(con: einsql.Connection) -> None:
    sql = f"SELECT /*+ PARTITION(i=8, j=8) */ {MATMUL}"
    assert con.execute(sql).fetchall() == con.execute(f"SELECT {MATMUL}").fetchall()
    assert "  parts   i:8, j:8" in str(con.explain(sql)).split("\n")


@pytest.mark.parametrize(
    ("hint", "at", "reason", "way"),
    [
        ("PARTITION(i=4, j=4)", "i=4", "16 kernel calls, and there are 8 sites", "SET sites = 16"),
        ("PARTITION(ii=2)", "ii", 'no column "ii"', 'Did you mean "i"'),
        ("PARTITION(a.z=2)", "a.z", '"a" has no column "z"', "columns of a"),
        ("PARTITION(q.i=2)", "q.i", 'no table "q"', "Known tables"),
        ("PARTITION(a.val=2)", "a.val", "no key", "Only keys"),
        ("PARTITION(i=9)", "i=9", "too few values for 9 parts: 8", "At most 8"),
        ("PARTITION(i=2, i=2)", "i=2)", "named twice", "once"),
        ("PARTITION(i=0)", "0", "at least 1", ""),
        ("PARTITION(i=k)", "k)", "a number of parts", ""),
        ("PARTITION(i)", ")", "Expected =", ""),
        ("PARTITION()", ")", "Expected a key", ""),
        ("PARTITION(i=2", "*/ i", "behind a hint", ""),
        ("PARTITON(i=2)", "PARTITON", "Expected PARTITION", "PARTITION(i=2"),
    ],
)
def test_wrong_hints_are_refused_where_they_stand(
    con: einsql.Connection, hint: str, at: str, reason: str, way: str
) -> None:
    sql = f"SELECT /*+ {hint} */ {MATMUL}"
    con.execute("SET sites = 8")
    with pytest.raises(einsql.ProgrammingError) as caught:
        con.execute(sql)
    assert reason in caught.value.reason
    assert way in caught.value.hint
    assert caught.value.position == sql.index(at)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT i /*+ PARTITION(i=2) */ FROM a", "directly follow SELECT"),
        ("SELECT /*+ PARTITION(i=2) */ /*+ PARTITION(j=2) */ i, j, val FROM a", "directly follow"),
    ],
)  # fmt: skip
def test_hints_that_could_do_nothing_are_refused(
    con: einsql.Connection, sql: str, reason: str
) -> None:
    with pytest.raises(einsql.ProgrammingError, match=reason):
        con.execute(sql)
