"""Statements whose WITH changes tensors: all parts read the old state, and change it at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.start import starting
from tests.engine.ranks.conftest import close_alone
from tests.support.samples import combinations, sample

BOTH = """
    WITH h AS (SELECT i, EXP(SIN(x.val)) * COS(x.val) + x.val / 3 AS val FROM x),
         s1 AS (UPDATE a SET val = a.val - h.val FROM h WHERE h.i = a.i),
         s2 AS (INSERT INTO log SELECT 2 AS t, i, h.val FROM h)
    SELECT SUM(val) AS total FROM h"""


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        prepared(made)
        yield made


def prepared(con: einsql.Connection) -> None:
    """Makes the tensors that the statements below read and change."""
    con.execute("CREATE TENSOR x AS SELECT i, i / 7 AS val FROM range(5) AS r(i)")
    con.execute("CREATE TENSOR a AS SELECT i, i + 0.5::DOUBLE AS val FROM range(5) AS r(i)")
    con.execute("CREATE TENSOR b AS SELECT i, i * 10.0::DOUBLE AS val FROM range(5) AS r(i)")
    con.execute("CREATE TENSOR log (t DIM(4), i DIM(5), val DOUBLE)")


def values(con: einsql.Connection, name: str) -> list[Any]:
    return con.execute(f"SELECT * FROM {name}").fetchall()


def array(con: einsql.Connection, name: str) -> np.ndarray:
    return np.array([row[-1] for row in values(con, name)])


def test_every_part_reads_what_was_there_before(con: einsql.Connection) -> None:
    a, b = array(con, "a"), array(con, "b")
    cursor = con.execute("""
        WITH s AS (UPDATE a SET val = b.val FROM b WHERE b.i = a.i),
             d AS (DELETE FROM log),
             x2 AS (INSERT OR REPLACE INTO x SELECT a.i, a.val * b.val FROM a JOIN b USING (i))
        UPDATE b SET val = a.val FROM a WHERE a.i = b.i AND a.val > 1""")
    assert (cursor.rowcount, cursor.description) == (4, None)
    np.testing.assert_array_equal(array(con, "a"), b)
    np.testing.assert_array_equal(array(con, "b"), np.where(a > 1, a, b))
    np.testing.assert_array_equal(array(con, "x"), a * b)


@pytest.mark.parametrize("sites", [1, 2])
def test_all_changes_are_explained_and_simulated_as_one_plan(
    con: einsql.Connection, sites: int
) -> None:
    report = con.explain(BOTH, sites=sites).to_dict()
    assert report["parts"] == [
        {"part": "SELECT", "root": "r2"},
        {"part": "UPDATE a", "root": "r3"},
        {"part": "INSERT log", "root": "r4"},
    ]
    plan = report["plan"]
    assert "result" not in plan
    assert [n["id"] for n in plan["nodes"]] == ["r0", "r1", "r2", "r3", "r4"]
    assert plan["total"]["flops"] == sum(n["flops"] for n in plan["nodes"])
    text = con.execute(f"EXPLAIN SIMULATE (SITES {sites}) {BOTH}").fetchall()
    assert sum("utilised" in line for (line,) in text) == 1


@pytest.mark.parametrize("setting", ["sites = 1", "sites = 3", "disabled_rules = 'share'"])
def test_what_parts_share_is_one_node_and_computed_once(
    con: einsql.Connection, setting: str
) -> None:
    x, a = array(con, "x"), array(con, "a")
    plan = str(con.explain(BOTH))
    assert (plan.count("EXP("), plan.count("COS(")) == (1, 1)
    assert plan.splitlines()[-3:] == ["r2  SELECT", "r3  UPDATE a", "r4  INSERT log"]
    con.execute(f"SET {setting}")
    h = np.exp(np.sin(x)) * np.cos(x) + x / 3
    assert con.execute(BOTH).fetchone() == (pytest.approx(h.sum()),)
    np.testing.assert_allclose(array(con, "a"), a - h)
    np.testing.assert_allclose(array(con, "log"), h)
    assert [row[:2] for row in values(con, "log")] == [(2, i) for i in range(5)]


def test_a_statement_is_planned_once(con: einsql.Connection) -> None:
    text = """
        WITH s AS (UPDATE a SET val = a.val + ? FROM b WHERE b.i = a.i)
        UPDATE b SET val = a.val FROM a WHERE a.i = b.i"""
    a, b = array(con, "a"), array(con, "b")
    calls = con.planner_calls
    for n in range(3):
        con.execute(text, [2.0 * n])
        a, b = a + 2 * n, a
    assert con.planner_calls == calls + 1
    np.testing.assert_array_equal([array(con, "a"), array(con, "b")], [a, b])
    con.execute("CREATE OR REPLACE TENSOR b AS SELECT i, 1.0::DOUBLE AS val FROM range(3) AS r(i)")
    con.execute(text, [2.0])
    np.testing.assert_array_equal(array(con, "b"), a[:3])
    a[:3] += 2
    np.testing.assert_array_equal(array(con, "a"), a)


def test_results_and_tensors_of_one_name_have_memory_of_their_own(con: einsql.Connection) -> None:
    text = """
        WITH h AS (SELECT i, EXP(x.val) * SIN(x.val) AS val FROM x),
             s AS (INSERT OR REPLACE INTO a SELECT * FROM h),
             t AS (INSERT OR REPLACE INTO b SELECT * FROM h)
        SELECT * FROM h"""
    x = array(con, "x")
    wanted = np.exp(x) * np.sin(x)
    for _ in range(2):
        shown = con.execute(text).fetch_numpy()
        if shown.flags.writeable:
            shown[:] = -1
        con.execute("UPDATE b SET val = 7 WHERE i = 1")
        con.execute("UPDATE b SET val = 8 WHERE i = 2")
        np.testing.assert_array_equal(array(con, "a"), wanted)
        np.testing.assert_array_equal(array(con, "b"), [wanted[0], 7, 8, *wanted[3:]])


REFUSED = [
    ("WITH s AS (UPDATE a SET val = 1) UPDATE a SET val = 2", "Two parts", "a SET val = 2"),
    ("WITH s AS (UPDATE a SET val = 1) SELECT * FROM s", "returns no rows", ""),
    ("WITH s AS (DELETE FROM a RETURNING i) SELECT * FROM b", "RETURNING in DELETE", ""),
    ("WITH s AS (UPDATE a SET val = 1) UPDATE t SET n = 1", "the table t", "t SET n"),
    ("WITH s AS (UPDATE a SET val = 1) SELECT * FROM texts", "the type of texts.name", "texts"),
    ("WITH s AS (UPDATE a SET val = 1) SELECT * FROM nowhere", 'no tensor "nowhere"', "nowhere"),
    ("WITH s AS (UPDATE a SET val = 1), s AS (SELECT 1) SELECT 2", "twice", "s AS (SELECT"),
    ("SELECT * FROM (WITH s AS (UPDATE a SET val = 1) SELECT * FROM b)", "inside of a", "s AS"),
    ("CREATE TENSOR z AS WITH s AS (UPDATE a SET val = 1) SELECT * FROM b", "inside of a", "s AS"),
    ("WITH s AS (UPDATE a SET val = 1) INSERT INTO b VALUES (1, 2)", "exists in b", "b VALUES"),
    ("WITH s AS (INSERT INTO a SELECT 1, NULL) SELECT i FROM b", "NULL", "a SELECT 1"),
    ("WITH s AS (UPDATE nothing SET val = 1) SELECT i FROM b", "no tensor", "nothing"),
]


@pytest.mark.parametrize(("sql", "reason", "at"), REFUSED)
def test_what_cannot_be_is_refused_where_it_stands_and_changes_nothing(
    con: einsql.Connection, sql: str, reason: str, at: str
) -> None:
    con.execute("CREATE TABLE t (n INTEGER)")
    con.execute("CREATE TABLE texts (name VARCHAR)")
    before = values(con, "a"), values(con, "b")
    with pytest.raises(einsql.Error, match=reason) as caught:
        con.execute(sql)
    assert caught.value.position is not None
    assert sql[caught.value.position :].startswith(at)
    assert (values(con, "a"), values(con, "b")) == before


def test_parts_read_tables(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t (n INTEGER, v DOUBLE)")
    con.execute("INSERT INTO t VALUES (1, 0.5), (0, 4), (1, 1)")
    before, _ = values(con, "a"), values(con, "b")
    text = """
        WITH s AS (SELECT n AS i, SUM(v) AS val FROM t GROUP BY n),
             u AS (UPDATE a SET val = a.val + s.val FROM s WHERE s.i = a.i)
        SELECT n, v FROM t"""
    assert con.execute(text).fetchall() == [(1, 0.5), (0, 4.0), (1, 1.0)]
    more = {0: 4.0, 1: 1.5}
    assert values(con, "a") == [(i, val + more.get(i, 0.0)) for i, val in before]


def test_parts_of_tables_alone_are_duckdbs(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t (n INTEGER)")
    assert con.execute("WITH s AS (INSERT INTO t VALUES (1), (2)) SELECT 3").fetchall() == [(3,)]
    assert con.execute("SELECT * FROM t ORDER BY n").fetchall() == [(1,), (2,)]


# ---- several INSERTs into one tensor


@pytest.fixture(scope="module", params=[1, 2], ids=["one site", "two ranks"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | None]:
    """Ranks that the tests share, as each start of them takes a second."""
    if request.param == 1:
        yield None
        return
    pytest.importorskip("mpi4py", reason="it starts MPI ranks")
    started = Cluster(starting(request.param))
    yield started
    started.close()


@pytest.fixture
def place(cluster: Cluster | None) -> Iterator[einsql.Connection]:
    con = einsql.Connection(cluster)
    con.execute(f"SET sites = {1 if cluster is None else cluster.ranks}")
    prepared(con)
    yield con
    close_alone(con)


INSERTS = [
    # boxes that adjoin along t, in another order than the parts
    ("SELECT 1 AS t, i, val FROM x", "SELECT 0 AS t, i, val * 2 FROM x"),
    # boxes that adjoin along i, and others that do not
    ("SELECT 1 AS t, i, val FROM x WHERE i < 2", "SELECT 1 AS t, i, val FROM x WHERE i >= 2"),
    ("SELECT 1 AS t, i, val FROM x WHERE i < 2", "SELECT 1 AS t, i, val FROM x WHERE i > 2"),
    ("SELECT 0 AS t, i, val FROM x", "SELECT 2 AS t, i, val FROM x"),
    # rows
    ("SELECT 1 AS t, i, val FROM x WHERE val > 0.3", "VALUES (1, 0, 8), (0, 4, 9)"),
    ("VALUES (3, 3, 1)", "SELECT 0 AS t, i, val FROM x"),
    # every cell in one part, none in the other
    ("SELECT t, i, val + t FROM x, range(4) AS r(t)", "SELECT 1 AS t, i, val FROM x WHERE i > 7"),
]


@pytest.mark.parametrize(("parts", "default"), combinations(INSERTS, ["", " DEFAULT 0"]))
def test_several_parts_insert_into_one_tensor(
    place: einsql.Connection, parts: tuple[str, str], default: str
) -> None:
    for name in ("together", "apart"):
        place.execute(f"CREATE TENSOR {name} (t DIM(4), i DIM(5), val DOUBLE){default}")
    one, other = parts
    cursor = place.execute(
        f"WITH p AS (INSERT INTO together {one}), q AS (INSERT INTO together {other}) "
        "SELECT SUM(val) FROM together"
    )
    assert cursor.fetchone() == ((0.0,) if default else (None,))  # the state before
    for part in parts:
        place.execute(f"INSERT INTO apart {part}")
    assert values(place, "together") == values(place, "apart")


@pytest.mark.parametrize("default", ["", " DEFAULT 0"])
@pytest.mark.parametrize(
    "other",
    [
        "SELECT 1 AS t, i, val FROM x WHERE i > 2",
        "SELECT 1 AS t, i, val FROM x WHERE val > 0.5",
        "SELECT t, i, val FROM x, range(4) AS r(t)",
        "VALUES (2, 0, 1), (1, 4, 1)",
    ],
)
def test_a_key_that_two_parts_insert_is_an_error(
    place: einsql.Connection, other: str, default: str
) -> None:
    place.execute(f"CREATE TENSOR kept (t DIM(4), i DIM(5), val DOUBLE){default}")
    before = values(place, "kept")
    text = f"""
        WITH p AS (INSERT OR REPLACE INTO kept SELECT 1 AS t, i, val FROM x WHERE i > 0)
        INSERT INTO kept {other}"""
    with pytest.raises(
        einsql.IntegrityError, match=r"\(t = 1, i = \d\) is inserted twice"
    ) as caught:
        place.execute(text)
    assert caught.value.position == text.rindex("kept ")
    assert values(place, "kept") == before


# ---- interrupts


IN_PLACE = """
    WITH s AS (UPDATE a SET val = a.val + 1 WHERE i < 3),
         t AS (INSERT INTO log SELECT 1 AS t, i, val FROM a),
         d AS (DELETE FROM b WHERE i = 4)
    UPDATE x SET val = a.val FROM a WHERE a.i = x.i"""

NAMES = ("a", "b", "x", "log")

RESET = (
    "INSERT OR REPLACE INTO a SELECT i, i + 0.5::DOUBLE AS val FROM range(5) AS r(i)",
    "UPDATE a SET val = 3 WHERE i = 1",  # in memory that nobody has seen
    "INSERT OR REPLACE INTO b SELECT i, i * 10.0::DOUBLE AS val FROM range(5) AS r(i)",
    "DELETE FROM b WHERE i = 0",
    "UPDATE x SET val = i WHERE i <> 1",
    "DELETE FROM log WHERE t = 1",
    "INSERT OR REPLACE INTO log VALUES (0, 0, 1)",
)


class Stop:
    """Raises KeyboardInterrupt at one line of those that store what has been computed."""

    FILES = (
        "changes/",
        "storage/session_store.py",
        "storage/array_ownership.py",
        "storage/database/memory.py",
    )

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename.replace("\\", "/")
        return self.line if any(f"einsql/{f}" in name for f in self.FILES) else None

    def line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line

    def begin(self) -> None:
        """Looks at what runs now, and at all that is called from there."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self(frame, "call", None)
            frame = frame.f_back
        sys.settrace(self)


