"""EXPLAIN of queries over tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einsql.core.machine import Topology
from einsql.engine.step import Tick
from einsql.errors import NotSupportedError
from einsql.explain.explanation import TextExplanation
from einsql.explain.tile_report import TileMeasure, as_json, as_text, measured
from einsql.sql.parser.syntax import Explain
from einsql.storage.fields import Fields

if TYPE_CHECKING:
    from einsql.planner.tile_plan import TilePlan


@dataclass(frozen=True, repr=False)
class TileExplanation(TextExplanation):
    """The plan of a query over tiles.

    Attributes:
        plan: The plan.
        measure: The measured run, for EXPLAIN ANALYZE.
    """

    asked: Explain
    plan: TilePlan
    measure: TileMeasure | None

    def lines(self) -> list[str]:
        """The plan over blocks; on several sites with its costs."""
        return as_text(self.plan, self.asked.verbose, self.measure)

    def undrawn(self, form: str) -> NotSupportedError:
        """Returns the error that there is no drawing or page."""
        return _undrawn(form)

    def to_dict(self) -> dict[str, Any]:
        """The plan's lines and costs as plain values (docs/tra.md)."""
        return as_json(self.plan, self.asked.verbose, self.measure)


def explain_tiles(
    plan: TilePlan,
    asked: Explain,
    inputs: Mapping[str, Fields],
    tick: Tick,
    cluster: Topology | None,
) -> TileExplanation:
    """Explains a query over tiles; ANALYZE runs and measures it.

    Raises:
        NotSupportedError: A drawing is asked for, or a prediction in seconds.
    """
    if asked.form in ("svg", "html"):
        raise _undrawn(asked.form)
    if asked.network is not None or asked.flops is not None or cluster is not None:
        raise NotSupportedError(
            "EXPLAIN of tiles counts floats, bytes and operations, not seconds",
            hint="Leave NETWORK, FLOPS and what simulates out; EXPLAIN ANALYZE measures seconds.",
        )
    return TileExplanation(asked, plan, measured(plan, inputs, tick) if asked.analyze else None)


def _undrawn(form: str) -> NotSupportedError:
    return NotSupportedError(
        f"EXPLAIN of tiles has no {form}, for it draws plans over elements",
        hint="FORMAT text and FORMAT json show the plan over tiles; ELEMENTS(…) around the "
        "query makes one over elements.",
    )
