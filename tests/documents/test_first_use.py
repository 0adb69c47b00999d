"""What a first-time user of plans meets: the text of a plan, and messages that help on."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

import einsql

PRODUCT = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect(config={"jit": "never"})
    made.register("a", np.ones((8, 8), np.float32), ("i", "j"))
    made.register("b", np.ones((8, 8), np.float32), ("j", "k"))
    return made


def sited_lines(con: einsql.Connection, sql: str, sites: int, analyze: bool = False) -> list[str]:
    lines = str(con.explain(sql, sites=sites, analyze=analyze)).split("\n")
    return lines[next(n for n, line in enumerate(lines) if line.startswith("-- ")) :]


def test_a_plan_over_sites_is_a_table_with_units(con: einsql.Connection) -> None:
    lines = sited_lines(con, PRODUCT, 8)
    assert lines[:4] == [
        "-- 8 sites, strategy eindecomp, cost floats",
        "moves      320 floats by EinDecomp's count, 64 by TRA's; 256 B sent between sites",
        "computes   1,024 flops",
        "holds      192 B at the fullest site",
    ]
    rows = [line.split("  ") for line in lines[5:7]]
    assert [cell.strip() for cell in rows[0] if cell] == [
        "operation", "cut", "floats", "sent", "flops", "memory", "predicted",
    ]  # fmt: skip
    assert [cell.strip() for cell in rows[1] if cell][:6] == [
        "r0 contraction", "i:2 j:2 k:2", "320", "256 B", "1,024", "256 B",
    ]  # fmt: skip
    assert lines[7:10] == [
        "   reads a[i, j]   Shard(i), Shard(j), Replicate",
        "   reads b[j, k]   Replicate, Shard(j), Shard(k)",
        "   makes r0[i, k]  Shard(i), Partial(SUM), Shard(k); reduce-scatter 256 B",
    ]
    assert max(map(len, lines)) <= 100
    analyzed = sited_lines(con, PRODUCT, 8, analyze=True)
    assert any(line.startswith("measured ") and line.endswith("256 B sent") for line in analyzed)
    assert next(line for line in analyzed if line.startswith("operation")).endswith("and sent")


def test_what_an_all_reduce_sends_is_told_once(con: einsql.Connection) -> None:
    sql = (
        f"WITH p AS ({PRODUCT}) SELECT p.i, a.j, SUM(p.val * a.val) AS val "
        "FROM p JOIN a ON p.k = a.i GROUP BY p.i, a.j"
    )
    for strategy in ("data:j", "equal", "eindecomp"):
        con.execute(f"SET strategy = '{strategy}'")
        for node in con.explain(sql, sites=8).to_dict()["nodes"]:
            assert sum(r["bytes_sent"] for r in node["reads"]) <= node["bytes_sent"], strategy


@pytest.mark.parametrize(
    ("statement", "at", "said"),
    [
        (f"EXPLAIN (SITE 8) {PRODUCT}", "SITE 8", 'no option "SITE"\nDid you mean "SITES"?'),
        (f"EXPLAIN (FORMT json) {PRODUCT}", "FORMT", 'Did you mean "FORMAT"?'),
        (f"EXPLAIN (FORMAT yaml) {PRODUCT}", "yaml", "FORMAT text or json or svg or html"),
        (f"EXPLAIN (FORMAT 'json') {PRODUCT}", "'json'", "the text 'json'\nWrite FORMAT"),
        (f"EXPLAIN SITES 8 {PRODUCT}", "SITES", "Write EXPLAIN (SITES 8,"),
        (f"EXPLAIN (SITES '8') {PRODUCT}", "'8'", "found the text '8'"),
        (f"EXPLAIN (SITES 100000000) {PRODUCT}", "1000", "There are at most 65,536"),
        (f"EXPLAIN (SITES 8, SITES 4) {PRODUCT}", "SITES 4", "SITES is given twice"),
        ("EXPLAIN INSERT INTO a SELECT * FROM a", "a SELECT", "CREATE TENSOR … AS SELECT copies"),
        (PRODUCT.replace("i", "/*+ PARTITION(i) */ i", 1), ") */", "/*+ PARTITION(i=2, b.k=4) */"),
        ("CREATE TENSOR w (i DIM(4), val FLOAT) PARTITION BY (i)", ")", "(i 4, j 2) cuts"),
        ("CREATE TENSOR w (i DIM(4), val FLOAT) PARTITION BY i 4", "i 4", "(i 4, j 2) cuts"),
        ("CREATE TENSOR w (i DIM(4), val FLOAT) PARTITION (i 4)", "PARTITION", "PARTITION BY"),
        ("CREATE TENSOR w (i DIM(4), val FLOAT) PARTITION BY (i 9)", "", "At most 4 parts"),
        ("SET strategy = 'data'", "'data'", "data:batch"),
        ("SET cost = 'hours'", "'hours'", "Values are seconds, bytes, floats"),
        ("SET site = 8", "SET", 'Did you mean "sites"?'),
        ("SELECT /*+ PARTITION(i=2) */ i, j, tile FROM TILES(a, 2, 2)", "i=2", "TILES(x, 4, 2)"),
    ],
)
def test_messages_point_at_the_mistake_and_show_a_way_out(
    con: einsql.Connection, statement: str, at: str, said: str
) -> None:
    with pytest.raises(einsql.Error) as caught:
        con.execute(statement)
    error = caught.value
    assert said in str(error)
    assert error.hint or "twice" in error.reason or "Expected" in error.reason
    assert error.position is not None
    assert statement[error.position :].startswith(at)


def test_a_label_that_a_strategy_does_not_find_is_told_where_the_plan_is_shown(
    con: einsql.Connection,
) -> None:
    for strategy in ("data:z", "model:z"):
        con.execute(f"SET strategy = '{strategy}'")
        text = str(con.explain(PRODUCT, sites=4))
        assert f"The strategy {strategy} finds no label z" in text
        assert "eindecomp cuts it" in text


def test_type_checkers_are_told_that_the_package_has_types() -> None:
    assert (files("einsql") / "py.typed").is_file()
