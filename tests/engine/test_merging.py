"""Partial results: any order of merging gives the same, and no site gets more than it must."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
import pytest

import einsql
from einsql.core.schema import DType
from einsql.engine.spmd_executor import SiteProgram
from einsql.ir.einsum.graph import TRUE, EinSum, Output, Value
from einsql.ir.einsum.partial_merge import merged
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete
from einsql.ir.spmd.reduce_tree import Round, rounds
from einsql.planner.plan import Plan
from tests.support.plans import cached

ODD = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0, 1.0, 2.0])


def node(reduction: str, dtype: DType) -> EinSum:
    """One output; what it is computed from does not matter to merging."""
    value = Value(0, "val", dtype)
    pair = reduction.startswith("arg")
    args = (Value(0, "arg", DType.BIGINT), value) if pair else (value,)
    made = DType.BIGINT if pair else dtype
    return with_state(EinSum((), (), TRUE, (), (Output("o", args, made, reduction),)))


def part(of: EinSum, chance: np.random.Generator) -> Mapping[str, np.ndarray]:
    """A state of 20 groups, with ties, NaN, and groups without a value."""
    fields: dict[str, np.ndarray] = {}
    for o in of.outputs:
        if o.dtype is DType.BOOLEAN:
            fields[o.name] = chance.random(20) < 0.7
        elif o.dtype.is_float and o.reduction != "sum":
            fields[o.name] = chance.choice(ODD, 20).astype(o.dtype.numpy)
        else:
            fields[o.name] = chance.integers(-4, 4, 20).astype(o.dtype.numpy)
    return fields


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.DOUBLE, DType.BIGINT])
@pytest.mark.parametrize("reduction", ["sum", "min", "max", "arg_min", "arg_max"])
def test_a_tree_gives_what_merging_all_at_once_gives(reduction: str, dtype: DType) -> None:
    pick, chance = Random(1), np.random.default_rng(1)
    made = node(reduction, dtype)
    for count in (1, 2, 3, 7):
        parts = [part(made, chance) for _ in range(count)]
        wanted = merged(made, parts)
        while len(parts) > 1:
            at = pick.randrange(len(parts) - 1)
            parts[at : at + 2] = [merged(made, parts[at : at + 2])]
        for name, array in parts[0].items():
            assert array.dtype == wanted[name].dtype
            # The argument of a group without a value is arbitrary.
            there = wanted["o.some"] if "o.some" in wanted else np.ones(20, bool)
            np.testing.assert_array_equal(array[there], wanted[name][there])
            assert (np.signbit(array[there]) == np.signbit(wanted[name][there])).all()


def test_float_sums_at_one_site_are_rounded_once() -> None:
    made = node("sum", DType.FLOAT)
    parts = [{"o": np.array([v], np.float32)} for v in (1.0, *[2.0**-24] * 16)]
    assert merged(made, parts)["o"] == np.float32(1.0 + 16 * 2.0**-24)


# ---- who sends what to whom


def completion(sites: int, sql: str) -> tuple[Tiles, Complete]:
    con = einsql.connect()
    con.execute(f"SET sites = {sites}; SET jit = 'never'")
    con.register("x", np.ones((32, 48), np.float32), dims=("i", "j"))
    con.execute(sql)
    plan = cached(con, sql)
    assert isinstance(plan, Plan)
    assert isinstance(plan.program, SiteProgram)
    program = plan.program.program
    step = next(s for s in program.steps if isinstance(s, Complete))
    return program.steps[step.source].tiles, step


def check(partial: Tiles, step: Complete) -> list[Round]:
    """Everything reaches its target, each site sends a tile once."""
    held = [
        {site: {site} for site in np.unique(partial.sites[members]).tolist()}
        for members in step.parts
    ]
    found = rounds(partial, step)
    for r in found:
        moves = list(zip(r.tiles.tolist(), r.sources.tolist(), r.targets.tolist(), strict=True))
        moving = [(tile, target, held[tile].pop(source)) for tile, source, target in moves]
        for tile, target, what in moving:
            held[tile].setdefault(target, set()).update(what)
    for tile, members in enumerate(step.parts):
        target = int(step.tiles.sites[tile])
        assert held[tile] == {target: set(partial.sites[members].tolist()) | {target}}
    return found


@pytest.mark.parametrize("sites", [2, 3, 4, 5, 7, 8, 16])
def test_a_reduce_is_a_tree(sites: int) -> None:
    found = check(*completion(sites, f"SELECT /*+ PARTITION(i={sites}) */ SUM(val) AS v FROM x"))
    assert len(found) == (1 if sites < 4 else (sites - 1).bit_length())
    if sites >= 4:
        assert all(len(np.unique(r.targets)) == len(r.targets) for r in found)


def test_a_reduce_scatter_is_one_round() -> None:
    partial, step = completion(
        8,
        "WITH s AS (SELECT /*+ PARTITION(i=8) */ j, SUM(val) AS v FROM x GROUP BY j) "
        "SELECT /*+ PARTITION(j=8) */ j, v / SUM(v) OVER () AS v FROM s",
    )
    assert len(np.unique(step.tiles.sites)) == 8
    assert len(check(partial, step)) == 1
