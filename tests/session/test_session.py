"""Connections and cursors: PEP 249, plan reuse, sharing of memory, cancelling."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pandas as pd
import pytest

import einsql
from einsql.optimizer import optimize

MATMUL = "SELECT i, k, SUM(x.val * y.val) AS val FROM x JOIN y USING (j) GROUP BY i, k"


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect()
    connection.register("x", np.arange(6.0).reshape(2, 3), ("i", "j"))
    connection.register("y", np.arange(12.0).reshape(3, 4), ("j", "k"))
    return connection


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every plan made, so that a test can count them."""
    made: list[object] = []

    def counting(*args: object, **named: object) -> object:
        made.append(args)
        return optimize(*args, **named)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr("einsql.planner.planner.optimize", counting)
    return made


# ---- PEP 249


def test_module_attributes() -> None:
    assert (einsql.apilevel, einsql.threadsafety, einsql.paramstyle) == ("2.0", 1, "qmark")
    assert issubclass(einsql.ProgrammingError, einsql.DatabaseError)
    assert einsql.Connection.DataError is einsql.DataError
    assert einsql.NUMBER == "FLOAT"
    assert einsql.STRING == "VARCHAR"


def test_description_and_fetching(con: einsql.Connection) -> None:
    assert con.cursor().description is None
    cur = con.execute("SELECT j, SUM(val) AS s, j > 0 AS b FROM x GROUP BY j")
    described = cur.description
    assert described is not None
    assert [d[:2] for d in described] == [
        ("j", "BIGINT"), ("s", "DOUBLE"), ("b", "BOOLEAN"),
    ]  # fmt: skip
    assert cur.rowcount == 3
    assert cur.fetchone() == (0, 3.0, False)
    assert cur.fetchmany(1) == [(1, 5.0, True)]
    assert cur.fetchall() == [(2, 7.0, True)]
    assert cur.fetchone() is None
    assert list(cur.execute("SELECT 1 AS a")) == [(1,)]


def test_executemany_adds_up_what_changed(con: einsql.Connection) -> None:
    cur = con.execute("CREATE TENSOR w (i DIM(3), val FLOAT)")
    cur.executemany("INSERT INTO w VALUES (?, ?)", [(0, 1.5), (2, -1.0)])
    assert cur.rowcount == 2
    assert cur.execute("SELECT * FROM w").fetchall() == [(0, 1.5), (2, -1.0)]


def test_closed_objects_say_so(con: einsql.Connection) -> None:
    cur = con.execute("SELECT 1")
    cur.close()
    with pytest.raises(einsql.InterfaceError, match="cursor is closed"):
        cur.fetchall()
    other = con.cursor()
    with pytest.raises(einsql.InterfaceError, match="no result"):
        other.fetchall()
    con.close()
    with pytest.raises(einsql.InterfaceError, match="connection is closed"):
        other.execute("SELECT 1")


def test_with_closes() -> None:
    with einsql.connect() as connection, connection.cursor() as cur:
        assert cur.execute("SELECT 2").fetchone() == (2,)
    with pytest.raises(einsql.InterfaceError):
        connection.execute("SELECT 1")


def test_parameters_in_text_order(con: einsql.Connection) -> None:
    sql = "WITH a AS (SELECT ? AS p) SELECT p, ? AS q FROM a"
    assert con.execute(sql, [1, 2.5]).fetchall() == [(1, 2.5)]
    assert con.execute("SELECT $2, $1", [True, None]).fetchall() == [(None, True)]
    assert con.execute("SELECT ? AS v", [1]).fetchall() == [(1,)]
    assert con.execute("SELECT ? AS v", [True]).fetchall() == [(True,)]
    with pytest.raises(einsql.ProgrammingError, match="Parameter 1 has no value"):
        con.execute("SELECT ?")
    assert con.execute("SELECT ?", ["text"]).fetchall() == [("text",)]
    with pytest.raises(einsql.ProgrammingError, match="cannot be a object"):
        con.execute("SELECT ?", [object()])


