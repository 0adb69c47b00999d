"""Parameters at MPI ranks: one plan for many values, and tensors that stay where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.samples import sample

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

import einsql
from einsql.engine.ranks.messages import Kept, Run, Sent, Slice
from einsql.engine.ranks.start import starting
from einsql.storage.objects import Tensor
from tests.engine.ranks.conftest import close_alone
from tests.sql.test_parameters import ONCE, SINGLE, WINDOWS, W, X, Y
from tests.sql.test_parameters_on_sites import EDGES, planned, session
from tests.support.oracle.parameters import alike, answer, parameter_campaign
from tests.support.oracle.ranks import WatchedCluster


class Listening(WatchedCluster):
    """Ranks that note where what they load comes from."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.loads: list[Any] = []

    def call(self, commands: Any, *more: Any, **options: Any) -> list[Any]:
        """As `Cluster.call`."""
        self.loads += [s for c in commands.values() if isinstance(c, Run) for s in c.loads.values()]
        return super().call(commands, *more, **options)


@pytest.fixture(scope="module", params=sample([3], [2, 3]))
def cluster(request: pytest.FixtureRequest) -> Iterator[Listening]:
    made = Listening(starting(request.param))
    yield made
    made.close()


@pytest.fixture
def con(cluster: Listening) -> Iterator[einsql.Connection]:
    """Some tensors are stored at the ranks, and y is an array of this process."""
    made = einsql.Connection(cluster)
    made.execute(f"SET sites = {cluster.ranks}")
    made.register("y", Y, dims=("j", "k"))
    for name, array, cut in (("x", X, ""), ("w", W, "PARTITION BY (j 2)")):
        made.register("given", array, dims=("i", "j"))
        made.execute(f"CREATE TENSOR {name} {cut} AS SELECT i, j, val FROM given")
    yield made
    close_alone(made)


def test_a_statement_is_planned_as_often_as_at_one_site(con: einsql.Connection) -> None:
    one = session(1)
    for sql, many in (*ONCE, *WINDOWS, *SINGLE):
        assert planned(con, sql, many) == planned(one, sql, many) == 1, sql
        for given in many:
            assert alike(answer(con, sql, given), answer(one, sql, given)), (sql, given)


def test_values_at_the_edges_give_what_one_site_gives(con: einsql.Connection) -> None:
    one = session(1)
    before = con.planner_calls
    for sql, many in EDGES:
        for given in many * 2:
            found, wanted = (answer(c, sql, list(given)) for c in (con, one))
            assert alike(found, wanted), (sql, given, found, wanted)
            assert found[0] == "rows" or found[2] == wanted[2]
    assert con.planner_calls - before == one.planner_calls


def test_stored_tensors_stay_where_they_are(con: einsql.Connection, cluster: Listening) -> None:
    con.register("v", np.ones(7), dims=("j",))
    sql = "SELECT i, SUM(x.val * v.val) AS s FROM x JOIN v USING (j) WHERE i = ? GROUP BY i"
    for row in (0, 5):
        con.execute(sql, [row]).fetchall()
    del cluster.loads[:]
    for row in (3, 1):
        assert con.execute(sql, [row]).fetchall() == [(row, X[row].sum())]
    whole = [s.source for s in cluster.loads if isinstance(s, Slice)]
    assert len(whole) == 2 * cluster.ranks
    assert all(isinstance(s, Kept) for s in whole)
    sent = [a for s in cluster.loads if isinstance(s, Sent)
            for tile in s.tiles.values() for a in tile.values()]  # fmt: skip
    assert sum(a.size for a in sent) <= 2 * cluster.ranks * 8  # v and the scalar


def test_windows_of_cut_keys_move_what_is_in_them(con: einsql.Connection) -> None:
    sql = """WITH b AS (SELECT i, j, val FROM x WHERE i BETWEEN ?1 AND ?1 + 2)
      SELECT /*+ PARTITION({}=2) */ b.i, y.k, SUM(b.val * y.val * (b.i + 1)) AS s
      FROM b JOIN y USING (j) GROUP BY b.i, y.k"""
    for label in "ijk":
        before = con.planner_calls
        for lo in (0, 3, 1):
            found = con.execute(sql.format(label), [lo]).fetch_numpy()
            inside = X[lo : lo + 3] * np.arange(lo + 1, lo + 4)[:, None]
            np.testing.assert_allclose(found, inside @ Y)
        assert con.planner_calls - before == 1


