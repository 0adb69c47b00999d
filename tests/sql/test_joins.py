"""FROM, joins, `*` and names: the same rows under the same column names as in DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from tests.support.samples import spread

TENSORS: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
    "a": (("i", "j"), np.arange(4.0).reshape(2, 2)),
    "b": (("i", "k"), np.arange(6.0).reshape(2, 3) + 10),
    "c": (("i",), np.array([100.0, 200.0, 300.0])),
    "d": (("j", "i"), np.arange(4.0).reshape(2, 2) * 7),
}

ANSWERS = [
    # names given twice
    "SELECT a.*, b.* FROM a, b",
    "SELECT * FROM (SELECT a.*, b.* FROM a, b) s",
    "SELECT VAL_1, I_1 FROM (SELECT a.*, b.* FROM a, b) s",
    "SELECT * FROM a x(p, P, q)",
    "SELECT p, p_1 FROM a x(p, p, q)",
    "SELECT * FROM a x(val)",
    "SELECT val_1 FROM c x(val)",
    "WITH t(v, v) AS (SELECT i, val FROM c) SELECT * FROM t",
    "WITH t(val) AS (SELECT i, val FROM c) SELECT val_1 FROM t",
    "WITH t AS (SELECT i, i, val AS I FROM c) SELECT i_2, * FROM t",
    "SELECT * FROM (SELECT i AS v_1, i + 1 AS v, i + 2 AS v FROM c)",
    "SELECT * FROM (SELECT i + 1 AS v, i + 2 AS v, i AS v_1 FROM c)",
    "SELECT * FROM (SELECT i + 1 AS v, i AS v_1, i + 2 AS v FROM c)",
    "SELECT * FROM (SELECT i, i, i FROM c) t(i, i_1)",
    "SELECT i, i_1 FROM (SELECT * FROM (SELECT i, val AS i FROM c))",
    "SELECT a.VAL, J, c.Val FROM a, c",
    # commas separate trees of joins
    "SELECT * FROM a, b NATURAL JOIN c",
    "SELECT * FROM a JOIN b ON a.i = b.i, c NATURAL JOIN d",
    "SELECT * FROM a, b JOIN c USING (i) JOIN d USING (i)",
    "SELECT c.i FROM a JOIN b USING (i), c JOIN d USING (i)",
    "SELECT * FROM a, b JOIN c ON a.i = c.i",
    "SELECT * FROM a, c JOIN b ON j = 1",
    "SELECT a.i FROM a, c JOIN (SELECT i AS z FROM b) t ON val = 100",
    "SELECT * FROM a JOIN (b JOIN c ON a.i = b.i) ON TRUE",
    "SELECT a.i FROM a JOIN b JOIN c ON a.i = c.i ON a.i = b.i",
    "SELECT COUNT(*) FROM (SELECT i AS q FROM a) s, (SELECT k AS q FROM b) t"
    " JOIN (c JOIN c x ON q = 2) ON TRUE",
    # parentheses
    "SELECT * FROM (a JOIN b USING (i)) JOIN c USING (i)",
    "SELECT * FROM a JOIN (b JOIN c USING (i)) USING (i) JOIN d USING (i)",
    "SELECT * FROM ((a JOIN b USING (i)) JOIN c USING (i))",
    "SELECT * FROM ((a JOIN b USING (i)) JOIN c USING (i)) t",
    "SELECT t.i, t.val_1, t.* FROM (a JOIN b USING (i)) AS t",
    "SELECT * FROM (a JOIN b ON a.i = b.i) AS t(p, q)",
    "SELECT t.i, c.i FROM (a JOIN b ON a.i = b.i) t JOIN c USING (i)",
    "SELECT x.i FROM a x JOIN (a x JOIN b USING (i)) t USING (i)",
    "SELECT t.p FROM (((SELECT i, val FROM c))) AS t(p)",
    # merged columns
    "SELECT * FROM a JOIN b USING (i) JOIN c USING (i)",
    "SELECT i, b.i, c.i, b.*, a.* FROM a JOIN b USING (i) JOIN c USING (i)",
    "SELECT i FROM c, a JOIN b USING (i)",
    "SELECT i FROM a JOIN b USING (i) JOIN d USING (j)",
    "SELECT * FROM a JOIN b USING (i) JOIN d USING (j, i)",
    "SELECT * FROM a JOIN b USING (i) CROSS JOIN c JOIN d USING (i)",
    "SELECT * FROM d JOIN (a JOIN b USING (i) CROSS JOIN c) USING (i)",
    "SELECT * FROM a JOIN b USING (i) JOIN c ON i = 1",
    "SELECT * FROM c x JOIN c y USING (i, I, val)",
    "SELECT i, SUM(b.val) FROM a JOIN b USING (i) JOIN c USING (i) GROUP BY i",
    # EXCLUDE, REPLACE, RENAME
    "SELECT * EXCLUDE (i) FROM a JOIN b USING (i) JOIN c USING (i)",
    "SELECT * EXCLUDE (a.i) FROM a JOIN b USING (i) JOIN c USING (i)",
    "SELECT * EXCLUDE (B.I) FROM a JOIN b USING (i) JOIN c USING (i)",
    "SELECT * EXCLUDE (a.i, b.i) FROM a JOIN b USING (i) JOIN c USING (i)",
    "SELECT * EXCLUDE (a.val) FROM a JOIN b USING (i)",
    "SELECT b.* EXCLUDE (b.i) FROM a JOIN b USING (i)",
    "SELECT * REPLACE (a.val + 1 AS VAL) FROM a JOIN b USING (i)",
    "SELECT * REPLACE (7 AS i) FROM a, b",
    "SELECT b.* REPLACE (a.val + 1 AS val) FROM a JOIN b USING (i)",
    "SELECT * RENAME (val AS v, i AS w) FROM a JOIN b USING (i)",
    "SELECT * RENAME (a.val AS v, b.val AS w) FROM a, b",
    "SELECT * EXCLUDE (i) REPLACE (1 AS j) RENAME (a.val AS v) FROM a, b",
    # subqueries without a name
    "SELECT * FROM (SELECT i FROM a), (SELECT i FROM b)",
    "SELECT * FROM (SELECT i FROM a) JOIN (SELECT i, k FROM b) USING (i)",
    "SELECT unnamed_subquery2.* FROM (SELECT i FROM a), c, (SELECT k FROM b)",
    "SELECT unnamed_subquery.* FROM ((SELECT i FROM a) CROSS JOIN c) AS t, (SELECT k FROM b)",
    # names with dots
    'WITH "my.cte" AS (SELECT i FROM a) SELECT "my.cte".i FROM "my.cte"',
    'SELECT * FROM "a.b"',
    # range
    "SELECT * FROM range(3) t",
    "SELECT t, t.t, range, t.range FROM range(3) t",
    "SELECT * FROM range(3) i JOIN c USING (i)",
    "SELECT * FROM range(3) t JOIN range(2) s USING (range)",
    "SELECT * FROM range(3) t(x)",
    "SELECT t.x FROM range(1 + 2) AS t(x)",
    "SELECT * FROM range(2 * 3, 10 // 1, 2 - 1)",
    "SELECT * FROM range(-3, -1)",
    "SELECT * FROM range(3, 1)",
    "SELECT * FROM range(NULL, 5)",
    "SELECT * FROM range(0, 5, NULL)",
    "SELECT * FROM generate_series(1, 3)",
    "SELECT generate_series FROM generate_series(3) t",
    "SELECT * FROM generate_series(NULL)",
    "SELECT range + 1 FROM range(4611686018427387902, 4611686018427387904)",
    "SELECT x - 4611686018427387903 AS y FROM range(-4611686018427387904, 0 - 4611686018427387902)"
    " AS t(x)",
    # names of expressions
    "SELECT (val), ((i)), (i + 1), i + 1 * 2, (i + 1) * 2, i + 1 + j, i - (j - 1), i*j FROM a",
    "SELECT -i, -1, -(-1), - -i, i - -5, -i * 2, 1e-3 * val, TRUE, NULL, i + NULL FROM a",
    "SELECT CAST(val AS FLOAT), val::REAL, (val + 1)::INT, '1'::INTEGER, val::INT::DOUBLE FROM a",
    "SELECT ABS(val - 1), pow(val, 2), power(val, 2), val ^ 2, ceiling(val), ceil(val) FROM a",
    "SELECT ln(val + 1), log(val + 1), log10(val + 1), log2(val + 1), log(2, val + 1) FROM a",
    "SELECT ROUND(val, 0), greatest(val, 1, i), atan2(val, 1), mod(i, 2), i % 2, i // 2 FROM a",
    "SELECT coalesce(val, 0), nullif(val, 1), ifnull(val, 0), if(i = 1, 2, 3), add(i, 1) FROM a",
    "SELECT CASE WHEN i = 1 THEN 2 ELSE 3 END, CASE i WHEN 1 THEN 2 WHEN 0 THEN 5 END FROM a",
    "SELECT i BETWEEN 0 AND 1, i NOT BETWEEN 0 AND 1, i IN (0, 1), i NOT IN (0) FROM a",
    "SELECT val IS NULL, val IS NOT NULL, NOT (val IS NULL), (i = 1) IS NOT TRUE FROM a",
    "SELECT i IS DISTINCT FROM j, NOT i = 1, i <> 1, i >= 1, i == 1, i & 1, xor(i, 1) FROM a",
    "SELECT i = 1 AND j = 0 AND val > 1, i = 1 OR j = 0 AND val > 1,"
    " (i = 1 OR j = 1) OR val = 1 FROM a",
    "SELECT SUM(val * 2) / COUNT(*), var_samp(val), mean(i), COUNT(1), SUM(A.VAL) FROM a",
    "SELECT arg_min(i + 1, val), SUM(i)::INTEGER, MAX(val) - MIN(val) FROM a",
    "SELECT SUM(val) FILTER (WHERE i = 1), COUNT(*) FILTER (i > 0 AND i < 3) FROM a",
    "SELECT SUM(val) OVER (), COUNT(*) OVER (PARTITION BY i), SUM(val) FILTER (WHERE j = 1)"
    " OVER (PARTITION BY i, j) FROM a",
    "SELECT (SELECT MAX(i + 1) FROM a WHERE i > 0), (SELECT COUNT(*) FROM c) + 1",
    'SELECT "val" + 1, a."val" * 2, SUM("val") OVER () FROM a',
    'SELECT x."Q r" + 1, x."Q r", "select" + 1 FROM (SELECT 1 AS "Q r", 2 AS "select") x',
    "SELECT range + 1 FROM range(3)",
    # FROM first, WITH
    "FROM a SELECT i, SUM(val) GROUP BY i",
    "SELECT * FROM (FROM a WHERE i = 1)",
    "WITH t AS MATERIALIZED (SELECT i FROM a), u AS NOT MATERIALIZED (FROM t) SELECT * FROM u",
    "WITH t AS (WITH u AS (SELECT i FROM a) SELECT * FROM u) (SELECT * FROM t)",
]

ERRORS = [
    # what DuckDB refuses
    ("SELECT i FROM a JOIN b USING (i), c JOIN d USING (i)", 'Column "i" is ambiguous'),
    ("SELECT i FROM (SELECT i FROM a), (SELECT i FROM b)", 'Column "i" is ambiguous'),
    ("SELECT 1 FROM a CROSS JOIN b JOIN c USING (i)", 'Column "i" is ambiguous'),
    ("SELECT 1 FROM a JOIN (b JOIN c ON b.i = c.i) USING (i)", 'Column "i" is ambiguous'),
    ("SELECT 1 FROM a NATURAL JOIN (b JOIN c ON b.i = c.i)", 'Column "i" is ambiguous'),
    ("SELECT 1 FROM a, c JOIN b ON i = 1", 'Column "i" is ambiguous'),
    ("SELECT 1 FROM a JOIN b USING (j)", 'on the right has a column "j"'),
    ("SELECT 1 FROM a, b JOIN c USING (j)", 'on the left has a column "j"'),
    ("SELECT 1 FROM a JOIN c ON b.i = 1, b", 'no table "b"'),
    ("SELECT 1 FROM a NATURAL JOIN (SELECT 1 AS q) t", "finds no common column"),
    ("SELECT a.i FROM (a JOIN b USING (i)) AS t", 'no table "a"'),
    ("SELECT t.i FROM (c AS t) AS s", 'no table "t"'),
    ("SELECT a.i FROM (a, b)", "comma is not allowed within a join"),
    ("SELECT 1 FROM a JOIN b", "JOIN needs a condition"),
    ("SELECT 1 FROM a INNER JOIN b", "JOIN needs a condition"),
    ("SELECT 1 FROM a JOIN b USING ()", "JOIN needs a condition"),
    ("SELECT 1 FROM a JOIN b JOIN c ON a.i = c.i", "JOIN needs a condition"),
    ("SELECT 1 FROM a CROSS JOIN b ON a.i = b.i", "CROSS JOIN has no ON"),
    ("SELECT 1 FROM a NATURAL JOIN b USING (i)", "NATURAL JOIN has no USING"),
    ("SELECT 1 FROM a NATURAL CROSS JOIN b", "NATURAL or CROSS"),
    ("SELECT * EXCLUDE (val, VAL) FROM a", "given twice in EXCLUDE"),
    ("SELECT * EXCLUDE (a.i, i) FROM a", "given twice in EXCLUDE"),
    ("SELECT * EXCLUDE () FROM a", "EXCLUDE names no columns"),
    ("SELECT * REPLACE (1 AS i, 2 AS I) FROM a", "given twice in REPLACE"),
    ("SELECT * EXCLUDE (i) REPLACE (1 AS i) FROM a", "twice in EXCLUDE and REPLACE"),
    ("SELECT * EXCLUDE (i) RENAME (a.i AS q) FROM a", "twice in EXCLUDE and RENAME"),
    ("SELECT * EXCLUDE (z.i) FROM a", 'no table "z"'),
    ("SELECT b.* EXCLUDE (a.val) FROM a, b", 'no column "val"'),
    ("SELECT x.a.* FROM a", "no schemas"),
    ("SELECT * FROM c t(x INT)", "names without types"),
    ("SELECT * FROM a x(p, q, r, s)", "4 column names for 3 columns"),
    ("SELECT * FROM foo.range(3)", "no schemas"),
    ("SELECT * FROM range(0, 5, 0)", "step of range"),
    ("SELECT * FROM range(2.5::DOUBLE)", "needs constant integers"),
    ("SELECT * FROM range(stop := 3)", "outside the tensor fragment"),
    ("SELECT * FROM range(9223372036854775808)", "does not fit BIGINT"),
    ("SELECT * FROM generate_series(9223372036854775806, 9223372036854775807)", r"±2\^62"),
    ("SELECT * FROM range(-9223372036854775807, 0)", r"±2\^62"),
    ("SELECT range FROM range(3) t(x)", 'no column "range"'),
    # what einsql does not do
    ("SELECT 1 FROM a, a", "used twice in FROM"),
    ("SELECT a FROM a", '"a" is a table here'),
    ("SELECT i + 1 AS a FROM a WHERE a = 1", '"a" is a table here'),
    ("SELECT (SELECT max(a) FROM a) FROM (SELECT i AS a FROM c) x", '"a" is a table here'),
    ("SELECT * FROM range(5, 0, -1)", "with a step"),
    ("SELECT * FROM generate_series(0, 10, 1 + 1)", "with a step"),
    ("SELECT * FROM a, range(i)", "bounds that are no constants"),
    ("SELECT * FROM range(3) t(x, y)", "2 column names for 1 column"),
    ("SELECT * RENAME (zz AS q) FROM a", 'no column "zz"'),
    ("SELECT * RENAME (val AS q, val AS r) FROM a", "given twice in RENAME"),
    ("SELECT * ILIKE 'v%' FROM a", "ILIKE is outside"),
    ("SELECT 1 FROM main.a", "no schemas"),
    ("SELECT 1 FROM a TABLESAMPLE 10%", "TABLESAMPLE is outside"),
    ("SELECT 1 FROM (SELECT i FROM a) TABLESAMPLE 3", "TABLESAMPLE is outside"),
    ("SELECT 1 FROM a AT (VERSION => 3)", r"AT \(…\) is outside"),
    ("SELECT 1 FROM ONLY a", "ONLY is outside"),
    ("SELECT 1 FROM range(3) WITH ORDINALITY", "WITH ORDINALITY is outside"),
    ("SELECT 1 FROM a WITH (NOLOCK)", "A table hint is outside"),
    ("SELECT 1 FROM a PIVOT (SUM(val) FOR i IN (1))", "PIVOT is outside"),
    ("SELECT 1 FROM a POSITIONAL JOIN b", "POSITIONAL JOIN is outside"),
    ("SELECT 1 FROM a ASOF JOIN b USING (i)", "ASOF JOIN is outside"),
    ("SELECT 1 FROM a SEMI JOIN b USING (i)", "SEMI JOIN is outside"),
    ("SELECT 1 FROM a ANTI JOIN b USING (i)", "ANTI JOIN is outside"),
    ("SELECT 1 FROM a, LATERAL (SELECT a.i)", "LATERAL in FROM is outside"),
    ("SELECT 1 FROM unnest([1, 2])", "UNNEST in FROM is outside"),
    ("SELECT * FROM EINSUM('..., ... -> ...', a, b)", r"label '\.\.\.' has the bounds"),
    ("SELECT * FROM EINSUM('ij->ij', a, x := b)", "has no option x := b"),
    ("WITH t USING KEY (i) AS (SELECT i FROM a) SELECT 1", "USING KEY is outside"),
    ("WITH RECURSIVE t AS (SELECT i FROM a) SELECT 1", "WITH RECURSIVE is outside"),
    ("WITH t AS (SELECT zz FROM a) SELECT 1 FROM t", 'no column "zz"'),
]


def _rows(dims: tuple[str, ...], array: np.ndarray) -> pa.Table:
    index = np.indices(array.shape).reshape(array.ndim, -1)
    columns = {d: index[n].astype(np.int64) for n, d in enumerate(dims)}
    return pa.table({**columns, "val": array.reshape(-1)})


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, (dims, array) in TENSORS.items():
        con.register("rows", _rows(dims, array))
        con.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
    con.execute('CREATE TABLE "a.b" AS SELECT * FROM c')
    return con


@pytest.fixture(scope="module")
def con() -> einsql.Connection:
    connection = einsql.connect(config={"jit": "never"})
    for name, (dims, array) in TENSORS.items():
        connection.register(name, array, dims)
    connection.register("a.b", TENSORS["c"][1], ("i",))
    return connection


if duckdb.__version__ == "2.0.0":  # later versions read no names inside of parentheses
    ANSWERS += [
        "SELECT t.i FROM ((SELECT i, val FROM c) AS t)",
        "SELECT s.x, s.* FROM ((SELECT i, val FROM c) AS t(x)) AS s",
        "SELECT s.i FROM (c AS t) AS s",
    ]


@pytest.mark.parametrize("sql", spread(ANSWERS, 36))
def test_agrees_with_duckdb_in_rows_and_names(
    con: einsql.Connection, duck: duckdb.DuckDBPyConnection, sql: str
) -> None:
    expected, found = duck.execute(sql), con.execute(sql)
    assert [c[0] for c in found.description or ()] == [c[0] for c in expected.description or ()]
    assert sorted(found.fetchall(), key=repr) == sorted(expected.fetchall(), key=repr)


@pytest.mark.parametrize(("sql", "reason"), ERRORS, ids=[e[0] for e in ERRORS])
def test_refused_with_position(con: einsql.Connection, sql: str, reason: str) -> None:
    con.execute("SET fallback = off")
    with pytest.raises(einsql.Error, match=reason) as caught:
        con.execute(sql)
    assert caught.value.position is not None


def test_views_and_macros_keep_to_the_same_rules() -> None:
    con = einsql.connect()
    con.register("c", TENSORS["c"][1], ("i",))
    con.execute("CREATE VIEW twice AS SELECT i, val AS i FROM c")
    assert con.execute("SELECT i_1 FROM twice").fetchall() == [(100,), (200,), (300,)]
    con.execute("CREATE MACRO pairs(t) AS TABLE SELECT COUNT(*) AS n FROM t, c AS d")
    assert con.execute("SELECT n FROM pairs(c)").fetchall() == [(9,)]


def test_update_from_joins_only_what_stands_in_from() -> None:
    con = einsql.connect()
    con.register("b", TENSORS["b"][1], ("i", "k"))
    con.register("c", TENSORS["c"][1], ("i",))
    con.execute("CREATE TENSOR w (i DIM(2), k DIM(3), val DOUBLE) DEFAULT 0")
    con.execute(
        "UPDATE w SET val = b.val + c.val FROM b JOIN c USING (i) WHERE w.i = b.i AND w.k = b.k"
    )
    assert con.execute("SELECT SUM(val) FROM w").fetchone() == (75 + 900,)
    con.execute("UPDATE w SET val = s.i FROM c, (b JOIN c USING (i)) s WHERE w.i = s.i AND c.i = 0"
                " AND w.k = s.k")  # fmt: skip
    assert con.execute("SELECT SUM(val) FROM w").fetchone() == (3,)


SPECS = [
    ("... d0 -> ... d0", ["d0_", "d0"], "ij->ij"),
    ("d0 ... -> ... d0", ["d0_", "d0"], "ij->ji"),
    ("d0 ... , ... d1 -> d1 ... d0", ["d1", "d0_", "d0"], "ij,jk->kji"),
    ("d0 d1 -> d1 d0", ["d1", "d0"], "ij->ji"),
    ("i\nj,\tj\nk ->\n i\nk", ["i", "k"], "ij,jk->ik"),
    (" ij , jk -> ki ", ["k", "i"], "ij,jk->ki"),
    ("iI->Ii", ["I", "i_1"], "ij->ji"),
]


@pytest.mark.parametrize(("spec", "names", "plain"), SPECS, ids=[s[0] for s in SPECS])
def test_labels_of_einsum_are_the_users_own(spec: str, names: list[str], plain: str) -> None:
    x = np.arange(9.0).reshape(3, 3)
    con = einsql.connect(config={"jit": "never"})
    con.register("x", x)
    operands = ["x"] * (1 + spec.count(","))
    found = con.execute(f"SELECT * FROM EINSUM('{spec}', {', '.join(operands)})")
    assert [c[0] for c in found.description or ()] == [*names, "val"]
    expected = np.einsum(plain, *[x] * len(operands))
    assert np.array_equal(found.fetch_numpy(), expected)
