"""Operands read through affine labels as strided views: windows, shifts, splits and merges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einsql.core.records import dataclass
from einsql.core.schema import Key, Schema
from einsql.core.source_writer import FieldSource, Page, write_of
from einsql.ir.einsum.affine import Affine, affine_labels
from einsql.ir.einsum.graph import EinSum, Expr, Input, Label, Operand, labels_of, rewrite
from einsql.ir.einsum.graph_rewriting import map_exprs
from einsql.ir.einsum.intervals import can_raise
from einsql.kernels.kernel import Arrays, Runner, Tick, WithWriter
from einsql.kernels.scalars import bounds_of

Look = Callable[[np.ndarray], np.ndarray]


def window_labels(node: EinSum) -> dict[str, Affine] | None:
    """The definition of every derived label of a node over its free labels.

    Returns:
        None if a label is not affine, is a key, or may overflow.
    """
    derived = affine_labels(node)
    bounds = bounds_of(node)
    for a in node.axes:
        if a.define is not None and (
            a.label not in derived or a.label in node.keys or can_raise(a.define, bounds)
        ):
            return None
    return derived


@dataclass(frozen=True, slots=True)
class Cropped:
    """A read-only part of a field.

    Attributes:
        index: The NumPy index.
    """

    index: tuple[Any, ...]

    def __call__(self, field: np.ndarray) -> np.ndarray:
        """Returns the part of a field."""
        view: np.ndarray = field[self.index]
        view.flags.writeable = False
        return view


@dataclass(frozen=True, slots=True)
class Reading:
    """The view of an operand with one axis per free label.

    Attributes:
        labels: The free labels, in the order in which the operand's keys read them.
        shape: The extents of the labels.
        look: Creates the view from a field of the operand, possibly padded.
        width: The padding before and after each axis of the field, for labels that exceed its
            bounds.
        overlaps: Whether elements are read at several points.
    """

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    look: Look
    width: tuple[tuple[int, int], ...]
    overlaps: bool

    @property
    def inside(self) -> bool:
        """True if no label exceeds the operand's bounds."""
        return all(w == (0, 0) for w in self.width)


def reading_of(node: EinSum, operand: Operand, derived: Mapping[str, Affine]) -> Reading:
    """The view of an operand that is read through derived labels.

    Args:
        node: A node without empty axes.
        operand: One of its operands.
        derived: The result of `window_labels` for the node.
    """
    axes = {a.label: a for a in node.axes}
    indexes = [derived.get(x) or Affine({x: 1}, 0) for x in operand.labels]
    labels = tuple(dict.fromkeys(x for i in indexes for x in i.steps))
    shape = tuple(axes[x].extent for x in labels)
    width, starts = [], []
    for label, index, key in zip(operand.labels, indexes, operand.source.schema.keys, strict=True):
        a = axes[label]
        before = max(0, a.lo - index.least(axes))
        width.append((before, max(0, index.most(axes) - a.hi + 1)))
        first = index.offset + sum(s * axes[x].lo for x, s in index.steps.items())
        # A padded field is first cut to the label's bounds, outside of which no points exist.
        inside = width[-1] == (0, 0)
        starts.append(first - key.lo if inside else first - a.lo + before)
    steps = [tuple(i.steps.get(x, 0) for i in indexes) for x in labels]
    sizes = [k.extent for k in operand.source.schema.keys]
    overlaps = prod(shape) > prod(sizes)

    plain = sum(len(i.steps) for i in indexes) == len(labels)
    plain = plain and all(set(i.steps.values()) <= {1} and len(i.steps) < 2 for i in indexes)
    part = tuple(
        slice(s, s + axes[x].extent) if x is not None else s
        for s, x in zip(starts, (next(iter(i.steps), None) for i in indexes), strict=True)
    )

    if plain:  # which NumPy computes ten times as fast
        return Reading(
            labels=labels,
            shape=shape,
            look=Cropped((*part, ...)),
            width=tuple(width),
            overlaps=overlaps,
        )

    def look(field: np.ndarray) -> np.ndarray:
        at = field[tuple(slice(s, s + 1) for s in starts)]
        strides = tuple(
            sum(s * b for s, b in zip(step, field.strides, strict=True)) for step in steps
        )
        return as_strided(at, shape, strides, writeable=False)

    return Reading(labels=labels, shape=shape, look=look, width=tuple(width), overlaps=overlaps)


