"""Scalar expressions over awkward values: DuckDB's answer and type, or a clear error."""

from __future__ import annotations

import math
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql
from einsql.core.bfloat16 import narrow, rounded
from tests.support.samples import combinations, sample, spread

NAN, INF = math.nan, math.inf
TYPES = {"b": "BOOLEAN", "y": "TINYINT", "n": "INTEGER", "m": "BIGINT", "f": "FLOAT", "d": "DOUBLE"}
ROWS = [
    (True, -128, -(2**31), -(2**63), NAN, NAN),
    (False, 127, 2**31 - 1, 2**63 - 1, INF, INF),
    (True, -1, -1, -1, -INF, -INF),
    (False, 0, 0, 0, -0.0, -0.0),
    (True, 1, 1, 1, 0.5, 2.5),
    (False, 2, 2, 2, -2.5, -7.5),
    (True, 7, 10, 2**53 + 1, 1e30, 0.1),
]

AGREE = [
    # decimals against whole numbers of any size
    "m > 0.5", "m <= -0.5", "0.5 < m", "m = 0.5", "m <> 1.0", "m BETWEEN -0.5 AND 1.5",
    "n BETWEEN 2147483648 AND f", "0.1 BETWEEN f AND 'inf'::DOUBLE",
    "m IN (0.5, 1.0, 2)", "m IS DISTINCT FROM 1.0", "m < 99999999999999999999.5",
    "n * 0.1 = 0.1", "n + 0.5 > 1.5", "y * 0.5 = 1", "n % 1.5 = 0.5", "NULLIF(m, 1.0)",
    "CAST(n * 0.5 AS DOUBLE)", "CAST(n * 0.5 AS INTEGER)", "CAST(y * 0.25 AS TINYINT)",
    "f = 0.1", "f > 16777217.5", "16777217.5 + f", "3.14159265358979323846 * f",
    "12345678901234567890.5 * d", "CAST(-2.5 AS INTEGER)", "2.5::DECIMAL(2,0) = 3",
    "'1.25'::DECIMAL(4,1) = 1.3", "1.5::DECIMAL(9,1)::DOUBLE", "b::DECIMAL(3,1)::DOUBLE",
    "CAST((m // 100000) + 0.5 AS DOUBLE)", "CAST((m // 1000000000) + 0.12345678 AS FLOAT)",
    "CAST((m // 10000 * 3) + 0.5 AS DOUBLE)",
    # divisions and remainders
    "d // 2", "-7.5e0 // 2", "7 // 2.0", "d % 2", "f % 2", "5e0 % 0", "n / 0", "d / 0", "-d % 2",
    "fmod(d, 0.1)", "fmod(-d, 0.3e0)", "fmod(d, 'inf'::DOUBLE)",
    "fmod(d, 2)", "fmod(d, -2)", "fmod(f, 2::FLOAT)", "fmod(n, 3)", "fmod(m, 0)", "fmod(-7.5, 2)",
    "mod(d, f)", "mod(n, 3)", "n % -3", "i % -4", "m // 2", "divide(n, 3)",
    # rounding
    "ROUND(d)", "ROUND(f, 0)", "ROUND(n, 2)", "ROUND(d, -0)", "ROUND(d, 1)", "ROUND(d, -1)",
    "ROUND(f, 1)", "ROUND(d, 400)", "ROUND(d, -400)", "TRUNC(d)", "FLOOR(n)",
    "CEIL(d)", "CEILING(f)", "TRUNC(m)", "SIGN(d)", "SIGN(f)",
    # truths and whole numbers
    "b = 1", "b < n", "b IN (1, 2)", "b IN (m)", "b BETWEEN 0 AND 2", "NULLIF(n, b)",
    "COALESCE(b, 2)", "GREATEST(b, 2)", "CASE WHEN b THEN b ELSE n END", "CASE b WHEN 1 THEN 5 END",
    "NOT n", "d AND b", "CASE WHEN f THEN 1 END", "CAST(d AS BOOLEAN)", "b IS UNKNOWN",
    # literals adapt to what they meet
    "y = 1000", "-(1) * (y // 2)", "CASE WHEN b THEN 1 ELSE y END", "COALESCE(y, 1)",
    "COALESCE(1, 2, y)", "COALESCE(y, 1000)", "GREATEST(y, 1000)", "LEAST(1, y)",
    "CASE WHEN b THEN 1 WHEN NOT b THEN 2 ELSE y END", "CASE WHEN b THEN f ELSE 1.5 END",
    "CASE WHEN b THEN 1 ELSE 10000000000 END", "-9223372036854775808", "1e400",
    "NULL + NULL", "-NULL", "NULL / NULL", "1 + NULL", "NULL = NULL", "- CAST(NULL AS DOUBLE)",
    # NULL
    "NULLIF(b, TRUE) AND n > 1", "NULLIF(b, TRUE) OR n > 1", "NOT NULLIF(b, TRUE)",
    "200 // NULLIF(y, 0)", "n IN (1, NULL)", "n NOT IN (1, NULL)", "NULLIF(n, 1) NOT IN (2, NULL)",
    "(NULLIF(b, TRUE) AND n > 1) OR NULLIF(b, FALSE)", "NULLIF(n, 1) IS NOT DISTINCT FROM NULL",
    "GREATEST(NULLIF(n, 1), NULLIF(m, 2), NULLIF(d, 2.5))", "LEAST(NULLIF(d, d), f, NULLIF(f, f))",
    "LEAST(NULL, NULLIF(n, 1))", "COALESCE(NULLIF(d, 2.5), f, 1)", "IFNULL(NULLIF(n, 1), 5)",
    "IF(NULLIF(b, TRUE), 1, 2)", "COALESCE(n)", "GREATEST(n)",
    # NaN, infinity, -0.0
    "d = d", "d > 1e308", "GREATEST(d, -0.0e0)", "LEAST(d, 1, f)", "d IN (f, 0.0)", "-d", "ABS(f)",
    "ISNAN(d)", "ISINF(f)", "ISFINITE(n)", "POW(d, 0.5)", "POW(f, n)", "0.1 ** f", "ATAN2(f, n)",
    "LOG(3, d)", "LOG(2, f)", "LOG2(d)", "LOG10(d)", "LN(f)", "SQRT(d)", "CBRT(f)", "EXP(f)",
    # precedence
    "-n::DOUBLE ** 2", "2 ^ 3 ^ 2", "5 | 6 & 1", "XOR(n, y) & 12", "@ -5 + 1", "n // 2 % 3",
    "NOT n = 1 AND b", "n = 1 IS NULL", "CASE n > 1 WHEN b = TRUE THEN 1 END", "n IS NULL = b",
    # text that a cast reads
    "'2.5'::INT", "'-2.5'::BIGINT", "' 1 '::INT", "'1e3'::INT", "'1_000'::INT", "'0x10'::INT",
    "'9223372036854775807.4'::BIGINT", "'.5'::INT", "'1_0.5'::DOUBLE", "'nan'::FLOAT",
    "'-Infinity'::DOUBLE", "'1e300'::FLOAT", "'1e400'::DOUBLE", "'yes'::BOOLEAN", "'F'::BOOLEAN",
]  # fmt: skip

