"""Python functions as scalar functions of SQL: recorded ones, and those that run over arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import spread

X = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    session = einsql.connect()
    session.register("x", X, ("i", "j"))
    session.execute("CREATE TENSOR s AS SELECT i, j, val FROM x WHERE val <> 2")
    session.execute("CREATE TABLE t AS SELECT range AS r, 'n' || range AS n FROM range(3)")
    yield session
    session.close()


def kept(calls: list[float]) -> Callable[[float], float]:
    """A function that cannot be recorded and notes its arguments."""

    def noted(x: float) -> float:
        calls.append(x)
        return 10 * x if x > 3 else x

    return noted


def refused(con: einsql.Connection, sql: str, match: str) -> einsql.Error:
    with pytest.raises(einsql.Error, match=match) as caught:
        con.execute(sql).fetchall()
    return caught.value


# ---- recorded functions


@pytest.mark.parametrize(
    ("fn", "sql"),
    [
        (lambda x, y: math.sqrt(x * x + y * y) + 1, "SQRT(x * x + y * y) + 1"),
        (lambda x, y: np.where(x > y, np.exp(-x), 2), "CASE WHEN x > y THEN EXP(-x) ELSE 2 END"),
        (lambda x, y: max(x, y) - min(abs(x), 3), "GREATEST(x, y) - LEAST(ABS(x), 3)"),
    ],
    ids=["math", "numpy", "builtins"],
)  # fmt: skip
def test_a_recorded_function_is_its_spelling_in_sql(
    con: einsql.Connection, fn: Callable[..., Any], sql: str
) -> None:
    """The plans, the values and the gradients are the same."""
    con.create_function("f", fn, ["DOUBLE", "DOUBLE"], "DOUBLE")
    con.execute(f"CREATE FUNCTION g(x DOUBLE, y DOUBLE) AS {sql}")
    query = "SELECT i, SUM({0}(val, j)) AS v FROM x GROUP BY i"
    loss = "WITH l AS (SELECT SUM({0}(val, j)) AS v FROM x) SELECT i, j, val FROM GRADIENT(l, x)"
    for text in (query, loss):
        first, second = text.format("f"), text.format("g")
        assert str(con.explain(first)) == str(con.explain(second))
        assert str(con.execute(first).fetchall()) == str(con.execute(second).fetchall())  # NaN
    assert not refused_kernels(con, query.format("f"))


def refused_kernels(con: einsql.Connection, sql: str) -> bool:
    return "is a Python function" in str(con.explain(sql, analyze=True))


def test_a_function_that_looks_at_its_arguments_is_not_recorded(con: einsql.Connection) -> None:
    con.create_function("f", lambda x: x * (2 if isinstance(x, float) else 3), ["DOUBLE"], "DOUBLE")
    query = "SELECT i, j, f(val) AS v FROM x"
    assert [v for *_, v in con.execute(query).fetchall()] == (2 * X).reshape(-1).tolist()
    assert refused_kernels(con, query)


# ---- functions over arrays


@pytest.mark.parametrize(
    ("sql", "seen"),
    spread(
        [
            ("SELECT i, j, f(val) AS v FROM x WHERE val >= 1 AND j > 0", [1, 2, 4, 5]),
            ("SELECT i, j, CASE WHEN val < 2 THEN f(val) END AS v FROM x", [0, 1]),
            ("SELECT i, SUM(f(val)) FILTER (j = 1) AS v FROM x GROUP BY i", [1, 4]),
            ("SELECT i, j, f(NULLIF(val, 3)) AS v FROM x", [0, 1, 2, 4, 5]),
            ("SELECT i, j, COALESCE(NULLIF(val, 3), f(val)) AS v FROM x", [3]),
            ("SELECT i, j, f(val) AS v FROM s", [0, 1, 3, 4, 5]),
            ("SELECT i, SUM(f(val)) AS v FROM s GROUP BY i", [0, 1, 3, 4, 5]),
            ("SELECT i, f(SUM(val)) AS v FROM s WHERE i = 1 GROUP BY i", [12]),
            (
                "SELECT x.i, SUM(f(s.val)) AS v FROM x JOIN s USING (i, j) GROUP BY x.i",
                [0, 1, 3, 4, 5],
            ),
            ("SELECT i, SUM(f(j) * val) AS v FROM x GROUP BY i", [0, 1, 2]),
            ("SELECT f(r) AS v, n FROM t WHERE r > 0 ORDER BY n", [1, 2]),
            ("SELECT i, val OR f(val) > 3 AS v FROM x WHERE j = 0", [0]),
        ],
        6,
    ),
)
def test_only_present_and_selected_elements_are_passed(
    con: einsql.Connection, sql: str, seen: list[float]
) -> None:
    """A function is called for what the result needs, and the result is that of SQL's CASE."""
    calls: list[float] = []
    con.create_function("f", kept(calls), ["DOUBLE"], "DOUBLE")
    con.execute("CREATE FUNCTION g(x DOUBLE) AS CASE WHEN x > 3 THEN 10 * x ELSE x END")
    calls.clear()
    rows = con.execute(sql).fetchall()
    assert sorted(set(calls)) == seen
    assert rows == con.execute(sql.replace("f(", "g(")).fetchall()


