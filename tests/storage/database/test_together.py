"""Connections of one process: each sees one commit, and who commits first wins."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pytest

import einsql
from einsql.session.connection import Connection
from einsql.session.statements.ddl import definition
from einsql.storage.database.directory import Directory
from einsql.storage.database.file import FileDatabase
from einsql.storage.database.opening import open_database
from tests.storage.database.victim import SHAPE, commits, prepare, state
from tests.support.samples import sample, spread

COMMITS, READS, BACKUPS = sample((6, 2, 1), (12, 3, 2))
"""What there has to be, reads of each reader; EINSQL_SECONDS lasts by the clock instead."""
PATIENCE = 240.0
"""Seconds after which a test that does not get on is over."""


def test_readers_see_one_commit_while_another_connection_writes(path: str) -> None:
    seconds = float(os.environ.get("EINSQL_SECONDS", "0"))
    prepare(path)
    start = time.monotonic()
    reads, wrong = [0] * 10, list[object]()
    k = backups = 0

    def goes_on() -> bool:
        taken = time.monotonic() - start
        enough = k >= COMMITS and min(reads) >= READS and backups >= BACKUPS
        enough = enough and taken >= seconds
        return not (enough or wrong or taken > seconds + PATIENCE)

    def read(number: int) -> None:
        with einsql.connect(path) as con:
            newest = 0.0
            while goes_on():
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

    def back_up() -> None:
        nonlocal backups
        newest = 0.0
        with einsql.connect(path) as con:
            while goes_on():
                target = f"{path}.{backups}"
                con.execute(f"BACKUP TO '{target}'")
                with einsql.connect(target, read_only=True) as copy:
                    found = state(copy)
                    if len(found) != 1 or max(found) < newest:
                        wrong.append(("backup", found, newest))
                newest = max(found)
                os.unlink(target)
                shutil.rmtree(f"{target}.tensors")
                backups += 1

    def watched(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    work = [*(partial(read, n) for n in range(10)), back_up]
    threads = [threading.Thread(target=watched, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    with einsql.connect(path) as con:
        while goes_on():
            k += 1
            commits(con, k, f"{path}.npy")
            if k % 50 == 0:
                con.execute("VACUUM")
        for thread in threads:
            thread.join()
        con.execute("VACUUM")
        left = len(os.listdir(f"{path}.tensors"))
    print(f"{time.monotonic() - start:.0f} s: {k} commits, {sum(reads)} reads, {backups} backups")
    assert not wrong
    assert k >= COMMITS
    assert min(reads) >= READS
    assert backups >= BACKUPS
    assert left == 5  # x, y, z, q and the marker


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


def test_a_sweep_leaves_what_is_written_meanwhile(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = f"y.9.{'0' * 32}.arrow"
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR x (i DIM(3), val FLOAT) DEFAULT 1")
        database = con.store.database
        assert isinstance(database, FileDatabase)

        def listed(directory: Directory) -> list[str]:
            database._pending.add(late)  # as another connection does before it writes
            Path(directory.path, late).touch()
            return os.listdir(directory.path)

        monkeypatch.setattr(Directory, "_names", listed)
        con.execute("VACUUM")
        assert late in os.listdir(f"{path}.tensors")


def test_the_first_commits_of_several_threads_make_one_directory(path: str) -> None:
    failed = list[BaseException]()
    ready = threading.Barrier(4)

    def write(number: int) -> None:
        try:
            with einsql.connect(path) as con:
                ready.wait()
                con.execute(f"CREATE TENSOR x{number} (i DIM(3), val FLOAT) DEFAULT 1")
        except BaseException as error:
            failed.append(error)

    with einsql.connect(path) as con:
        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert len(con.execute("SHOW TENSORS").fetchall()) == 4


def test_a_database_stays_open_for_who_is_about_to_join(path: str) -> None:
    con = einsql.connect(path)
    con.execute("CREATE TENSOR x (i DIM(3), val FLOAT) DEFAULT 1")
    database, ticket = open_database(path, False, definition)
    con.close()
    with Connection(database=database) as other:
        del ticket
        assert other.execute("SELECT SUM(val) FROM x").fetchone() == (3.0,)
    with duckdb.connect(path):  # the last one has let it go
        pass


def test_commits_go_to_the_own_file_whatever_is_in_use(path: str, tmp_path: Path) -> None:
    second = str(tmp_path / "second.db")
    for each in (path, second):
        with einsql.connect(each) as con:
            con.execute("CREATE TENSOR x (i DIM(3), val FLOAT) DEFAULT 1")
    with einsql.connect(path) as con:
        con.execute(f"ATTACH '{second}' AS second; USE second; UPDATE x SET val = 2")
    for each, total in ((path, 6.0), (second, 3.0)):
        with einsql.connect(each) as con:
            assert con.execute("SELECT SUM(val) FROM x").fetchone() == (total,)


@pytest.mark.parametrize(
    "statement",
    spread(
        [
            "DELETE FROM __einsql.objects",
            "DROP SCHEMA __einsql CASCADE",
            'UPDATE model."__EINSQL".objects SET version = 9',
            "SET schema = '__einsql'",
            "WITH w AS (SELECT 1) INSERT INTO __einsql.format SELECT 1, 'x'",
            "CREATE TABLE __einsql.t (i INTEGER)",
        ],
        3,
    ),
)
def test_the_catalog_is_changed_by_commits_alone(path: str, statement: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR x (i DIM(3), val FLOAT) DEFAULT 1")
        with pytest.raises(einsql.ProgrammingError, match="einsql's own"):
            con.execute(statement)
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (3.0,)
