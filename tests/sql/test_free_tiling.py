"""TILES without numbers: the result of every tiling, and an error where tilings differ."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import einsql

PRODUCT = """SELECT a.i, b.k, tensor_sum(tensor_einsum('ij,jk->ik', a.tile, b.tile)) AS tile
FROM {x} a JOIN {y} b ON a.j = b.j GROUP BY a.i, b.k"""
QUERIES = (
    PRODUCT,
    "SELECT i, j, tile * 2 + 1 AS tile FROM {x}",
    "SELECT j, i, tensor_transpose(tensor_relu(tile - 3)) AS tile FROM {x}",
    "SELECT a.i, a.j, a.tile * b.tile AS tile FROM {x} a JOIN {x} b USING (i, j)",
    "SELECT i, tensor_max(tensor_einsum('ij->i', tile, 'max')) AS tile FROM {x} GROUP BY i",
    "SELECT tensor_sum(tensor_einsum('ij->', tile)) AS tile FROM {x}",
    "SELECT i, j, tile - (SELECT MIN(val) FROM x) AS tile FROM {x}",
    """SELECT a.i, b.k, tensor_min(tensor_einsum('ij,jk->ik', a.tile, b.tile, 'add', 'min')) AS tile
    FROM {x} a JOIN {y} b ON a.j = b.j GROUP BY a.i, b.k""",
    f"""WITH p AS ({PRODUCT}) SELECT i, tensor_sum(tensor_einsum('ik->i', tile)) AS tile
    FROM p GROUP BY i""",
)


@pytest.fixture(name="con", scope="module")
def _con() -> einsql.Connection:
    con = einsql.connect()
    rng = np.random.default_rng(22)
    con.register("x", rng.integers(-9, 9, (6, 7)).astype(np.float64), dims=("i", "j"))
    con.register("y", rng.integers(-9, 9, (7, 4)).astype(np.float64), dims=("j", "k"))
    return con


@pytest.mark.parametrize("query", QUERIES)
def test_the_result_is_that_of_every_tiling(con: einsql.Connection, query: str) -> None:
    query = query.replace("'max'", "'mul', 'max'")
    free = f"SELECT * FROM ELEMENTS(({query.format(x='TILES(x)', y='TILES(y)')}))"
    con.execute("SET sites = 1")
    expected = sorted(con.execute(free).fetchall())
    for i, j, k in product((1, 2), (1, 3), (1, 4)):
        tiles = query.format(x=f"TILES(x, {i}, {j})", y=f"TILES(y, {j}, {k})")
        assert sorted(con.execute(f"SELECT * FROM ELEMENTS(({tiles}))").fetchall()) == expected
    for sites in (2, 5):
        con.execute(f"SET sites = {sites}")
        assert sorted(con.execute(free).fetchall()) == expected


def test_several_sites_cut_it_like_the_same_sum_over_elements(con: einsql.Connection) -> None:
    con.execute("SET sites = 4")
    tiles = PRODUCT.format(x="TILES(x)", y="TILES(y)")
    free = con.explain(f"SELECT i, k, val FROM ELEMENTS(({tiles}))").to_dict()
    plain = con.explain(
        "SELECT x.i, y.k, SUM(x.val * y.val) AS val FROM x JOIN y USING (j) GROUP BY x.i, y.k"
    ).to_dict()
    assert free["total"]["bytes_sent"] == plain["total"]["bytes_sent"] > 0
    con.execute("SET sites = 1")


def test_a_tensor_of_tiles_is_merged_back(con: einsql.Connection) -> None:
    con.execute(f"CREATE OR REPLACE TENSOR z AS {PRODUCT.format(x='TILES(x)', y='TILES(y)')}")
    plain = "SELECT x.i, y.k, SUM(x.val * y.val) FROM x JOIN y USING (j) GROUP BY x.i, y.k"
    assert sorted(con.execute("SELECT * FROM z").fetchall()) == sorted(
        con.execute(plain).fetchall()
    )


def test_a_subquery_over_elements_is_cut_with_its_reader(con: einsql.Connection) -> None:
    half = "TILES((SELECT j, i, val / 2 AS half FROM x))"
    rows = con.execute(f"SELECT * FROM ELEMENTS((SELECT j, i, tile * 2 AS tile FROM {half}))")
    assert sorted(rows.fetchall()) == sorted(con.execute("SELECT j, i, val FROM x").fetchall())


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT i, j, tile FROM TILES(x)", "tiles or their keys reach the result"),
        ("SELECT tensor_sum(tile) AS tile FROM TILES(x)", "tiles or their keys reach the result"),
        ("ELEMENTS((SELECT tensor_sum(tile) AS tile FROM TILES(x)))", "merged by sum"),
        ("ELEMENTS((SELECT i, j, tile FROM TILES(x) WHERE i >= j))", "condition reads keys"),
        ("ELEMENTS((SELECT i // 2 AS i, j, tile FROM TILES(x)))", "computed from keys"),
        ("ELEMENTS((SELECT i, tensor_einsum('ij->i', tile) AS tile FROM TILES(x)))", "left out"),
        (
            "ELEMENTS((SELECT i, j, tensor_einsum('ij->i', tile) AS tile FROM TILES(x)))",
            "nothing merges",
        ),
        ("ELEMENTS((SELECT j, i, tile FROM TILES(x)))", "not those of the axes"),
        ("ELEMENTS(TILE(TILES(x), 0, 2))", "cuts or stacks"),
        (
            "ELEMENTS((SELECT i, tensor_max(tensor_einsum('ij->i', tile)) AS tile "
            "FROM TILES(x) GROUP BY i))",
            "merged by max",
        ),
        (
            "ELEMENTS((SELECT i, tensor_sum(tensor_exp(tensor_einsum('ij->i', tile))) AS tile "
            "FROM TILES(x) GROUP BY i))",
            "before they are merged",
        ),
        (
            "ELEMENTS((SELECT tensor_sum(tensor_einsum('ij,kl->', a.tile, b.tile)) AS tile "
            "FROM TILES(x) a JOIN TILES(x) b ON a.i = b.i))",
            "one key cuts two axes",
        ),
        (
            "ELEMENTS((SELECT a.j, tensor_sum(tensor_einsum('ij,kl->j', a.tile, b.tile)) AS tile "
            "FROM TILES(x) a JOIN TILES(x) b ON a.i = b.i GROUP BY a.j))",
            "one key cuts two axes",
        ),
    ],
)
def test_a_result_that_depends_on_the_tiling_needs_numbers(
    con: einsql.Connection, query: str, why: str
) -> None:
    sql = query if query.startswith("SELECT") else f"SELECT * FROM {query}"
    with pytest.raises(einsql.ProgrammingError, match=why) as error:
        con.execute(sql)
    reads_elements = query.startswith("ELEMENTS")
    other = "" if reads_elements else ", or read the result with ELEMENTS((SELECT …))"
    assert error.value.hint == f"Write TILES(x, 2, 2){other}."
    assert error.value.position == sql.index("TILES(x)")


def test_tiles_with_and_without_numbers_do_not_join(con: einsql.Connection) -> None:
    both = "SELECT a.i, a.j, a.tile + b.tile AS tile FROM TILES(x) a JOIN TILES(x, 1, 1) b"
    with pytest.raises(einsql.ProgrammingError, match="other tiles of its FROM have them"):
        con.execute(f"SELECT * FROM ELEMENTS(({both} USING (i, j)))")
