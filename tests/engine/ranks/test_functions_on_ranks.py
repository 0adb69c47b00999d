"""Python functions on MPI ranks: sent by name or by cloudpickle, and clear errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from tests.engine.ranks.conftest import Connected

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

X = np.arange(24.0).reshape(4, 6)
SUMS = "SELECT i, SUM(f(val)) AS v FROM x WHERE val <> 7 GROUP BY i"


def folded(x: float) -> float:
    """A function of an importable module that cannot be recorded."""
    if x == 7:
        raise ValueError("seven")
    return -x if x > 9 else x


@pytest.fixture
def con(connected: Connected) -> einsql.Connection:
    session = connected(2)
    session.register("x", X, ("i", "j"))
    return session


def expected() -> list[tuple[int, float]]:
    values = np.where(X == 7, 0, np.where(X > 9, -X, X))
    return list(enumerate(values.sum(axis=1).tolist()))


def test_a_function_of_a_module(con: einsql.Connection) -> None:
    con.create_function("f", folded, ["DOUBLE"], "DOUBLE")
    assert con.execute(SUMS).fetchall() == expected()
    for _ in range(2):
        with pytest.raises(einsql.DataError, match=r"f\(7.0\) raised ValueError: seven"):
            con.execute("SELECT i, SUM(f(val)) AS v FROM x GROUP BY i")
        assert con.execute(SUMS).fetchall() == expected()


def test_a_function_of_no_module(con: einsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    con.create_function("f", lambda x: folded(x) if x != 7 else 0.0, ["DOUBLE"], "DOUBLE")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(einsql.NotSupportedError, match="f cannot be sent to ranks") as caught:
            con.execute(SUMS)
        assert "cloudpickle" in caught.value.hint
    assert con.execute("SELECT SUM(val) AS v FROM x").fetchall() == [(X.sum(),)]
    pytest.importorskip("cloudpickle")
    assert con.execute(SUMS).fetchall() == expected()


def test_a_function_that_ranks_cannot_import(
    con: einsql.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def f(x):\n    return x if x > 0 else -x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]  # the test writes it

    function: Any = only_here.f
    con.create_function("f", function, ["DOUBLE"], "DOUBLE")
    with pytest.raises(einsql.OperationalError, match="f of the module only_here is missing"):
        con.execute(SUMS)
    assert con.execute("SELECT SUM(val) AS v FROM x").fetchall() == [(X.sum(),)]
