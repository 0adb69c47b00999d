"""While external access is off no statement reaches the database's own files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import einsql
from tests.support.samples import spread

SECRET = "none may read this"
NAME = "m.csv"
"""DuckDB opens a file in FROM by the end of its name, and reads this one as text."""


class Served:
    """A database whose directory is allowed, with access off.

    Attributes:
        con: The session that attempts are made in.
        names: What stands for names of files in an attempt.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        os.chdir(folder)
        Path("ok").mkdir()
        Path("ok/a.csv").write_text("a,s\n1,x\n")
        self.con = einsql.connect(name)
        for sql in (
            f"CREATE TABLE t AS SELECT 1 AS a, '{SECRET}' AS s", "CHECKPOINT",
            "CREATE TENSOR w (i DIM(3), val FLOAT) DEFAULT 1", "UPDATE w SET val = 2 WHERE i = 1",
            f"CREATE VIEW main.leak AS FROM read_blob('{name}')",
            f"CREATE VIEW leaks AS SELECT * FROM read_text('{name}.wal')",
            f"CREATE TEMP MACRO leak() AS TABLE FROM read_blob('{name}')",
            f"CREATE MACRO size() AS (SELECT size FROM read_blob('{name}'))",
            f"PREPARE leaking AS FROM read_blob('{name}')",
            "PREPARE harming AS COPY t TO 'hard.csv' (USE_TMP_FILE false)",  # linked below
            "ATTACH 'o.db' AS o", "CREATE TABLE o.t AS SELECT 7 AS a",
            f"INSERT INTO t VALUES (2, '{name}')",
        ):  # fmt: skip
            self.con.execute(sql)
        os.symlink(name, "link.csv")
        os.symlink(".", "here")
        os.link(name, "hard.csv")
        payload = next(str(p) for p in Path(f"{name}.tensors").glob("w.*"))
        os.link(payload, "payload.csv")
        self.con.execute(f"SET allowed_directories = ['{folder}', '/proc', '/dev']")
        self.con.execute("SET enable_external_access = false")
        number = next(n for n in range(3, 99) if _is(f"/proc/self/fd/{n}", name))
        self.names = {
            "m": name, "x": os.path.splitext(name)[0], "full": str(folder / name),
            "fd": str(number), "payload": payload, "end": name[1:],
        }  # fmt: skip
        self.own = (name, f"{name}.wal", "o.db", payload)

    def read(self) -> dict[str, bytes]:
        """What the database's own files hold."""
        return {name: Path(name).read_bytes() for name in self.own}


