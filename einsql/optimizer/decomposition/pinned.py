"""Cuts that a plan file gives, in place of a strategy's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from einsql.core.records import dataclass
from einsql.optimizer.decomposition.problem import Problem, Vertex
from einsql.optimizer.decomposition.schedules import Schedule, Schedules


@dataclass(frozen=True, slots=True)
class Pinned:
    """The cut and the placement of one operation in a plan file.

    Attributes:
        parts: The number of parts of labels; the strategy chooses those of other labels.
        copies: The number of groups of sites that each run all calls.
        mesh: The cut labels, and `*` for copies, in the order of the site grid, slowest first;
            None if placement chooses the order.
        sites: The site of each cell, copy by copy, each in the order of the mesh; None for an
            even distribution.
        recut: Whether placement may cut a map like one of its operands.
    """

    parts: Mapping[str, int] = field(default_factory=dict)
    copies: int = 1
    mesh: tuple[str, ...] | None = None
    sites: tuple[int, ...] | None = None
    recut: bool = False


Pins = Mapping[str, Pinned]
"""The pinned operations of a problem, by name."""

NO_PINS: Pins = {}


def with_pins(problem: Problem, pins: Pins) -> Problem:
    """The problem with pinned parts as fixed parts; they precede those of hints."""
    if not pins:
        return problem
    vertices = []
    for v in problem.vertices:
        pinned = _of(v, pins)
        if pinned is not None and pinned.parts:
            parts_of_label = dict.fromkeys(v.whole, 1) | dict(pinned.parts)
            v = replace(v, fixed=tuple(parts_of_label.get(label) for label in v.labels))
        vertices.append(v)
    return Problem(tuple(vertices))


def with_copies(problem: Problem, schedules: Schedules, pins: Pins) -> Schedules:
    """The schedules with the copies of the operations of which every label is pinned."""
    pinned_schedules = []
    for v, schedule in zip(problem.vertices, schedules, strict=True):
        pinned = _of(v, pins)
        if pinned is not None and len(pinned.parts) == len(v.labels):
            vector = np.array([pinned.parts[label] for label in v.labels], np.int64)
            schedule = Schedule(vector, pinned.copies)
        pinned_schedules.append(schedule)
    return pinned_schedules


def _of(v: Vertex, pins: Pins) -> Pinned | None:
    """The pins of an operation; a stored tensor may have an operation's name."""
    return pins.get(v.name) if v.computes else None
