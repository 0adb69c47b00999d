"""Planning: the work it takes grows as the statement does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import einsql
from tests.support.samples import combinations, sample

SHAPES = {
    "wq": "layer g r d i", "wk": "layer g d i", "wv": "layer g d i", "wo": "layer i g r d",
    "w_gate": "layer f i", "w_up": "layer f i", "w_down": "layer i f",
    "attention_gain": "layer i", "forward_gain": "layer i", "stream": "t i",
}  # fmt: skip
EXTENTS = {"layer": 12, "g": 3, "r": 3, "d": 64, "i": 576, "f": 1536, "t": 256}


@pytest.fixture
def con() -> einsql.Connection:
    """A language model's layers over arrays that take no memory."""
    con = einsql.connect()
    for name, dims in SHAPES.items():
        shape = tuple(EXTENTS[d] for d in dims.split())
        con.register(name, np.broadcast_to(np.float32(1), shape), dims=tuple(dims.split()))
    for _, statement in con.split(Path("examples/llm.sql").read_text(encoding="utf-8")):
        if "CREATE MACRO" in statement or "TENSOR turn" in statement:
            con.execute(statement)
    return con


def in_with(layers: int) -> str:
    """Layers, each a name of WITH."""
    names = ["stream", *(f"x{n}" for n in range(layers))]
    parts = [f"x{n} AS (SELECT * FROM layer({names[n]}, {n}))" for n in range(layers)]
    return f"WITH {', '.join(parts)} SELECT * FROM {names[-1]}"


def nested(layers: int) -> str:
    """Layers, each an argument of the next."""
    text = "stream"
    for n in range(layers):
        text = f"(SELECT * FROM layer({text}, {n}))"
    return f"SELECT * FROM {text} AS x"


def calls(run: Callable[[], object]) -> int:
    """How many functions of einsql are called."""
    found = 0

    def count(frame: FrameType, event: str, _: object) -> None:  # no line is looked at
        nonlocal found
        found += frame.f_globals.get("__name__", "").startswith("einsql")

    threading.settrace(count)  # what nests deeply is planned by a thread of its own
    sys.settrace(count)
    try:
        run()
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return found


@pytest.mark.parametrize(
    ("text", "sites"), sample([(nested, 1)], combinations([in_with, nested], [1, 3]))
)
def test_a_layer_more_takes_as_much_work_as_the_one_before(
    con: einsql.Connection, text: Callable[[int], str], sites: int
) -> None:
    con.execute(f"SET sites = {sites}")
    con.execute("SET disabled_rules = 'split-keys'")  # for which deep graphs are planned twice
    con.explain(text(1))  # what is read at first use
    few, some, many = (calls(partial(con.explain, text(n))) for n in sample((1, 2, 4), (2, 4, 8)))
    assert many - some < 2.1 * (some - few)


def test_inputs_of_one_statement_have_different_names() -> None:
    """Quoted names of tensors may equal the names of parameters and of operands from tables."""
    con = einsql.connect()
    for name, factor in (("?1", "{}"), ("sqrt(?1)", "SQRT({})"), ("(?1 + 1)", "({} + 1)")):
        con.execute(f'CREATE TENSOR "{name}" (value DOUBLE)')
        con.execute(f'INSERT INTO "{name}" VALUES (5.0)')
        for value in (4.0, 9.0):
            literal = f'SELECT t.value * {factor.format(value)} FROM "{name}" t'
            marked = f'SELECT t.value * {factor.format("?")} FROM "{name}" t'
            assert con.execute(marked, [value]).fetchall() == con.execute(literal).fetchall()
    con.execute("CREATE TABLE x AS SELECT 5.0::DOUBLE AS val")
    con.execute('CREATE TENSOR "x (table)" (val DOUBLE)')
    con.execute('INSERT INTO "x (table)" VALUES (7.0)')
    for first, second in (("x", '"x (table)"'), ('"x (table)"', "x")):
        product = f"SELECT a.val * b.val AS val FROM {first} a, {second} b"
        assert [con.execute(product).fetchall() for _ in range(2)] == [[(35.0,)]] * 2