def _is(path: str, name: str) -> bool:
    return os.path.exists(path) and os.path.samefile(path, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("the system has no /proc")
    before = os.getcwd()
    found = Served(tmp_path_factory.mktemp("served"))
    try:
        yield found
    finally:
        found.con.close()
        os.chdir(before)


SPELLINGS = (
    "{m}", "./{m}", "{full}", "ok/../{m}", "here/{m}", "link.csv", "hard.csv", "payload.csv",
    "file:{m}", "file://{full}", "file://localhost{full}", "/proc/self/cwd/{m}",
    "/proc/self/fd/{fd}", "/dev/fd/{fd}", "{m}/", "{m}/.", "{m}\0.csv", "{m}.wal",
    "{m}.wal.checkpoint", "{m}.tmp/x", "{payload}", "{m}.tensors/*", "*", "**", "**/*", "[m]{end}",
    "?{end}", "h*/{m}", "l?nk.csv", ".", "o.db",
)  # fmt: skip
"""Names of own files, and patterns that match some."""


@pytest.mark.parametrize("path", spread(SPELLINGS, 10))
def test_no_spelling_of_a_path_reaches_them(served: Served, path: str) -> None:
    spelled = path.format(**served.names)
    for form in (
        "FROM read_blob('{}')", "FROM read_csv(['ok/a.csv', '{}'])", "FROM glob('{}')",
        "FROM parquet_metadata('{}')", "COPY t FROM '{}' (FORMAT csv)", "ATTACH '{}' AS z",
        "COPY (SELECT 1) TO '{}' (FORMAT csv, USE_TMP_FILE false)", "DESCRIBE FROM read_csv('{}')",
    ):  # fmt: skip
        if "*" not in path or "COPY (" not in form:  # no pattern there
            refused(served, form.format(spelled))


ATTEMPTS = (
    # relations whose names are files'
    "FROM '{m}'", 'FROM "{m}"', "SELECT * FROM {m}", "FROM t, '{m}'", "FROM t JOIN '{m}' ON true",
    "FROM t AS f, ('{m}') AS g", "FROM f: '{m}'", "TABLE '{m}'", "DESCRIBE '{m}'",
    "SUMMARIZE '{m}'", "PIVOT '{m}' ON a", "SELECT * FROM (VALUES (1)) v, '{m}'",
    "FROM t WHERE a IN (TABLE '{m}')", "FROM t WHERE EXISTS (FROM '{m}')", "FROM\u00a0'{m}'",
    # functions
    "FROM main.read_blob('{m}')", "FROM \"read_blob\"('{m}')", "FROM Read_Blob /* ( */ ('{m}')",
    "FROM read_blob\u00a0('{m}')", "FROM /* /* */ '*/ read_blob('{m}')", "FROM sniff_csv('{m}')",
    "FROM read_duckdb('{m}', table_name = 't')", "CALL read_blob('{m}')", "FROM seq_scan()",
    "FROM read_blob($${m}$$)", "FROM read_blob(E'{m}')", "FROM arrow_scan(1, 2, 3)",
    "FROM parquet_bloom_probe('{m}', 'a', 1)", "FROM histogram('{m}', 'a')",
    "SELECT (FROM read_blob('{m}') SELECT size)", "FROM t SELECT (FROM read_blob('{m}'))",
    "WITH c AS MATERIALIZED (FROM read_blob('{m}')) FROM c", "VALUES ((FROM read_blob('{m}')))",
    "SELECT * FROM t, LATERAL (FROM read_blob('{m}'))", "EXPLAIN ANALYZE FROM read_blob('{m}')",
    # paths that are no constants
    "FROM read_blob('{x}' || '.csv')", "FROM read_blob(['ok/a.csv'] || ['{m}'])",
    "FROM read_blob(('{m}'))", "FROM read_blob('{m}'::VARCHAR)", "FROM read_blob({m})",
    'FROM read_blob("{m}")', "FROM read_blob(getvariable('f'))", "SELECT * FROM t, read_blob(t.s)",
    "FROM read_csv((SELECT s FROM t WHERE a = 2))", "COPY t TO (getvariable('f'))",
    "COPY t TO {m}", 'COPY t TO "{m}"', "FROM query_table('{x}' || '.csv')",
    # text that is run
    "FROM query('FROM read_blob(''{m}'')')", "FROM query($$FROM query('FROM ''{m}''')$$)",
    "FROM query('FROM ' || 'read_blob(''{m}'')')", "FROM query_table('{m}')",
    "FROM query_table(['{m}'])", "FROM query_table('leak')", "PREPARE p AS FROM read_blob('{m}')",
    "PREPARE p AS COPY t TO '{m}'", "EXECUTE leaking", "EXECUTE harming",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM ''{m}'''))",
    # definitions, made before and now
    "FROM leak", "FROM main.leak", "FROM leak()", "SELECT size()", "SELECT * FROM leaks",
    "INSERT INTO t SELECT 1, content FROM leaks", "CREATE TEMP VIEW q AS FROM read_blob('{m}')",
    "CREATE VIEW main.q AS FROM leak", "CREATE TEMP MACRO q(p) AS TABLE FROM read_blob(p)",
    "CREATE TYPE q AS ENUM (SELECT content FROM read_text('{m}.wal'))",
    # changes that read
    "CREATE TABLE q AS FROM read_blob('{m}')", "INSERT INTO t SELECT size FROM read_blob('{m}')",
    "CREATE TENSOR q AS SELECT 0 AS i, size AS val FROM read_blob('{m}')",
    "INSERT INTO w SELECT 0, size FROM read_blob('{m}')", "COPY w FROM 'hard.csv'",
    "UPDATE t SET s = (SELECT content FROM read_text('{m}.wal'))", "FROM read_tensor('{m}')",
    "DELETE FROM t USING read_blob('{m}')", "MERGE INTO t USING '{m}' x ON true WHEN MATCHED "
    "THEN DELETE",
    # files that a statement names only in part
    "COPY t TO '.' (FORMAT csv, PARTITION_BY (a), OVERWRITE)", "EXPORT DATABASE o TO 'ok/..'",
    "COPY t TO 'ok/n' (PER_THREAD_OUTPUT, FILENAME_PATTERN '../../{x}', FILE_EXTENSION 'csv')",
    "COPY t TO 'ok/n' (FORMAT csv, PARTITION_BY (s), HIVE_FILE_PATTERN false)",
    "IMPORT DATABASE 'ok'", "PRAGMA import_database('ok')", "LOAD './x'", "INSTALL 'x'",
    "FORCE INSTALL 'x'", "ATTACH OR REPLACE '{m}' AS z", "CREATE PERSISTENT SECRET s (TYPE http)",
    # settings
    "SET allowed_paths = ['{m}']", "RESET allowed_directories", "SET file_search_path = 'ok'",
    "SET home_directory = '.'", "SET profile_output = '{m}'", "PRAGMA profiling_output = '{m}'",
    "SET secret_directory = '.'", "SET extension_directories = ['.']", "SET log_query_path = 'x'",
    "CALL enable_profiling(save_location = '{m}')", "SET logging_storage = 'file'",
    "SET python_enable_replacements = true", "SET lock_configuration = true",
    "SET enable_external_access = true", "RESET enable_external_access",
    # the caller's variables
    "SELECT * FROM mine", "FROM served",
)  # fmt: skip


@pytest.mark.parametrize("attempt", spread(ATTEMPTS, 36))
def test_no_statement_reaches_them(served: Served, attempt: str) -> None:
    refused(served, attempt.format(**served.names))


def refused(served: Served, sql: str) -> None:
    mine = np.ones(3)
    before = served.read()
    with pytest.raises(einsql.Error) as caught:
        served.con.execute(sql).fetchall()
    assert SECRET not in str(caught.value)
    assert served.read() == before
    assert mine.sum() == 3


def test_other_statements_work(served: Served) -> None:
    name = served.names["m"]
    con = served.con
    con.execute("BEGIN")
    for sql, rows in {
        "SELECT SUM(val) AS s FROM w": [(4.0,)],
        "SELECT COUNT(*) FROM t ORDER BY 1": [(2,)],
        "SELECT a FROM o.t": [(7,)],
        f"SELECT a FROM t WHERE s IN ('{name}', '*') OR s = '{name}.wal'": [(2,)],
        f"SELECT '{name}', '*.csv'": [(name, "*.csv")],
        "FROM query('SELECT a FROM t WHERE a = 1')": [(1,)],
        "SELECT a FROM query_table('t') WHERE a < 2": [(1,)],
        "FROM range(2)": [(0,), (1,)],
        "SELECT unnest([1, 2]) AS u, 'x' AS x": [(1, "x"), (2, "x")],
        "SELECT generate_series FROM generate_series(1, 2)": [(1,), (2,)],
        "SELECT value FROM json_each('[5]')": [("5",)],
        "SELECT json_extract('{\"a\": 1}', '$.a')::INT": [(1,)],
        "SELECT s FROM read_csv('ok/a.csv')": [("x",)],
        "SELECT s FROM 'ok/*.csv'": [("x",)],
        "SELECT file FROM glob('ok/*')": [("ok/a.csv",)],
        "SELECT list_transform([1], lambda z: z + 1)": [([2],)],
        "SELECT SUM(w.val) AS s FROM w JOIN t ON t.a = w.i": [(3.0,)],
    }.items():
        assert con.execute(sql).fetchall() == rows, sql
    for sql in (
        "PREPARE fine AS SELECT a FROM t", "EXECUTE fine", "CREATE TEMP MACRO f(p) AS p + 1",
        "CREATE VIEW main.fine AS SELECT a FROM t", "FROM fine",
        f"INSERT INTO t VALUES (3, '{name}')",
        "COPY t TO 'ok/b.csv'", "COPY t FROM 'ok/b.csv'", "SET threads = 2", "SUMMARIZE t",
        "SET search_path = 'main'", "PRAGMA table_info('t')", "PIVOT t ON a USING COUNT(*)",
        "EXPLAIN SELECT s FROM t", "CREATE TABLE made AS SELECT * FROM t", "SHOW TABLES",
        "SELECT histogram(a) FROM t", "FROM histogram('t', 'a')", "RESET threads",
    ):  # fmt: skip
        con.execute(sql)
    con.execute("ROLLBACK")
    os.remove("ok/b.csv")


def test_a_refusal_says_why_and_where(served: Served) -> None:
    name = served.names["m"]
    with pytest.raises(einsql.OperationalError, match="reaches the database's own files") as caught:
        served.con.execute(f"SELECT 'ä', size FROM read_blob('{name}')")
    assert "enable_external_access is off" in str(caught.value)
    assert caught.value.position == len("SELECT 'ä', size FROM read_blob(")
    with pytest.raises(einsql.OperationalError, match="must be a string in quotes"):
        served.con.execute("FROM read_blob(concat('a', 'b'))")


def test_it_holds_for_every_session_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    with einsql.connect(path) as one, einsql.connect(path) as other:
        other.execute("CREATE TABLE t AS SELECT 1 AS a")
        other.execute(f"FROM read_blob('{path}')")
        one.execute("SET enable_external_access = false")
        for con in (one, other):
            with pytest.raises(einsql.OperationalError, match="own files"):
                con.execute(f"FROM read_blob('{path}')")
            with pytest.raises(einsql.OperationalError, match="own files"):
                con.execute(f"COPY t TO '{path}' (FORMAT csv, USE_TMP_FILE false)")
    with einsql.connect(path) as con:
        assert con.execute("FROM t").fetchall() == [(1,)]


def test_what_a_rollback_brings_back_is_refused(served: Served) -> None:
    con = served.con
    con.execute("BEGIN")
    con.execute("DROP VIEW main.leak")
    con.execute("CREATE VIEW main.leak AS SELECT a FROM t WHERE s <> '' AND a = 1")
    assert con.execute("FROM main.leak").fetchall() == [(1,)]
    con.execute("ROLLBACK")
    refused(served, "FROM main.leak")


def test_a_name_that_gets_another_definition_is_refused(served: Served) -> None:
    con = served.con
    con.execute("CREATE VIEW main.fine AS SELECT s FROM t")
    con.execute("PREPARE again AS FROM main.fine")
    con.execute("EXECUTE again")
    con.execute("BEGIN")
    con.execute("ALTER VIEW main.fine RENAME TO gone")
    con.execute("ALTER VIEW main.leak RENAME TO fine")
    refused(served, "FROM main.fine")
    refused(served, "EXECUTE again")
    con.execute("ROLLBACK")
    con.execute("DROP VIEW main.fine")


def test_definitions_of_a_file_that_is_attached_are_refused(tmp_path: Path) -> None:
    path, other = str(tmp_path / "m.db"), str(tmp_path / "other.db")
    with einsql.connect(other) as con, einsql.connect(path):
        con.execute(f"CREATE VIEW main.leak AS FROM read_blob('{path}')")
    with einsql.connect(path) as con:
        con.execute(f"SET allowed_paths = ['{other}', '{other}.wal']")
        con.execute("SET enable_external_access = false")
        con.execute(f"ATTACH '{other}' AS o (READ_ONLY)")
        with pytest.raises(einsql.OperationalError, match="own files"):
            con.execute("SELECT size FROM o.leak")