def test_what_a_window_gives_is_stored_by_its_own_keys(con: einsql.Connection) -> None:
    for lo in (1, 3):
        con.execute(
            "CREATE OR REPLACE TENSOR part AS SELECT i, j, val FROM x "
            "WHERE i BETWEEN ?1 AND ?1 + 1 AND j <= ?2", [lo, lo],
        )  # fmt: skip
        found = con.execute("SELECT i, j, val FROM part")
        assert (found.origin, found.shape) == ((lo, 0), (2, lo + 1))
        assert found.fetch_numpy().tolist() == X[lo : lo + 2, : lo + 1].tolist()
        (total,) = con.execute("SELECT SUM(val * i) AS s FROM part").fetchone() or ()
        assert total == (X[lo : lo + 2, : lo + 1] * [[lo], [lo + 1]]).sum()


def test_files_are_read_within_windows(con: einsql.Connection, tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", X)
    sql = f"SELECT SUM(x.val * x.d1) AS s FROM '{tmp_path / 'x.npy'}' AS x WHERE x.d0 = ?"
    before = con.planner_calls
    for row in (0, 5, 2):
        assert con.execute(sql, [row]).fetchall() == [((X[row] * np.arange(7)).sum(),)]
    assert con.planner_calls - before == 1


def test_changes_of_tensors(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR c (i DIM(6), j DIM(7), val DOUBLE) DEFAULT 0")
    sql = """WITH m AS (SELECT j, val, val * ?2 AS twice FROM x WHERE i = ?1),
      kept AS (INSERT INTO c SELECT ?1 AS i, j, val FROM m) SELECT SUM(twice) AS s FROM m"""
    before, c = con.planner_calls, np.zeros_like(X)
    for row in (0, 5, 3):
        assert con.execute(sql, [row, 2.0]).fetchall() == [(2 * X[row].sum(),)]
        c[row] = X[row]
    assert con.planner_calls - before == 1
    for row in (3, 0, 6):
        con.execute("UPDATE c SET val = c.val - ?1 WHERE i = ?2", [0.5, row])
    c[[0, 3]] -= 0.5
    con.execute("UPDATE c SET val = c.val + 1 WHERE j <= ?", [2])
    c[:, :3] += 1
    np.testing.assert_allclose(con.execute("SELECT i, j, val FROM c").fetch_numpy(), c)


def test_rows_are_inserted_where_the_tensor_lies(
    con: einsql.Connection, cluster: Listening
) -> None:
    insert = (
        "INSERT OR REPLACE INTO c "
        "SELECT ?1 AS i, j, SUM(val) * ?2 AS val FROM x WHERE i = ?1 GROUP BY j"
    )
    read = "SELECT j, SUM(val) AS s FROM c WHERE i = ? GROUP BY j"
    for default in ("DEFAULT 0", ""):
        con.execute(f"CREATE OR REPLACE TENSOR c (i DIM(6), j DIM(7), val DOUBLE) {default}")
        if not default:
            con.execute("CREATE OR REPLACE TENSOR c AS SELECT i, j, val FROM x WHERE i <> 4")
        for row in (0, 5):
            con.execute(insert, [row, 2.0])
            assert con.execute(read, [row]).fetchall() == list(enumerate(2 * X[row]))
        before = con.planner_calls
        con.execute(insert, [1, 2.0])
        assert con.execute(read, [1]).fetchall() == list(enumerate(2 * X[1]))
        assert con.planner_calls == before
        shown = con.execute("SELECT i, j, val FROM c")
        fields = _fields(con)
        con.execute("BEGIN")
        con.execute(insert, [5, 7.0])
        assert con.execute(read, [5]).fetchall() == list(enumerate(7 * X[5]))
        con.execute("ROLLBACK")
        del cluster.loads[:]
        assert con.execute(read, [5]).fetchall() == list(enumerate(2 * X[5]))
        assert not any(isinstance(s.source, Sent) for s in cluster.loads if isinstance(s, Slice))
        con.execute(insert, [3, -1.0])
        assert con.execute(read, [3]).fetchall() == list(enumerate(-X[3]))
        assert _fields(con).tiles.equals(fields.tiles)
        assert shown.fetch_numpy(fill=9)[3].tolist() == ([0.0] * 7 if default else X[3].tolist())


def test_random_statements_give_what_literals_give_at_one_site(cluster: Listening) -> None:
    found = parameter_campaign(sample(2, 12), 70, sites=cluster.ranks, cluster=cluster)
    assert not found.differences, "\n\n".join(found.differences)
    assert found.shared


def _fields(con: einsql.Connection) -> Any:
    """Where the values of the tensor c lie."""
    held = con.store.get("c")
    assert isinstance(held, Tensor)
    return held.relation.fields
