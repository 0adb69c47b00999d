"""Rebinds a plan that runs again: looks up its inputs, and checks that they are as planned."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from einsql.engine.step import Tick
from einsql.planner.plan import Dependency, Plan
from einsql.storage.fields import Fields
from einsql.storage.host_arrays import array_relation, file_relation
from einsql.storage.objects import Tensor
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.planner.tile_plan import TilePlan


def rebind_inputs(
    plan: Plan | TilePlan, store: Store, in_scope: Callable[[str], object | None], tick: Tick,
    other: Callable[[Dependency], Fields | None] = lambda dependency: None,
    given: Sequence[object] = (),
) -> dict[str, Fields] | None:  # fmt: skip
    """Fields of every input of a plan, or None if one is not what the plan was made for.

    Args:
        plan: The plan.
        store: What names mean now.
        in_scope: Finds an array in the caller's scope.
        tick: Told the fraction done; raises to cancel.
        given: Values of the statement's parameters.
        other: Finds tables, and what is computed once for several queries of the statement.
    """
    if plan.version != store.version:
        return None
    inputs: dict[str, Fields] = {}
    objects, lent = store.objects, store.lent
    for d in plan.dependencies:
        if d.kind == "tensor":
            tensor = objects.get(d.low)
            if not isinstance(tensor, Tensor):
                return None
            schema = tensor.relation.schema
            if schema is not d.schema and schema != d.schema:
                return None
            inputs[d.low] = lent(tensor)
            continue
        if d.kind in ("once", "table"):
            fields = other(d)
            if fields is None:
                return None
            inputs[d.low] = fields
            continue
        if d.source is not None:
            path, member = d.source
            if not os.path.exists(path):
                return None
            relation = file_relation(path, member, tick, store.memory)
        else:
            array = in_scope(d.name)
            if array is None:
                return None
            relation = array_relation(array)
        if relation.schema != d.schema:
            return None
        inputs[d.name if d.kind == "file" else d.low] = relation.fields
    if plan.use.scalars:
        try:
            plan.use.feed(given, inputs)
        except (ArithmeticError, ValueError):
            return None  # planned for these values, it says what is wrong, or never needs them
    if not plan.probes or all(p.holds(inputs, tick) for p in plan.probes):
        return inputs
    return None
