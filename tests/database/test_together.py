"""Connections of one process: each sees one commit, and who commits first wins."""

from __future__ import annotations

import os
import threading
import time

import duckdb
import pytest

import einsql
from tests.database.victim import SHAPE, commits, prepare, state


def test_readers_see_one_commit_while_another_connection_writes(path: str) -> None:
    seconds = float(os.environ.get("EINSQL_SECONDS", "5"))
    prepare(path)
    end = time.monotonic() + seconds
    reads, wrong = [0] * 10, list[object]()

    def read(number: int) -> None:
        with einsql.connect(path) as con:
            newest = 0.0
            while time.monotonic() < end and not wrong:
                if number % 2:
                    found = state(con)
                else:  # a result that outlives its payload
                    con.execute("BEGIN")
                    cursor = con.execute("SELECT * FROM x")
                    found = state_in(con)
                    con.execute("COMMIT")
                    time.sleep(0.02)
                    array = cursor.fetch_numpy()
                    found |= {float(array.min()), float(array.max())}
                if len(found) != 1 or max(found) < newest:
                    wrong.append((number, found, newest))
                newest = max(found)
                reads[number] += 1

    def state_in(con: einsql.Connection) -> set[float]:
        (row,) = con.store.duck.execute("FROM t")
        x = con.execute("SELECT MIN(val), MAX(val) FROM x").fetchall()[0]
        y = con.execute("SELECT MIN(val), MAX(val) FROM y").fetchall()[0]
        return {float(row[0]), *x, *y}

    def watched(number: int) -> None:
        try:
            read(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=watched, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    k = 0
    with einsql.connect(path) as con:
        while time.monotonic() < end and not wrong:
            k += 1
            commits(con, k, f"{path}.npy")
            if k % 50 == 0:
                con.execute("VACUUM")
        for thread in threads:
            thread.join()
        con.execute("VACUUM")
        left = len(os.listdir(f"{path}.tensors"))
    print(f"{seconds:g} s: {k} commits, {sum(reads)} reads")
    assert not wrong
    assert k > 0
    assert min(reads) > 0
    assert left == 3  # x, y and the marker


def test_a_transaction_reads_what_was_committed_when_it_began(path: str) -> None:
    prepare(path)
    with einsql.connect(path) as one, einsql.connect(path) as other:
        total = "SELECT SUM(val) FROM x"
        size = SHAPE[0] * SHAPE[1]
        one.execute("BEGIN")
        commits(other, 1, f"{path}.npy")
        commits(other, 2, f"{path}.npy")  # the payload of 0 is swept before it is opened
        assert one.execute(total).fetchone() == (0.0,)
        assert one.store.duck.execute("FROM t") == [(0,)]
        one.execute("COMMIT")
        assert one.execute(total).fetchone() == (2.0 * size,)
        assert state(one) == {2.0}


def test_the_first_to_commit_wins(path: str) -> None:
    with einsql.connect(path) as one, einsql.connect(path) as other:
        one.execute("""
            CREATE TENSOR x (i DIM(2), val FLOAT) DEFAULT 1;
            CREATE TENSOR y (i DIM(2), val FLOAT) DEFAULT 1;
        """)
        one.execute("BEGIN; UPDATE x SET val = 2; CREATE VIEW v AS SELECT * FROM x")
        other.execute("BEGIN; UPDATE x SET val = 3")
        other.execute("COMMIT")
        with pytest.raises(einsql.OperationalError, match='change of "x" first'):
            one.execute("COMMIT")
        assert not one.store.in_transaction
        assert one.execute("SELECT SUM(val) FROM x").fetchone() == (6.0,)
        with pytest.raises(einsql.ProgrammingError):
            one.execute("SELECT * FROM v")
        one.execute("BEGIN; UPDATE x SET val = 4")
        other.execute("UPDATE y SET val = 5")
        one.execute("COMMIT")  # they have changed different tensors
        assert other.execute("SELECT SUM(x.val + y.val) FROM x, y WHERE x.i = y.i").fetchone() == (
            18.0,
        )
        one.execute("BEGIN; DROP TENSOR x")
        other.execute("UPDATE x SET val = 6")
        with pytest.raises(einsql.OperationalError, match='change of "x" first'):
            one.commit()
        one.execute("BEGIN; CREATE TENSOR z (i DIM(1), val FLOAT)")
        other.execute("CREATE TENSOR z (i DIM(2), val FLOAT)")
        with pytest.raises(einsql.OperationalError, match='change of "z" first'):
            one.commit()


def test_no_update_of_several_writers_is_lost(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR x (i DIM(2), val BIGINT) DEFAULT 0")
        con.store.duck.execute("CREATE TABLE t AS SELECT 0 AS k")
    failures: list[BaseException] = []

    def write(explicit: bool) -> None:
        try:
            with einsql.connect(path) as con:
                done = 0
                while done < 10:
                    try:
                        if explicit:
                            con.execute("BEGIN; UPDATE x SET val = val + 1")
                            con.store.duck.execute("UPDATE t SET k = k + 1")
                            con.execute("COMMIT")
                        else:
                            con.execute("UPDATE x SET val = val + 1")
                    except einsql.OperationalError:
                        con.rollback()
                    except duckdb.TransactionException:  # it met another change of the table
                        con.rollback()
                    else:
                        done += 1
        except BaseException as error:
            failures.append(error)

    with einsql.connect(path) as con:
        threads = [threading.Thread(target=write, args=(n % 2 == 0,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert con.execute("SELECT * FROM x").fetchall() == [(0, 40), (1, 40)]
        assert con.store.duck.execute("FROM t") == [(20,)]


def test_plans_follow_what_others_commit(path: str) -> None:
    with einsql.connect(path) as one, einsql.connect(path) as other:
        one.execute("CREATE TENSOR x (i DIM(2), val FLOAT) DEFAULT 1")
        total = "SELECT SUM(val) FROM x"
        for k in (2, 3):
            other.execute(f"UPDATE x SET val = {k}")
            assert one.execute(total).fetchone() == (2.0 * k,)
        before = one.planner_calls
        other.execute("UPDATE x SET val = 4")
        assert one.execute(total).fetchone() == (8.0,)
        assert one.planner_calls == before  # only its values have changed
        other.execute("CREATE OR REPLACE TENSOR x (i DIM(3), val DOUBLE) DEFAULT 5")
        assert one.execute(total).fetchone() == (15.0,)


def test_results_outlive_the_payload_and_the_connection(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR x (i DIM(3), val FLOAT) DEFAULT 1; UPDATE x SET val = i")
        shown = con.execute("SELECT * FROM x")
        array = shown.fetch_numpy()
        con.execute("UPDATE x SET val = 9; VACUUM")
        assert con.execute("SELECT * FROM x").fetchall() == [(0, 9.0), (1, 9.0), (2, 9.0)]
    assert array.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_vacuum_and_begin_are_no_statements_of_a_transaction(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("BEGIN")
        with pytest.raises(einsql.OperationalError, match="VACUUM cannot run"):
            con.execute("VACUUM")
        con.execute("ROLLBACK; VACUUM")
    with einsql.connect() as con:
        con.execute("VACUUM")
