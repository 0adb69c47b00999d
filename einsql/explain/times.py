"""The time of a plan by steps: measured under ANALYZE, otherwise predicted; the longest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from einsql.core.records import dataclass
from einsql.core.units import duration, plural
from einsql.explain.operations import OperationReport
from einsql.explain.report import GraphReport

MOST_ORIGINS = 4
"""The most parts of the statement that are named for one step."""
LAYERS = 3
"""The fewest steps that share a row."""
MOST_ROWS = 20
"""The most rows of steps."""
WIDTH = 20
"""The number of characters of a bar of 100 %."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class TimeRow:
    """Steps that share a row.

    Attributes:
        name: The operations of the steps, or a description.
        seconds: The seconds of all steps.
        share: The part of the total, 0 to 1.
        origins: The parts of the statement that they compute.
    """

    name: str
    seconds: float
    share: float
    origins: str


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of repeated layers, or one step.

    Attributes:
        seconds: The seconds of all steps.
        ids: The ids of the operations of each step.
        origins: The parts of the statement that they compute.
    """

    seconds: float
    ids: Sequence[Sequence[str]]
    origins: Sequence[str]

    @property
    def name(self) -> str:
        """The operations of the first step, and the last operation of several steps."""
        first, last = self.ids[0], self.ids[-1]
        names = first[0] if len(first) == 1 else f"{first[0]}..{first[-1]}"
        return names if len(self.ids) == 1 else f"{names} … {last[-1]} ({len(self.ids)} steps)"


def times_lines(report: GraphReport) -> Iterator[str]:
    """Yields the lines of the times of a measured plan; nothing without a measure."""
    if report.run is None:
        return
    title = f"-- time: {duration(report.run.seconds)}"
    if report.run.compiling >= 0.5e-6:
        title += f", of which {duration(report.run.compiling)} waiting for the compiler"
    yield title
    rows = time_rows(report)
    longest = max((len(row.name) for row in rows), default=0)
    for row in rows:
        line = f"{row.name:<{longest}}  {duration(row.seconds):>9}  {row.share:6.1%}  "
        yield f"{line}{_bar(row.share)}  {row.origins}".rstrip()


def time_rows(report: GraphReport) -> list[TimeRow]:
    """Returns the steps with their times, measured or predicted, and the time outside of them."""
    run = report.run
    steps = sorted(_folded(report.nodes, run is not None), key=lambda s: -s.seconds)
    inside = sum(s.seconds for s in steps)
    total = max(inside if run is None else run.seconds, inside, 1e-9)
    table = [(s.name, s.seconds, _listed(s.origins)) for s in steps[:MOST_ROWS]]
    rest = steps[MOST_ROWS:]
    if rest:
        table.append((plural(len(rest), "other step"), sum(s.seconds for s in rest), ""))
    compiling = 0.0 if run is None else run.compiling
    if compiling >= 0.5e-6:
        table.append(("waiting for the compiler", compiling, ""))
    outside = 0.0 if run is None else total - inside - compiling
    if outside > 0:
        table.append(("outside of steps", outside, ""))
    return [TimeRow(name, seconds, seconds / total, of) for name, seconds, of in table]


def _listed(origins: Sequence[str]) -> str:
    more = len(origins) - MOST_ORIGINS
    if more <= 1:
        return ", ".join(origins)
    return ", ".join(origins[:MOST_ORIGINS]) + f" and {more} more"


def _bar(share: float) -> str:
    full, part = divmod(round(min(share, 1.0) * WIDTH * 8), 8)
    return ("█" * full + _EIGHTHS[part] * bool(part)).ljust(WIDTH)


def _folded(nodes: Sequence[OperationReport], measured: bool) -> Iterator[_Steps]:
    """Yields the steps; those whose parts have names that differ by a number only are one row."""
    by_id = {node.id: node for node in nodes}
    layers: dict[tuple[object, ...], list[_Steps]] = {}
    for node in nodes:
        if node.group and node.id != node.group.nodes[-1]:
            continue
        ids = node.group.nodes if node.group else (node.id,)
        members = [by_id[i] for i in ids]
        seconds = sum(m.seconds for m in members)
        if measured:
            seconds = 0.0 if node.measured is None else node.measured.seconds
        step = _Steps(seconds, [ids], _origins(members))
        alike = tuple(re.sub(r"\d+", "#", o) for o in _parts(step.origins))
        own = "" if any("#" in a for a in alike) else node.id
        layers.setdefault((alike, len(ids), node.kernel, own), []).append(step)
    for steps in layers.values():
        if len(steps) < LAYERS:
            yield from steps
            continue
        ends = zip(*(_parts(steps[n].origins) for n in (0, -1)), strict=True)
        origins = [a if a == b else f"{a} … {b}" for a, b in ends]
        yield _Steps(sum(s.seconds for s in steps), [s.ids[0] for s in steps], origins)


def _origins(nodes: Sequence[OperationReport]) -> list[str]:
    """The origins of the operations of a step; a part whose macro is named is left out."""
    origins = list(dict.fromkeys(o for node in nodes for o in node.origins))
    return [o for o in origins if not any(other.endswith(f" in {o}") for other in origins)]


def _parts(origins: Sequence[str]) -> list[str]:
    """The origins without their lines."""
    return [re.sub(r" \(lines? [^)]*\)$", "", o) for o in origins]
