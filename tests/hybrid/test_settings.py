"""Settings of einsql's that hold for DuckDB as well, and that nobody takes back there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import einsql
from einsql.core.quoting import literal
from einsql.core.settings import SETTINGS
from tests.support.samples import combinations

OFF = {"enable_external_access": False}


def asked(con: einsql.Connection, name: str) -> object:
    """A setting of DuckDB's."""
    return con.duck.execute(f"SELECT current_setting('{name}')")[0][0]


@pytest.mark.parametrize(
    ("where", "when"), combinations(["memory", "file"], ["connect", "before", "after"])
)
def test_external_access_stays_off(
    tmp_path: Path, where: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    path = str(tmp_path / "m.db") if where == "file" else ":memory:"
    with einsql.connect(path, config=OFF if when == "connect" else None) as con:
        if when == "after":
            con.execute("CREATE TABLE t (a INT)")
        con.execute("SET enable_external_access = false; SET memory_limit = '1GB'")
        if when != "after":
            con.execute("CREATE TABLE t (a INT)")
        before = sorted(os.listdir())
        for sql in (
            "SET enable_external_access = true", "RESET enable_external_access",
            "PRAGMA enable_external_access = true", "SET temp_directory = 'x'",
            "PRAGMA temp_directory = 'x'", "RESET temp_directory", "SET GLOBAL memory_limit = 1",
            "PRAGMA profiling_output = 'x.json'", "SET profiling_output = 'x.json'",
            "SET log_query_path = 'log'", "SET allowed_directories = ['/']",
            "SELECT * FROM read_csv('a.csv')", "SELECT * FROM 'a.csv'", "SUMMARIZE 'a.csv'",
            "SELECT * FROM read_text('a.csv')", "SELECT * FROM glob('*')", "ATTACH 'q.db' AS q",
            "COPY (SELECT 1) TO 'o.csv'", "COPY t TO 'o.csv'", "COPY t FROM 'a.csv'",
            "EXPORT DATABASE 'exported'", "IMPORT DATABASE 'exported'", "INSTALL httpfs",
            "LOAD './x.duckdb_extension'", "EXPLAIN ANALYZE SELECT * FROM read_csv('a.csv')",
            "CALL enable_logging(storage = 'file', storage_config = {'path': 'log'})",
            "CREATE TENSOR q AS SELECT a AS i, b AS val FROM read_csv('a.csv')",
            "CREATE PERSISTENT SECRET s (TYPE http)",
        ):  # fmt: skip
            with pytest.raises(einsql.Error):
                con.execute(sql)
            con.execute("SELECT COUNT(*) FROM t ORDER BY 1")
        assert asked(con, "enable_external_access") is False
        assert sorted(os.listdir()) == before


def test_limits_are_einsqls(tmp_path: Path) -> None:
    config = {"memory_limit": "200MB", "temp_directory": str(tmp_path / "x" / "t")}
    with einsql.connect(config=config) as con:
        con.execute("CREATE TABLE t (a INT)")
        assert asked(con, "memory_limit") == "95.3 MiB"
        assert str(asked(con, "temp_directory")).startswith(str(tmp_path / "x" / "t"))
        assert con.memory.room <= 100_000_000
        con.execute("SET memory_limit = '400MB'; SET max_temp_directory_size = '1GB'")
        assert asked(con, "memory_limit") == "190.7 MiB"
        assert asked(con, "max_temp_directory_size") == "953.6 MiB"
        for sql in ("PRAGMA memory_limit = '8GB'", "SET max_memory = '8GB'", "RESET max_memory"):
            with pytest.raises(einsql.ProgrammingError, match="follows einsql's") as caught:
                con.execute(sql)
            assert "SET memory_limit = … holds for both" in str(caught.value)


def test_sessions_of_a_file_share_the_least_limit(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    few = einsql.connect(path, config={"memory_limit": "200MB"})
    with einsql.connect(path) as con:
        assert asked(con, "memory_limit") == "95.3 MiB"
        few.close()
        con.execute("SET memory_limit = '400MB'")
        assert asked(con, "memory_limit") == "190.7 MiB"


def test_nothing_is_put_where_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with einsql.connect(config={"memory_limit": "64MB"}) as con:
        con.execute("CREATE TABLE t AS SELECT range || 'abcdefgh' AS b FROM range(1000000)")
        con.execute("SELECT b FROM t ORDER BY b DESC")
        assert os.listdir() == []


def test_a_huge_key_is_no_huge_tensor(tmp_path: Path) -> None:
    con = einsql.connect(config={"memory_limit": "64MB", "temp_directory": str(tmp_path)})
    con.execute("CREATE TABLE s AS SELECT 300000000 AS k, 1.5::DOUBLE AS v")
    with pytest.raises(einsql.OperationalError, match="2,700,000,009 bytes") as caught:
        con.execute("CREATE TENSOR w STORAGE DENSE AS SELECT k AS i, v AS val FROM s")
    assert "DIM" in str(caught.value)
    # What rows fill goes to files, as what is declared does.
    con.execute("CREATE TABLE d AS SELECT range AS k, range::DOUBLE AS v FROM range(4000000)")
    con.execute("CREATE TENSOR d2 AS SELECT k AS i, v AS val FROM d")
    con.execute("CREATE TENSOR e (i DIM(4000000), val DOUBLE) AS SELECT k, v FROM s WHERE k < 0")
    assert con.memory.stored < 40_000_000
    assert con.execute("SELECT SUM(val) FROM d2").fetchall() == [(7999998000000.0,)]
    con.close()


@pytest.mark.parametrize("fallback", ["on", "off"])
def test_show_prints_the_value_of_a_setting(fallback: str) -> None:
    with einsql.connect() as con:
        con.execute(f"SET fallback = {fallback}; SET mesh = 'data=2, model=2'")
        listed = dict(con.execute("SHOW SETTINGS").fetchall())
        for name in (*SETTINGS, "mpi"):
            cursor = con.execute(f"SHOW {name}")
            assert [c[0] for c in cursor.description or ()] == [name]
            assert cursor.fetchall() == [(listed[name],)]
        assert con.execute('SHOW "Mesh"').fetchall() == [("data=2, model=2",)]


def test_show_describes_tensors_and_tables_before_settings() -> None:
    with einsql.connect() as con:
        con.execute("CREATE TENSOR mesh (i DIM(2), val FLOAT); CREATE TABLE plan (a INT)")
        assert con.execute("SHOW mesh").fetchall() == con.execute("DESCRIBE mesh").fetchall()
        assert [row[:2] for row in con.execute("SHOW plan").fetchall()] == [("a", "INTEGER")]
        assert con.execute("SHOW threads").fetchall()
        assert ("memory",) in con.execute("SHOW DATABASES").fetchall()


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SHOW strateg", "Did you mean strategy?"),
        ("SHOW xyzzy", "SHOW SETTINGS lists settings"),
        ("SELECT current_setting('mesh')", "SHOW mesh prints its value"),
        ("PRAGMA plan", "SHOW plan prints its value"),
        ("PRAGMA sites = 4", "SHOW sites prints its value"),
        ("SET sites", "SHOW sites prints its value"),
        ("SET mesh = ", "SHOW mesh prints its value"),
        ("SET GLOBAL sites = 4", "Write SET name = value"),
    ],
)
def test_mistakes_about_settings_say_how_to_see_them(sql: str, hint: str) -> None:
    with einsql.connect() as con, pytest.raises(einsql.ProgrammingError) as caught:
        con.execute(sql)
    assert hint in caught.value.hint
    assert "pg_" not in str(caught.value)


