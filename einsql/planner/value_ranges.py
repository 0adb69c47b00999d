"""Ranges of values on which a plan relies, and the test whether they still hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import Input
from einsql.planner.dependencies import Dependency, TensorDependency
from einsql.sql.typing.value_ranges import Ranges
from einsql.storage.fields import Fields, as_fields
from einsql.storage.objects import Tensor
from einsql.storage.value_ranges import Range, range_of

if TYPE_CHECKING:
    from einsql.engine.step import Tick
    from einsql.planner.bounds_probe import Probe
    from einsql.storage.session_store import Store


@dataclass(frozen=True, slots=True)
class RangeCondition:
    """An integer field of an input whose values must stay within inclusive bounds.

    Attributes:
        dependency: The input.
        field: The field.
        least: The least value.
        most: The greatest value.
        store: The session's tensors, whose ranges are known for each version.
    """

    dependency: Dependency
    field: str
    least: int
    most: int
    store: Store

    def holds(self, inputs: Mapping[str, Fields], tick: Tick) -> bool:
        """Whether the values are within the bounds; False if their range is unknown.

        Present values are read only if the declared range is wider, or if there is none.
        """
        declared = _declared_range(self.dependency, self.field, self.store)
        if declared is not None and self.least <= declared[0] and declared[1] <= self.most:
            return True
        fields = inputs[self.dependency.name]
        present = _range_now(self.dependency, self.field, fields, self.store)
        return present is not None and self.least <= present[0] and present[1] <= self.most


def _declared_range(dependency: Dependency, field: str, store: Store) -> Range | None:
    """The range that the CHECK of a stored tensor declares for a field, or None."""
    if type(dependency) is not TensorDependency:
        return None
    tensor = store.objects.get(dependency.tensor)
    if not isinstance(tensor, Tensor):
        return None
    dtype = tensor.relation.schema.dtype
    return next((c.within(dtype(field)) for c in tensor.checks if c.column == field), None)


def _range_now(dependency: Dependency, field: str, fields: Fields, store: Store) -> Range | None:
    """The range of an input's field: computed once for a version of a stored tensor, else now.

    Args:
        dependency: The input.
        field: An integer field.
        fields: The present fields of the input.
        store: The session's tensors.
    """
    if type(dependency) is TensorDependency:
        tensor = store.objects.get(dependency.tensor)
        if isinstance(tensor, Tensor) and not tensor.borrowed:
            return store.ranges.of(dependency.tensor, field, tensor.relation.fields)
    return range_of(as_fields(fields), field)


def ranges_of(
    dependencies: Sequence[Dependency],
    inputs: Mapping[str, Fields],
    conditions: list[Probe | RangeCondition],
    store: Store,
) -> Ranges:
    """The declared and the present ranges of a statement's inputs.

    Args:
        dependencies: The inputs; further ones may be added later.
        inputs: The fields of the inputs, by name.
        conditions: Receives the ranges that a proof needs; the plan depends on them.
        store: The session's tensors.
    """

    def dependency_of(node: Input) -> Dependency:
        return next(d for d in dependencies if d.name == node.name)

    def declared(node: Input, field: str) -> Range | None:
        return _declared_range(dependency_of(node), field, store) if node.name in inputs else None

    def range_now(node: Input, field: str) -> Range | None:
        fields = inputs.get(node.name)
        if fields is None:
            return None
        return _range_now(dependency_of(node), field, fields, store)

    def rely_on(node: Input, field: str, least: int, most: int) -> None:
        condition = RangeCondition(dependency_of(node), field, least, most, store)
        if condition not in conditions:
            conditions.append(condition)

    return Ranges((declared, range_now), rely_on)
