"""The named objects of a database: tensors, views and macros."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from einsql.core.records import dataclass
from einsql.errors import Error, InterruptedError, OperationalError
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.relation import Relation

if TYPE_CHECKING:
    from einsql.core.value_checks import Check
    from einsql.ir.partition import Partition


@dataclass(frozen=True, slots=True)
class Tensor:
    """A stored tensor, or a registered array.

    Attributes:
        name: The name as written.
        relation: The schema and the arrays.
        columns: Column names in declared order; keys and values of the relation.
        partition: The declared partition over the sites; None if nothing is declared.
        default: The value of keys that were never set, or None.
        checks: The declared bounds of values, at most one for each integer column.
        borrowed: True for a registered array, which its owner may change at any time.
        temporary: True for a TEMP tensor, which only its session sees and which is never written.
        changed: True if it was declared without a query, or after an INSERT, UPDATE or DELETE.
    """

    name: str
    relation: Relation
    columns: tuple[str, ...]
    partition: Partition | None = None
    default: Any = None
    checks: tuple[Check, ...] = ()
    borrowed: bool = False
    temporary: bool = False
    changed: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether its query alone has set it: plans on sites may then move it once for all runs."""
        return self.partition is None and not self.changed

    @property
    def owned_fields(self) -> Fields:
        """The arrays that the database owns; none of a registered array."""
        return LocalFields() if self.borrowed else self.relation.fields

    def with_relation(self, relation: Relation) -> Tensor:
        """The changed tensor; `dataclasses.replace` takes four times as long."""
        return Tensor(
            name=self.name,
            relation=relation,
            columns=self.columns,
            partition=self.partition,
            default=self.default,
            checks=self.checks,
            borrowed=self.borrowed,
            temporary=self.temporary,
            changed=True,
        )


@dataclass(frozen=True, slots=True)
class Body:
    """The parsed text of a definition.

    Attributes:
        tree: The syntax tree, opaque to this module; None for a view that only DuckDB can parse.
        depth: The nesting depth of the text.
    """

    tree: Any
    depth: int


class Definition:
    """A view or macro: a text that is parsed on first use.

    Attributes:
        name: The name as written; macros end in `()`.
        kind: "view" or "macro".
        text: The CREATE statement.
        temporary: True for a TEMP definition, which only its session sees.
        fault: The reason why the text cannot be parsed; empty if it can, or was not parsed yet.
    """

    __slots__ = ("_body", "_read", "fault", "kind", "name", "temporary", "text")

    def __init__(
        self, name: str, kind: str, text: str, read: Callable[[], Body], temporary: bool = False
    ) -> None:
        """Creates a definition without parsing its text.

        Args:
            name: The name as written; macros end in `()`.
            kind: "view" or "macro".
            text: The CREATE statement.
            read: Parses the text.
            temporary: Whether the definition is a TEMP one.
        """
        self.name = name
        self.kind = kind
        self.text = text
        self.temporary = temporary
        self.fault = ""
        self._read = read
        self._body: Body | None = None

    @property
    def is_view(self) -> bool:
        """Whether it is a view, whose name FROM may name."""
        return self.kind == "view"

    @property
    def owned_fields(self) -> Fields:
        """No arrays."""
        return LocalFields()

    @property
    def body(self) -> Body:
        """The parsed text.

        Raises:
            OperationalError: The text cannot be parsed.
        """
        if self._body is None:
            if self.fault:
                raise damage_error(self)
            try:
                self._body = self._read()
            except (InterruptedError, MemoryError, RuntimeError):  # independent of the text
                raise
            except Exception as error:
                self.fault = error.reason if isinstance(error, Error) else repr(error)
                raise damage_error(self) from error
        return self._body


@dataclass(frozen=True, slots=True)
class Damaged:
    """An object whose row in the catalog cannot be read.

    Attributes:
        name: The lower-case name in the row; generated if the row has none.
        kind: "tensor", "view" or "macro"; "object" if the row has no kind.
        fault: The reason why the row cannot be read.
        payloads: The files in the row, which are not removed; None if they are unknown.
        temporary: False; a row is never of a TEMP object.
    """

    name: str
    kind: str
    fault: str
    payloads: frozenset[str] | None
    temporary: bool = False

    @property
    def owned_fields(self) -> Fields:
        """No arrays."""
        return LocalFields()


def damage_error(item: Definition | Damaged) -> OperationalError:
    """The error for an object that is damaged in the database file."""
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
    """The kind of an object in DROP; "object" if its row has none."""
    return "tensor" if isinstance(item, Tensor) else item.kind


def is_local(item: Object) -> bool:
    """True for objects of one session: registered arrays and TEMP objects."""
    return item.temporary or (isinstance(item, Tensor) and item.borrowed)


def same_form(old: Object | None, new: Object | None) -> bool:
    """True if plans for one object are valid for the other."""
    if old is new:
        return True
    if not (isinstance(old, Tensor) and isinstance(new, Tensor)):
        return False
    # The common case of new arrays and nothing else is decided by identity.
    return (
        old.relation.schema is new.relation.schema
        and old.relation.fields.is_local
        and new.relation.fields.is_local
        and old.columns is new.columns
        and old.partition is new.partition
        and old.checks is new.checks
    ) or (
        old.relation.schema == new.relation.schema
        and old.changed == new.changed
        and old.relation.fields.placed_like(new.relation.fields)
        and _same_declaration(old, new)
    )


def same_but_inputs(old: Object | None, new: Object | None) -> bool:
    """True if the objects have the same form, except for properties that plans compare.

    A plan compares the bounds of the keys and the placement over the sites of each tensor that it
    reads.
    """
    if old is new:
        return True
    return isinstance(old, Tensor) and isinstance(new, Tensor) and _same_declaration(old, new)


def _same_declaration(old: Tensor, new: Tensor) -> bool:
    before, after = old.relation, new.relation
    return (
        before.schema.fields == after.schema.fields
        and [k.name for k in before.schema.keys] == [k.name for k in after.schema.keys]
        and old.columns == new.columns
        and old.partition == new.partition
        and old.checks == new.checks
        and before.fields.stored_like(after.fields)
        # Plans read stored fields box by box.
        and (before.fields.layout is None) == (after.fields.layout is None)
    )