CHANGED = {
    "float_math": "double", "fallback": "off", "jit": "never", "cost": "bytes",
    "disabled_rules": "share, R2-5", "python_enable_replacements": "false", "sites": "4",
    "mesh": "data=2, model=2", "strategy": "data:b", "matmul_precision": "tf32",
    "site_memory": "1MB", "device_memory": "1MB", "memory_limit": "50%",
    "max_temp_directory_size": "1.5GB", "flops_float": "1.25T", "flops_double": "1.25T",
    "map_float": "333M", "map_double": "2G", "exp_float": "1G", "exp_double": "7M",
    "memory_bandwidth": "1.5GB/s", "call_overhead": "3us", "latency": "7us", "network": "10Gbps",
}  # fmt: skip


def shown(con: einsql.Connection) -> dict[str, str]:
    return dict(con.execute("SHOW SETTINGS").fetchall())


def test_set_takes_each_value_that_show_prints(tmp_path: Path) -> None:
    plan = str(tmp_path / "it's a plan.json")
    own = {"temp_directory": str(tmp_path / "it's"), "plan": plan}
    with einsql.connect() as con:
        default = shown(con)
        con.execute("CREATE TENSOR w (i DIM(2), val FLOAT) DEFAULT 0")
        con.execute(f"SET sites = 2; EXPORT PLAN {literal(plan)} FOR SELECT * FROM w; RESET sites")
        for changes in ({}, {**CHANGED, **own}, {"enable_external_access": "false"}):
            for name, value in changes.items():
                con.execute(f"SET {name} = {literal(value)} -- a comment")
            values = shown(con)
            assert all(values[name] != default[name] for name in changes)
            files = own if "enable_external_access" in changes else {}
            for name in {*SETTINGS} - {*files}:
                con.execute(f"SET {name} = {literal(values[name])}")
            assert shown(con) == values


