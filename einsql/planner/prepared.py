"""Prepared statements: what runs a statement, once or again."""

from __future__ import annotations

from typing import Protocol

from einsql.planner.context import Context
from einsql.planner.outcome import Outcome
from einsql.planner.plan_cache import Cacheable


class PreparedStatement(Cacheable, Protocol):
    """A statement that is ready to run.

    Queries over elements and tiles, queries that DuckDB runs in part, changes of tensors, loops
    and commands have one each.
    """

    def run(self, ctx: Context) -> Outcome | None:
        """Runs it with the parameters of the context.

        Returns:
            What it gives; None if names mean something else since it was prepared, so that
            it has to be prepared again.

        Raises:
            Error: It fails.
        """
