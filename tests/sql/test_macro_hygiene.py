"""Macros: no name captures another one; the oracle is the expansion, renamed by hand, in DuckDB."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import sample, spread

NAMES = ("x", "y", "z")
BODY = (
    "WITH {c} AS (SELECT {a}.i, SUM({a}.val) AS val FROM {p} AS {a} GROUP BY {a}.i) "
    "SELECT {c}.i, {c}.val + 10 * {f}.val + 100 * {b}.val AS val "
    "FROM {c} JOIN {f} ON {f}.i = {c}.i JOIN {p} AS {b} ON {b}.i = {c}.i"
)
"""A table macro with the names c, a and b of its own, a name f of the catalog, a parameter p."""
SCALAR = "(SELECT SUM({a}.val) FROM {f} AS {a} WHERE {a}.i = {k})"


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[einsql.Connection, duckdb.DuckDBPyConnection]]:
    ours, oracle = einsql.connect(), duckdb.connect()
    ours.execute("SET fallback = off")
    for n, name in enumerate("xy"):
        array = np.array([1.0, 2.0, 4.0]) * 8**n
        ours.register(name, array, dims=("i",))
        oracle.execute(f"CREATE TABLE {name} (i BIGINT, val DOUBLE)")
        oracle.executemany(f"INSERT INTO {name} VALUES (?, ?)", [[*e] for e in enumerate(array)])
    yield ours, oracle
    ours.close()
    oracle.close()


def cases() -> list[tuple[str, ...]]:
    """The names that a macro defines and reads, its caller's WITH, and the argument."""
    own = itertools.product(NAMES, NAMES, NAMES, "xy", NAMES, NAMES)
    distinct = [
        (c, a, b, f, w, arg)
        for c, a, b, f, w, arg in own
        if len({c, b, f}) == 3 and (arg != "z" or w == "z")
    ]
    return random.Random(3).sample(distinct, len(distinct))


@pytest.mark.parametrize("case", sample(cases()[:20], cases()), ids=" ".join)
def test_no_name_captures_another(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection], case: tuple[str, ...]
) -> None:
    ours, oracle = both
    c, a, b, f, w, arg = case
    body = BODY.format(c=c, a=a, b=b, f=f, p="p")
    ours.execute(f"CREATE OR REPLACE MACRO m(p) AS TABLE {body}")
    ours.execute(f"CREATE OR REPLACE MACRO s(k) AS {SCALAR.format(a=a, f=f, k='k')}")
    part = "SELECT i, val + 0.5 AS val FROM x"
    got = ours.execute(
        f"WITH {w} AS ({part}) SELECT {a}.i, {a}.val, s({a}.i) AS one, s(i) AS two "
        f"FROM m(m({arg})) AS {a}"
    ).fetchall()

    # By hand: every name of the macro and of the caller's WITH is another one.
    def table(p: str) -> str:
        return f"({BODY.format(c='c_', a='a_', b='b_', f=f, p=p)})"

    one = SCALAR.format(a="a_", f=f, k="outer_.i")
    wanted = oracle.execute(
        f"WITH w_ AS ({part}) SELECT outer_.i, outer_.val, {one} AS one, {one} AS two "
        f"FROM {table(table('w_' if arg == w else arg))} AS outer_ ORDER BY ALL"
    ).fetchall()
    assert got == wanted
    assert got


