"""The inputs of a plan that depend on the statement's parameters at run time.

Scalars are computed from parameters. Views are parts of stored inputs whose starts are scalars. The
keys of a result are cut or shifted by scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType, Key, Schema
from einsql.core.source_writer import Page
from einsql.ir.einsum.graph import SCALAR
from einsql.sql.parameters.host_expr import KNOWN, Evaluate, Values, evaluator

Inputs = dict[str, Any]
Feed = Callable[[Values, Inputs], None]
"""Adds scalars and views to a plan's inputs, from the values of the parameters."""

REPEATED = 3
"""The number of the call that compiles a feed to a straight-line function."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """An input without keys, computed from parameters.

    Attributes:
        name: The name of the input.
        text: The value as a Python expression, in the form of `host_expr.source`.
        dtype: The type of the scalar.
    """

    name: str
    text: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class View:
    """An input that is a part of another input, its base.

    Attributes:
        name: The name of the view as an input.
        base: The name of the base.
        bounds: The bounds `[lo, hi)` of each key of the base.
        spans: For each cut key: its number, the name of the scalar with the start of the part, and
            the extent of the part.
    """

    name: str
    base: str
    bounds: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, str, int], ...]


def feeding(scalars: Sequence[Scalar], views: Sequence[View]) -> Feed:
    """Creates a function that adds scalars and views to inputs.

    The function raises OverflowError or ZeroDivisionError if a scalar has no value.
    """
    values_of = evaluator(s.text for s in scalars)
    times = 0

    def plain(values: Values, inputs: Inputs) -> None:
        for s, value in zip(scalars, values_of(values), strict=True):
            inputs[s.name] = {SCALAR: np.asarray(value, s.dtype.numpy)}
        for view in views:
            inputs[view.name] = part_of(view, inputs)

    best: Feed = plain

    def feed(values: Values, inputs: Inputs) -> None:
        nonlocal times, best
        if times < REPEATED:
            times += 1
            if times == REPEATED:
                best = _written(scalars, views)
        best(values, inputs)

    return feed


def _written(scalars: Sequence[Scalar], views: Sequence[View]) -> Feed:
    """The feed as straight-line code; equal spans share a slice."""
    page = Page("")
    page.names |= {**KNOWN, "slice": slice}
    values: dict[str, str] = {}
    for s in scalars:
        if s.text not in values:
            values[s.text] = page.line(s.text)
    for s in scalars:
        array = f"asarray({values[s.text]}, {page.held(s.dtype.numpy)})"
        page.lines.append(f"inputs[{s.name!r}] = {{{SCALAR!r}: {array}}}")
    texts = {s.name: s.text for s in scalars}
    slices: dict[str, str] = {}
    for view in views:
        at = [page.held(slice(0, hi - lo)) for lo, hi in view.bounds]
        for n, name, extent in view.spans:
            start = f"{values[texts[name]]} - {view.bounds[n][0]}"
            text = f"slice({start}, {start} + {extent})"
            if text not in slices:
                slices[text] = page.line(text)
            at[n] = slices[text]
        axes = page.held(tuple(n for n, _, _ in view.spans))
        part = f"inputs[{view.base!r}].window(({''.join(f'{s}, ' for s in at)}), {axes})"
        page.lines.append(f"inputs[{view.name!r}] = {part}")
    page.lines.append("return None")
    feed: Feed = page.function("feed(p, inputs)")
    return feed


def part_of(view: View, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a view of an input, without a copy."""
    at = [slice(0, hi - lo) for lo, hi in view.bounds]
    for n, name, extent in view.spans:
        start = int(inputs[name][SCALAR]) - view.bounds[n][0]
        at[n] = slice(start, start + extent)
    part: Mapping[str, Any] = inputs[view.base].window(at, [n for n, _, _ in view.spans])
    return part


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """The dependence of a plan on parameters.

    Attributes:
        fixed: The numbers of the parameters whose values are fixed in the plan.
        keys: The expressions whose values are fixed, in the form of `host_expr.source`.
        tests: The conditions for the plan to be valid, in the same form.
        scalars: The scalars that the plan reads at run time.
        views: The parts of stored inputs that the plan reads.
    """

    fixed: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    views: tuple[View, ...] = ()
    _key: Evaluate = field(init=False, compare=False, repr=False)
    _feed: Feed = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", evaluator((*self.keys, *self.tests)))
        object.__setattr__(self, "_feed", feeding(self.scalars, self.views))

    def key(self, values: Values) -> object | None:
        """The fixed values as a cache key; None if the plan is not valid for the parameters."""
        try:
            computed = self._key(values)
        except (OverflowError, ZeroDivisionError):
            return None
        count = len(self.keys)
        if not all(computed[count:]):
            return None
        if not self.fixed:
            return computed[:count]
        # By their repr, because 0.0 == -0.0 and NaN != NaN.
        return (*computed[:count], *(repr(values[n - 1]) for n in self.fixed))

    def feed(self, values: Values, inputs: dict[str, Any]) -> None:
        """Adds the scalars and views that the plan reads to its inputs."""
        self._feed(values, inputs)


NOTHING = ParameterUse()
"""The use of a statement without parameters."""


# ---- keys of results


@dataclass(frozen=True, slots=True)
class Cut:
    """The bound of a result's key by a parameter.

    Attributes:
        axis: The number of the key.
        upper: Whether the cut removes the values above, instead of the values below.
        name: The name of the scalar with the position of the cut.
    """

    axis: int
    upper: bool
    name: str


@dataclass(frozen=True, slots=True)
class Shift:
    """A key of a result that counts from the start of a window.

    Attributes:
        axis: The number of the key.
        name: The name of the scalar with the start.
    """

    axis: int
    name: str


def shifted(schema: Schema, ends: Sequence[object], inputs: Mapping[str, Any]) -> Schema:
    """The schema of a result with the true bounds of keys that count from windows' starts."""
    if not ends:
        return schema
    keys = list(schema.keys)
    for e in ends:
        if isinstance(e, Shift):
            start, key = int(inputs[e.name][SCALAR]), keys[e.axis]
            keys[e.axis] = Key(key.name, key.lo + start, key.hi + start)
    return Schema(tuple(keys), schema.fields)


def within(box: np.ndarray, cuts: Iterable[Cut], inputs: Mapping[str, Any]) -> np.ndarray:
    """The part of a box of keys that remains after cuts; int64 (keys, 2)."""
    for c in cuts:
        at = int(inputs[c.name][SCALAR])
        low, high = box[c.axis]
        box[c.axis] = (low, max(low, min(high, at))) if c.upper else (min(high, max(low, at)), high)
    return box
