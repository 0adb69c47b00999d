"""Tracebacks of mistakes, and the extension for notebooks."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql

ROOT = Path(__file__).parents[2]

FAILING = "SELECT error('no') AS a FROM t"
"""A query that is bound, and fails when it runs."""

MISTAKES: dict[str, Callable[[einsql.Connection], object]] = {
    "a column": lambda con: con.execute("SELECT nope FROM w"),
    "a table": lambda con: con.execute("SELECT nope FROM t"),
    "a name": lambda con: con.sql("SELECT * FROM weight"),
    "a key": lambda con: con.execute("INSERT INTO w VALUES (5, 1)"),
    "a step": lambda con: con.table("w").filter("nope"),
    "a fetch": lambda con: con.execute("SELECT i FROM w").fetch_numpy(),
    "an array": lambda con: con.register("w", np.zeros(2)),
    "rows of a relation": lambda con: list(con.sql(FAILING)),
    "a number of rows": lambda con: len(con.sql(FAILING)),
    "a shape": lambda con: con.sql(FAILING).shape,
    "a row count": lambda con: con.sql(FAILING).rowcount,
    "HTML": lambda con: con.sql(FAILING)._repr_html_(),
    "the module": lambda con: einsql.sql("SELECT * FROM weight"),
    "einsum": lambda con: einsql.einsum("ij,jk", np.zeros((2, 3)), np.zeros((2, 3))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_traceback_has_one_frame_of_einsql(mistake: str) -> None:
    with einsql.connect() as con:
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE); CREATE TABLE t AS SELECT 1 AS a")
        with pytest.raises(einsql.Error) as caught:
            MISTAKES[mistake](con)
    frames = [f.filename for f in traceback.extract_tb(caught.value.__traceback__)]
    assert [f for f in frames if f != __file__] == [einsql.session.tracebacks.__file__]
    assert getattr(einsql, type(caught.value).__name__) is type(caught.value)


def test_a_traceback_has_at_most_ten_lines() -> None:
    program = "import einsql\neinsql.execute('SELECT * FROM weights')\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert len(lines) <= 10
    assert lines[-2] == "LINE 1: SELECT * FROM weights"


def test_the_cause_in_a_function_of_the_user_stays() -> None:
    def fail(x: float) -> float:
        raise KeyError("mine")

    with einsql.connect() as con:
        con.create_function("fail", fail, ["DOUBLE"], "DOUBLE", trace=False)
        with pytest.raises(einsql.Error) as caught:
            con.execute("SELECT i, fail(i) AS val FROM range(2) AS r(i)").fetchall()
    assert isinstance(caught.value.__cause__, KeyError)


class Shell:
    """What the extension uses of IPython's shell."""

    def __init__(self, **variables: object) -> None:
        self.user_ns = variables
        self.magics: dict[str, Any] = {}

    def register_magic_function(self, magic: Any, kind: str, name: str) -> None:
        assert kind == "line_cell"
        self.magics[name] = magic


def test_a_notebook_runs_statements_over_its_variables() -> None:
    con = einsql.connect()
    shell = Shell(X=np.arange(3.0), con=con, other=5)
    einsql.load_ipython_extension(shell)
    magic = shell.magics["einsql"]
    assert magic("SELECT SUM(val) AS s FROM X").fetchall() == [(3.0,)]
    assert magic("con", "CREATE TENSOR y AS SELECT d0 AS i, val FROM X;") is None
    assert magic("con", "UPDATE y SET val = 1; SELECT SUM(val) AS s FROM y").fetchall() == [(3.0,)]
    with pytest.raises(einsql.InterfaceError, match="other is no connection"):
        magic("other", "SELECT 1")
    con.close()
