"""SQL over tiles: the algebra's worked examples, against NumPy, elements and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.ir.functions import INTERNAL, SCALARS
from einsql.ir.tra.interpreter import evaluate_blocks
from einsql.planner.queries import query_binder
from einsql.planner.tile_plan import TilePlan, scanned
from einsql.sql.scope.relation import TileRelation
from einsql.storage.objects import Tensor
from einsql.storage.results.value_text import format_cell, format_value
from tests.ir.test_tra import CORNERS, EXAMPLES, B, U
from tests.support.plans import cached, tree_of
from tests.support.samples import spread

X = np.arange(35.0).reshape(7, 5) / 2
Y = np.arange(15.0).reshape(5, 3) / 4


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect()
    for name, array, dims in (
        ("u", U, "ij"), ("b", B, "ij"), ("x", X, "ij"), ("y", Y, "jk"),
        ("t", np.arange(12, dtype=np.float32).reshape(2, 3, 2), "abc"),
        ("flags", np.eye(4, dtype=bool), "ij"),
    ):  # fmt: skip
        connection.register(name, array, tuple(dims))
    return connection


def blocks(con: einsql.Connection, sql: str) -> dict[tuple[int, ...], Any]:
    """Rows as a dict, the array last; what kernels gave is what the definition gives."""
    rows = con.execute(sql).fetchall()
    _defined(con, sql, [row[-1] for row in rows])
    return {row[:-1]: row[-1].tolist() for row in rows}


def _defined(con: einsql.Connection, sql: str, got: list[np.ndarray]) -> None:
    plan = cached(con, sql)
    assert isinstance(plan, TilePlan)
    if plan.parts:
        return
    arrays = {}
    for tensor in scanned(plan.node):
        held = con.store.get(tensor.name)
        assert isinstance(held, Tensor)
        arrays[tensor.name] = {"val": held.relation.fields["val"]}
    wanted = evaluate_blocks(plan.node, arrays)
    assert len(got) == len(wanted)
    for array, key in zip(got, plan.node.schema.each_key(), strict=True):
        assert array.dtype == plan.node.schema.dtype.numpy
        assert array.shape == plan.node.schema.shape(key)
        np.testing.assert_allclose(array, wanted[key]["val"], rtol=1e-6)


# ---- the worked examples of the papers, as tests/ir/test_tra.py has them in Python

ROWS = "WITH rb AS (SELECT j AS a, tile FROM TILES(b, 1, 2))"
WORKED = {
    "blocks": "SELECT * FROM TILES(u, 2, 2)",
    "eight": "SELECT i, j, tile FROM TILES(u, 2, 4)",
    "sum of columns": "SELECT j, tensor_sum(tile) AS tile FROM TILES(u, 2, 2) GROUP BY j",
    "sum of all": "SELECT tensor_sum(tile) AS tile FROM TILES(u, 2, 2)",
    "stored": f"{ROWS} SELECT * FROM rb",
    "tiled": f"{ROWS} SELECT * FROM TILE(rb, 1, 2)",
    "numbered": f"{ROWS} SELECT 2 * a + part AS n, tile FROM TILE(rb, 1, 2)",
    "stacked": f"{ROWS} SELECT a, tensor_stack(tile, part, 1) AS tile "
    "FROM TILE(rb, 1, 2) GROUP BY a",
    "diagonal": "SELECT i, tensor_diag(tile) AS tile FROM TILES(u, 2, 2) WHERE i = j",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(con: einsql.Connection, name: str) -> None:
    assert blocks(con, WORKED[name]) == EXAMPLES[name][1]


def test_every_pair_of_a_join_is_a_row(con: einsql.Connection) -> None:
    rows = blocks(
        con,
        "SELECT a.i, a.j, b.j AS k, tensor_einsum('ij,jk->ik', a.tile, b.tile) AS tile "
        "FROM TILES(u, 2, 2) a JOIN TILES(u, 2, 2) b ON a.j = b.i",
    )
    assert len(rows) == 8
    assert rows[0, 1, 0] == [[111, 122], [151, 166]]


@pytest.mark.parametrize("parts", [(1, 1, 1), (3, 1, 3), (1, 2, 1), (3, 2, 2), (7, 5, 3)])
def test_matrix_product_cut_every_way(con: einsql.Connection, parts: tuple[int, ...]) -> None:
    sql = (
        "SELECT x.i, y.k, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile "
        "FROM TILES(x, ?, ?) x JOIN TILES(y, ?, ?) y ON x.j = y.j GROUP BY x.i, y.k"
    )
    i, j, k = parts
    cursor = con.execute(sql, (i, j, j, k))
    assert cursor.shape == (i, k)
    np.testing.assert_array_equal(cursor.fetch_numpy(), X @ Y)


# ---- the same in SQL over tiles and in SQL over elements

SAME = [
    (
        "SELECT i, j, tensor_exp(x.tile) / 2 AS tile FROM TILES(x, 3, 2) x",
        "SELECT i, j, EXP(val) / 2 AS v FROM x",
    ),
    (
        "SELECT x.i, tensor_max(tensor_einsum('ij->i', x.tile, 'add', 'max')) AS tile "
        "FROM TILES(x, 3, 5) x GROUP BY x.i",
        "SELECT i, MAX(val) AS v FROM x GROUP BY i",
    ),
    (
        "SELECT x.j, x.i, tensor_transpose(tile * 2) AS tile FROM TILES(x, 3, 2) x",
        "SELECT j, i, val * 2 AS v FROM x",
    ),
    (
        "SELECT x.i, z.k, tensor_min(tensor_einsum('ij,jk->ik', x.tile, z.tile, 'add', 'min')) "
        "AS tile FROM TILES(x, 7, 2) x, TILES((SELECT j, k, val - 1 AS v FROM y), 2, 3) z "
        "WHERE x.j = z.j GROUP BY ALL",
        "SELECT i, k, MIN(x.val + (y.val - 1)) AS v FROM x JOIN y USING (j) GROUP BY i, k",
    ),
    (
        "SELECT i, j, CASE WHEN tile > 3 THEN tile ELSE -tile END + (SELECT MAX(val) FROM y) "
        "AS tile FROM TILES(x, 7, 1)",
        "SELECT i, j, CASE WHEN val > 3 THEN val ELSE -val END + (SELECT MAX(val) FROM y) AS v "
        "FROM x",
    ),
    (
        "SELECT a.i, a.j, (a.tile - b.tile) * tensor_relu(c.tile - 4) AS tile "
        "FROM TILES(x, 2, 5) a JOIN TILES(x, 2, 5) b USING (i, j) "
        "JOIN TILES(x, 2, 5) c USING (i, j)",
        "SELECT i, j, (a.val - b.val) * GREATEST(a.val - 4, 0) AS v FROM x a JOIN x b USING (i, j)",
    ),
    (
        "SELECT a, b, c, tile FROM TILES(TILES(t, 2, 1, 2), 1, 3, 1)",
        "SELECT a, b, c, val AS v FROM t",
    ),
    (
        "SELECT i, j, tensor_not(tile) AS tile FROM TILES(flags, 2, 3)",
        "SELECT i, j, NOT val AS v FROM flags",
    ),
]


@pytest.mark.parametrize(("tiles", "elements"), SAME)
def test_tiles_and_elements_agree(con: einsql.Connection, tiles: str, elements: str) -> None:
    cursor = con.execute(tiles)
    blocks(con, tiles)
    wanted = con.execute(elements)
    np.testing.assert_array_equal(cursor.fetch_numpy(), wanted.fetch_numpy())
    got = con.execute(f"SELECT * FROM ELEMENTS(({tiles}))")
    assert got.fetchall() == wanted.fetchall()


def test_softmax_over_tiles(con: einsql.Connection) -> None:
    con.execute(
        "CREATE MACRO softmax(z) AS TABLE WITH m AS (SELECT i, "
        "tensor_max(tensor_einsum('ij->i', tile, 'add', 'max')) AS most FROM z GROUP BY i), "
        "e AS (SELECT i, j, tensor_exp(tensor_einsum('ij,i->ij', tile, most, 'sub')) AS part "
        "FROM z JOIN m USING (i)), s AS (SELECT i, tensor_sum(tensor_einsum('ij->i', part)) AS "
        "total FROM e GROUP BY i) SELECT i, j, tensor_einsum('ij,i->ij', part, total, 'div') AS "
        "tile FROM e JOIN s USING (i)"
    )
    got = con.execute("SELECT * FROM softmax((SELECT * FROM TILES(x, 3, 5)))").fetch_numpy()
    e = np.exp(X - X.max(axis=1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("name", spread(sorted(set(SCALARS) - INTERNAL), 27))
def test_every_scalar_function_has_a_tensor_form(con: einsql.Connection, name: str) -> None:
    source = "flags" if name in ("and", "or", "not") else "x"
    if name in ("bitand", "bitor", "xor", "mod"):
        source = "(SELECT i, j, CAST(val AS INTEGER) AS v FROM x)"
    arguments = ", ".join(["tile"] * SCALARS[name].arity)
    sql = f"SELECT i, j, tensor_{name}({arguments}) AS tile FROM TILES({source}, 2, 2) WHERE i > 0"
    if name in ("mod", "idiv"):
        sql = sql.replace(arguments, f"{arguments} + 1")
    assert len(blocks(con, sql)) == 2


def test_filters_keep_bounds_and_rekeys_close_holes(con: einsql.Connection) -> None:
    assert list(blocks(con, "SELECT i, j, tile FROM TILES(u, 2, 2) WHERE i > 0")) == [
        (1, 0),
        (1, 1),
    ]
    lower = con.execute("SELECT i - 1 AS i, j, tile FROM TILES(u, 2, 2) WHERE i > 0")
    np.testing.assert_array_equal(lower.fetch_numpy(), U[2:])
    pairs = "SELECT a.i, b.j AS k, a.tile FROM TILES(u, 4, 1) a, TILES(u, 1, 4) b WHERE a.i < b.j"
    assert list(blocks(con, pairs)) == [(i, k) for i in range(4) for k in range(i + 1, 4)]
    halves = "SELECT i // 2 AS h, tensor_sum(tile) AS tile FROM TILES(u, 4, 1) GROUP BY h"
    assert blocks(con, halves) == {(0,): [[4, 6, 12, 14]], (1,): [[20, 22, 28, 30]]}
    assert blocks(con, f"SELECT 1 - h AS g, tile FROM ({halves})")[0,] == [[20, 22, 28, 30]]


def test_rows_are_numbered_over_all_of_from(con: einsql.Connection) -> None:
    thrice = (
        "SELECT a.i, tensor_sum(a.tile) AS tile FROM TILES(u, 4, 1) a, TILES(y, 1, 3) b GROUP BY i"
    )
    assert blocks(con, thrice)[0,] == (3 * U[:1]).tolist()


# ---- results


def test_columns_stand_where_select_has_them(con: einsql.Connection) -> None:
    cursor = con.execute("SELECT tile AS block, i AS r, j AS c FROM TILES(x, 2, 2)")
    assert [d[:2] for d in cursor.description or ()] == [
        ("block", "DOUBLE[4|3,3|2]"), ("r", "BIGINT"), ("c", "BIGINT"),
    ]  # fmt: skip
    assert (cursor.shape, cursor.origin) == ((2, 2), (0, 0))
    block, r, c = cursor.fetchone() or ()
    shown = format_cell(block, "", ""), format_value(block, "", "")  # in tables, and in CSV
    assert (r, c, block.shape, *shown) == (
        0, 0, (4, 3), "float64[4,3] 0.0 … 8.5",
        "[[0.0, 0.5, 1.0], [2.5, 3.0, 3.5], [5.0, 5.5, 6.0], [7.5, 8.0, 8.5]]",
    )  # fmt: skip
    assert not block.flags.writeable  # it is a part of the registered array
    described = con.execute("DESCRIBE SELECT * FROM TILES(x, 2, 2)").fetchall()
    assert described == [
        ("i", "BIGINT", "2", "", "", ""),
        ("j", "BIGINT", "2", "", "", ""),
        ("tile", "DOUBLE[4|3,3|2]", "", "", "", ""),
    ]


def test_arrow_has_tensors_or_structs(con: einsql.Connection) -> None:
    table = con.execute("SELECT * FROM TILES(u, 2, 2)").fetch_arrow_table()
    assert table.column("j").to_pylist() == [0, 1, 0, 1]
    even = table.column("tile").combine_chunks().to_numpy_ndarray()
    assert even.tolist() == CORNERS
    uneven = con.execute("SELECT * FROM TILES(x, 2, 1)").fetch_arrow_table().column("tile")
    assert uneven.to_pylist()[1] == {"shape": [3, 5], "data": X[4:].ravel().tolist()}
    flags = con.execute("SELECT * FROM TILES(flags, 1, 2)").fetch_arrow_table().column("tile")
    assert flags.combine_chunks().to_numpy_ndarray()[0].tolist() == np.eye(4)[:, :2].tolist()
    empty = con.execute("SELECT * FROM TILES(u, 2, 2) WHERE i > 5").fetch_arrow_table()
    assert empty.num_rows == 0


def test_tiles_that_are_no_tensor_say_so(con: einsql.Connection) -> None:
    for sql, part in (
        ("SELECT i, tensor_diag(tile) AS t, j FROM TILES(u, 2, 2)", "2 key dimensions for arrays"),
        ("SELECT i, j, tile FROM TILES(u, 2, 2) WHERE i = 1", "<0, 0>, <0, 1> is missing"),
        ("SELECT j, i, tile FROM TILES(x, 2, 2)", "needs key 0 to cut axis 0"),
    ):
        with pytest.raises(einsql.InterfaceError, match=part) as caught:
            con.execute(sql).fetch_numpy()
        assert "fetch rows" in caught.value.hint
        with pytest.raises(einsql.Error, match=part):
            con.execute(f"CREATE TENSOR z AS {sql}")


def test_tiles_become_tensors_and_files(con: einsql.Connection, tmp_path: Path) -> None:
    product = (
        "SELECT x.i, y.k, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile "
        "FROM TILES(x, 2, 5) x JOIN TILES(y, 5, 3) y USING (j) GROUP BY x.i, y.k"
    )
    con.execute(f"CREATE TENSOR z AS {product}")
    assert con.execute("DESCRIBE z").fetchall()[-1] == ("val", "DOUBLE", "", "", "dense", "")
    total = con.execute("SELECT SUM(val) FROM z").fetchone()
    assert total == ((X @ Y).sum(),)
    con.execute(f"CREATE VIEW v AS {product}")
    assert con.execute("SELECT SUM(val) FROM ELEMENTS(v)").fetchone() == total
    path = tmp_path / "z.npy"
    con.execute(f"COPY (SELECT k, i, tensor_transpose(tile) AS t FROM v) TO '{path}'")
    np.testing.assert_array_equal(np.load(path), (X @ Y).T)
    again = con.execute(f"SELECT tensor_sum(tile) AS s FROM TILES('{path}', 3, 1)").fetchall()
    assert again[0][0].tolist() == [(X @ Y).sum(axis=1).tolist()]
    con.execute("INSERT OR REPLACE INTO z SELECT i, k, val * 2 AS v FROM ELEMENTS(v)")
    np.testing.assert_array_equal(con.execute("SELECT * FROM z").fetch_numpy(), 2 * (X @ Y))


def test_both_algebras_alternate_in_one_statement(con: einsql.Connection) -> None:
    sql = (
        "WITH p AS (SELECT i, j, tile * 2 AS tile "
        "FROM TILES((SELECT i, j, val + 1 AS v FROM x), 7, 1)), "
        "e AS (SELECT i, SUM(val) AS v FROM ELEMENTS(p) GROUP BY i) "
        "SELECT e.i, tensor_mul(e.tile, 2) AS tile FROM TILES(e, 3) e"
    )
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), 4 * (X + 1).sum(axis=1))
    assert [line for line in str(con.explain(sql)).split("\n") if line.startswith("--")] == [
        "-- Q0", "-- Q1", "-- Q2", "-- tiles",
    ]  # fmt: skip
    found = con.execute("SELECT val, COUNT(*) FROM ELEMENTS((SELECT i, j, (tile + 1) // 2 % 3 "
                        "AS tile FROM TILES(u, 2, 2))) GROUP BY val").fetchall()  # fmt: skip
    assert found == [(0, 4), (1, 6), (2, 6)]


def test_plans_over_tiles_are_kept_and_see_new_data(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), val FLOAT) DEFAULT 1")
    sql = "SELECT tensor_sum(tile) AS t FROM TILES(w, 2)"
    first = con.execute(sql).fetchall()[0][0]
    plan = cached(con, sql)
    con.execute("UPDATE w SET val = 5 WHERE i = 0")
    assert con.execute(sql).fetchall()[0][0].tolist() == [6]
    assert first.tolist() == [2]
    assert cached(con, sql) is plan
    con.execute("CREATE OR REPLACE TENSOR w AS SELECT i, val FROM w WHERE i = 1")
    with pytest.raises(einsql.Error, match="starts at 1"):
        con.execute(sql)


def test_a_tensor_without_default_is_cut_once_it_is_full(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), val FLOAT)")
    con.execute("INSERT INTO w VALUES (1, 3)")
    with pytest.raises(einsql.IntegrityError, match="1 of 2 are absent"):
        con.execute("SELECT * FROM TILES(w, 2)")
    con.execute("INSERT INTO w VALUES (0, 2)")
    assert [row[1].tolist() for row in con.execute("SELECT * FROM TILES(w, 2)").fetchall()] == [
        [2],
        [3],
    ]


def test_a_name_that_is_read_twice_is_computed_once(con: einsql.Connection) -> None:
    con.execute("SET sites = 3")
    sql = (
        "WITH p AS (SELECT i, j, tile + 1 AS tile FROM TILES(u, 2, 2)) "
        "SELECT a.i, SUM(a.val * b.val) AS v FROM ELEMENTS(p) a JOIN ELEMENTS(p) b "
        "ON a.j = b.i GROUP BY a.i"
    )
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), ((U + 1) @ (U + 1)).sum(axis=1))
    assert str(con.explain(sql)).count("-- Q") == 1


def test_explain_shows_the_plan_over_blocks(con: einsql.Connection) -> None:
    text = str(con.explain("SELECT i, tensor_diag(tile) AS t FROM TILES(u, 2, 2) WHERE i = j"))
    assert [line.split()[0] for line in text.split("\n")][1::2][:3] == ["scan", "filter", "rekey"]
    analyzed = str(con.explain("SELECT * FROM TILES(u, 2, 2)", analyze=True))
    assert "-- 4 blocks" in analyzed
    with pytest.raises(einsql.NotSupportedError, match="has no svg"):
        con.execute("EXPLAIN (FORMAT svg) SELECT * FROM TILES(u, 2, 2)")


def test_a_statement_without_tiles_does_not_pay_for_them(con: einsql.Connection) -> None:
    assert not isinstance(
        query_binder(con.context).bind_any(tree_of("SELECT * FROM x")), TileRelation
    )


# ---- errors

T = "FROM TILES(x, 2, 2)"
ERRORS = [
    # FROM
    ("SELECT * FROM TILES(x, 2)", "a number of parts for each of 2 keys, not 1", "x"),
    ("SELECT * FROM TILES(x, 2, val)", "no column", "val"),
    ("SELECT * FROM TILES(x, 2, 1.5)", "whole constants", "1.5"),
    ("SELECT * FROM TILES(x, 2, 0)", "into <2, 0> parts", "x"),
    ("SELECT * FROM TILES(x, 9, 1)", "leaves a block empty", "x"),
    ("SELECT * FROM TILES(nope, 2)", 'no tensor "nope"', "nope"),
    ("SELECT * FROM TILES()", "needs a tensor", ""),
    ("SELECT * FROM TILES(3, 2)", "takes the name of a tensor", "3"),
    ("SELECT * FROM TILES((SELECT j, val FROM x), 2)", "i is not selected", "(SELECT"),
    ("SELECT * FROM TILES((SELECT i, j, val, val AS w FROM x), 2, 2)", "one value column", "(S"),
    ("SELECT * FROM TILES((SELECT i - 1 AS i, j, val FROM x), 2, 2)", "i starts at -1", "(SELECT"),
    ("SELECT * FROM TILES((SELECT * FROM x WHERE val > 3), 2, 2)", "every key, but 7 of 35", ""),
    (
        "SELECT * FROM TILES((SELECT i, j, NULLIF(val, 3) AS v FROM x), 2, 2)",
        "1 of 35 are NULL",
        "",
    ),
    ("SELECT * FROM ELEMENTS(x)", "ELEMENTS takes tiles, not elements", "x"),
    ("SELECT * FROM TILE(x, 0, 1)", "TILE takes tiles, not elements", "x"),
    ("SELECT * FROM TILE(TILES(x, 2, 2), 0)", "takes tiles, the number of a dimension", "x"),
    ("SELECT * FROM TILE(TILES(x, 2, 2), 2, 1)", "array dimension 2", "x"),
    (f"SELECT a.i, a.tile, x.val {T} a, x", "x has elements", "x"),
    ("SELECT a.i, a.tile FROM TILES(x, 2, 2) a, range(3) r", "A range has elements", "range"),
    (
        "SELECT i, val FROM x JOIN ELEMENTS((SELECT i, tile FROM TILES(x, 2, 1))) e USING (i)",
        "both into <0>|1 key dimensions",
        "",
    ),
    (f"SELECT (SELECT tensor_sum(tile) {T}) FROM x", "gives tiles", "TILES"),
    (f"INSERT INTO x SELECT * {T}", "cannot be changed|gives tiles", ""),
    (
        "SELECT a.i, a.tile FROM TILES(x, 2, 2) a NATURAL JOIN TILES(x, 2, 2) b",
        "not by their",
        "",
    ),
    (
        "SELECT a.i, a.tile FROM TILES(x, 7, 1) a JOIN TILES(y, 5, 3) b ON a.i = b.j",
        "a.i takes 7 values and b.j takes 5",
        "a.i = b",
    ),
    (
        "SELECT a.i, a.tile FROM TILES(x, 7, 1) a JOIN TILES(y, 1, 3) b ON a.tile = b.k",
        "not by their elements",
        "a.tile =",
    ),
    # SELECT
    (f"SELECT i {T}", "one array beside its keys, not 0", "i"),
    (f"SELECT i, j, tile, tile AS other {T}", "one array beside its keys, not 2", "tile AS other"),
    (f"SELECT i, j, tile * i AS t {T}", "reads keys of blocks and elements", "tile * i"),
    (f"SELECT i, j * 0.5 AS h, tile {T}", "an integer computed from keys", "j * 0.5"),
    (f"SELECT i, tile {T}", "both into <0>", ""),
    (f"SELECT i - 1 AS i, j, tile {T}", "into <-1, 0>", ""),
    (f"SELECT i, j, tile {T} WHERE tile > 1", "not by their elements", "tile > 1"),
    (f"SELECT i, j, tensor_foo(tile) AS t {T}", "no function tensor_foo", "tensor_foo"),
    (f"SELECT i, j, tensor_exp(tile, 1) AS t {T}", "takes 1 argument, not 2", "tensor_exp"),
    (f"SELECT i, j, tensor_not(tile) AS t {T}", "does not accept", "tensor_not"),
    (f"SELECT i, j, tensor_einsum(tile) AS t {T}", "notation as text", "tensor_einsum"),
    (f"SELECT i, j, tensor_einsum('ij,jk', tile) AS t {T}", "2 operands", "tensor_einsum"),
    (
        f"SELECT i, j, tensor_einsum('ij', tile, 'add', 'avg') AS t {T}",
        "merges no arrays",
        "tensor",
    ),
    (f"SELECT i, j, tensor_diag(tile) AS t {T}", "reads axes of", "tensor_diag"),
    (f"SELECT i, j, tile + tensor_einsum('ij->i', tile) AS t {T}", "rank 1 and 2", "i"),
    (f"SELECT i, j, CASE WHEN tile > 1 THEN tile END AS t {T}", "A tile with NULLs", "tile > 1"),
    (
        f"SELECT i, j, tile + (SELECT MAX(val) FROM x WHERE val > 99) AS t {T}",
        "1 of 1 are NULL",
        "",
    ),
    (f"SELECT i, j, tile + (SELECT val FROM x) AS t {T}", "may give several rows", "val FROM x"),
    (f"SELECT i, j, SUM(tile) AS t {T} GROUP BY i, j", "tensor_sum and its like", "tile"),
    (f"SELECT tensor_sum(tile) FILTER (WHERE i > 0) AS t {T}", "FILTER over tiles", "tile"),
    (f"SELECT tensor_sum(tile) OVER () AS t {T}", "A window over tiles", "tile"),
    (f"SELECT tensor_sum(tensor_sum(tile)) AS t {T}", "is not allowed in an aggregate", "tile"),
    (f"SELECT i, j, tile {T} WHERE tensor_sum(tile) > 1", "is not allowed in WHERE", "tile"),
    (f"SELECT i, j, tensor_sum(tile) AS t {T} GROUP BY i", "j must be in GROUP BY", "j,"),
    (
        "SELECT i, tensor_sum(tile) + tile AS t FROM TILES(x, 7, 1) GROUP BY i",
        "inside an aggregate",
        "tile",
    ),
    (f"SELECT j, tensor_sum(tile) AS t {T} GROUP BY j", "3 to 4 elements", "tile"),
    (f"SELECT j, tensor_stack(tile, i, 0) AS t {T} WHERE i > 0 GROUP BY j", "needs every key", "t"),
    (f"SELECT tensor_stack(tile, i, 0) AS t {T}", "every other key in GROUP BY, but", "tile, i"),
    (f"SELECT i, tensor_sum(tile) AS t {T} GROUP BY i HAVING i > 0", "HAVING over tiles", "i > 0"),
    (f"SELECT * {T} ORDER BY i", "ORDER BY", "i"),
    ("SELECT i, tensor_exp(val) FROM x", "a function of tiles, among elements", "tensor_exp"),
    ("CREATE MACRO tensor_exp(a) AS a", "is a function", ""),
]


@pytest.mark.parametrize(("sql", "part", "at"), ERRORS)
def test_mistakes_have_a_reason_and_a_place(
    con: einsql.Connection, sql: str, part: str, at: str
) -> None:
    con.execute("SET fallback = off")
    with pytest.raises(einsql.Error, match=part) as caught:
        con.execute(sql)
    assert not isinstance(caught.value, einsql.InternalError)
    assert caught.value.position is not None
    if at:
        assert at in sql[caught.value.position :]


@pytest.mark.parametrize("sites", [1, 3])
def test_functions_of_keys_are_evaluated_where_conditions_allow(sites: int) -> None:
    con = einsql.connect()
    con.register("v", np.arange(4.0), dims=("i",))
    con.execute(f"SET sites = {sites}")
    for sql, expected in (
        ("SELECT i, tile FROM TILES(v, 4) WHERE i <> 0 AND 4 // i > 1", [(1, 1.0), (2, 2.0)]),
        ("SELECT CASE WHEN i <> 0 THEN 4 // i ELSE 9 END AS h, tile FROM TILES(v, 4) WHERE i < 3",
         [(2, 2.0), (4, 1.0), (9, 0.0)]),
        ("SELECT i, tile FROM TILES((SELECT i, val FROM v), 4) WHERE i = 0 OR 4 // i > 1",
         [(0, 0.0), (1, 1.0), (2, 2.0)]),
    ):  # fmt: skip
        assert [(k, tile.item()) for k, tile in con.execute(sql).fetchall()] == expected, sql
    for sql in (
        "SELECT (i * 100)::TINYINT AS h, tile FROM TILES(v, 4)",
        "SELECT i // 2 AS h, tensor_stack(tile, i, 0) AS tile FROM TILES(v, 4) GROUP BY i // 2",
    ):
        with pytest.raises(einsql.Error, match=r"TINYINT|Stack needs every key"):
            con.execute(sql).fetchall()
