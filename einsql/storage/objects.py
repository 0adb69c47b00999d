"""The named objects of a database: tensors, views and macros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from einsql.errors import Error, InterruptedError, OperationalError
from einsql.storage.database.stored import StoredFields
from einsql.storage.relation import Fields, Relation, lie_alike


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

    @property
    def owned_fields(self) -> Fields:
        """The arrays that the database owns; none of a registered array."""
        return {} if self.borrowed else self.relation.fields

    def holding(self, relation: Relation) -> Tensor:
        """The tensor with another relation; `replace` takes four times as long."""
        return Tensor(
            name=self.name,
            relation=relation,
            columns=self.columns,
            partition=self.partition,
            order=self.order,
            default=self.default,
            borrowed=self.borrowed,
            temporary=self.temporary,
        )


@dataclass(frozen=True, slots=True)
class Body:
    """The parsed text of a definition.

    Attributes:
        tree: The syntax tree, opaque here; None for a view that DuckDB alone can read.
        depth: How deep the text nests.
    """

    tree: Any
    depth: int


class Definition:
    """A view or macro: a text, which is parsed when the definition is first used.

    Attributes:
        name: As it was written; macros end in `()`.
        kind: "view" or "macro".
        text: The CREATE statement.
        temporary: True if it is its session's alone and never written.
        fault: Why the text cannot be used; empty if it can, or nobody has tried.
    """

    __slots__ = ("_body", "_read", "fault", "kind", "name", "temporary", "text")

    def __init__(
        self, name: str, kind: str, text: str, read: Callable[[], Body], temporary: bool = False
    ) -> None:
        """Remembers the text.

        Args:
            name: As it was written; macros end in `()`.
            kind: "view" or "macro".
            text: The CREATE statement.
            read: Parses the text.
            temporary: Whether it is its session's alone and never written.
        """
        self.name = name
        self.kind = kind
        self.text = text
        self.temporary = temporary
        self.fault = ""
        self._read = read
        self._body: Body | None = None

    @property
    def owned_fields(self) -> Fields:
        """No arrays."""
        return {}

    @property
    def body(self) -> Body:
        """The parsed text.

        Raises:
            OperationalError: It cannot be read.
        """
        if self._body is None:
            self._body = self._parsed()
        return self._body

    def _parsed(self) -> Body:
        if self.fault:
            raise damage(self)
        try:
            return self._read()
        except (InterruptedError, MemoryError, RuntimeError):  # not the text's fault
            raise
        except Exception as error:
            self.fault = error.reason if isinstance(error, Error) else repr(error)
            raise damage(self) from error


@dataclass(frozen=True, slots=True)
class Damaged:
    """An object whose row in the catalog cannot be read.

    Attributes:
        name: As the row has it, in small letters; made up if the row has none.
        kind: "tensor", "view" or "macro"; "object" if the row does not say.
        fault: Why it cannot be read.
        payloads: The files that the row names, which stay; None if it may name any file.
    """

    name: str
    kind: str
    fault: str
    payloads: frozenset[str] | None
    temporary: bool = False

    @property
    def owned_fields(self) -> Fields:
        """No arrays."""
        return {}


def damage(item: Definition | Damaged) -> OperationalError:
    """Why an object of the database cannot be used."""
    name = bare_name(item)
    kind = "VIEW" if item.kind == "object" else item.kind.upper()
    return OperationalError(
        f'The {item.kind} "{name}" is damaged in the database file: {item.fault}',
        hint=f'Restore the database from a copy, or remove it: DROP {kind} "{name}". '
        "PRAGMA integrity_check lists all damage.",
    )


Object = Tensor | Definition | Damaged


def macro_key(name: str) -> str:
    """The name of a macro in the store and in files, where tensors may have its own name."""
    return f"{name}()"


def bare_name(item: Object) -> str:
    """The name of an object in SQL: a macro's without the parentheses of `macro_key`."""
    return item.name.removesuffix("()")


def kind_of(item: Object) -> str:
    """The kind of an object, as DROP names it; "object" if its row has none."""
    return "tensor" if isinstance(item, Tensor) else item.kind


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