@pytest.mark.parametrize("sites", [2, 3])
def test_sites(con: einsql.Connection, sites: int) -> None:
    con.create_function("f", kept([]), ["DOUBLE"], "DOUBLE")
    sql = "SELECT i, SUM(f(x.val * s.val)) AS v FROM x JOIN s USING (i, j) GROUP BY i"
    expected = con.execute(sql).fetchall()
    con.execute(f"SET sites = {sites}")
    assert con.execute(sql).fetchall() == expected == [(0, 1.0), (1, 500.0)]


def test_arrays_and_types(con: einsql.Connection) -> None:
    import pyarrow.compute as pc

    def described(x: float, n: int) -> float:
        return x * n if x > 1 else 0

    con.create_function(
        "a", lambda x, y: pc.add(x, y), ["DOUBLE", "BIGINT"], "DOUBLE", type="arrow"
    )
    con.create_function("b", np.hypot, ["FLOAT", "FLOAT"], "FLOAT", type="numpy")
    con.create_function("c", described)
    con.create_function("d", lambda x: x > 1, [np.float32], bool, trace=False)
    values = "a(val, j) AS a, b(3, j + 4) AS b, c(val, 2) AS c, d(j) AS d"
    sql = f"SELECT i, j, {values} FROM x WHERE i = 0"
    legs = np.hypot(np.float32(3), np.arange(4, 7, dtype=np.float32)).tolist()
    rows = [
        (0, 0, 0.0, legs[0], 0.0, False),
        (0, 1, 2.0, legs[1], 0.0, False),
        (0, 2, 4.0, legs[2], 4.0, True),
    ]
    cursor = con.execute(sql)
    assert [str(d[1]) for d in cursor.description or ()][2:] == [
        "DOUBLE", "FLOAT", "DOUBLE", "BOOLEAN"
    ]  # fmt: skip
    assert cursor.fetchall() == rows
    assert con.execute(f"{sql} ORDER BY j").fetchall() == rows
    assert con.execute(f"SELECT * FROM ({sql}) q JOIN t ON q.j = t.r ORDER BY r").fetchall() == [
        (*row, n, f"n{n}") for n, row in enumerate(rows)
    ]


