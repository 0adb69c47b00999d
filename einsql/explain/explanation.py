"""Explanations, the results of EXPLAIN: reports of plans as text, JSON, drawing or page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from einsql.core.records import dataclass
from einsql.errors import NotSupportedError
from einsql.explain.plain import to_dict
from einsql.explain.report import (
    ChangesReport,
    GraphReport,
    HybridReport,
    PlanReport,
    TileReport,
)
from einsql.explain.text import lines

if TYPE_CHECKING:
    from einsql.planner.plan import Plan
    from einsql.planner.tile_plan import TilePlan

_NO_DRAWING: dict[type[PlanReport], tuple[str, str]] = {
    ChangesReport: (
        "EXPLAIN of several changes at once has no {}",
        "FORMAT text and FORMAT json show them; EXPLAIN of one change draws it.",
    ),
    TileReport: (
        "EXPLAIN of tiles has no {}, for it draws plans over elements",
        "FORMAT text and FORMAT json show the plan over tiles; ELEMENTS(…) around the query "
        "makes one over elements.",
    ),
    HybridReport: (
        "EXPLAIN of a statement that DuckDB runs has no {}",
        "FORMAT text and FORMAT json show its fragments.",
    ),
}
"""The message and the hint for reports without a drawing."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """A plan that renders as text, JSON, a drawing or an HTML page.

    `print` shows the text, and a notebook shows the page.

    Attributes:
        report: The report of the plan, for all formats.
        form: The format of the EXPLAIN statement: "text", "json", "svg" or "html".
        plan: The plan; None for a statement with several plans.
    """

    report: PlanReport
    form: str
    plan: Plan | TilePlan | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def lines(self) -> list[str]:
        """Returns the lines of the text."""
        return lines(self.report)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as dicts and lists of plain values (docs/reference/explain.md)."""
        return to_dict(self.report)

    def to_json(self) -> str:
        """Returns the JSON text of `to_dict`."""
        return json.dumps(self.to_dict())

    def svg(self) -> str:
        """Returns the plan's graph as an SVG document; repeated operations are drawn once.

        Raises:
            NotSupportedError: The plan has no drawing.
        """
        from einsql.explain.drawing import standalone  # few plans are drawn

        return standalone(drawable(self.report, "svg"))

    def html(self) -> str:
        """Returns the plan as one self-contained HTML page.

        Raises:
            NotSupportedError: The plan has no page.
        """
        from einsql.explain.drawing import page  # few plans are drawn

        return page(drawable(self.report, "html"))

    def _repr_html_(self) -> str:
        """Returns the page in a frame, for notebooks; the text if the plan has no page."""
        from html import escape  # a table of entities, and only notebooks need it

        if not isinstance(self.report, GraphReport):
            return f"<pre>{escape(str(self))}</pre>"
        return (
            '<iframe title="Plan" style="width:100%;height:640px;border:1px solid #8886" '
            f'srcdoc="{escape(self.html())}"></iframe>'
        )

    def rows(self) -> list[tuple[str]]:
        """Returns the rows of EXPLAIN: the lines of the text, or one document."""
        documents = {"json": self.to_json, "svg": self.svg, "html": self.html}
        if self.form in documents:
            return [(documents[self.form](),)]
        return [(line,) for line in self.lines()]


def drawable(report: PlanReport, form: str) -> GraphReport:
    """Returns a report that has a drawing.

    Raises:
        NotSupportedError: The report has no drawing.
    """
    refuse_drawing(type(report), form)
    assert isinstance(report, GraphReport)
    return report


def refuse_drawing(kind: type[PlanReport], form: str) -> None:
    """Checks that reports of a kind have a format.

    Raises:
        NotSupportedError: Reports of the kind have no drawing or no page.
    """
    if form in ("svg", "html") and kind in _NO_DRAWING:
        message, hint = _NO_DRAWING[kind]
        raise NotSupportedError(message.format(form), hint=hint)
