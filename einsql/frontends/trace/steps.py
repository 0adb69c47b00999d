"""The graph of a traced program: its tensors, and the steps that compute other arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.frontends.trace.expressions import ZERO, label, substituted
from einsql.frontends.trace.nodes import Affine, Expr, Read, Step
from einsql.frontends.trace.text import unused

Weight: TypeAlias = Callable[[], Any]
"""A function that returns the present tensor of a module."""


@dataclass
class Graph:
    """The steps of a program under construction; equal steps are merged.

    Attributes:
        tensors: Names of tensors, each with its step and array, in their order.
        weights: Functions that return the present tensors of a module, by their names in `tensors`.
        checks: Steps that are indices, and the extents of the indexed axes.
        silent: Whether steps are not named after variables of the user's.
    """

    steps: list[Step] = field(default_factory=list)
    tensors: dict[str, tuple[Step, object]] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    checks: list[tuple[Step, int]] = field(default_factory=list)
    silent: bool = False
    _known: dict[object, Step] = field(default_factory=dict)
    _constants: dict[int, tuple[np.ndarray, np.ndarray, Step]] = field(default_factory=dict)

    def tensor(
        self,
        name: str,
        array: object,
        shape: Sequence[int],
        dtype: DType,
        dims: tuple[str, ...] | None = None,
    ) -> Step:
        """A tensor of the program, such as an argument."""
        unique = unused(name, {t.lower() for t in self.tensors})
        step = Step(len(self.steps), tuple(shape), dtype, tuple(shape), name=unique, dims=dims)
        self.tensors[unique] = step, array
        self.steps.append(step)
        return step

    def constant(self, name: str, array: np.ndarray, dtype: DType) -> Step:
        """A snapshot of an array of the program, which may change afterwards."""
        known = self._constants.get(id(array))  # which is no other's, as the array is kept
        if known is None or not _same(known[1], array):
            copy = array.copy()
            known = array, copy, self.tensor(name, copy, array.shape, dtype)
            self._constants[id(array)] = known
        return known[2]

    def map(self, shape: Sequence[int], expr: Expr) -> Step:
        """The array of an expression's values at each point of the axes."""
        return self._step(tuple(shape), len(shape), expr, None, False)

    def reduce(
        self,
        extents: Sequence[int],
        rank: int,
        how: str,
        expr: Expr,
        dtype: DType | None = None,
        *,
        drops: bool = False,
    ) -> Step:
        """The reduction of an expression over the labels behind the first `rank`."""
        return self._step(tuple(extents), rank, expr, how, drops, dtype)

    def _step(
        self,
        extents: tuple[int, ...],
        rank: int,
        expr: Expr,
        how: str | None,
        drops: bool,
        dtype: DType | None = None,
    ) -> Step:
        expr = _settled(expr, extents)
        if how is None and _is_identity(expr, extents):
            assert isinstance(expr, Read)
            return expr.step
        dtype = expr.dtype if dtype is None else dtype
        key = extents, rank, expr, how, drops, dtype
        if key not in self._known:
            shape, number = extents[:rank], len(self.steps)
            step = Step(number, shape, dtype, extents, expr, how, drops=drops)
            self.steps.append(step)
            self._known[key] = step
        return self._known[key]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """True if two arrays of one type hold the same, NaN and the signs of zeros included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    integers = f"i{a.dtype.itemsize}"
    return np.array_equal(a.view(integers), b.view(integers))


def _settled(expr: Expr, extents: tuple[int, ...]) -> Expr:
    """The expression without the labels that can only be 0."""
    if 1 not in extents:
        return expr
    return substituted(expr, [ZERO if e == 1 else label(n) for n, e in enumerate(extents)])


def _is_identity(expr: Expr, extents: tuple[int, ...]) -> bool:
    if not isinstance(expr, Read) or expr.step.shape != extents:
        return False
    return expr.index == tuple(ZERO if e == 1 else label(n) for n, e in enumerate(extents))


def read(step: Step, index: Sequence[Expr]) -> Expr:
    """An element of an array; an axis of one element is read at 0."""
    settled = (ZERO if e == 1 else i for i, e in zip(index, step.shape, strict=True))
    return Read(step, tuple(settled))


def simple(step: Step) -> bool:
    """True for a map that reads one array at labels shifted or turned: a transpose, a slice."""
    e = step.expr
    if step.how is not None or not isinstance(e, Read):
        return False
    return all(isinstance(i, Affine) and len(i.terms) <= 1 for i in e.index)
