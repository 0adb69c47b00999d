"""The predicted cost of plans without each rewrite rule that fires in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import einsql
from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.statements import STATEMENTS, Statement, registered

CHANGED = 1e-9
"""The difference of ratios from 1 that counts: predictions are sums of floating point numbers."""
TILED = {
    "a product": "SELECT x.i, y.j, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile "
    "FROM TILES(x, 4, 4) x JOIN TILES(x, 4, 4) y ON x.j = y.i GROUP BY x.i, y.j",
    "the diagonal of a sum": "SELECT i, tensor_diag(tile) AS tile FROM (SELECT x.i, x.j, "
    "x.tile + y.tile AS tile FROM TILES(x, 4, 4) x JOIN TILES(x, 4, 4) y USING (i, j)) "
    "WHERE i = j",
}
"""Statements over tiles, which the rules of the implementation algebra rewrite."""


@dataclass(frozen=True)
class Ablation:
    """A plan without a rule.

    Attributes:
        rule: The rule.
        statement: What was planned.
        ratio: Predicted seconds without the rule, over those with it.
    """

    rule: str
    statement: str
    ratio: float


def computed(full: bool) -> list[Table]:
    """Rules on graphs at one site and at eight, and rules on plans over tiles."""
    chosen = [s for s in STATEMENTS if not s.before and not s.after]
    return [
        *(
            by_rule(f"at {sites} site{'s' * (sites > 1)}", [left_out(s, sites) for s in chosen])
            for sites in (1, 8)
        ),
        over_tiles(),
    ]  # fmt: skip


def left_out(statement: Statement, sites: int) -> list[Ablation] | None:
    """The plans without each of the rules that a plan needs; none if it has no prediction."""
    with einsql.connect() as con:
        for name, array, keys in registered(
            statement.tensors, statement.sizes, statement.arrays(statement.sizes)
        ):
            con.register(name, array, dims=keys)
        sql = statement.sql.format(**statement.sizes)
        plan = con.explain(sql, sites=sites, verbose=True).to_dict()
        if "seconds" not in plan.get("total", ()):
            return None
        found = []
        for rule in fired(plan):
            con.execute(f"SET disabled_rules = '{rule}'")
            other = con.explain(sql, sites=sites).to_dict()
            ratio = other["total"]["seconds"] / plan["total"]["seconds"]
            found.append(Ablation(rule, statement.name, ratio))
        return found


def fired(plan: dict[str, Any]) -> list[str]:
    """The rules that changed the graph or its cuts, and those that the cuts imply."""
    cuts = plan.get("levels", {}).get("tra", {}).get("derivation", {})
    found = [r["rule"] for r in (*plan.get("rewrites", ()), *cuts.get("rules", ()))]
    return list(dict.fromkeys([*found, *(r for c in cuts.get("choices", ()) for r in c["rules"])]))


def by_rule(where: str, plans: list[list[Ablation] | None]) -> Table:
    """How often each rule fires in the statements' plans, and what its absence costs."""
    planned = [plan for plan in plans if plan is not None]
    found = [ablation for plan in planned for ablation in plan]
    rows: list[list[Cell]] = []
    for rule in sorted({a.rule for a in found}):
        of = [a for a in found if a.rule == rule]
        most, least = (f(of, key=lambda a: a.ratio) for f in (max, min))
        dearer = sum(a.ratio > 1 + CHANGED for a in of)
        cheaper = sum(a.ratio < 1 - CHANGED for a in of)
        rows.append([
            rule, len(of), dearer, cheaper,
            most.ratio, most.statement if dearer else "",
            least.ratio, least.statement if cheaper else "",
        ])  # fmt: skip
    return Table(
        f"Rules left out {where}",
        ("rule", "statements", "dearer without", "cheaper without",
         "largest ratio", "its statement", "smallest ratio", "its statement"),
        rows, {"largest ratio": "×", "smallest ratio": "×"},
        note=f"{len(planned)} statements whose seconds are predicted. The ratio is "
        "the predicted seconds without the rule over those with it. Below 1× the prediction "
        "prefers the plan without the rule. A rule whose ratios are 1× changes what the "
        "prediction does not see, or enables others.",
    )  # fmt: skip


def over_tiles() -> Table:
    """What each rule of the implementation algebra saves."""
    rows: list[list[Cell]] = []
    with einsql.connect() as con:
        con.register("x", np.zeros((64, 64), np.float32), dims=("i", "j"))
        for name, sql in TILED.items():
            plan = con.explain(sql, sites=4, verbose=True).to_dict()
            without = plan["table1"]["total"]["tra_cost"]
            rows.append([name, "all", without, plan["total"]["tra_cost"]])
            for rule in dict.fromkeys(r["rule"] for r in plan["rewrites"]):
                con.execute(f"SET disabled_rules = '{rule}'")
                other = con.explain(sql, sites=4).to_dict()["total"]["tra_cost"]
                rows.append([name, rule, other, plan["total"]["tra_cost"]])
            con.execute("SET disabled_rules = ''")
    return Table(
        "Rules of the implementation algebra left out",
        ("", "rule", "floats without it", "floats with all"), rows,
        note="64 × 64 elements in 4 × 4 tiles on 4 sites, in floats as the algebra counts them. "
        "The plan without any rule is that of Table 1. Other rules may lead to the same plan.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Rules left out, one by one",
    source="TRA §4.2; beyond the papers",
    about="Each rule that a plan needs is disabled by `SET disabled_rules`, and the statement is "
    "planned again. The statements are those of the benchmark of first answers.",
    computed=computed,
)