def test_numba_gives_what_python_gives(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Numba's integers wrap around: such a function stays in Python."""
    pytest.importorskip("numba")
    monkeypatch.setattr("einsql.ir.functions.numba_loops.LEAST", 50)
    long = np.arange(99)
    con.register("long", long, ("i",))
    con.create_function("f", lambda n: n / 3 if n > 10 else -1.5, ["BIGINT"], "DOUBLE")
    con.create_function("g", lambda n: n * 2**62 if n > 1 else n, ["BIGINT"], "DOUBLE")
    expected = np.where(long > 10, long / 3, -1.5), np.where(long > 1, long * 2.0**62, long)
    for name, wanted in zip("fg", expected, strict=True):
        for _ in range(2):
            values = con.execute(f"SELECT i, {name}(val) AS v FROM long").fetch_numpy()
            np.testing.assert_array_equal(values, wanted)


def test_derivatives(con: einsql.Connection) -> None:
    def product(x: float, y: float) -> float:
        return x * y if x > 1 else y * x

    types = ["DOUBLE", "DOUBLE"]
    con.create_function("f", product, types, "DOUBLE", derivative=lambda x, y: (y, x))
    con.create_function("g", product, types, "DOUBLE", derivative=["y", "x"])

    def partials(x: float, y: float) -> tuple[float, float]:
        return (y, x) if x > 1 else (y * 1, x)

    con.create_function("h", product, types, "DOUBLE", derivative=partials)
    con.create_function("k", product, types, "DOUBLE")
    loss = (
        "WITH l AS (SELECT SUM({0}(val, val + 1)) AS v FROM x WHERE j > 0) "
        "SELECT i, j, val FROM GRADIENT(l, x)"
    )
    wanted = con.execute(loss.format("").replace("(val, val + 1)", "(val * (val + 1))")).fetchall()
    for name in "fgh":
        assert con.execute(loss.format(name)).fetchall() == wanted
    error = refused(con, loss.format("k"), "no gradient through k")
    assert "derivative" in error.hint
    with pytest.raises(einsql.Error, match="2 parameters and 1 partial"):
        con.create_function("m", product, types, "DOUBLE", derivative="y")
    with pytest.raises(einsql.Error, match='no parameter "z"'):
        con.create_function("m", product, types, "DOUBLE", derivative=["z", "x"])


# ---- errors


@pytest.mark.parametrize("order", ["", " ORDER BY v DESC LIMIT 9", " UNION ALL SELECT 0, 0, f(4)"])
def test_a_raising_function(con: einsql.Connection, order: str) -> None:
    """The statement fails, and the transaction and the session go on."""

    def fails(x: float) -> float:
        if x == 4:
            raise KeyError("four")
        return x

    con.create_function("f", fails, ["DOUBLE"], "DOUBLE")
    con.execute("BEGIN")
    con.execute("CREATE TENSOR y AS SELECT i, j, val + 1 AS val FROM x")
    error = refused(con, f"SELECT i, j, f(val) AS v FROM x{order}", r"f\(4.0\) raised KeyError")
    assert isinstance(error, einsql.DataError)
    assert isinstance(error.__cause__, KeyError)
    if not order:
        assert len(con.execute("SELECT i, j, f(val) AS v FROM x WHERE val <> 4").fetchall()) == 5
        con.execute("COMMIT")
        assert con.execute("SELECT SUM(val) AS v FROM y").fetchall() == [(21.0,)]


@pytest.mark.parametrize(
    ("fn", "result", "match"),
    [
        (lambda x: "a" if x > 0 else "b", "DOUBLE", "returned str"),
        (lambda x: None if x > 0 else 1, "DOUBLE", "returned None"),
        (lambda x: 2**70 if x > 0 else 1, "BIGINT", "beyond 64 bits"),
        (lambda x: 2**40 if x > 0 else 1, "INTEGER", "cannot represent"),
        (lambda x: [x, x] if x > 0 else x, "DOUBLE", "has to return DOUBLE"),
    ],
)
def test_wrong_results(
    con: einsql.Connection, fn: Callable[..., Any], result: str, match: str
) -> None:
    con.create_function("f", fn, ["DOUBLE"], result)
    refused(con, "SELECT i, j, f(val) AS v FROM x", match)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("f", math.sqrt, ["FOO"], "DOUBLE"), "There is no type FOO"),
        (("f", math.sqrt, "DOUBLE", "DOUBLE"), "list of types"),
        (("f", math.sqrt), "needs the types"),
        (("f", lambda: 1, [], "DOUBLE"), "has no parameters"),
        (("f", 1, ["DOUBLE"], "DOUBLE"), "a name and a Python function"),
        (("sqrt", math.sqrt, ["DOUBLE"], "DOUBLE"), "is a function of einsql"),
        (("taken", math.sqrt, ["DOUBLE"], "DOUBLE"), "There is a function"),
    ],
)
def test_refused_definitions(
    con: einsql.Connection, arguments: tuple[Any, ...], match: str
) -> None:
    con.execute("CREATE FUNCTION taken(x) AS x")
    with pytest.raises(einsql.Error, match=match):
        con.create_function(*arguments)
    with pytest.raises(einsql.Error, match="type is native or arrow or numpy"):
        con.create_function("f", math.sqrt, ["DOUBLE"], "DOUBLE", type="vector")
    with pytest.raises(einsql.Error, match="no Python function"):
        con.remove_function("taken")


# ---- laws