def test_where_arguments_resolve(both: tuple[einsql.Connection, duckdb.DuckDBPyConnection]) -> None:
    con, _ = both
    con.execute("""
        CREATE OR REPLACE MACRO sums(t) AS TABLE
            WITH x AS (SELECT 7 AS seven) SELECT SUM(t.val) AS val FROM t;
        CREATE OR REPLACE MACRO of_query() AS TABLE SELECT * FROM sums((SELECT val FROM x));
        CREATE OR REPLACE MACRO of_name() AS TABLE
            WITH y AS (SELECT i, 2 * val AS val FROM x) SELECT * FROM sums(t := y);
        CREATE OR REPLACE MACRO in_order() AS TABLE
            WITH a AS (SELECT SUM(val) AS val FROM y), y AS (SELECT 0 AS val) SELECT a.val FROM a;
        CREATE OR REPLACE MACRO at_key(t, k) AS (SELECT SUM(t.val) FROM t WHERE t.i = k)
    """)
    hidden = "WITH x AS (SELECT 0 AS i, -1 AS val), y AS (SELECT -2 AS val) SELECT * FROM "
    for call, wanted in {
        "sums(x)": -1,  # the caller's x
        "sums((SELECT val FROM x))": -1,
        "of_query()": 7.0,  # x of the database, although the macro sums() defines an x
        "of_name()": 14.0,
        "in_order()": 56.0,  # y of the database, because that of WITH comes later
    }.items():
        assert con.execute(hidden + call).fetchall() == [(wanted,)], call
    # An argument whose table has the name of the parameter that the subquery reads
    rows = con.execute("SELECT t.i, at_key(x, t.i) AS v FROM y AS t").fetchall()
    assert rows == [(0, 1.0), (1, 2.0), (2, 4.0)]


PASSED_ON = {
    "SELECT * FROM s": (80.0, 160.0, 320.0),
    "SELECT * FROM relu(s)": (80.0, 160.0, 320.0),
    "SELECT * FROM abs(s)": (80.0, 160.0, 320.0),
    "SELECT * FROM plus(s)": (81.0, 161.0, 321.0),
    "SELECT * FROM plus(t := s)": (81.0, 161.0, 321.0),
    "SELECT * FROM plus((SELECT * FROM s))": (81.0, 161.0, 321.0),
    "SELECT i, val FROM hides(s)": (1080.0, 1160.0, 1320.0),
    "SELECT * FROM (SELECT * FROM plus(relu(s)))": (81.0, 161.0, 321.0),
    "SELECT * FROM EINSUM('i->i', s)": (80.0, 160.0, 320.0),
    "SELECT * FROM GRADIENT((SELECT SUM(s.val * s.val) AS l FROM s), s)": (160.0, 320.0, 640.0),
    "SELECT * FROM ELEMENTS((SELECT * FROM TILES(s, 2)))": (80.0, 160.0, 320.0),
    "SELECT i, tot(s) AS val FROM s": (560.0,) * 3,
    "SELECT i, tot(t := s) + tot(q) AS val FROM q": (616.0,) * 3,
    "SELECT i, twice(s) AS val FROM q": (1120.0,) * 3,
    "SELECT i, val + (SELECT SUM(val) FROM plus(s)) AS val FROM q": (571.0, 579.0, 595.0),
    "SELECT i, val + tot(x) AS val FROM q": (15.0, 23.0, 39.0),
    "SELECT i, val + twice(x) AS val FROM q": (22.0, 30.0, 46.0),
    "SELECT s AS i, val FROM renames(q, s)": (8.0, 16.0, 32.0),
    "SELECT i, tot(exp(relu(s))) - tot(exp(s)) AS val FROM q": (0.0,) * 3,
}
"""Queries of a macro over its WITH s, which is ten times the argument q, and their values."""


@pytest.mark.parametrize("query", spread(PASSED_ON, 8))
def test_names_that_a_body_passes_on(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection], query: str
) -> None:
    con, _ = both
    con.register("s", np.array([8.0, 16.0, 32.0]), dims=("i",))
    con.execute(f"""
        CREATE OR REPLACE MACRO plus(t) AS TABLE SELECT i, val + 1 AS val FROM t;
        CREATE OR REPLACE MACRO hides(t) AS TABLE
            WITH s AS (SELECT i, val + 1000 AS val FROM t) SELECT * FROM s;
        CREATE OR REPLACE MACRO renames(t, axis) AS TABLE SELECT i AS axis, val FROM t;
        CREATE OR REPLACE MACRO tot(t) AS (SELECT SUM(t.val) FROM t);
        CREATE OR REPLACE MACRO twice(t) AS tot(t) + (SELECT tot(t));
        CREATE OR REPLACE MACRO m(q) AS TABLE
            WITH s AS (SELECT i, val * 10 AS val FROM q) {query}
    """)
    wanted = list(enumerate(PASSED_ON[query]))
    hidden = "WITH x AS (SELECT i, val - 9 AS val FROM y), s AS (SELECT * FROM y) "
    for call in ("m(y)", "m(s)", "m(q := s)", "m((SELECT * FROM s))", "m(relu(s))"):
        for clause in ("", hidden):
            assert con.execute(f"{clause}SELECT * FROM {call}").fetchall() == wanted, call