def test_transactions(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w AS SELECT i, SUM(val) AS val FROM x GROUP BY i")
    con.execute("BEGIN; UPDATE w SET val = 0; DROP TENSOR w")
    con.rollback()
    assert con.execute("SELECT val FROM w").fetchall() == [(3.0,), (12.0,)]
    con.execute("BEGIN; UPDATE w SET val = 0")
    con.commit()
    assert con.execute("SELECT val FROM w").fetchall() == [(0.0,), (0.0,)]


# ---- results


def test_arrow_and_pandas(con: einsql.Connection) -> None:
    sql = "SELECT i, j, CASE WHEN val > 2 THEN val END AS v FROM x"
    table = con.execute(sql).fetch_arrow_table()
    assert table.column("v").null_count == 3
    frame = con.execute(sql).fetch_df()
    assert isinstance(frame, pd.DataFrame)
    assert frame["i"].tolist() == [0, 0, 0, 1, 1, 1]
    assert con.execute("SHOW TENSORS").fetch_arrow_table().num_rows == 2


def test_fetch_numpy_axes_origin_and_fill(con: einsql.Connection) -> None:
    cur = con.execute("SELECT j, i, val FROM x WHERE j >= 1")
    assert cur.origin == (1, 0)
    assert cur.shape == (2, 2)
    assert cur.fetch_numpy().tolist() == [[1.0, 4.0], [2.0, 5.0]]
    masked = con.execute("SELECT i, j, val FROM x WHERE val > 3")
    with pytest.raises(einsql.InterfaceError, match="4 of 6 keys"):
        masked.fetch_numpy()
    assert masked.fetch_numpy(fill=-1).tolist() == [[-1, -1, -1], [-1, 4, 5]]
    with pytest.raises(einsql.InterfaceError, match="j are not selected"):
        con.execute("SELECT i, val FROM x").fetch_numpy()
    several = con.execute("SELECT i, SUM(val) AS s, COUNT(*) AS n FROM x GROUP BY i").fetch_numpy()
    assert several["s"].tolist() == [3.0, 12.0]
    assert several["n"].tolist() == [3, 3]


def test_shared_storage_is_read_only_and_results_are_not(con: einsql.Connection) -> None:
    array = np.arange(4.0)
    con.register("v", array, ("i",))
    shared = con.execute("SELECT i, val FROM v").fetch_numpy()
    assert np.shares_memory(shared, array)
    assert not shared.flags.writeable
    assert array.flags.writeable
    own = con.execute("SELECT i, val + 1 AS val FROM v").fetch_numpy()
    assert own.flags.writeable


def test_stored_tensors_do_not_follow_the_array_they_came_from(con: einsql.Connection) -> None:
    array = np.ones((2, 2))
    con.register("v", array, ("i", "j"))
    con.execute("CREATE TENSOR w AS SELECT i, j, val FROM v")
    array[:] = 7
    assert con.execute("SELECT SUM(val) FROM w").fetchone() == (4.0,)
    assert con.execute("SELECT SUM(val) FROM v").fetchone() == (28.0,)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3)[:, ::-1],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.arange(6).reshape(2, 3).astype(">f8"),
        np.arange(12.0).reshape(4, 3)[::2],
    ],
    ids=["negative stride", "Fortran", "broadcast", "big-endian", "strided"],
)
def test_arrays_of_any_layout(con: einsql.Connection, array: np.ndarray) -> None:
    array.flags.writeable = False
    con.register("a", array, ("i", "j"))
    result = con.execute(
        "SELECT i, k, SUM(a.val * y.val) AS val FROM a JOIN y USING (j) GROUP BY i, k"
    )
    assert np.array_equal(result.fetch_numpy(), array @ np.arange(12.0).reshape(3, 4))


# ---- plan reuse


def test_a_repeated_statement_is_not_planned_again(
    con: einsql.Connection, plans: list[object]
) -> None:
    for _ in range(3):
        con.execute(MATMUL)
    assert len(plans) == 1
    con.register("x", np.ones((2, 3)), ("i", "j"))  # same form, other data
    assert con.execute(MATMUL).fetch_numpy().tolist() == [[12, 15, 18, 21]] * 2
    assert len(plans) == 1
    con.register("x", np.ones((5, 3), np.float32), ("i", "j"))
    assert con.execute(MATMUL).fetch_numpy().shape == (5, 4)
    assert len(plans) == 2


