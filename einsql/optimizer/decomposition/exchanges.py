"""Rules that exchange an operation and a repartition, as cuts of the operation (TRA §4.2).

An operation and its operand or reader with different cuts have a repartition between them.
An operation that reduces nothing can take the other cut. Then the repartition is on its other
side:

* R2-3: a map takes the cut of its operand or of a reader. So its result or its operand moves.
* R2-7: a join takes the cut of a reader that cuts labels of all operands only. So the operands
  move, and each match stays at one site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.products import CutRule
from einsql.optimizer.decomposition.schedules import Schedules
from einsql.optimizer.decomposition.vectors import restricted


def exchanges(
    problem: Problem, schedules: Schedules, n: int
) -> Iterator[tuple[CutRule, np.ndarray]]:
    """The vectors under which a repartition is on the other side of an operation.

    Args:
        problem: The problem, with publishing vertices.
        schedules: The schedules of all vertices.
        n: The number of the operation.

    Yields:
        The rule, and int64 (labels,), a vector that differs from the operation's own.
    """
    v, own = problem.vertices[n], schedules[n].vector
    if v.reduced or not v.uses:
        return
    vectors = [_over(own, v.keys, cut) for cut in _read(problem, schedules, n)]
    rule = CutRule.MAP_AND_MOVE
    if len(v.uses) > 1:
        rule = CutRule.MOVE_BEFORE_JOIN
        common = set.intersection(*(set(use.axes) for use in v.uses))
        apart = [k for k in range(len(own)) if k not in common]
        vectors = [x for x in vectors if (x[apart] == 1).all()]
    elif v.uses[0].producer is not None:
        producer = v.uses[0].producer
        vector = schedules[producer].vector[None]
        (cut,) = restricted(vector, problem.vertices[producer].keys)
        vectors.append(_over(own, v.uses[0].axes, cut))
    most = np.maximum(1, v.extents)  # an operand or a reader may have more values
    different = {x.tobytes(): x for x in vectors if (x <= most).all()}
    different.pop(own.tobytes(), None)
    for vector in different.values():
        yield rule, vector


def _read(problem: Problem, schedules: Schedules, n: int) -> Iterator[np.ndarray]:
    """The cuts by which operations read a result, also through a publishing vertex."""
    for m, k in problem.readers[n]:
        reader = problem.vertices[m]
        if reader.publishes:
            yield from _read(problem, schedules, m)
        else:
            yield restricted(schedules[m].vector[None], reader.uses[k].axes)[0]


def _over(own: np.ndarray, axes: Sequence[int | None], cut: np.ndarray) -> np.ndarray:
    """A cut of a relation as a vector of an operation that has the relation's axes."""
    vector = np.ones_like(own)
    for axis, parts in zip(axes, cut, strict=True):
        if axis is not None:
            vector[axis] = parts
    return vector
