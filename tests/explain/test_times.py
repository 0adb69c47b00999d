"""EXPLAIN ANALYZE: the time of each step, its share, and the part of the statement it computes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import einsql
from einsql.explain.operations import Measured
from einsql.explain.report import GraphReport, RunReport
from einsql.explain.times import times_lines

NETWORK = """WITH z AS (
  SELECT n, h, SUM(x.val * w.val) AS val FROM x JOIN w USING (d) GROUP BY n, h),
p AS (SELECT n, h, val FROM softmax(z, h))
SELECT n, MAX(val) AS best
FROM p GROUP BY n"""


@pytest.fixture
def con() -> einsql.Connection:
    """Two matrices."""
    con = einsql.connect()
    rng = np.random.default_rng(1)
    con.register("x", rng.standard_normal((30, 20)), dims=("n", "d"))
    con.register("w", rng.standard_normal((20, 10)), dims=("d", "h"))
    return con


def times(con: einsql.Connection, sql: str) -> list[str]:
    """The lines of the times of a statement."""
    lines = [line for (line,) in con.execute(f"EXPLAIN ANALYZE {sql}").fetchall()]
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith("-- time"))
    return lines[start:]


def measured(report: GraphReport, seconds: float, steps: dict[str, float]) -> GraphReport:
    """A report with chosen times."""
    nodes = [
        replace(n, group=None, measured=Measured(seconds=steps.get(n.id, 0.0)))
        for n in report.nodes
    ]
    return replace(report, nodes=nodes, run=RunReport(seconds=seconds, compiling=0.0))


@pytest.mark.parametrize("sites", [1, 3])
def test_steps_name_the_parts_of_the_statement_with_their_lines(
    con: einsql.Connection, sites: int
) -> None:
    con.execute(f"SET sites = {sites}")
    first, *rows = times(con, NETWORK)
    assert re.fullmatch(
        r"-- time: [\d.]+ (µs|ms|s)(, of which .* waiting for the compiler)?", first
    )
    text = "\n".join(rows)
    for part in ("z (lines 1 to 2)", "softmax in p (line 3)", "SELECT (lines 4 to 5)"):
        assert part in text
    shares = [float(s) for s in re.findall(r"([\d.]+)%", text)]
    assert sum(shares) == pytest.approx(
        100, abs=0.05 * len(shares) + 0.01
    )  # each is rounded to 0.1 %


def test_the_longest_step_comes_first_with_the_longest_bar(con: einsql.Connection) -> None:
    report = con.explain(NETWORK).report
    assert isinstance(report, GraphReport)
    ids = [n.id for n in report.nodes]
    lines = list(times_lines(measured(report, 1.0, {ids[0]: 0.25, ids[-1]: 0.5})))
    assert lines[0] == "-- time: 1 s"
    assert re.match(rf"{ids[-1]} +500 ms +50.0%  █{{10}} ", lines[1])
    assert re.match(rf"{ids[0]} +250 ms +25.0%  █{{5}} ", lines[2])
    assert re.match(r"outside of steps +250 ms +25.0%  █{5}$", lines[-1])


def test_steps_of_repeated_layers_share_a_row(con: einsql.Connection) -> None:
    con.register("m", np.eye(20), dims=("d", "e"))
    layers = [
        "y0 AS (SELECT n, d, val FROM x)",
        *(
            f"y{n + 1} AS (SELECT n, e AS d, SUM(y.val * m.val) AS val "
            f"FROM y{n} y JOIN m USING (d) GROUP BY n, e)"
            for n in range(5)
        ),
    ]
    sql = f"WITH {', '.join(layers)} SELECT n, d, val FROM y5"
    report = con.explain(sql).report
    assert isinstance(report, GraphReport)
    rows = list(times_lines(measured(report, 1.0, {n.id: 0.1 for n in report.nodes})))
    assert len(rows) < len(report.nodes)
    assert any(re.search(r"r\d … r\d \(\d steps\) .* y\d … y\d", row) for row in rows)


def test_views_macros_and_gradients_are_named(con: einsql.Connection) -> None:
    con.execute("CREATE VIEW z AS SELECT n, SUM(val * val) AS val FROM x GROUP BY n")
    con.execute("CREATE VIEW loss AS SELECT SUM(val) AS val FROM z")
    assert "z" in re.findall(r"\S+", "\n".join(times(con, "SELECT n, SQRT(val) AS r FROM z")))
    assert "gradient by x" in "\n".join(times(con, "SELECT n, d, val FROM GRADIENT(loss, x)"))


def test_fragments_of_statements_for_duckdb_are_measured(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE names AS SELECT k AS n, 'row ' || k AS title FROM range(30) r(k)")
    sql = "SELECT title, s FROM (SELECT n, SUM(val) AS s FROM x GROUP BY n) JOIN names USING (n)"
    lines = times(con, sql)
    assert lines[0].startswith("    -- time: ")
    assert "DuckDB's plan:" in lines


def test_the_json_has_times_and_origins(con: einsql.Connection) -> None:
    plan = con.explain(NETWORK, analyze=True).to_dict()
    assert plan["run"]["seconds"] >= plan["run"]["compiling"] >= 0
    assert {"z (lines 1 to 2)"} <= {o for n in plan["nodes"] for o in n["origins"]}
    assert "run" not in con.explain(NETWORK).to_dict()


def test_changes_are_named_by_their_kind(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR v (n DIM(30), val DOUBLE) DEFAULT 0")
    change = (
        "WITH m AS (SELECT n, MAX(val) AS val FROM x GROUP BY n)\nUPDATE v SET val = m.val + 1 "
    )
    text = "\n".join(times(con, change + "FROM m WHERE m.n = v.n"))
    assert "m (line 1)" in text
    assert "UPDATE" in text
    assert "SELECT" not in text