def test_names_of_attention(both: tuple[einsql.Connection, duckdb.DuckDBPyConnection]) -> None:
    con, _ = both
    for n, name in enumerate(("_score", "w")):
        con.register(name, np.random.default_rng(n).normal(size=(3, 2)), dims=("t", "d"))
    con.execute("CREATE VIEW scores AS SELECT * FROM _score")
    for names in ("{0}, w, w", "w, {0}, w", "w, w, {0}", "{0}, {0}, {0}"):
        call = f"SELECT * FROM attention({names}, t, d)"
        wanted = con.execute(call.format("scores")).fetchall()
        for clause in ("", "WITH _score AS (SELECT * FROM scores) "):
            assert con.execute(clause + call.format("_score")).fetchall() == wanted, names


def test_what_duckdb_runs_of_a_macro(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    con, _ = both
    con.execute("SET fallback = on")
    con.execute("""
        CREATE OR REPLACE MACRO first_of(t) AS TABLE
            WITH x AS (SELECT 1 AS n) SELECT t.val, 'x' AS u FROM t, x ORDER BY 1 LIMIT 1
    """)
    assert con.execute("SELECT * FROM first_of(x)").fetchall() == [(1.0, "x")]
    assert con.execute("SELECT * FROM first_of(relu(x))").fetchall() == [(1.0, "x")]
    con.execute("CREATE OR REPLACE MACRO names() AS TABLE SELECT val, 'x' AS u FROM x LIMIT 1")
    with pytest.raises(einsql.ProgrammingError, match='reads "x" of the database'):
        con.execute("WITH x AS (SELECT 'a' AS val) SELECT * FROM names(), x")
    con.execute("SET fallback = off")


def test_macros_that_repeat_their_argument(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    con, oracle = both
    for server in both:
        server.execute("CREATE OR REPLACE MACRO again(x) AS x + x * (SELECT SUM(y.val) FROM y)")
    few, many = (f"SELECT i, {'again(' * n}val{')' * n} AS v FROM x" for n in (3, 20))
    assert con.execute(few).fetchall() == oracle.execute(f"{few} ORDER BY i").fetchall()
    with pytest.raises(einsql.ProgrammingError, match="nodes long") as caught:
        con.execute(many)
    assert "WITH" in caught.value.hint


def test_a_call_is_read_as_the_replaced_macro_reads_it() -> None:
    con = einsql.connect()
    con.register("f", np.array([1.0, 2.5, -1.5]), ("i",))
    con.execute("CREATE MACRO m1(p) AS TABLE SELECT i, val FROM p")
    sql = "SELECT * FROM m1(abs(-1))"
    with pytest.raises(einsql.Error):
        con.execute(sql)
    con.execute("CREATE OR REPLACE MACRO m1(p) AS TABLE SELECT i, val FROM f WHERE i >= p")
    assert con.execute(sql).fetchall() == [(1, 2.5), (2, -1.5)]
    con.execute("CREATE MACRO g(n) AS TABLE SELECT i, val FROM f WHERE i = n")
    con.execute("CREATE OR REPLACE MACRO m1(p) AS TABLE SELECT i, val FROM p")
    sql = "SELECT * FROM m1(g(1))"
    assert con.execute(sql).fetchall() == [(1, 2.5)]
    con.execute("CREATE OR REPLACE MACRO m1(p) AS TABLE SELECT i, val FROM f WHERE i >= p")
    con.execute("DROP MACRO g")
    con.execute("CREATE MACRO g(n) AS n + 1")
    assert con.execute(sql).fetchall() == [(2, -1.5)]
