"""The objects of a database: immutable values under names, with transactions.

A snapshot is a copy of the name table, for nothing stored is ever changed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from einsql.engine.relation import Fields, PlacedFields, Relation, lie_alike
from einsql.errors import OperationalError, ProgrammingError, suggest


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
    """

    name: str
    relation: Relation
    columns: tuple[str, ...]
    partition: tuple[int, ...] | None = None
    order: tuple[int, ...] = ()
    default: Any = None
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """A view or macro: its syntax tree, opaque here, and its text."""

    name: str
    kind: str
    body: Any
    text: str


Object = Tensor | Definition


@dataclass
class Store:
    """Names to objects; names are found in any letter case."""

    objects: dict[str, Object] = field(default_factory=dict)
    version: int = 0
    """Grows when what a name means changes its form; plans depend on it."""
    settle: Callable[[Fields], Fields] = lambda fields: fields
    """Puts fields where they are to stay, which may be files."""
    _saved: dict[str, Object] | None = None

    def get(self, name: str) -> Object | None:
        """The object of a name, or None."""
        return self.objects.get(name.lower())

    def lasts(self, name: str, fields: Fields) -> bool:
        """True if a stored tensor has these fields, which nobody ever changes in place."""
        found = self.get(name)
        if not isinstance(found, Tensor) or found.borrowed:
            return False
        return found.relation.fields is fields

    def writable(self, name: str) -> Tensor:
        """The tensor of a name, for changing.

        Raises:
            ProgrammingError: There is none, or it is a registered array or a view.
        """
        found = self.get(name)
        if isinstance(found, Tensor) and not found.borrowed:
            return found
        if found is None:
            known = [o.name for o in self.objects.values() if isinstance(o, Tensor)]
            raise ProgrammingError(
                f'There is no tensor "{name}"', hint=suggest(name, known, "tensors")
            )
        what = "a registered array" if isinstance(found, Tensor) else f"a {found.kind}"
        raise ProgrammingError(
            f'"{name}" is {what} and cannot be changed', hint="CREATE TENSOR … AS SELECT copies it."
        )

    def put(self, item: Object) -> None:
        """Stores an object under its name, replacing what was there."""
        if isinstance(item, Tensor) and not item.borrowed:
            fields = self.settle(item.relation.fields)
            if fields is not item.relation.fields:
                item = replace(item, relation=replace(item.relation, fields=fields))
        old = self.objects.get(item.name.lower())
        same = (
            isinstance(old, Tensor)
            and isinstance(item, Tensor)
            and old.relation.schema == item.relation.schema
            and old.columns == item.columns
            and (old.partition, old.order) == (item.partition, item.order)
            and lie_alike(old.relation.fields, item.relation.fields)
        )
        self.objects[item.name.lower()] = item
        if not same:
            self.version += 1

    def placed(self, name: str, before: Fields, now: PlacedFields) -> None:
        """Says that the arrays of a stored tensor lie at sites; what it holds stays the same.

        Args:
            name: The tensor, in small letters.
            before: Its fields when they were brought there.
            now: The same fields there.
        """
        found = self.objects.get(name)
        if isinstance(found, Tensor) and not found.borrowed and found.relation.fields is before:
            relation = replace(found.relation, fields=now)
            self.objects[name] = replace(found, relation=relation)

    def remove(self, name: str) -> None:
        """Forgets a name."""
        del self.objects[name.lower()]
        self.version += 1

    def register(self, item: Tensor) -> None:
        """Gives a registered array its name, whatever becomes of a running transaction.

        Raises:
            ProgrammingError: A tensor or view has the name, or would have it again after
                a ROLLBACK.
        """
        low = item.name.lower()
        for objects in self.states():
            found = objects.get(low)
            if found is not None and not (isinstance(found, Tensor) and found.borrowed):
                kind = "tensor" if isinstance(found, Tensor) else found.kind
                raise ProgrammingError(
                    f'There is a {kind} "{found.name}" already',
                    hint="DROP it and COMMIT, or register the array under another name.",
                )
        self.put(item)
        if self._saved is not None:
            self._saved[low] = item

    def unregister(self, name: str) -> None:
        """Forgets a registered array, whatever becomes of a running transaction.

        Raises:
            ProgrammingError: No array is registered under the name.
        """
        found = self.get(name)
        if not isinstance(found, Tensor) or not found.borrowed:
            raise ProgrammingError(f'No array is registered as "{name}"')
        self.remove(name)
        if self._saved is not None:
            self._saved.pop(name.lower(), None)

    def states(self) -> list[dict[str, Object]]:
        """What names mean now, and what they would mean after a ROLLBACK."""
        return [self.objects] if self._saved is None else [self.objects, self._saved]

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        return self._saved is not None

    def begin(self) -> None:
        """Starts a transaction.

        Raises:
            OperationalError: One is running.
        """
        if self._saved is not None:
            raise OperationalError(
                "A transaction is running already", hint="COMMIT or ROLLBACK it first."
            )
        self._saved = dict(self.objects)

    def commit(self) -> None:
        """Keeps what the transaction did.

        Raises:
            OperationalError: None is running.
        """
        if self._saved is None:
            raise OperationalError("No transaction is running", hint="Start one with BEGIN.")
        self._saved = None

    def rollback(self) -> None:
        """Undoes what the transaction did.

        Raises:
            OperationalError: None is running.
        """
        if self._saved is None:
            raise OperationalError("No transaction is running", hint="Start one with BEGIN.")
        self.objects, self._saved = self._saved, None
        self.version += 1


def owner(array: np.ndarray) -> object:
    """The object whose memory an array shows."""
    base: Any = array
    while getattr(base, "base", None) is not None:
        base = base.base
    return base


def owned(array: np.ndarray, foreign: set[int]) -> np.ndarray:
    """A contiguous, read-only array that nobody else can change.

    Args:
        array: A result.
        foreign: Ids of the owners of memory that is not ours, as `owner` finds them.
    """
    shared = id(owner(array)) in foreign or not array.flags.c_contiguous
    kept = np.array(array, order="C", copy=True) if shared else array.view()
    kept.flags.writeable = False
    return kept
