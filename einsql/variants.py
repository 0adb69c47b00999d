"""The plans of one statement: which of them holds for the values of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from einsql.planning import Plan
from einsql.sql.given import Use

if TYPE_CHECKING:
    from einsql.staged import TilePlan

MOST = 512
"""Plans that are kept for what a statement makes of its parameters in one way."""


class Variants:
    """The plans of a statement for parameters of the same types.

    What a statement makes of its parameters may differ with their values: a range beyond the
    bounds of a key is planned as it stands.
    """

    def __init__(self) -> None:
        self._plans: dict[Use, dict[object, Plan | TilePlan]] = {}

    def find(self, values: Sequence[object]) -> Plan | TilePlan | None:
        """The plan for some values, if there is one."""
        for use, plans in self._plans.items():
            key = use.key(values)
            if key is not None and (found := plans.get(key)) is not None:
                return found
        return None

    def keep(self, plan: Plan | TilePlan, values: Sequence[object]) -> None:
        """Keeps the plan that was made for some values.

        Those for another state of the database go.
        """
        if any(p.version != plan.version for plans in self._plans.values() for p in plans.values()):
            self._plans.clear()
        plans = self._plans.setdefault(plan.use, {})
        if len(plans) >= MOST:
            plans.pop(next(iter(plans)))
        plans[plan.use.key(values)] = plan
