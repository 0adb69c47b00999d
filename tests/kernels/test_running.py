"""Running reductions answer what the reference does, whatever selects the terms."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import einsql
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
    Value,
    bigint,
    conj,
)
from einsql.kernels import registry
from einsql.kernels.registry import RUNNING, compile_node
from einsql.kernels.vectorized import running
from tests.kernels.compiling import PROPERTY, cache_directory
from tests.kernels.nodes import Case, check, lay_out, random_array
from tests.support.samples import combinations, sample

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE
FLAG = Output(PRESENT, (TRUE,), B, "bool_or")

__all__ = ["cache_directory"]  # its fixture serves every test here


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes small nodes, and cuts small blocks."""
    monkeypatch.setattr(registry, "SMALL", 0)
    monkeypatch.setattr(running, "BLOCK", 3)
    monkeypatch.setattr(running, "LEAST", 1)
    monkeypatch.setattr(running, "LARGER", 100)


def shifted(label: str, by: int) -> Expr:
    return Call("add", (Label(label), bigint(by)), I64) if by else Label(label)


@st.composite
def edges(draw: st.DrawFn) -> Expr:
    """A bound of t by i."""
    sides = [shifted("t", draw(st.integers(-9, 9))), shifted("i", draw(st.integers(-2, 2)))]
    return Call(draw(st.sampled_from(("lt", "le"))), tuple(draw(st.permutations(sides))), B)


@st.composite
def running_nodes(draw: st.DrawFn) -> Case:
    """Reductions over t, up to i or from i on, with another key and other conditions."""
    lo, first = draw(st.integers(-4, 4)), draw(st.integers(-4, 4))
    axes = [
        Axis("t", lo, lo + draw(st.integers(1, 40))),
        Axis("i", first, first + draw(st.integers(1, 12))),
        Axis("h", 0, draw(st.integers(1, 3))),
    ]
    extents = {a.label: (a.lo, a.hi) for a in axes}
    dtype = draw(st.sampled_from((F, D, I32, B)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    operands, arrays = [], []
    for n, read in enumerate(("th", "hi")):
        labels = tuple(draw(st.permutations(read)))
        keys = tuple(Key(f"k{k}", *extents[x]) for k, x in enumerate(labels))
        schema = Schema(keys, (Field("val", dtype), Field(PRESENT, B)))
        operands.append(Operand(Input(f"x{n}", schema), labels))
        values = random_array(schema.shape, dtype, rng, specials=draw(st.booleans()))
        there = rng.random(schema.shape) < draw(st.sampled_from((0.0, 0.5, 1.0)))
        kind = draw(st.integers(0, 5))
        arrays.append({"val": lay_out(values, kind), PRESENT: lay_out(there, 0)})
    guard: list[Expr] = [draw(edges())]
    guard += [Value(n, PRESENT, B) for n in (0, 1) if draw(st.booleans())]
    if draw(st.booleans()):
        guard.append(Call("ne", (Label(draw(st.sampled_from("thi"))), bigint(1)), B))
    value: Expr = Value(0, "val", dtype)
    where = Value(0, PRESENT, B) if draw(st.booleans()) else TRUE
    if dtype is B:
        outputs = [Output("any", (value,), B, "bool_or"), Output("all", (value,), B, "bool_and")]
    else:
        total = I64 if dtype is I32 else dtype
        outputs = [
            Output("s", (value,), total, "sum", where),
            Output("lo", (value,), dtype, "min", where),
            Output("hi", (value,), dtype, "max"),
        ]
    outputs += [Output("n", (Const(1, I64),), I64, "sum", where), FLAG]
    keys_of_result = tuple(draw(st.permutations(("h", "i"))))
    node = EinSum(
        tuple(draw(st.permutations(axes))),
        tuple(operands),
        conj(*draw(st.permutations(guard))),
        keys_of_result,
        tuple(outputs),
    )
    return Case(node, tuple(arrays))


@settings(PROPERTY, max_examples=sample(30, 300))
@given(case=running_nodes())
def test_any_running_reduction(case: Case) -> None:
    runner = RUNNING.match(case.node)
    assert runner is not None
    check(case, runner)


def node_of(value: Expr, dtype: DType, guard: Expr, extent: int = 20) -> EinSum:
    keys = (Key("k", 0, extent),)
    x = Input("x", Schema(keys, (Field("val", value.dtype),)))
    axes = (Axis("t", 0, extent), Axis("i", 0, extent))
    operands = (Operand(x, ("t",)), Operand(x, ("i",)))
    return EinSum(axes, operands, guard, ("i",), (Output("s", (value,), dtype, "sum"),))


DOUBLED = Call("mul", (Label("t"), bigint(2)), I64)
UP_TO = Call("le", (Label("t"), Label("i")), B)


@pytest.mark.parametrize(
    ("value", "dtype", "guard"),
    [
        (Value(0, "val", I64), I64, UP_TO),  # may overflow
        (Value(1, "val", D), D, UP_TO),  # reads the key
        (Value(0, "val", D), D, conj(UP_TO, Call("lt", (Label("i"), shifted("t", 3)), B))),
        (Value(0, "val", D), D, Call("le", (DOUBLED, Label("i")), B)),
        (Value(0, "val", D), D, Call("ne", (Label("t"), Label("i")), B)),
        (Call("cast", (Value(0, "val", D),), I32), I64, UP_TO),  # may raise
    ],
)  # fmt: skip
def test_other_nodes_are_left_alone(value: Expr, dtype: DType, guard: Expr) -> None:
    assert RUNNING.match(node_of(value, dtype, guard)) is None
    assert compile_node(node_of(value, dtype, guard)).kernel != "running"


# The same rows as DuckDB --------------------------------------------------------------------

QUERY = """
SELECT a.h, a.i, SUM(b.val) AS s, COUNT(*) AS n, AVG(b.val) AS mean, MIN(b.val) AS lo,
  MAX(b.val) AS hi
FROM x a JOIN x b ON a.h = b.h AND b.i {relation} a.i GROUP BY a.h, a.i ORDER BY ALL
"""


@pytest.mark.parametrize(
    ("relation", "stored"), combinations(["<=", "<", ">=", ">"], [np.asarray, sparse.csr_array])
)
def test_running_statistics(relation: str, stored: Any) -> None:
    chance = np.random.default_rng(1)
    values = np.where(chance.random((5, 60)) < 0.7, chance.integers(1, 99, (5, 60)) / 4, 0.0)
    there = np.ones(values.shape, bool) if stored is np.asarray else values != 0
    con, duck = einsql.connect(), duckdb.connect()
    con.register("x", stored(values), dims=("h", "i"))
    h, i = np.nonzero(there)
    elements = zip(h.tolist(), i.tolist(), values[there].tolist(), strict=True)
    duck.execute("CREATE TABLE x (h BIGINT, i BIGINT, val DOUBLE)")
    duck.executemany("INSERT INTO x VALUES (?, ?, ?)", list(elements))
    query = QUERY.format(relation=relation)
    assert "running" in str(con.explain(query))
    assert con.execute(query).fetchall() == duck.execute(query).fetchall()
