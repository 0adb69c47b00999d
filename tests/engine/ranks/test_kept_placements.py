"""Tensors that nothing changes: ranks keep them in the tiles of their readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

import einsql
from einsql.core.schema import DType, Field, Key, Schema
from einsql.engine.ranks.messages import Kept, Run
from einsql.engine.ranks.start import starting
from einsql.engine.ranks.windows import Windows
from einsql.ir.layout import Tiles
from einsql.storage.fields import LocalFields, WindowFields
from tests.engine.ranks.conftest import close_alone
from tests.support.oracle.ranks import WatchedCluster
from tests.support.samples import sample

X = np.random.default_rng(0).standard_normal((512, 1024))
GRAM = (
    "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS val FROM x AS a JOIN x AS b USING (j) "
    "GROUP BY a.i, b.i"
)


class Runs(WatchedCluster):
    """Ranks that note the runs of programs, and which of them got the last command."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.noted: list[Run] = []
        self.asked: list[int] = []

    def call(self, commands: Any, *more: Any, **options: Any) -> list[Any]:
        """As `Cluster.call`."""
        self.asked = list(commands)
        self.noted += [c for c in list(commands.values())[:1] if isinstance(c, Run)]
        return super().call(commands, *more, **options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Runs]:
    made = Runs(starting(2))
    yield made
    made.close()


@pytest.fixture
def con(cluster: Runs) -> Iterator[einsql.Connection]:
    """The tensor x is cut along j, and its products cost least if it is not."""
    made = einsql.Connection(cluster)
    made.execute("SET sites = 2")
    made.execute("SET cost = 'seconds'")
    made.register("given", X, dims=("i", "j"))
    made.execute("CREATE TENSOR x AS SELECT i, j, val FROM given")
    yield made
    close_alone(made)


def sent(con: einsql.Connection) -> int:
    """The bytes that the plan of the product sends."""
    return int(con.explain(GRAM).to_dict()["total"]["bytes_sent"])


def test_a_constant_tensor_is_moved_once(con: einsql.Connection, cluster: Runs) -> None:
    assert sent(con) == 0
    for run in range(3):
        del cluster.noted[:]
        np.testing.assert_allclose(con.execute(GRAM).fetch_numpy(), X @ X.T)
        assert len(cluster.noted) == (2 if run == 0 else 1)
    (one,) = cluster.noted
    assert all(isinstance(s, Kept) for s in one.loads.values())
    assert not one.together


def test_a_changed_tensor_stays_where_it_lies(con: einsql.Connection, cluster: Runs) -> None:
    changed = X.copy()
    for row in range(4):
        before = con.planner_calls
        con.execute("UPDATE x SET val = val + 1 WHERE i < 5")
        changed[:5] += 1
        del cluster.noted[:]
        np.testing.assert_allclose(con.execute(GRAM).fetch_numpy(), changed @ changed.T)
        assert len(cluster.noted) == 1
        assert cluster.noted[0].together
        assert row < 2 or con.planner_calls == before  # the merge of UPDATE is cached too
    assert sent(con) > 0


def several_products() -> list[str]:
    """Returns statements that read x in more placements than ranks keep."""
    return [
        f"SELECT {keys}, SUM(a.val * b.val) AS val FROM x AS a JOIN x AS b USING ({on}) "
        f"WHERE a.{other} < {limit} GROUP BY {keys.replace(' AS k', '')}"
        for keys, on, other in (("a.i, b.i AS k", "j", "i"), ("a.j, b.j AS k", "i", "j"))
        for limit in (512, 256, 128)
    ]


def test_ranks_keep_few_placements(con: einsql.Connection) -> None:
    statements = several_products()
    expected = [con.execute(s).fetch_numpy() for s in statements]
    for statement, value in zip(statements, expected, strict=True):
        np.testing.assert_allclose(con.execute(statement).fetch_numpy(), value)


def test_ranks_keep_few_placements_in_a_loop(con: einsql.Connection) -> None:
    """Runs that start ahead read placements that later runs make ranks release."""
    con.execute("CREATE TENSOR w (k DIM(1024), val DOUBLE) PARTITION BY (k 2) DEFAULT 1")
    changes = [
        f"UPDATE w SET val = w.val * 0.5 + p.val FROM (SELECT k, SUM(val) AS val FROM ({product}) "
        "AS c GROUP BY k) AS p WHERE p.k = w.k"
        for product in several_products()
    ]
    with einsql.connect() as alone:
        alone.register("x", X, dims=("i", "j"))
        alone.execute("CREATE TENSOR w (k DIM(1024), val DOUBLE) DEFAULT 1")
        for each in (con, alone):
            each.execute(f"FOR step IN range({sample(2, 5)}) DO {'; '.join(changes)}; END FOR")
        found, right = (c.execute("SELECT k, val FROM w").fetch_numpy() for c in (con, alone))
    np.testing.assert_allclose(found, right)


def test_a_rank_without_work_gets_no_message(con: einsql.Connection, cluster: Runs) -> None:
    con.execute(
        "CREATE TENSOR small AS SELECT i, val FROM (VALUES (0, 1e0), (1, 3e0)) AS r(i, val)"
    )
    for run in range(20):
        rows = con.execute("SELECT SUM(val) + ? AS s FROM small", [run]).fetchall()
        assert rows == [(4.0 + run,)]
        assert cluster.asked == [0]
    # Rank 1 gets what the driver no longer needs with its next message.
    np.testing.assert_allclose(con.execute(GRAM).fetch_numpy(), X @ X.T)
    assert con.execute("SELECT SUM(val) AS s FROM small").fetchall() == [(4.0,)]


def test_an_error_at_one_rank_alone_is_an_error_of_the_statement(
    con: einsql.Connection, cluster: Runs
) -> None:
    con.register("given", np.arange(2.0**16), dims=("i",))
    con.execute("CREATE TENSOR line PARTITION BY (i 2) AS SELECT i, val FROM given")
    sql = "SELECT i, CAST(val + ? AS SMALLINT) AS val FROM line"
    for _ in range(2):
        with pytest.raises(einsql.DataError):
            con.execute(sql, [0.0])
        assert cluster.asked == [0, 1]
        found = con.execute(sql, [-(2.0**15)]).fetch_numpy()
        np.testing.assert_array_equal(found["val"], np.arange(2**16) - 2**15)
    assert not cluster.noted[-1].together


def test_windows_along_other_axes_have_other_tiles() -> None:
    schema = Schema((Key("i", 0, 4), Key("j", 0, 4)), (Field("val", DType.DOUBLE),))
    tiles = Tiles(np.zeros(1, np.int64), np.array([[[0, 1], [0, 1]]]))
    fields, windows = LocalFields({"val": np.zeros((4, 4))}), Windows()
    for start in range(3):
        for axis, box in ((0, [[0, 4], [0, 1]]), (1, [[0, 1], [0, 4]])):
            at = [slice(0, 1), slice(0, 1)]
            at[axis] = slice(start, start + 1)
            cut = windows.of(WindowFields(fields, at, (axis,)), schema, tiles, lambda _: False)
            assert cut is not None
            assert cut.tiles.boxes.tolist() == [box]
            assert cut.at == tuple(at[n] if n == axis else slice(None) for n in range(2))
