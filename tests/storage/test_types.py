"""Result types: every scalar function and aggregate against DuckDB's typeof."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql
from einsql.core.schema import DType
from einsql.hybrid.split.prelude import PRELUDE
from einsql.ir.functions import INTERNAL, SCALARS
from tests.support.samples import combinations, spread

SPELLINGS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "idiv": "{0} // {1}", "mod": "{0} % {1}", "neg": "-{0}", "eq": "{0} = {1}",
    "ne": "{0} <> {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "and": "{0} AND {1}",
    "or": "{0} OR {1}", "not": "NOT {0}", "if": "CASE WHEN {0} THEN {1} ELSE {2} END",
    "bitand": "{0} & {1}", "bitor": "{0} | {1}", "xor": "xor({0}, {1})",
}  # fmt: skip
"""How DuckDB spells the functions that are no calls of their own name."""

CASTS_TO_BOOLEAN = frozenset({"and", "or", "not", "if"})
"""DuckDB makes their conditions BOOLEAN; so does the binder, before these rules."""

TYPES = ("TINYINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN")
AGGREGATES = (
    "sum", "product", "min", "max", "avg", "count", "variance", "var_samp", "var_pop", "stddev",
    "stddev_samp", "stddev_pop", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor",
)  # fmt: skip
ARRAYS = {
    "INTEGER": np.array([1, 2], np.int32),
    "BIGINT": np.array([1, 2], np.int64),
    "FLOAT": np.array([1, 2], np.float32),
    "DOUBLE": np.array([1, 2], np.float64),
    "BOOLEAN": np.array([True, False]),
}
KEEPS_FLOAT = frozenset({"sum", "product", "avg", "logsumexp"})


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    con.create_function("erf", math.erf, ["DOUBLE"], "DOUBLE")
    con.execute(f"CREATE MACRO {PRELUDE['sigmoid']}")
    columns = ", ".join(f"1::{t} AS {t.lower()}_" for t in TYPES)
    con.execute(f"CREATE TABLE v AS SELECT {columns}")
    yield con
    con.close()


def typeof(con: duckdb.DuckDBPyConnection, expression: str) -> str | None:
    """DuckDB's type of an expression over table v, or None where it does not bind."""
    try:
        row = con.execute(f"SELECT typeof({expression}) FROM v").fetchone()
    except (duckdb.BinderException, duckdb.ConversionException):
        return None
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    "name", spread(sorted(set(SCALARS) - INTERNAL | {"if"}), 28)
)  # none of DuckDB's
def test_scalar_result_types_are_those_of_duckdb(
    name: str, duck: duckdb.DuckDBPyConnection
) -> None:
    function = SCALARS[name]
    template = SPELLINGS.get(name)
    if template is None:
        template = f"{name}({', '.join(f'{{{n}}}' for n in range(function.arity))})"
    for types in itertools.product(TYPES, repeat=function.arity):
        typing = function.types(tuple(DType[t] for t in types), False)
        expected = typeof(duck, template.format(*(f"{t.lower()}_" for t in types)))
        ours = None if typing is None else typing.result.value
        # What we refuse may be something DuckDB casts for; what we give must be its type.
        assert ours is None or ours == expected, f"{name}{types}"
        if ours is None and "BOOLEAN" not in types and name not in CASTS_TO_BOOLEAN:
            assert expected is None, f"{name}{types} is refused"


@pytest.mark.parametrize(("dtype", "name"), combinations(sorted(ARRAYS), AGGREGATES))
def test_aggregate_result_types_are_those_of_duckdb(
    name: str, dtype: str, duck: duckdb.DuckDBPyConnection
) -> None:
    expected = typeof(duck, f"{name}({dtype.lower()}_)")
    with einsql.connect() as con:
        con.execute("SET fallback = off")
        con.register("x", ARRAYS[dtype], dims=("i",))
        con.execute("SET float_math = 'double'")
        sql = f"SELECT {name}(val) AS r FROM x"
        if expected is None:
            with pytest.raises(einsql.Error):
                con.execute(sql)
            return
        if expected == "HUGEINT":
            expected = "BIGINT"
        got = DType.of(con.execute(sql).fetch_numpy().dtype)
        assert got is not None
        assert got.value == expected
        con.execute("SET float_math = 'float'")
        keeps = dtype == "FLOAT" and (name in KEEPS_FLOAT or name.startswith(("var", "std")))
        got = DType.of(con.execute(sql).fetch_numpy().dtype)
        assert got is not None
        assert got.value == ("FLOAT" if keeps else expected)


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("val * 1.5", "FLOAT"), ("val + 1", "FLOAT"), ("val * 1e0", "DOUBLE"),
        ("i + 1", "BIGINT"), ("i / 2", "DOUBLE"), ("i // 2", "BIGINT"), ("val > 0.1", "BOOLEAN"),
        ("CAST(val AS INTEGER)", "INTEGER"), ("greatest(val, i)", "FLOAT"),
        ("coalesce(val, 0)", "FLOAT"), ("CASE WHEN i = 0 THEN 1 ELSE val END", "FLOAT"),
        ("floor(i)", "DOUBLE"), ("round(i)", "BIGINT"), ("sign(val)", "TINYINT"),
        ("sqrt(val)", "FLOAT"), ("sqrt(i)", "DOUBLE"), ("i BETWEEN 0 AND 1", "BOOLEAN"),
    ],
)  # fmt: skip
def test_types_of_expressions_over_float_and_keys(expression: str, dtype: str) -> None:
    with einsql.connect() as con:
        con.execute("SET fallback = off")
        con.register("x", np.array([0.5, 2.0], np.float32), dims=("i",))
        got = con.execute(f"SELECT i, {expression} AS r FROM x").fetch_numpy()
        assert DType.of(got.dtype) is DType[dtype]