@pytest.mark.parametrize("is_traced", [True, False])
def test_laws_are_tested(con: einsql.Connection, is_traced: bool) -> None:
    def create(fn: Callable[..., Any], dtype: str, **laws: Any) -> None:
        con.create_function("f", fn, [dtype] * arity(fn), dtype, trace=is_traced, **laws)

    wrong: list[tuple[Callable[..., Any], str, dict[str, Any], str]] = [
        (lambda x, y: x - y, "BIGINT", {"commutative": True}, r"f\(0, 1\) = -1, f\(1, 0\) = 1"),
        (lambda x, y: x - y, "DOUBLE", {"associative": True}, "not associative: f"),
        (lambda x, y: x + y, "BIGINT", {"identity": 1}, r"f\(0, 1\) = 1"),
        (lambda x, y: x * y, "FLOAT", {"annihilator": 1.0}, r"f\(0.0, 1.0\) = 0.0"),
        (lambda x: x * x, "DOUBLE", {"monotone": "increasing"}, "not monotone"),
        (lambda x: x * x, "DOUBLE", {"commutative": True}, "two arguments of one type"),
    ]
    right: list[tuple[Callable[..., Any], str, dict[str, Any]]] = [
        (lambda x, y: x + y, "BIGINT", {"commutative": True, "associative": True, "identity": 0}),
        (lambda x, y: x + y, "DOUBLE", {"commutative": True, "associative": True, "identity": 0.0}),
        (lambda x, y: x * y, "FLOAT", {"commutative": True, "annihilator": 0, "identity": 1}),
        (lambda x: -(x**3), "DOUBLE", {"monotone": "decreasing"}),
    ]
    for fn, dtype, laws, match in wrong:
        with pytest.raises(einsql.ProgrammingError, match=match):
            create(fn, dtype, **laws)
    for fn, dtype, laws in right:
        create(fn, dtype, **laws)
        con.remove_function("f")


def arity(fn: Callable[..., Any]) -> int:
    return fn.__code__.co_argcount


def test_laws_are_used_and_shown(con: einsql.Connection) -> None:
    def add(x: int, y: int) -> int:
        return x + y if x > y else y + x

    con.create_function("f", add, commutative=True, identity=0)
    con.create_function("g", add)
    sql = "SELECT i, j, {0}(i, j) * {0}(j, i) + {0}({0}(i, 0), j) AS v FROM x"
    lawful, other = (str(con.explain(sql.format(n), level="einsum")) for n in "fg")
    assert "laws    F: commutative, identity 0 (tested)" in lawful
    assert "F(i, 0)" not in lawful
    assert "G(i, 0)" in other
    assert con.execute(sql.format("f")).fetchall() == con.execute(sql.format("g")).fetchall()


def test_a_monotone_function_bounds_a_key(con: einsql.Connection) -> None:
    def third(n: int) -> int:
        return n // 3 if n > 0 else -(-n // 3)

    con.create_function("third", third, monotone="increasing")
    con.execute("SET fallback = off")
    sql = "SELECT third(j + 1) AS k, SUM(val) AS v FROM x GROUP BY third(j + 1)"
    assert con.execute(sql).fetchall() == [(0, 8.0), (1, 7.0)]


# ---- names


def test_connections_have_functions_of_their_own(tmp_path: Any) -> None:
    """Also two sessions of one database, in tensor work and in DuckDB."""
    path = f"{tmp_path}/a.db"
    with einsql.connect(path) as one, einsql.connect(path) as two:
        one.create_function("f", lambda x: x + 1 if x > 0 else 1.0, ["DOUBLE"], "DOUBLE")
        two.create_function("f", lambda x: x - 1 if x > 0 else -1.0, ["DOUBLE"], "DOUBLE")
        for con, wanted in ((one, 1.0), (two, -1.0)):
            con.register("x", X, ("i", "j"))
            rows = [(i, j, v + wanted) for (i, j), v in np.ndenumerate(X)]
            assert con.execute("SELECT i, j, f(val) AS v FROM x").fetchall() == rows
            hybrid = (
                "SELECT r, f(r) AS v FROM (SELECT DISTINCT f(j) * 0 + j AS r FROM x) ORDER BY r"
            )
            assert con.execute(hybrid).fetchall() == [(r, r + wanted) for r in range(3)]


def test_a_transaction_of_a_file(tmp_path: Any) -> None:
    """DuckDB sees a function that the running transaction creates, and ROLLBACK removes it."""
    hybrid = "SELECT DISTINCT f(r) + 0.5 AS v FROM u ORDER BY v"
    with einsql.connect(f"{tmp_path}/a.db") as con:
        con.execute("CREATE TABLE u AS SELECT range AS r FROM range(2)")
        for end, wanted in (("ROLLBACK", 2.5), ("COMMIT", 3.5)):
            con.execute("BEGIN")
            con.execute("SELECT COUNT(*) FROM u").fetchall()
            con.create_function("f", lambda x, y=wanted: x * 0 + y - 0.5, ["DOUBLE"], "DOUBLE")
            assert con.execute(hybrid).fetchall() == [(wanted,)]
            con.execute(end)
            if end == "ROLLBACK":
                refused(con, hybrid, "f does not exist")
        assert con.execute(hybrid).fetchall() == [(3.5,)]


