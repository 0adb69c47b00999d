"""What a database holds under its names: tensors, views and macros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einsql.engine.database.stored import StoredFields
from einsql.engine.relation import Relation, lie_alike


@dataclass(frozen=True, slots=True)
class Tensor:
    """A stored tensor, or a registered array.

    Attributes:
        columns: Column names in declared order; keys and values of the relation.
        partition: Into how many parts each key is cut over the sites, all 1 for a copy at
            every site; None if nothing is declared.
        order: Positions of the keys as they were declared: the blocks are numbered so, the
            last key fastest.
        default: The value of keys that were never set, or None.
        borrowed: True for a registered array, which its owner may change at any time.
        temporary: True for a TEMP tensor, which is its session's alone and never written.
    """

    name: str
    relation: Relation
    columns: tuple[str, ...]
    partition: tuple[int, ...] | None = None
    order: tuple[int, ...] = ()
    default: Any = None
    borrowed: bool = False
    temporary: bool = False

    def holding(self, relation: Relation) -> Tensor:
        """The tensor with another relation; `replace` takes four times as long."""
        return Tensor(
            self.name, relation, self.columns, self.partition, self.order, self.default,
            self.borrowed, self.temporary,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """A view or macro: its syntax tree, opaque here, and its text.

    Attributes:
        temporary: True if it is its session's alone and never written.
    """

    name: str
    kind: str
    body: Any
    text: str
    temporary: bool = False


Object = Tensor | Definition


def is_local(item: Object) -> bool:
    """True for what one session has for itself: registered arrays and what is TEMP."""
    return item.temporary or (isinstance(item, Tensor) and item.borrowed)


def _is_changed_in_place(old: Tensor, new: Tensor) -> bool:
    """True for what most changes make of a tensor: other arrays, and all else as it was."""
    return (
        old.relation.schema is new.relation.schema
        and type(old.relation.fields) is dict
        and type(new.relation.fields) is dict
        and old.columns is new.columns
        and old.partition is new.partition
        and old.order is new.order
    )


def same_form(old: Object | None, new: Object | None) -> bool:
    """True if plans that were made for one object hold for the other."""
    if old is new:
        return True
    if isinstance(old, Tensor) and isinstance(new, Tensor) and _is_changed_in_place(old, new):
        return True
    return (
        isinstance(old, Tensor)
        and isinstance(new, Tensor)
        and old.relation.schema == new.relation.schema
        and old.columns == new.columns
        and (old.partition, old.order) == (new.partition, new.order)
        and lie_alike(old.relation.fields, new.relation.fields)
        # What is read from a file box by box was planned for that.
        and isinstance(old.relation.fields, StoredFields)
        == isinstance(new.relation.fields, StoredFields)
    )
