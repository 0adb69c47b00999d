"""Prepared statements: statements that are ready to run, once or again."""

from __future__ import annotations

from typing import Protocol

from einsql.planner.context import Context
from einsql.planner.outcome import Outcome
from einsql.planner.plan_cache import Cacheable


class PreparedStatement(Cacheable, Protocol):
    """A statement that is ready to run.

    Each kind has a class: queries over elements and tiles, queries that DuckDB runs in part,
    changes of tensors, loops and commands.
    """

    def run(self, ctx: Context) -> Outcome | None:
        """Runs the statement with the parameters of the context.

        Returns:
            The outcome; None if a name changed its meaning after the preparation, so that the
                statement must be prepared again.

        Raises:
            Error: The statement fails.
        """