def test_functions_are_not_stored(tmp_path: Any) -> None:
    path = f"{tmp_path}/a.db"
    with einsql.connect(path) as con:
        con.create_function("double_of", lambda x: 2 * x, ["DOUBLE"], "DOUBLE")
        con.execute("CREATE TENSOR y (i DIM(2), val DOUBLE) DEFAULT 3")
        con.execute("CREATE VIEW v AS SELECT i, double_of(val) AS val FROM y")
    with einsql.connect(path) as con:
        error = refused(con, "SELECT i, val FROM v", "double_of does not exist")
        assert "create_function" in error.hint
        con.create_function("double_of", lambda x: 4 * x, ["DOUBLE"], "DOUBLE")
        assert con.execute("SELECT i, val FROM v").fetchall() == [(0, 12.0), (1, 12.0)]


def test_remove_and_transactions(con: einsql.Connection) -> None:
    con.create_function("f", lambda x: x + 1, ["DOUBLE"], "DOUBLE")
    sql = "SELECT i, j, f(val) AS v FROM x"
    rows = con.execute(sql).fetchall()
    con.execute("BEGIN")
    con.remove_function("f")
    refused(con, "SET fallback = off; " + sql, "There is no function f")
    con.execute("ROLLBACK")
    assert con.execute(sql).fetchall() == rows
    con.remove_function("F")
    con.create_function("f", lambda x: x + 2, ["DOUBLE"], "DOUBLE")
    assert con.execute(sql).fetchall() == [(i, j, v + 1) for i, j, v in rows]


def test_functions_that_only_duckdb_runs(con: einsql.Connection) -> None:
    con.create_function("times", lambda s, n: s * n, ["VARCHAR", "INTEGER"], "VARCHAR")
    con.create_function(
        "known", lambda x: -1.0 if x is None else x, ["DOUBLE"], "DOUBLE", null_handling="special"
    )
    con.create_function("inverse", lambda x: 1 / x, ["DOUBLE"], "DOUBLE",
                        exception_handling="return_null")  # fmt: skip
    rows = con.execute("SELECT times(n, 2), known(NULLIF(r, 1)), inverse(r) FROM t ORDER BY r")
    assert rows.fetchall() == [("n0n0", 0.0, None), ("n1n1", -1.0, 1.0), ("n2n2", 2.0, 0.5)]
    sql = "SELECT i, j, inverse(val) AS v FROM x WHERE i = 0 ORDER BY j"
    assert con.execute(sql).fetchall() == [(0, 0, None), (0, 1, 1.0), (0, 2, 0.5)]
    con.execute("SET fallback = off")
    refused(con, "SELECT i, j, inverse(val) AS v FROM x", "exception_handling 'return_null'")


def test_einsum(con: einsql.Connection) -> None:
    con.create_function("f", lambda x, y: x + y if x > y else y - x, ["DOUBLE"] * 2, "DOUBLE")
    wanted = np.where(X[:, None] > X, X[:, None] + X, X - X[:, None]).max(axis=2)
    assert np.array_equal(con.einsum("ij,kj->ik", [X, X], combine="f", reduce="max"), wanted)
    sql = "SELECT i, k, val FROM EINSUM('ij,kj->ik', x, x, combine := 'f', reduce := 'max')"
    assert [v for *_, v in con.execute(sql).fetchall()] == wanted.reshape(-1).tolist()


def test_powers_of_integers_are_exact() -> None:
    with einsql.connect() as con:
        con.register("n", np.array([94906267, 3037000499]), dims=("i",))
        con.create_function("pw", lambda a: a**2, ["BIGINT"], "BIGINT")
        assert con.execute("SELECT i, pw(val) AS p FROM n").fetchall() == [
            (0, 94906267**2),
            (1, 3037000499**2),
        ]


def test_a_function_of_many_parameters(con: einsql.Connection) -> None:
    """Samples of 9 arguments are drawn, not enumerated."""

    con.create_function(
        "mixed",
        lambda a, b, c, d, e, f, g, h, i: a * b - c * d + max(e, f) + g * h - i,
        ["DOUBLE"] * 6 + ["BIGINT"] * 3,
        "DOUBLE",
    )
    call = "mixed(val, 2, val, 3, val, 0, i, 2, i)"
    rows = con.execute(f"SELECT {call}, val FROM x WHERE i = 0").fetchall()
    assert [got for got, _ in rows] == [max(v, 0) - v for _, v in rows]