@pytest.mark.parametrize("transaction", [False, True])
def test_an_interrupt_at_any_line_leaves_the_old_state_or_the_new_one(
    con: einsql.Connection, transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> list[np.ndarray]:
        found = (con.execute(f"SELECT *, val + 0 AS v FROM {n}").fetchall() for n in NAMES)
        return [np.array([row[-1] for row in rows]) for rows in found]

    overwritten: list[object] = []
    overwrite, stop = con.store.overwrite, Stop(0)

    def counted(*given: Any) -> None:
        if not overwritten and stop.left:
            stop.begin()
        overwritten.append(given)
        overwrite(*given)

    monkeypatch.setattr(con.store, "overwrite", counted)
    line, undone, done = 1, 0, False
    first = state()  # what every transaction here begins with, for all are rolled back
    while not done:
        if transaction:
            con.execute("BEGIN")
        for sql in RESET:
            con.execute(sql)
        before = state()
        overwritten.clear()
        stop.left = line
        try:
            con.execute(IN_PLACE)
            done = True
        except KeyboardInterrupt:
            line += sample(19, 1)
        finally:
            sys.settrace(None)
            stop.left = 0
        now = state()
        pairs = zip(now, before, strict=True)
        same = [len(a) == len(b) and bool((a == b).all()) for a, b in pairs]
        assert all(same) or not any(same), (line, same)
        if all(same):
            undone += bool(overwritten)
            con.execute(IN_PLACE)
            now = state()
        a, b, _, log = before
        np.testing.assert_array_equal(now[0], a + (np.arange(5) < 3))
        np.testing.assert_array_equal(now[1], b[:-1])
        np.testing.assert_array_equal(now[2], a)
        np.testing.assert_array_equal(now[3], [*log, *a])
        if transaction:
            con.execute("ROLLBACK")
            for now_, then in zip(state(), first, strict=True):
                np.testing.assert_array_equal(now_, then)
    assert len(overwritten) == 4
    assert undone > sample(1, 5)


@pytest.mark.parametrize("text", ["{}", "  -- a comment\n {}"])
def test_parameters_are_read_when_a_change_runs_or_planned_for(
    con: einsql.Connection, text: str
) -> None:
    update = text.format("UPDATE a SET val = a.val * ? + b.val / ? FROM b WHERE b.i = a.i")
    insert = text.format("INSERT OR REPLACE INTO log SELECT ? AS t, i, a.val + ? FROM a")
    give = text.format("INSERT OR REPLACE INTO log VALUES (?, 0, ?)")
    a, b, log = array(con, "a"), array(con, "b"), {}
    calls = con.planner_calls
    for n in range(6):
        scale, key = 0.5 + n, n % 3
        assert con.execute(update, [scale, 2.0 - n / 8]).rowcount == 5
        a = a * scale + b / (2.0 - n / 8)
        con.execute(insert, [key, scale])
        con.execute(give, [key, -scale])
        log[key] = [-scale, *(a[1:] + scale)]
    assert con.planner_calls == calls + 2
    np.testing.assert_allclose(array(con, "a"), a, rtol=1e-14)
    np.testing.assert_allclose(array(con, "log"), np.ravel([log[k] for k in range(3)]), rtol=1e-14)
    with pytest.raises(einsql.IntegrityError, match="out of bounds"):
        con.execute(insert, [4, 1.0])
    for n in (3, 1, 3):  # which keys are touched is planned for
        con.execute(text.format("UPDATE b SET val = b.val * ? WHERE i >= ?"), [2.0, n])
        b = np.where(np.arange(5) >= n, b * 2, b)
        con.execute(text.format("DELETE FROM log WHERE t = ? AND i > ?"), [n - 1, n])
    np.testing.assert_array_equal(array(con, "b"), b)
    assert [row[:2] for row in values(con, "log") if row[0] in (0, 2)] == [
        *((0, i) for i in range(2)), *((2, i) for i in range(4)),
    ]  # fmt: skip
    con.execute(update, [1, 2])  # integers, of another type
    np.testing.assert_allclose(array(con, "a"), a + b / 2, rtol=1e-14)


def test_a_mask_that_another_part_overwrites_is_read_before() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR m (i DIM(4), val DOUBLE)")
    con.execute("INSERT INTO m VALUES (2, 7)")
    con.execute("CREATE TENSOR a (i DIM(4), val DOUBLE) DEFAULT 0")
    con.execute("UPDATE a SET val = 4 WHERE i = 0")
    con.execute(
        "WITH p AS (INSERT OR REPLACE INTO m VALUES (1, 5)) "
        "UPDATE a SET val = 1 FROM m WHERE m.i = a.i"
    )
    assert con.execute("SELECT i, val FROM a").fetch_numpy().tolist() == [4, 0, 1, 0]


def test_a_mask_that_is_overwritten_by_itself_is_put_back() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR m (i DIM(4), val DOUBLE)")
    con.execute("INSERT INTO m VALUES (0, 5), (2, 7)")
    con.execute("BEGIN")
    con.execute("INSERT INTO m VALUES (3, 1)")
    with pytest.raises(einsql.IntegrityError):
        con.execute("FOR s IN range(1) DO DELETE FROM m; INSERT INTO m VALUES (9, 1); END FOR")
    assert con.execute("SELECT * FROM m").fetchall() == [(0, 5.0), (2, 7.0), (3, 1.0)]