NEWER = [
    "ROUND(2.675e0, 2)", "ROUND(-1.005e0, 2)", "ROUND(d + 0.145e0, 2)", "ROUND(f + 0.35e0, 1)",
    "ROUND(1.7e308 + d, -308)", "ROUND(1.7e308 + d, -309)", "ROUND(2.5e-22, 22)",
    "ROUND(2.5e-23, 23)", "-2147483648", "-(2147483648)",
    "1 + -2147483648", "m % -1", "y % -1", "mod(n, -1)",
]  # fmt: skip
"""Expressions that DuckDB 2.0.0 rounds, types or refuses in another way than DuckDB 2.0.1."""

RAISE = [
    "-m", "ABS(m)", "m // -1", "y // -1", "-y", "n * n", "m + 1", "-n",
    "n // y", "d // 0", "CAST(5.0 % (y - y) AS DOUBLE)", "m::INTEGER", "d::TINYINT", "f::BIGINT",
    "d::FLOAT * 1e300::FLOAT",
    "n::DECIMAL(3,1)::DOUBLE", "1234.5::DECIMAL(3,1)::DOUBLE", "m::DECIMAL(18,3)::DOUBLE",
    "CAST(n::DECIMAL(18,0) * n::DECIMAL(18,0) AS DOUBLE)", "ABS(-9223372036854775808)",
    "-9223372036854775808 // -1", "'12345678901'::INT", "'127.5'::TINYINT",
]  # fmt: skip