@pytest.mark.parametrize("config", [{}, {"enable_external_access": False}])
def test_reset_restores_defaults(config: dict[str, bool]) -> None:
    with einsql.connect(config=config) as con:
        default = shown(con)
        for name, value in CHANGED.items():
            con.execute(f"SET {name} = {literal(value)}")
        for name in CHANGED:
            con.execute(f'RESET "{name.upper()}"' if name == "mesh" else f"RESET {name}")
        assert shown(con) == default
        con.execute("SET mesh = 'a=2'; SET mesh = none; SET disabled_rules = ''; RESET threads")
        assert shown(con) == {**default, "sites": "2"}


def test_duckdb_has_the_defaults_again(tmp_path: Path) -> None:
    names = ("memory_limit", "temp_directory", "max_temp_directory_size")
    for database in (":memory:", str(tmp_path / "m.db")):
        limit = {"memory_limit": "none"}
        with einsql.connect(database, config=limit) as con:
            default = [asked(con, name) for name in names]
            directory = shown(con)["temp_directory"]
            assert str(default[1]).startswith(directory)
            con.execute(f"SET memory_limit = '1GB'; SET temp_directory = '{tmp_path}/t'")
            con.execute("SET max_temp_directory_size = '1GB'")
            assert not {asked(con, name) for name in names} & {*default}
            con.execute("SET memory_limit = none; RESET temp_directory")
            con.execute("RESET max_temp_directory_size")
            assert [asked(con, name) for name in names] == default
            assert shown(con)["temp_directory"] == directory
            con.execute("SET temp_directory = ''")
            assert con.execute("SHOW temp_directory").fetchall() == [("",)]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("RESET mpi", "cannot be changed"),
        ("RESET GLOBAL sites", "Expected a setting"),
        ("RESET xyzzy", "xyzzy"),
        ("SET disabled_rules = 'share, none'", 'no rewrite rule "none"'),
    ],
)
def test_refused_settings_stay(sql: str, reason: str) -> None:
    with einsql.connect() as con:
        before = shown(con)
        with pytest.raises(einsql.Error, match=reason) as caught:
            con.execute(sql)
        assert caught.value.hint
        assert shown(con) == before


@pytest.mark.parametrize("config", [{"strategy": "fast"}, {"disabled_rules": "fast"}])
def test_connect_checks_names(config: dict[str, str]) -> None:
    with pytest.raises(einsql.InterfaceError, match=r'There is no .* "fast"'):
        einsql.connect(config=config)
