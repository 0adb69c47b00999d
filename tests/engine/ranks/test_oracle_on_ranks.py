"""Random statements on MPI ranks against DuckDB; `make ranks` runs many more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.samples import sample

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

import einsql
from einsql.engine.ranks.start import starting
from tests.engine.ranks.conftest import close_alone
from tests.support.oracle.campaign import campaign
from tests.support.oracle.oracle import Oracle
from tests.support.oracle.ranks import WatchedCluster, changing, repeated, tiled

QUERIES = sample(8, 40)


@pytest.fixture(scope="module", params=sample([3], [2, 3, 4]))
def cluster(request: pytest.FixtureRequest) -> Iterator[WatchedCluster]:
    made = WatchedCluster(starting(request.param))
    yield made
    made.close()


def test_random_queries_agree_with_duckdb(cluster: WatchedCluster) -> None:
    before = cluster.moved
    report = campaign(QUERIES, 400 + cluster.ranks, repros=1, cluster=cluster)
    assert not report.findings, report.text()
    assert report.verdicts["agree"] >= 0.8 * QUERIES, report.text()
    assert cluster.moved - before >= QUERIES // 8


def test_repeated_queries_have_the_same_answer(cluster: WatchedCluster) -> None:
    found = repeated(cluster, sample(3, 16), cluster.ranks)
    assert not found, "\n\n".join(found)


def test_queries_between_changes_agree_with_duckdb(cluster: WatchedCluster) -> None:
    found = changing(cluster, sample(3, 12), cluster.ranks)
    assert not found, "\n\n".join(found)


def test_queries_over_tiles_give_what_loops_give(cluster: WatchedCluster) -> None:
    assert not tiled(cluster, sample(2, 10), cluster.ranks)


def test_parameters_agree_with_duckdb(cluster: WatchedCluster) -> None:
    con, oracle = einsql.Connection(cluster), Oracle()
    con.execute(f"SET sites = {cluster.ranks}")
    create = "CREATE TENSOR x AS SELECT i, i * 3 % 7 AS val FROM range(11) AS r(i)"
    con.execute(create)
    oracle.statement(create)
    sql = "SELECT i % 4 AS g, SUM(val * ?) AS s FROM x WHERE val > ? AND i <> ? GROUP BY i % 4"
    for given in ((2, 1, 3), (-1, 0, 0), (2, 1, 3), (5, 6, 10), (5, 7, 10)):
        wanted = oracle.con.execute(sql, given).fetchall()
        assert con.execute(sql, given).fetchall() == sorted(wanted), given
    oracle.close()
    close_alone(con)