REFUSED = [
    ("n IN y", "IN with a bare value"), ("n IN (SELECT n FROM t)", "IN with a subquery"),
    ("n BETWEEN SYMMETRIC 2 AND 1", "BETWEEN with SYMMETRIC"), ("ATAN(1, 2)", "second argument"),
    ("CEIL(d, 1)", "CEIL with digits"), ("FLOOR(d, 1)", "FLOOR with digits"),
    ("TRUNC(d, 1)", "TRUNC with digits"), ("CAST(n AS INT FORMAT 'x')", "CAST with FORMAT"),
    ("CAST(n AS INT DEFAULT 3 ON CONVERSION ERROR)", "CAST with a DEFAULT"),
    ("TRY_CAST(n AS INT)", "TRY_CAST"), ("n::INT(5)", "no type INT"), ("n::FLOAT(3)", "no type"),
    ("MAX(n, n)", "count that is no constant"), ("MIN(n, 2) + 1", "LIST inside"),
    ("ARG_MAX(n, y, 0)", "greater than 0"), ("COUNT(n, y)", "takes 1 argument, not 2"),
    ("COUNT_IF(b, b)", "ZERO_ON_ALL_NULL"), ("foo.t.n", "COLUMN with a schema name"),
    ("SUM(n) IGNORE NULLS", "outside"), ("SUM(n) OVER (ORDER BY n)", "ORDER BY a value"),
    ("0 < n < 2", "cannot be chained"), ("n = (m) = 1", "cannot be chained"),
    ("n::DECIMAL(39,0)", "no type DECIMAL"), ("n::DECIMAL(3,4)", "no type DECIMAL"),
    ("ROUND(d, n)", "not an integer literal"), ("ROUND(n, -1)", "left of the point"),
    ("FLOOR(2.5)", "FLOOR of a DECIMAL"), ("SUM(12345678901234567890.5)::INT", "than 18 digits"),
    ("n + 0.00000000000000000001", "than 18 digits"), ("n::DECIMAL(38,20)", "than 18 digits"),
    ("(n * 0.1234567890 * 0.1234567890)::INT", "than 18 digits"),
    ("12345678901234567890.5 + n", "than 18 digits"),
    ("b + 1", "does not accept"), ("b < d", "BOOLEAN and DOUBLE"), ("b * d", "does not accept"),
    ("'abc'::INT", "is no INTEGER"), ("''::INT", "is no INTEGER"), ("'1_'::INT", "is no INTEGER"),
    ("'on'::BOOLEAN", "is no BOOLEAN"), ("'1d'::DOUBLE", "is no DOUBLE"), ("n = '1'", "Text"),
    ("'1e9999999999999999999'::INT", "is no INTEGER"), ("-(-9223372036854775808)", "fit BIGINT"),
    ("1e300::FLOAT", "out of range"), ("70000::HALF", "out of range"), ("~n", "outside"),
    ("n << 2", "outside"), ("n >> 2", "outside"), ("EVEN(d)", "no function"), ("n!", "Syntax"),
    ("FACTORIAL(n)", "outside"), ("GAMMA(d)", "no function"), ("DIV(n, 2)", "outside|Syntax"),
    ("EXTRACT(year FROM n)", "outside"), ("COT(d)", "outside"), ("n || y", "outside"),
    ("n = ANY(y)", "outside"), ("n[1]", "outside"), ("LIST(n)", "outside"),
    ("(n, y)", "outside"),
]  # fmt: skip


