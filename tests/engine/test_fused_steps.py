"""Local steps that sites run together answer what they answer step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsql
from einsql.engine.fused_steps import Fused
from einsql.ir.spmd.program import FusedSteps
from einsql.planner.plan import Plan
from tests.kernels.test_groups import SINGLE, STATEMENTS, con
from tests.support.plans import cached
from tests.support.samples import combinations, spread

__all__ = ["con"]  # its tensors serve every test here

APART = (
    ("attention", 2), ("causal attention", 2), ("weights", 2), ("weights and values", 2),
    ("layer norm", 2), ("layer norm", 3), ("product of columns with a mask", 2),
)  # fmt: skip
"""Statements cut so that sites need what others have, for so many of them."""


def _together(con: einsql.Connection, sql: str) -> tuple[FusedSteps, ...]:
    con.execute(sql)
    plan = cached(con, sql)
    assert isinstance(plan, Plan)
    assert plan.placed is not None
    return plan.placed.together


def _table(con: einsql.Connection, sql: str) -> np.ndarray:
    return np.array(sorted(con.execute(sql).fetchall()), float)


@pytest.mark.parametrize(("name", "sites"), spread(combinations(STATEMENTS, [2, 3]), 6))
def test_sites_run_together_what_stays_in_a_cell(
    con: einsql.Connection, name: str, sites: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    run = Fused.run

    def counted(self: Fused, *args: Any) -> object:
        ran.append(run(self, *args))
        return ran[-1]

    monkeypatch.setattr(Fused, "run", counted)
    whole = _table(con, STATEMENTS[name])
    con.execute(f"SET sites = {sites}")
    np.testing.assert_allclose(_table(con, STATEMENTS[name]), whole, rtol=2e-5, atol=1e-6)
    together = _together(con, STATEMENTS[name])
    assert bool(ran) == bool(together)
    assert None not in ran
    assert together or name in SINGLE or (name, sites) in APART
    con.execute("SET disabled_rules = 'group-nodes'")
    assert _together(con, STATEMENTS[name]) == ()
    np.testing.assert_allclose(_table(con, STATEMENTS[name]), whole, rtol=2e-5, atol=1e-6)
