"""Relations, and DuckDB's methods of a connection and of the module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.hybrid.effects import UNSTABLE
from tests.support.samples import spread


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as opened:
        yield opened


ROWS = pa.table({"k": [0, 1, 2, 3], "g": ["a", "b", "a", "b"], "v": [4.0, 3.0, 2.0, 1.0]})
OTHER = pa.table({"k": [1, 2, 7], "w": [0.5, 0.25, 0.125]})

STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "filter": lambda r, o: r.filter("v > 1.5").order("k"),
    "project": lambda r, o: r.order("v").project("k * 2 AS twice, g").limit(2, 1),
    "aggregate": lambda r, o: r.aggregate("g, sum(v) AS s").order("g"),
    "groups": lambda r, o: r.aggregate("max(v) AS m, g", "g").order("m"),
    "set": lambda r, o: r.union(r.filter("k = 0")).except_(r.filter("k = 1")).order("k"),
    "intersect": lambda r, o: r.intersect(r.limit(1)),
    "using": lambda r, o: r.join(o, "k").order("k"),
    "on": lambda r, o: r.set_alias("a").join(o.set_alias("b"), "a.k = b.k AND w < 0.4", "left")
    .project("v, w").order("v"),
    "cross": lambda r, o: r.cross(o.project("w")).order("k, w"),
    "query": lambda r, o: r.query("q", "WITH s AS (SELECT sum(v) AS t FROM q) SELECT t FROM s"),
    "distinct": lambda r, o: r.project("g", "k").project("g").distinct().order("g"),
    "count": lambda r, o: r.count("k"),
}  # fmt: skip


@pytest.mark.parametrize("step", spread(STEPS, 6))
def test_relations_are_those_of_duckdb(step: str, con: einsql.Connection) -> None:
    duck = duckdb.connect()
    ours = STEPS[step](con.sql("SELECT * FROM ROWS"), con.from_arrow(OTHER))
    theirs = STEPS[step](duck.from_arrow(ROWS), duck.from_arrow(OTHER))
    assert ours.columns == theirs.columns
    assert ours.fetchall() == theirs.fetchall()
    assert ours.shape == theirs.shape


def test_a_relation_over_tensors_is_tensor_work(con: einsql.Connection) -> None:
    x = np.arange(6.0).reshape(2, 3)
    con.execute("SET fallback = off")
    rows = con.sql("SELECT i, j, val FROM x AS x(i, j)")
    sums = rows.filter("j > 0").sql("SELECT i, SUM(val * 2) AS s FROM this GROUP BY i")
    assert sums.numpy().tolist() == (x[:, 1:] * 2).sum(axis=1).tolist()


def test_rows_of_a_relation_as_tensors_of_torch(con: einsql.Connection) -> None:
    pytest.importorskip("torch")
    rows = con.sql("SELECT i, val FROM range(3) AS t(i), (SELECT 0.5 AS val)")
    assert rows.torch()["i"].tolist() == [0, 1, 2]


def test_a_relation_is_bound_when_made_and_run_when_fetched(con: einsql.Connection) -> None:
    x = np.ones(2)
    relation = con.sql("SELECT SUM(val) AS s FROM x")
    captured, x = x, np.zeros(3)  # the relation reads the array of the time when it was made
    assert relation.fetchall() == [(2.0,)]
    captured[0] = 9.0
    assert [relation.fetchone(), relation.fetchone(), relation.fetchone()] == [
        (10.0,),
        None,
        (10.0,),
    ]
    with pytest.raises(einsql.ProgrammingError, match="nope"):
        con.sql("SELECT nope FROM x")
    with pytest.raises(einsql.ProgrammingError, match='"y"'):
        con.sql("SELECT * FROM y")
    other = con.sql("SELECT SUM(val) AS s FROM x")
    assert relation.union(other).fetchall() == [(10.0,), (0.0,)]
    assert con.sql("SELECT s + 1 AS t FROM relation").fetchall() == [(11.0,)]


def test_a_relation_follows_its_names_or_is_refused(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t AS SELECT 1 AS a")
    table = con.table("t").filter("t.a > 0")
    con.execute("INSERT INTO t VALUES (2)")
    assert table.fetchall() == [(1,), (2,)]
    con.execute("CREATE OR REPLACE TABLE t AS SELECT 'x' AS b, 2.5::DOUBLE AS a")
    assert table.df().to_dict("list") == {"b": ["x"], "a": [2.5]}
    assert table.types == ["VARCHAR", "DOUBLE"]
    con.begin()
    con.execute("CREATE TENSOR y (i DIM(2), val DOUBLE) DEFAULT 1")
    tensor = con.table("y")
    assert len(tensor) == 2
    con.rollback()
    with pytest.raises(einsql.ProgrammingError, match='no tensor "y"'):
        tensor.fetchall()
    con.execute("DROP TABLE t")
    with pytest.raises(einsql.ProgrammingError, match='no tensor "t"'):
        table.fetchall()


def test_statements_with_effects_run_once(con: einsql.Connection) -> None:
    assert repr(con.sql("CREATE TABLE t (n INTEGER)")) == "<einsql.Relation without rows>"
    rows = con.sql("INSERT INTO t VALUES (1), (2) RETURNING n")
    assert repr(rows) == repr(rows)
    assert rows.filter("n > 1").fetchall() == [(2,)]
    assert rows.fetchall() == [(1,), (2,)]
    assert con.table("t").count().fetchone() == (2,)
    con.execute("CREATE SEQUENCE s")
    numbers = con.sql("SELECT nextval('s') AS n")
    assert repr(numbers) == repr(numbers)
    assert con.sql("SELECT nextval('s') AS n").fetchall() == [(2,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT nextval('s') AS n",
        "SELECT x.i, nextval('s') AS n FROM x AS x(i)",
        'SELECT "random"() AS n',
        "SELECT noise(1) AS n",
        "SELECT * FROM chance",
        "SELECT sum(r) AS n FROM other.main.outer_chance WHERE r > 0.5",
        "SELECT seen(1) AS n",
        "SELECT current_timestamp::VARCHAR AS n",
        "FROM range(1000) AS r(a) USING SAMPLE 3",
    ],
)
def test_a_query_with_an_effect_runs_once_for_its_relation(
    query: str, con: einsql.Connection, tmp_path: Path
) -> None:
    x = np.ones(2)
    calls: list[int] = []

    def seen(a: int) -> int:
        calls.append(a)
        return len(calls)

    con.create_function("seen", seen, side_effects=True)
    con.execute("CREATE SEQUENCE s; CREATE VIEW chance AS SELECT random() AS r FROM range(99)")
    con.execute("CREATE MACRO noise(a) AS a + random()")
    with duckdb.connect(str(tmp_path / "other.duckdb")) as other:
        other.execute("CREATE VIEW chance_there AS SELECT random() AS r FROM range(9999)")
        other.execute("CREATE VIEW outer_chance AS FROM chance_there")
    con.execute(f"ATTACH '{tmp_path / 'other.duckdb'}' AS other (READ_ONLY)")
    before = con.sql(query).fetchall()
    relation = con.sql(query)
    printed, rows = repr(relation), relation.fetchall()
    assert (repr(relation), relation.fetchall(), [*relation]) == (printed, rows, rows)
    assert relation.filter("true").fetchall() == rows
    assert con.sql(query).fetchall() not in (rows, before)
    assert len(calls) in (0, 3)
    del x


@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ("SELECT nextval('s') AS n, 1 AS n", 1),
        ("WITH a AS MATERIALIZED (SELECT nextval('s') AS n) SELECT * FROM a x1, a x2", 1),
        ("CREATE VIEW v AS SELECT nextval('s') AS n", 0),
    ],
)
def test_names_and_views_do_not_run_a_query(query: str, calls: int, con: einsql.Connection) -> None:
    con.execute("CREATE SEQUENCE s")
    con.execute(query)
    assert con.execute("SELECT nextval('s') AS next").fetchall() == [(calls + 1,)]


def test_unstable_functions_are_those_of_duckdb() -> None:
    query = """
        SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'
        AND NOT list_has_any(parameter_types, ['TIMESTAMP WITH TIME ZONE', 'TIMESTAMPTZ_NS'])"""
    rows = duckdb.execute(query).fetchall()
    of_session = (
        "current_database current_schema current_schemas current_setting getvariable "
        "make_timestamptz timezone"
    )
    of_query = "in_search_path current_connection_id current_query error sleep_ms stats vector_type"
    stable = {*of_session.split(), *of_query.split()}
    assert {row[0] for row in rows} - stable <= UNSTABLE


class Rows:
    """A table among variables that counts how often it is read."""

    __einsql_rows__ = True
    reads = 0

    def fetch_arrow_table(self) -> pa.Table:
        self.reads += 1
        return ROWS


@pytest.mark.parametrize(
    ("query", "reads"),
    [
        ("SELECT upper('a') AS r", 0),
        ("SELECT upper('r') AS a, (SELECT count(*) FROM range(2)) AS r", 0),
        ("VALUES ('r')", 0),
        ("SELECT q.r FROM (VALUES ('r')) AS q(r)", 0),
        ("TABLE r", 1),
        ("SUMMARIZE r", 1),
        ("PIVOT (range(2) AS a(k) JOIN range(2) AS b(k) USING (k) JOIN r USING (k)) ON g", 1),
        ("SELECT (SELECT max(k) FROM r) AS s", 1),
    ],
)
def test_a_variable_is_read_if_from_names_it(
    query: str, reads: int, con: einsql.Connection
) -> None:
    r = Rows()
    assert con.execute(query).fetchall()
    assert r.reads == reads


def test_parameters_stay_with_their_relation(con: einsql.Connection) -> None:
    small = con.sql("SELECT n FROM range(9) AS r(n) WHERE n < ?", params=[2])
    large = con.sql("SELECT n FROM range(9) AS r(n) WHERE n > $least", params={"least": 7})
    assert small.union(large).order("n").fetchall() == [(0,), (1,), (8,)]
    with pytest.raises(einsql.InterfaceError, match="given to `sql`"):
        small.filter("n > ?")
    with einsql.connect() as elsewhere, pytest.raises(einsql.InterfaceError, match="combined"):
        small.union(elsewhere.sql("SELECT 1 AS n"))


ESCAPES: dict[str, Callable[[Any], Any]] = {
    "statement": lambda r: r.filter("a > 1; DROP TABLE t"),
    "parenthesis": lambda r: r.filter("a > 1); DROP TABLE t; SELECT (1"),
    "clause": lambda r: r.filter("a > 1 ORDER BY a LIMIT 1"),
    "empty": lambda r: r.filter("-- all"),
    "union": lambda r: r.project("a UNION ALL SELECT 7"),
    "from": lambda r: r.project("a", "1 FROM t --"),
    "limit": lambda r: r.order("a LIMIT 1"),
    "having": lambda r: r.aggregate("count(*)", "a HAVING a > 1"),
    "argument": lambda r: r.sum("a), (SELECT 1"),
    "open": lambda r: r.project("(a"),
    "join": lambda r: r.join(r.set_alias("u"), "t.a = u.a; DROP TABLE t"),
    "query": lambda r: r.query("q", "FROM q; DROP TABLE t"),
    "sql": lambda r: r.sql("FROM this; DROP TABLE t"),
}  # fmt: skip


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_text_is_a_part_of_one_clause(escape: str, con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t AS FROM (VALUES (1), (2), (3)) AS v(a)")
    table = con.table("t")
    with pytest.raises(einsql.ProgrammingError, match=r"belong|empty|one statement"):
        ESCAPES[escape](table.set_alias("t"))
    with pytest.raises(einsql.ProgrammingError, match="one statement"):
        con.read_csv("x.csv", **{"header = 1); DROP TABLE t; --": 1})
    assert len(table) == 3


def test_expressions_contain_words_of_clauses_and_comments(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t AS FROM (VALUES (1, ';)'), (2, 'y')) AS v(a, \"from\")")
    table = con.table("t")
    rows = table.filter("a IS DISTINCT FROM 2 -- not 2\n AND \"from\" = ';)' -- end")
    year = "extract(year FROM DATE '2001-01-01') AS limit"
    listed = rows.project(f"{year}, (SELECT max(a) FROM range(3) AS r(a)), a -- end")
    assert listed.fetchall() == [(2001, 2, 1)]
    assert table.filter("a = 1 OR a = 2").filter("a > 1 OR a < 0").count().fetchall() == [(1,)]


def test_relations_are_stored(con: einsql.Connection, tmp_path: Path) -> None:
    rows = con.from_df(ROWS)
    rows.create("t")
    con.table("t").filter("k > 1").create_view("late")
    assert con.view("late").fetchall() == [(2, "a", 2.0), (3, "b", 1.0)]
    with pytest.raises(einsql.InterfaceError, match="cannot read variables"):
        rows.create_view("v")
    rows.filter("k < 3").project("k + 1 AS k, v AS val").create_tensor("x")
    con.from_df(pa.table({"k": [9], "g": ["c"], "v": [0.5]})).insert_into("t")
    con.append("t", pa.table({"v": [0.0], "k": [8], "g": ["d"]}), by_name=True)
    con.append("x", pa.table({"i": [0], "val": [1.0]}))
    assert con.execute("SELECT (SELECT COUNT(*) FROM t), SUM(val) FROM x").fetchone() == (6, 10.0)
    con.table("t").write_csv(str(tmp_path / "t.csv"))
    con.table("t").write_parquet(str(tmp_path / "t.parquet"))
    read = con.read_csv(str(tmp_path / "t.csv"), header=True, columns={"a": "INT", "b": "VARCHAR",
                                                                      "c": "DOUBLE"})  # fmt: skip
    assert read.fetchall() == con.read_parquet(str(tmp_path / "t.parquet")).fetchall()


def test_a_connection_fetches_its_last_result(con: einsql.Connection) -> None:
    con.execute("SELECT i FROM range(3) AS r(i)")
    assert con.description is not None
    assert [con.fetchone(), con.fetchmany(1), con.fetchall()] == [(0,), [(1,)], [(2,)]]
    con.execute("SELECT i FROM range(3) AS r(i)")
    assert con.fetchnumpy()["i"].tolist() == con.df()["i"].tolist() == [0, 1, 2]
    cursor = con.execute("SELECT 1 AS one")
    repr(cursor)
    assert con.rowcount == 1
    cursor.fetchall()
    with pytest.raises(einsql.InterfaceError, match="no results to fetch"):
        con.fetchall()


def test_the_module_has_a_connection_for_each_thread() -> None:
    x = np.ones(3)
    assert einsql.sql("SELECT SUM(val) AS s FROM x").fetchone() == (3.0,)
    assert einsql.query("SELECT ? AS a", params=[5]).fetchall() == [(5,)]
    assert einsql.execute("SELECT 2").fetchone() == (2,)
    others: list[einsql.Connection] = []
    thread = threading.Thread(target=lambda: others.append(einsql.default_connection()))
    thread.start()
    thread.join()
    assert others[0] is not einsql.default_connection()
    einsql.default_connection().close()
    assert einsql.sql("SELECT 1").fetchall() == [(1,)]
    del x


def test_columns_and_statistics_are_those_of_duckdb() -> None:
    query = """SELECT i AS a, i * 1.5::FLOAT AS f, 'x' || i AS s, i > 1 AS k,
        DATE '2020-01-01' AS d, (i / 2.0)::DECIMAL(8, 2) AS q, 1 AS "count" FROM range(4) r(i)"""
    con, oracle = einsql.connect(), duckdb.connect()
    relation, theirs = con.sql(query), oracle.sql(query)
    got, wanted = relation.describe(), theirs.describe()
    assert got.columns == wanted.columns
    assert got.fetchall() == wanted.fetchall()
    assert relation["s"].fetchall() == relation.s.fetchall() == theirs["s"].fetchall()
    assert relation["A"].filter("a > 2").fetchall() == [(3,)]
    assert relation["count"].columns == ["count"]
    with pytest.raises(AttributeError, match=r"no column 'zz'.* Known columns"):
        relation["zz"]
    with pytest.raises(AttributeError, match=r"no column 'zz'.* Known columns"):
        relation.zz.fetchall()
    with pytest.raises(TypeError, match="name of a column"):
        relation[0]  # type: ignore[index]  # a mistake
    x = np.arange(6.0).reshape(2, 3)
    tensor = con.sql("SELECT d0, val FROM x")
    assert tensor.val.fetchall() == [(n,) for n in x.ravel()]
    assert tensor.describe().fetchall()[1] == ("mean", 0.5, 2.5)
    assert not hasattr(tensor, "__array__")


def test_columns_are_those_of_the_newest_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")
    with einsql.connect(path) as one, einsql.connect(path) as other:
        one.execute("CREATE TENSOR t (i DIM(2), val FLOAT) DEFAULT 1")
        assert other.sql("SELECT * FROM t").columns == ["i", "val"]
        other.sql("SELECT * FROM t").fetchall()
        one.execute("CREATE OR REPLACE TENSOR t (i DIM(2), j DIM(3), val FLOAT) DEFAULT 1")
        assert other.sql("SELECT * FROM t").columns == ["i", "j", "val"]


@pytest.mark.parametrize("comment", ["", "/* c */ ", "-- c\n"])
@pytest.mark.parametrize("begin", ["WITH a", "WITH RECURSIVE a", "with  recursive a"])
def test_a_query_over_a_relation_begins_with_a_comment(comment: str, begin: str) -> None:
    with einsql.connect() as con:
        relation = con.sql("SELECT i AS val FROM range(3) AS r(i)")
        sql = f"{comment}{begin} AS (SELECT * FROM t) SELECT SUM(val) AS s FROM a"
        assert relation.query("t", sql).fetchall() == [(3,)]


def test_a_recursive_query_over_a_relation_reads_the_table_of_that_name() -> None:
    with einsql.connect() as con:
        con.execute("CREATE TABLE n AS SELECT 3 AS val")
        sql = (
            "WITH RECURSIVE c(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM c WHERE k < 2) "
            "SELECT k, (SELECT SUM(val) FROM n) AS s FROM c ORDER BY k"
        )
        assert con.table("n").query("n", sql).fetchall() == [(1, 3), (2, 3)]


def test_a_reader_of_batches_is_read_once(con: einsql.Connection) -> None:
    rows = pa.table({"val": [1.0, 2.0, 4.0]})
    reader = rows.to_reader()
    assert reader is not None
    assert con.sql("SELECT SUM(val) AS s FROM reader").fetchall() == [(7.0,)]
    assert con.from_arrow(rows.to_reader()).fetchall() == [(1.0,), (2.0,), (4.0,)]


def test_names_of_schemas_and_paths(con: einsql.Connection, tmp_path: Path) -> None:
    con.execute("CREATE SCHEMA s")
    con.sql("SELECT 1 AS a").create("s.y")
    con.sql("SELECT 2 AS a").insert_into("s.y")
    assert con.execute("SELECT a FROM s.y ORDER BY a").fetchall() == [(1,), (2,)]
    (tmp_path / "t.csv").write_text("a\n3\n")
    assert con.read_csv(tmp_path / "t.csv").fetchall() == [(3,)]


@pytest.mark.parametrize(
    "call",
    [
        lambda r, c: r.project(["a"]),
        lambda r, c: r.filter(None),
        lambda r, c: r.aggregate(None),
        lambda r, c: r.order(("a",)),
        lambda r, c: r.limit("x"),
        lambda r, c: c.from_df([1, 2]),
        lambda r, c: c.read_parquet(5),
    ],
)
def test_arguments_of_another_type_are_refused(call: Any, con: einsql.Connection) -> None:
    with pytest.raises(einsql.InterfaceError, match=r"is a str|is an int|takes a DataFrame"):
        call(con.sql("SELECT 1 AS a"), con)


def test_the_last_result_is_that_of_executemany(con: einsql.Connection) -> None:
    con.execute("SELECT 42")
    con.executemany("SELECT ?", [[1], [2]])
    assert con.fetchall() == [(2,)]


def test_a_question_mark_in_quotes_is_no_parameter(con: einsql.Connection) -> None:
    relation = con.sql("SELECT 1 AS a WHERE 1 = ?", params=[1])
    assert relation.filter("'?' <> '$'").fetchall() == [(1,)]


def test_expressions_over_a_join_name_its_sides(con: einsql.Connection) -> None:
    con.register("p", np.arange(6.0).reshape(2, 3), dims=("i", "j"))
    con.register("q", np.arange(3.0), dims=("j",))
    joined = con.table("p").set_alias("a").join(con.table("q").set_alias("b"), "a.j = b.j")
    assert joined.aggregate("SUM(a.val * b.val) AS s").fetchall() == [(19.0,)]
    assert joined.project("a.i, b.val").order("i").limit(1).fetchall() == [(0, 0.0)]
    assert joined.filter("b.val > 1").aggregate("COUNT(*) AS n").fetchall() == [(2,)]
    assert joined.project("i, val_1").filter("val_1 > 1").order("i").fetchall() == [
        (0, 2.0),
        (1, 2.0),
    ]