class Both:
    """One table on both sides."""

    def __init__(self, jit: str) -> None:
        self.duck = duckdb.connect()
        self.con = einsql.connect(config={"jit": jit, "float_math": "double"})
        columns = ", ".join(f"{name} {dtype}" for name, dtype in TYPES.items())
        values = ", ".join(
            f"({n}, {', '.join(map(_literal, row, TYPES.values()))})" for n, row in enumerate(ROWS)
        )
        self.duck.execute(f"CREATE TABLE t (i BIGINT, {columns})")
        self.con.execute(f"CREATE TENSOR t (i DIM({len(ROWS)}), {columns})")
        for side in (self.duck, self.con):
            side.execute(f"INSERT INTO t VALUES {values}")

    def check(self, expressions: list[str]) -> None:
        """Both sides give the same values and types."""
        items = ", ".join(f"{e} AS c{n}" for n, e in enumerate(expressions))
        sql = f"SELECT i AS k, {items} FROM t"
        theirs, ours = self.duck.execute(sql), self.con.execute(sql)
        types = [str(d[1]) for d in theirs.description]
        assert ours.description is not None
        for n, e in enumerate(expressions, start=1):
            assert ours.description[n][1] == types[n].replace('"NULL"', "INTEGER"), e
        for a, b in zip(sorted(ours.fetchall()), sorted(theirs.fetchall()), strict=True):
            for n, e in enumerate(expressions, start=1):
                assert _same(a[n], b[n]), f"{e} in row {a[0]}: {a[n]}, DuckDB {b[n]}"


def _literal(value: object, dtype: str) -> str:
    return f"'{value!r}'::{dtype}" if isinstance(value, float) else repr(value)


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isfinite(a):
        return repr(a) == repr(b) or math.isclose(a, b, rel_tol=1e-14)
    return repr(a) == repr(b)


