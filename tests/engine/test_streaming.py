"""Work on pieces as they arrive: the same answers and traffic as with whole operands."""

from __future__ import annotations

import numpy as np
import pytest

import einsql
from einsql.engine import streaming_exchange
from einsql.engine.spmd_executor import SiteProgram
from tests.engine.test_sites import QUERIES, connection, explained
from tests.support.plans import cached
from tests.support.samples import sample, spread

FORCED = [
    *QUERIES,
    "SELECT /*+ PARTITION(i=SITES) */ i, k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) "
    "GROUP BY i, k",
    # pairs, presence and counts of pieces are merged like those of cells
    "SELECT /*+ PARTITION(j=SITES) */ j, ARG_MAX(i, val) AS a, MIN(val) AS b, COUNT(*) AS n FROM x "
    "WHERE val > 2 GROUP BY j",
    "SELECT /*+ PARTITION(j=SITES) */ j, i, val * 2 AS v FROM x",
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_exchange, "PIECE", 0)
    monkeypatch.setattr(streaming_exchange, "DEPTH", 0)
    monkeypatch.setattr(streaming_exchange, "MARGIN", -1000)


def streams(con: einsql.Connection, sql: str) -> int:
    """How many exchanges are streamed in the plan of a statement that has run."""
    program = cached(con, sql).program
    assert isinstance(program, SiteProgram)
    return sum(s is not None for s in program._streams.values())


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("cut", ["i", "j"])
def test_pieces_give_what_whole_operands_give(cut: str) -> None:
    used = 0
    for query in [*spread(QUERIES, 5), *FORCED[len(QUERIES) :]]:
        expected = connection().execute(query.replace("SITES", "1")).fetchall()
        for sites in sample((3,), (2, 3, 4)):
            sql = query.replace("SITES", str(sites))
            con = connection(sites, "equal")
            for name, key in (("x", cut), ("y", "j")):
                con.execute(
                    f"CREATE OR REPLACE TENSOR {name} PARTITION BY ({key} {sites}) "
                    f"AS SELECT * FROM {name}"
                )
            rows = con.execute(sql).fetchall()
            for row, wanted in zip(rows, expected, strict=True):
                assert row == pytest.approx(wanted, rel=1e-5), (sql, sites)
            used += streams(con, sql)
            report = explained(con, sql, "ANALYZE, ")
            assert [n["measured"]["bytes_sent"] for n in report["nodes"]] == [
                n["bytes_sent"] for n in report["nodes"]
            ]
    assert used >= sample(3, 10)


def test_small_pieces_are_put_together() -> None:
    con = connection(4)
    con.execute("CREATE OR REPLACE TENSOR y PARTITION BY (j 4) AS SELECT * FROM y")
    sql = FORCED[len(QUERIES)].replace("SITES", "4")
    con.execute(sql)
    assert streams(con, sql) == 0


def test_large_pieces_are_taken_as_they_arrive_and_merged_only_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming_exchange, "PIECE", 2**20)  # the pieces here are of 1 and 2 MB
    con = connection(4)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, (1024, 1024)).astype(np.float32) for _ in "ab")
    con.register("a", a, dims=("i", "j"))
    con.register("b", b, dims=("j", "k"))
    for key, wanted in (("k", 1), ("j", 0)):
        con.execute(f"CREATE OR REPLACE TENSOR s PARTITION BY ({key} 4) AS SELECT * FROM b")
        sql = "SELECT /*+ PARTITION(i=4) */ i, k, SUM(a.val * s.val) AS v FROM a JOIN s USING (j) "
        sql += "GROUP BY i, k"
        got = con.execute(sql).fetch_numpy()
        assert streams(con, sql) == wanted
        assert (got == a @ b).all()
    # A long contraction to a small result: what is read counts more than what is merged.
    long = rng.integers(-4, 4, (4, 2**19)).astype(np.float32)
    con.register("u", long, dims=("i", "j"))
    con.register("v", long.T.copy(), dims=("j", "k"))
    con.execute("CREATE TENSOR w PARTITION BY (j 4) AS SELECT j, k, val FROM v")
    sql = "SELECT /*+ PARTITION(i=4, j=1, k=1) */ i, k, SUM(u.val * w.val) AS v "
    sql += "FROM u JOIN w USING (j) GROUP BY i, k"
    assert (con.execute(sql).fetch_numpy() == long @ long.T).all()
    assert streams(con, sql) == 1
