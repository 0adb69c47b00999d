"""Memory that results, their owners and later statements share: nobody writes into another's."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import einsql


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(30.0).reshape(5, 6)


def test_results_that_are_equal_are_separate_arrays(x: np.ndarray) -> None:
    con = einsql.connect()
    con.register("x", x, dims=("i", "j"))
    of_columns = con.execute("SELECT i, MAX(val) AS a, MAX(val) AS b FROM x GROUP BY i")
    first, second = of_columns.fetch_numpy().values()
    assert not np.shares_memory(first, second)
    program = einsql.trace(lambda a: (a.max(1), a.max(1)), x)
    assert not np.shares_memory(*program(x))
    u, v = np.ones(6), np.full(6, 2.0)
    loss = einsql.trace(lambda x, u, v: ((x @ u + x @ v) ** 2).sum(), x, u, v)
    _, gradients = loss.gradient()(x, u, v)
    gradients["u"][...] = 0
    assert gradients["v"].any()


def test_a_table_of_one_row_has_memory_of_its_own(x: np.ndarray) -> None:
    con = einsql.connect()
    con.register("x", x, dims=("i", "j"))
    rate = np.array(0.5)
    con.register("rate", rate, dims=())
    total = con.execute("SELECT SUM(val) AS s FROM x")
    rows, array = total.fetch_arrow_table(), total.fetch_numpy()
    array += 100
    assert rows.to_pydict() == {"s": [x.sum()]}
    rows = con.execute("SELECT val FROM rate").fetch_arrow_table()
    rate[...] = 9
    assert rows.to_pydict() == {"val": [0.5]}


def test_threads_that_share_a_program_get_their_own_results(x: np.ndarray) -> None:
    program = einsql.trace(lambda a: (a * 2).sum(1), x)

    def run(k: int) -> bool:
        return all((program(np.full((5, 6), float(k))) == 12 * k).all() for _ in range(30))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(run, (1, 2, 3)))


def test_a_tensor_of_torch_keeps_its_memory_while_it_is_registered() -> None:
    torch = pytest.importorskip("torch")
    con = einsql.connect()
    for dtype in (torch.float64, torch.bfloat16):
        tensor = torch.ones(100, dtype=dtype)
        con.register("x", tensor, dims=("i",))
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.resize_(10_000_000)
        tensor[0] = 5
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (104.0,)


def test_a_cached_statement_keeps_no_variables_of_its_callers(x: np.ndarray) -> None:
    con = einsql.connect()
    con.register("x", x, dims=("i", "j"))

    def run() -> weakref.ref[np.ndarray]:
        local = np.zeros(3)
        con.execute("SELECT i, val FROM x ORDER BY val LIMIT 3").fetchall()
        return weakref.ref(local)

    kept = run()
    gc.collect()
    assert kept() is None


def test_a_relation_over_a_cursor_keeps_its_rows(x: np.ndarray) -> None:
    con = einsql.connect()
    cursor: Any = con.cursor().execute("SELECT * FROM range(3) r(i)")
    relation = con.sql("SELECT COUNT(*) AS n FROM cursor")
    cursor.execute("SELECT 1 AS a")
    assert relation.fetchall() == [(3,)]