@pytest.fixture(scope="module", params=["never", "auto", "always"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    made = Both(request.param)
    yield made
    made.duck.close()
    made.con.close()


@pytest.mark.parametrize("start", spread(range(0, len(AGREE), 12), 15))
def test_answers_and_types_are_those_of_duckdb(both: Both, start: int) -> None:
    both.check(AGREE[start : start + 12])


@pytest.mark.skipif(duckdb.__version__ == "2.0.0", reason="its results differ")
def test_answers_are_those_of_duckdb_since_2_0_1(both: Both) -> None:
    both.check(NEWER)


def test_results_that_differ_between_versions_of_duckdb(both: Both) -> None:
    rows = both.con.execute(
        "SELECT i AS k, ROUND(2.675e0, 2) AS r, m % -1 AS e, -2147483648 AS n FROM t"
    )
    assert [d[1] for d in rows.description or ()][1:] == ["DOUBLE", "BIGINT", "BIGINT"]
    assert {row[1:] for row in rows.fetchall()} == {(2.67, 0, -(2**31))}


@pytest.mark.parametrize("expression", spread(RAISE, 25))
def test_raises_in_the_rows_in_which_duckdb_raises(both: Both, expression: str) -> None:
    sql = f"SELECT {expression} AS v FROM (SELECT * FROM t WHERE i = {{}})"
    raised = 0
    for row in range(len(ROWS)):
        try:
            expected = both.duck.execute(sql.format(row)).fetchall()
        except duckdb.Error:
            raised += 1
            with pytest.raises(einsql.DataError):
                both.con.execute(sql.format(row)).fetchall()
        else:
            found = both.con.execute(sql.format(row)).fetchall()
            assert _same(found[0][0], expected[0][0]), f"row {row}: {found}, DuckDB {expected}"
    assert raised


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_refused_with_a_reason_and_a_position(expression: str, reason: str) -> None:
    with einsql.connect() as con:
        con.execute(
            "CREATE TENSOR t (i DIM(2), b BOOLEAN, y TINYINT, n INTEGER, m BIGINT, d DOUBLE)"
        )
        con.execute("INSERT INTO t VALUES (0, TRUE, 1, 2, 3, 4), (1, FALSE, 5, 6, 7, 8)")
        con.execute("SET fallback = off")
        with pytest.raises(einsql.Error, match=reason) as caught:
            con.execute(f"SELECT {expression} AS v FROM t").fetchall()
        assert caught.value.position is not None


EDGES: dict[str, np.ndarray] = {
    "BOOLEAN": np.array([False, True]),
    "TINYINT": np.array([-128, -1, 0, 1, 127], np.int8),
    "INTEGER": np.array(
        [-(2**31), -65520, -65519, -129, -128, 0, 1, 127, 128, 2049, 65519, 65520, 2**24 + 1,
         2**31 - 1], np.int32),
    "BIGINT": np.array(
        [-(2**63), -(2**31) - 1, -(2**31), 65520, 0, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1]),
    "HALF": np.array([NAN, INF, -INF, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 127.5, 65504], np.float16),
    "BFLOAT16": rounded(np.array(
        [NAN, INF, -INF, -0.0, 0.5, 1.5, 2.5, -2.5, 127.5, -128.5, 65280, 65536, 2**31, -(2**31),
         2.0**63, -(2.0**63), 3.3895313892515355e38, 2.0**-133])),
    "FLOAT": np.array(
        [NAN, INF, -INF, -0.0, 0.5, 1.5, 2.5, -2.5, 0.1, 127.4, 127.5, -128.5, -128.6, 65519,
         65520, 2**31, -(2**31), 2.0**63, -(2.0**63), 3e38], np.float32),
    "DOUBLE": np.array(
        [NAN, INF, -INF, -0.0, 0.5, 1.5, 2.5, -2.5, 0.1, 127.4, 127.5, -128.5, 65519.9, 65520,
         2**31 - 0.5, 2**31 - 0.6, -(2**31) - 0.5, 2.0**63, -(2.0**63), 3.4028235677973362e38,
         3.4028235677973366e38, -1e300, 1e-320]),
}  # fmt: skip


@pytest.mark.parametrize(("jit", "source"), combinations(["never", "always"], EDGES))
def test_casts_between_all_types(source: str, jit: str) -> None:
    con = einsql.connect(config={"jit": jit})
    for target, array in EDGES.items():
        expected = [_cast(v, source, target) for v in EDGES[source]]
        fits = np.array([e is not None for e in expected])
        con.register("x", _given(EDGES[source][fits], source), ("i",))
        found = con.execute(f"SELECT i, CAST(val AS {target}) AS v FROM x").fetch_numpy()
        wanted = np.array([e for e in expected if e is not None], array.dtype)
        assert found.dtype == array.dtype
        assert list(map(repr, found.tolist())) == list(map(repr, wanted.tolist())), target
        for value in EDGES[source][~fits]:
            con.register("x", _given(np.array([value]), source), ("i",))
            with pytest.raises(einsql.DataError, match="out of range"):
                con.execute(f"SELECT i, CAST(val AS {target}) AS v FROM x")


def _given(array: np.ndarray, name: str) -> np.ndarray:
    return narrow(array) if name == "BFLOAT16" else array


def _cast(value: np.generic, source: str, target: str) -> object:
    """The value in another type by DuckDB, which lacks two; None where it does not fit."""
    if target == "BFLOAT16":
        near = rounded(np.asarray(value))[()]
        return near if np.isfinite(near) or not np.isfinite(float(value)) else None
    if target == "HALF":
        with np.errstate(over="ignore"):
            half = np.float16(value)
        return half if np.isfinite(half) or not np.isfinite(float(value)) else None
    name = "FLOAT" if source in ("HALF", "BFLOAT16") else source
    text = repr(value.item())
    try:
        row = duckdb.execute(f"SELECT CAST('{text}'::{name} AS {target})").fetchone()
    except duckdb.ConversionException:
        return None
    assert row is not None
    return row[0]


N = sample(1100, 5000)
FEW = sample(1100, 1500)  # beyond the interpreter's limit of recursion
"""Elements of chains that are read as longer ones are: more than Python's frames may be deep."""
NUMBERS = ", ".join(map(str, range(FEW)))
CHAINS = [
    (f"val IN ({', '.join(map(str, range(N)))})", [True, True, True, False]),
    (f"val NOT IN ({NUMBERS})", [False, False, False, True]),
    (f"NULLIF(val, 1) IN (NULL, {NUMBERS})", [None, True, True, None]),
    (f"val IN ({', '.join(f'{n}.0' for n in range(FEW))})", [True, True, True, False]),
    (f"i IN ({NUMBERS})", [True, True, True, True]),
    (" OR ".join(f"val = {n}" for n in range(FEW)), [True, True, True, False]),
    (" AND ".join(f"val <> {n}" for n in range(N)), [False, False, False, True]),
    (" AND ".join(f"NULLIF(val, 1) <> {n}" for n in range(FEW)), [None, False, False, True]),
    (" + ".join(["val"] * 990) + " > 990", [False, True, True, True]),
    (f"GREATEST({', '.join(['NULLIF(val, 7)'] * 200)}) = 3", [False, True, None, False]),
]


@pytest.mark.parametrize(
    ("chain", "expected"), sample(CHAINS[1::2], CHAINS), ids=lambda c: str(c)[:24]
)
def test_long_chains(chain: str, expected: list[bool | None]) -> None:
    with einsql.connect(config={"jit": "always"}) as con:
        con.register("x", np.array([1, 3, 7, N + 1], np.int32), ("i",))
        found = con.execute(f"SELECT i, {chain} AS v FROM x").fetchall()
        assert [v for _, v in found] == expected
        chosen = con.execute(f"SELECT i FROM x WHERE {chain}").fetchall()
        assert chosen == [(n,) for n, e in enumerate(expected) if e]


def test_short_floats_and_integers_have_the_common_type_float() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR h (i DIM(2), val HALF, u INTEGER)")
    con.execute("INSERT INTO h VALUES (0, 1, 70000), (1, 2, 3)")
    for value in ("CASE WHEN i = 1 THEN val ELSE u END", "COALESCE(NULLIF(val, 1), u)"):
        cursor = con.execute(f"SELECT i, {value} AS v FROM h ORDER BY i")
        assert [d[1] for d in cursor.description or ()] == ["BIGINT", "FLOAT"]
        assert cursor.fetchall() == [(0, 70000.0), (1, 2.0)]


IN_FROM = {
    "coalesce({}, 0)": "COALESCE(val, 0)",
    "COALESCE (nullif({}, 0.5), 7)": "COALESCE(NULLIF(val, 0.5), 7)",
    "nullif({}, -1)": "NULLIF(val, -1)",
    "ifnull({}, 3)": "COALESCE(val, 3)",
    "if({} , 1, 2)": "IF(val <> 0, 1, 2)",
    "mod({}, 2)": "MOD(val, 2)",
    "log2(abs({}))": "LOG2(ABS(val))",
    "log10(abs({}))": "LOG10(ABS(val))",
    "log(abs({}))": "LOG(ABS(val))",
    "greatest({}, 0, 1)": "GREATEST(val, 0, 1)",
    "round({}, 1)": "ROUND(val, 1)",
    "atan2({}, 2)": "ATAN2(val, 2)",
}
"""Functions with a syntax of their own over a table in FROM, and their expressions."""


@pytest.mark.parametrize("call", IN_FROM)
def test_functions_with_a_syntax_of_their_own_in_from(call: str) -> None:
    with einsql.connect() as con:
        con.register("x", np.array([0.5, -1.0, 4.0]), dims=("i",))
        con.register("b", np.array([True, False, True]), dims=("i",))
        con.execute("CREATE TABLE t AS SELECT i, val FROM x WHERE 'a' = 'a'")
        con.execute("CREATE TABLE tb AS SELECT i, val FROM b WHERE 'a' = 'a'")
        x, t = ("b", "tb") if call.startswith("if") else ("x", "t")
        value = IN_FROM[call].replace("val <> 0", "val")
        wanted = con.execute(f"SELECT i, {value} AS val, 'a' FROM {t} ORDER BY i").fetchall()
        for table in (x, f"(SELECT * FROM {x})", t):
            query = f"SELECT i, y.val, 'a' FROM {call.format(table)} AS y ORDER BY i"
            assert con.execute(query).fetchall() == wanted, table
        con.execute("SET fallback = off")
        query = f"SELECT i, y.val FROM {x} NATURAL JOIN {call.format(x)} AS y(i, v)"
        assert len(con.execute(query.replace("y.val", "v")).fetchall()) == len(wanted)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("coalesce(5)", "needs a table"),
        ("coalesce()", "yntax error"),
        ("nullif(x)", "yntax error"),
        ("cast(x AS FLOAT)", "CAST is outside"),
    ],
)
def test_wrong_functions_in_from(call: str, reason: str) -> None:
    with einsql.connect() as con:
        con.register("x", np.ones(2), dims=("i",))
        with pytest.raises(einsql.Error, match=reason) as caught:
            con.execute(f"SELECT * FROM {call}")
        assert caught.value.position is not None