@dataclass(frozen=True, slots=True)
class Windows:
    """A node over views of its operands.

    Attributes:
        node: The node over free labels only; its operands are Inputs.
        readings: The view of each operand; None for an unchanged operand.
    """

    node: EinSum
    readings: tuple[Reading | None, ...]

    @property
    def overlap(self) -> bool:
        """True if copying an operand's view would multiply it."""
        return any(r is not None and r.overlaps for r in self.readings)

    def over(self, run: Runner) -> Runner:
        """Creates a runner of the original node from a runner of `node`."""

        def through(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
            views = [
                o if r is None else {name: r.look(field) for name, field in o.items()}
                for o, r in zip(operands, self.readings, strict=True)
            ]
            return run(views, tick)

        write = write_of(run)
        if write is None:
            return through

        def lines(page: Page, operands: Sequence[FieldSource]) -> Mapping[str, str] | None:
            return write(
                page,
                [
                    o if r is None else _Looked(page, o, r.look)
                    for o, r in zip(operands, self.readings, strict=True)
                ],
            )

        return WithWriter(through, lines)


@dataclass(frozen=True, slots=True)
class _Looked:
    """The views of an operand's fields in a generated function.

    Attributes:
        page: The generated function.
        source: The operand.
        look: The view of a field.
        seen: The names of written views by field.
    """

    page: Page
    source: FieldSource
    look: Look
    seen: dict[str, str] = field(default_factory=dict)

    def array(self, field: str) -> str:
        if field not in self.seen:
            name, look = self.source.array(field), self.look
            if isinstance(look, Cropped):
                view = self.page.line(f"{name}[{self.page.held(look.index)}]")
                self.page.lines.append(f"{view}.flags.writeable = False")
            else:
                view = self.page.line(f"{self.page.held(look, 'f')}({name})")
            self.seen[field] = view
        return self.seen[field]

    @property
    def whole(self) -> str:
        return f"{{{', '.join(f'{field!r}: {name}' for field, name in self.seen.items())}}}"


def as_windows(node: EinSum) -> Windows | None:
    """The node over views, if every derived label is affine and within its bounds, else None."""
    if all(a.define is None for a in node.axes) or any(a.extent == 0 for a in node.axes):
        return None
    derived = window_labels(node)
    if derived is None:
        return None
    axes = {a.label: a for a in node.axes}
    if any(d.least(axes) < axes[x].lo or d.most(axes) >= axes[x].hi for x, d in derived.items()):
        return None
    readings: list[Reading | None] = []
    operands: list[Operand] = []
    for n, o in enumerate(node.operands):
        if not any(x in derived for x in o.labels):
            readings.append(None)
            operands.append(o)
            continue
        r = reading_of(node, o, derived)
        keys = tuple(Key(x, axes[x].lo, axes[x].hi) for x in r.labels)
        readings.append(r)
        operands.append(Operand(Input(f"v{n}", Schema(keys, o.source.schema.fields)), r.labels))
    free = replace(
        node,
        axes=tuple(a for a in node.axes if a.define is None),
        operands=tuple(operands),
        hint=(),
    )
    defines = {a.label: a.define for a in node.axes if a.define is not None}
    return Windows(map_exprs(free, lambda e: _in_free_labels(e, defines)), tuple(readings))


def _in_free_labels(expr: Expr, defines: Mapping[str, Expr]) -> Expr:
    """An expression with derived labels replaced by their definitions."""
    while labels_of(expr) & set(defines):
        expr = rewrite(expr, lambda e: defines.get(e.name, e) if isinstance(e, Label) else e)
    return expr
