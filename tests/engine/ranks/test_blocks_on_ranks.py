"""Plans over blocks on MPI ranks: the same blocks, the traffic that virtual sites have."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import einsql
from einsql import tra
from einsql.engine.block_program import SiteRun
from einsql.engine.ranks.block_program import RankBlockProgram
from einsql.engine.ranks.call import Tick
from einsql.engine.ranks.messages import Command, Kept, Run, Source
from einsql.optimizer.tra import RULES
from einsql.storage.fields import PlacedFields
from einsql.storage.objects import Tensor
from tests.engine.ranks.conftest import Connected
from tests.optimizer.test_ia_rules import FORMS, form
from tests.sql.test_tiles import X, Y
from tests.sql.test_tiles import con as alone  # a fixture
from tests.sql.test_tiles_on_sites import STATEMENTS, plan_of, product, result
from tests.sql.test_tiles_random import M, random_select
from tests.support.samples import sample
from tests.support.sites import assert_same, meaning, random_relation

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

__all__ = ["alone"]

ALL_RULES = ", ".join(r.name for r in RULES)


def assert_same_run(here: SiteRun, there: SiteRun) -> None:
    """Every rank sends, receives and computes what its virtual site does."""
    assert there.sent == here.sent
    assert there.received == here.received
    assert there.flops == here.flops
    assert_same(dict(there.blocks), dict(here.blocks))


@pytest.mark.parametrize("count", sample([3], [2, 3]))
def test_random_plans_mean_the_same(connected: Connected, count: int) -> None:
    con = connected(count)
    moved = 0
    for seed in range(sample(12, 36)):
        pick = Random(seed)
        relation = random_relation(pick)
        sites = count * pick.randint(1, 2)
        disabled = "" if seed % 3 else ALL_RULES  # Table 1's plan moves more
        here, there = (relation.place(sites, disabled=disabled, connection=c) for c in (None, con))
        run = there.run()
        assert_same_run(here.run(), run)
        assert_same(dict(run.blocks), meaning(relation))
        assert sum(run.sent) == sum(run.received) == there.bytes_sent
        moved += there.bytes_sent > 0
    assert moved >= sample(2, 6)


@pytest.mark.parametrize("name", FORMS)
def test_products_of_every_form_send_what_is_predicted(connected: Connected, name: str) -> None:
    (i, j, k), (p, q, r), sites, where, beta = FORMS[name]
    x = tra.scan(np.arange(i * j).reshape(i, j) % 5 / 2, (p, q), name="x")
    y = tra.scan(np.arange(j * k).reshape(j, k) % 7 / 4, (q, r), name="y")
    relation = x.join(y, (1,), (0,), tra.matmul).aggregate((0, 2))
    con = connected(4)
    here, there = (
        relation.place(sites, stored=where, beta=beta, connection=c) for c in (None, con)
    )
    run = there.run()
    assert form(there.plan) == name
    assert sum(run.sent) == there.bytes_sent > 0
    assert_same_run(here.run(), run)
    assert max(run.flops) * sites <= 1.5 * sum(run.flops)


@pytest.mark.parametrize("disabled", ["", "RMM, BMM, CPMM, 3D, R2-1, R2-5, R2-6"])
def test_statements_give_the_same(
    connected: Connected, alone: einsql.Connection, disabled: str
) -> None:
    wanted = [result(alone, sql) for sql in STATEMENTS]
    con = connected(3)
    con.context.store = alone.store
    con.execute(f"SET disabled_rules = '{disabled}'")
    for sql, one in zip(STATEMENTS, wanted, strict=True):
        assert result(con, sql) == one, sql


@pytest.mark.parametrize("count", sample([4], [2, 4]))
def test_random_selects_send_what_is_predicted(connected: Connected, count: int) -> None:
    con = connected(count)
    con.register("s", M, ("i", "j"))
    con.execute("CREATE TENSOR m AS SELECT i, j, val FROM s")
    for seed in range(2000, sample(2003, 2015)):
        sql, wanted = random_select(Random(seed))
        rows = con.execute(sql).fetchall()
        assert [row[:-1] for row in rows] == list(wanted), sql
        for row in rows:
            np.testing.assert_allclose(row[-1], wanted[row[:-1]], rtol=1e-12, err_msg=sql)
        program = plan_of(con, sql).program
        assert isinstance(program.executor, RankBlockProgram)
        assert program.sited is not None
        inputs = {"m": stored(con, "m").relation.fields}
        _, measure = program.executor.measured(inputs, lambda _: None)
        assert sum(measure.sent) == program.sited.cost.bytes_sent


def test_blocks_stay_where_they_are_made_and_are_read_there(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = connected(2)
    con.register("x", X, ("i", "j"))
    con.register("y", Y, ("j", "k"))
    con.execute(f"CREATE TENSOR p AS {product(2, 2, 2)}")
    fields = stored(con, "p").relation.fields
    assert isinstance(fields, PlacedFields)
    with monkeypatch.context() as patch:
        sources = watched_sources(con, patch)
        rows = con.execute("SELECT i, k, tile * 2 AS t FROM TILES(p, 2, 2)").fetchall()
    assert sources
    assert all(isinstance(s, Kept) for s in sources)
    np.testing.assert_array_equal(rows[0][-1], 2 * (X @ Y)[:4, :2])
    again = "SELECT i, tensor_sum(tile) AS t FROM TILES(p, 2, 1) GROUP BY i"
    (top, bottom) = (row[-1] for row in con.execute(again).fetchall())
    np.testing.assert_array_equal(np.vstack([top, bottom]), X @ Y)
    total = f"SELECT SUM(val) AS v FROM ELEMENTS(({product(2, 1, 2)}))"
    assert con.execute(total).fetchone() == ((X @ Y).sum(),)
    summed = "TILES((SELECT i, SUM(val) AS v FROM p GROUP BY i), 7)"
    rows = con.execute(f"SELECT i, tile FROM {summed}").fetchall()
    np.testing.assert_array_equal(np.concatenate([t for _, t in rows]), (X @ Y).sum(axis=1))
    assert stored(con, "p").relation.fields is fields


def test_a_deep_plan_is_shipped(connected: Connected) -> None:
    deep = tra.scan(np.arange(16.0).reshape(4, 4), (2, 2))
    for _ in range(400):
        deep = deep.rekey(lambda i, j: (j, i))
    placed = deep.place(2, connection=connected(2), disabled=ALL_RULES)
    assert_same(dict(placed.run().blocks), meaning(deep))


def watched_sources(con: einsql.Connection, patch: pytest.MonkeyPatch) -> list[Source]:
    """Grows with where ranks are told to take what they read."""
    found: list[Source] = []
    assert con.cluster is not None
    call = con.cluster.call

    def watched(commands: dict[int, Command], tick: Tick | None = None) -> list[Any]:
        for command in commands.values():
            found.extend(command.loads.values() if isinstance(command, Run) else ())
        return call(commands, tick)

    patch.setattr(con.cluster, "call", watched)
    return found


def stored(con: einsql.Connection, name: str) -> Tensor:
    found = con.store.get(name)
    assert isinstance(found, Tensor)
    return found
