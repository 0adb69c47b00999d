"""Reports as plain values, for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from einsql.core.machine import Topology
from einsql.explain.levels import LevelsReport
from einsql.explain.report import GraphReport, PlanReport

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_dict(report: PlanReport) -> dict[str, Any]:
    """Returns a report as nested dicts and lists of plain values (docs/reference/explain.md)."""
    return plain_attributes(report)


def plain_attributes(part: DataclassInstance) -> dict[str, Any]:
    """Returns a part of a report as a dict, without attributes that are None."""
    shown = (f for f in fields(part) if not f.metadata.get("text_only"))
    attributes = ((f.name, getattr(part, f.name)) for f in shown)
    plain = {name: _plain(attribute) for name, attribute in attributes if attribute is not None}
    if isinstance(part, GraphReport) and part.program.rewrites is not None:
        plain["rewrites"] = _plain(part.program.rewrites)
    return plain


def _plain(content: Any) -> Any:
    if isinstance(content, LevelsReport):
        content = content.levels
    if isinstance(content, Topology):
        return asdict(content)
    if is_dataclass(content) and not isinstance(content, type):
        return plain_attributes(content)
    if isinstance(content, Mapping):
        return {key: _plain(entry) for key, entry in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_plain(entry) for entry in content]
    return content
