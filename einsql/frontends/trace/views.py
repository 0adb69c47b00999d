"""Views: arrays that share elements, and how a write to one changes the others.

NumPy's slices and transposes are views: a change through one shows in all. Here an array
that is written is a new step in the place of the old one, under a condition on keys where only
some elements are written, and every array that shows it is read from there from now on.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import field
from functools import reduce
from typing import Protocol

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.frontends.trace.elementwise import choose
from einsql.frontends.trace.expressions import (
    ZERO,
    apply,
    bounds,
    clamped,
    index,
    label,
    plus,
    scaled,
    substituted,
)
from einsql.frontends.trace.nodes import Affine, Expr, Step
from einsql.frontends.trace.source import place, untraceable
from einsql.frontends.trace.steps import Graph, read


class Viewer(Protocol):
    """An array that shows a buffer through a view; `TracedArray` is the one there is."""

    graph: Graph
    shape: tuple[int, ...]
    view: View

    @property
    def step(self) -> Step:
        """The array's present state, with writes through other views."""

    def show(self, view: View, step: Step) -> None:
        """Makes the array show other elements."""


@dataclass(eq=False)
class Buffer:
    """Elements that several arrays may show.

    Attributes:
        step: Their present values.
        given: Whether the elements belong to an argument of the caller.
        shown: Weak references to the arrays that are views of the elements.
    """

    step: Step
    given: bool = False
    shown: list[weakref.ref[Viewer]] = field(default_factory=list)


@dataclass(frozen=True)
class View:
    """The elements of a buffer that an array shows.

    Attributes:
        buffer: The buffer.
        places: The index of an element in the buffer, one entry for each of the buffer's axes.
        exact: Whether NumPy shares the elements; of a reshaped array that is open.
        locked: Whether NumPy refuses to write through it.
    """

    buffer: Buffer
    places: tuple[Expr, ...]
    exact: bool = True
    locked: bool = False

    def through(self, places: Sequence[Expr], exact: bool, locked: bool) -> View:
        """A view of this one."""
        seen = tuple(substituted(p, places) for p in self.places)
        return View(self.buffer, seen, self.exact and exact, self.locked or locked)


def whole(step: Step, given: bool = False) -> View:
    """A view of a new buffer that no other array shares."""
    return View(Buffer(step, given), tuple(label(n) for n in range(len(step.shape))))


def write(target: Viewer, new: Step) -> None:
    """Changes an array's elements, which also changes all views of them.

    Args:
        target: The array.
        new: The new elements, of its shape and dtype.

    Raises:
        NotSupportedError: The array is an argument, or it is open whether others show it.
        ProgrammingError: NumPy does not write through such a view either.
    """
    view, shape = target.view, target.shape
    buffer = view.buffer
    if buffer.given:
        raise untraceable(
            "Changing an argument, which the caller would see",
            "Write x = x + y for x += y, and change a copy: y = x.copy().",
        )
    if view.locked:
        raise ProgrammingError(
            f"The array is read-only, as NumPy's is{place()}", hint="Change a copy: y = x.copy()."
        )
    others = [a for r in buffer.shown if (a := r()) is not None and a is not target]
    new.name = new.name or target.step.name
    if not others:
        target.show(whole(new), new)
    elif not all(a.view.exact for a in (target, *others)):
        raise untraceable(
            "Changing an array whose elements a reshaped or indexed one may show",
            "Whether NumPy's reshape copies depends on memory; write x = x + y for x += y, or "
            "reshape a copy: x.copy().reshape(…).",
        )
    elif 0 not in shape:
        buffer.step = _overwritten(target.graph, buffer.step, view.places, shape, new)


def _overwritten(
    graph: Graph, old: Step, places: Sequence[Expr], shape: Sequence[int], new: Step
) -> Step:
    """An array with another one written at the places that a view shows."""
    sources: list[Expr] = [ZERO] * len(shape)
    tests: list[Expr] = []
    for n, (at, extent) in enumerate(zip(places, old.shape, strict=True)):
        assert isinstance(at, Affine)
        terms = [(m, c) for m, c in at.terms if shape[m] > 1]
        if extent == 1:
            continue
        if not terms:
            tests.append(apply("eq", label(n), index(at.constant)))
            continue
        ((m, step),) = terms  # a label that two axes share is a diagonal's, which is locked
        low, high = bounds(Affine(tuple(terms), at.constant), shape)
        if low > 0:
            tests.append(apply("le", index(low), label(n)))
        if high < extent - 1:
            tests.append(apply("le", label(n), index(high)))
        sign = 1 if step > 0 else -1
        far: Expr = plus(scaled(label(n), sign), index(-sign * at.constant))
        if abs(step) > 1:
            by = index(abs(step))
            tests.append(apply("eq", apply("mod", far, by), index(0)))
            far = apply("idiv", far, by)
        ends = (low > 0, high < extent - 1)[::sign]
        sources[m] = clamped(far, shape[m], below=ends[0], above=ends[1])
    value = read(new, sources)
    if tests:
        kept = read(old, [label(n) for n in range(len(old.shape))])
        value = choose(reduce(lambda a, b: apply("and", a, b), tests), value, kept)
    merged = graph.map(old.shape, value)
    merged.name = merged.name or old.name
    return merged