def test_plans_see_changes_of_data_and_names(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), val FLOAT)")
    sql = "SELECT COUNT(*) AS n, SUM(val) AS s FROM w"
    assert con.execute(sql).fetchall() == [(0, None)]
    con.execute("INSERT INTO w VALUES (0, 1)")
    assert con.execute(sql).fetchall() == [(1, 1.0)]
    con.execute("INSERT INTO w VALUES (1, 2)")
    assert con.execute(sql).fetchall() == [(2, 3.0)]
    con.execute("BEGIN; UPDATE w SET val = 10")
    assert con.execute(sql).fetchall() == [(2, 20.0)]
    con.execute("ROLLBACK")
    assert con.execute(sql).fetchall() == [(2, 3.0)]
    con.execute("CREATE OR REPLACE TENSOR w AS SELECT j, 2.0::FLOAT AS val FROM range(4) AS r(j)")
    assert con.execute(sql).fetchall() == [(4, 8.0)]
    con.execute("DROP TENSOR w; CREATE VIEW w AS SELECT 5 AS val")
    assert con.execute(sql).fetchall() == [(1, 5)]


def test_bounds_found_in_data_are_found_anew(con: einsql.Connection, plans: list[object]) -> None:
    groups = np.array([0, 1, 1], np.int64)
    sql = "SELECT val AS g, COUNT(*) AS n FROM groups GROUP BY val"
    assert con.execute(sql).fetchall() == [(0, 1), (1, 2)]
    groups[0] = 40
    assert con.execute(sql).fetchall() == [(1, 2), (40, 1)]
    made = len(plans)
    groups[1] = 39  # within the bounds of the plan
    assert con.execute(sql).fetchall() == [(1, 1), (39, 1), (40, 1)]
    assert len(plans) == made


def test_arrays_in_scope_are_the_callers(con: einsql.Connection) -> None:
    def total() -> float:
        local = np.full((2, 2), 3.0)
        assert local.shape == (2, 2)
        return float(con.execute("SELECT SUM(val) FROM local").fetchall()[0][0])

    assert total() == 12.0
    assert total() == 12.0
    with pytest.raises(einsql.ProgrammingError, match='no tensor "local"'):
        con.execute("SELECT SUM(val) FROM local")


# ---- cancelling


def test_interrupt_cancels_and_the_session_goes_on(con: einsql.Connection) -> None:
    con.register("a", np.ones((3000, 3000), np.float32), ("i", "j"))
    sql = "SELECT a.i, b.i AS k, MIN(a.val + b.val) AS val FROM a, a b WHERE a.j = b.j GROUP BY ALL"
    reached = threading.Event()
    con.progress = lambda fraction: reached.set()

    def cancel() -> None:
        reached.wait(60)
        con.interrupt()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(einsql.InterruptedError, match="cancelled"):
        con.execute(sql)
    thread.join()
    con.progress = None
    assert con.execute("SELECT 1").fetchone() == (1,)


def test_a_closed_connection_leaves_nothing_to_the_garbage_collector() -> None:
    array = np.ones((10, 10))
    seen = weakref.ref(array)
    gc.collect()
    gc.disable()
    try:
        with einsql.connect() as con:
            con.register("r", array, dims=("i", "j"))
            con.execute("SELECT i, SUM(val) AS s FROM r GROUP BY i").fetchall()
            con.execute("SELECT SUM(val) AS s FROM r WHERE i = ?", [3]).fetchall()
        del array, con
        assert seen() is None
    finally:
        gc.enable()


def test_a_cursor_rewinds_to_the_first_row() -> None:
    con = einsql.connect()
    for sql in ("SELECT a.i FROM range(4) AS a(i)", "SELECT 'x' AS s UNION ALL SELECT 'y'"):
        cursor = con.execute(sql)
        first = cursor.fetchone()
        cursor.rewind()
        rows = cursor.fetchall()
        assert rows[0] == first
        cursor.rewind()
        assert cursor.fetchall() == rows
    cursor.close()
    with pytest.raises(einsql.InterfaceError, match="closed"):
        cursor.rewind()
