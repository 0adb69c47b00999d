"""SELECT items: the expansion of `*`, the aliases for other expressions, and lists in UNNEST."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import Label, bigint, call
from einsql.sql.binder.calls import is_aggregate, list_call
from einsql.sql.binder.domain import Domain
from einsql.sql.macros.expansion import is_subscripts
from einsql.sql.parser.positions import position, positioned, unsupported
from einsql.sql.parser.spellings import PLUS
from einsql.sql.scope.scope import Scope
from einsql.sql.typing import functions
from einsql.sql.typing.typed_expr import Typed

if TYPE_CHECKING:
    from einsql.sql.binder import star as star_items
    from einsql.sql.parser import column_names
else:  # loaded for SELECT *
    star_items = LazyModule("einsql.sql.binder.star")
    column_names = LazyModule("einsql.sql.parser.column_names")


@dataclass(frozen=True, slots=True)
class Item:
    """A SELECT item: its column name and its expression.

    Attributes:
        named: True if the name is an alias, which other expressions may use.
    """

    name: str
    node: exp.Expr
    named: bool = False


def expand(select: exp.Select, scope: Scope) -> list[Item]:
    """The items of a SELECT, with `*` expanded.

    Raises:
        ProgrammingError: A `*` names unknown columns, or has no columns.
    """
    items: list[Item] = []
    for node in select.expressions:
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            items += [Item(name, value) for name, value in star_items.expand_star(scope, node)]
        elif isinstance(node, exp.Alias):
            items.append(Item(node.alias, node.this, named=True))
        else:
            items.append(Item(_name(node, scope), node))
    if not items:
        raise ProgrammingError("SELECT * found no columns", position=position(select))
    return items


def _name(node: exp.Expr, scope: Scope) -> str:
    """The name of an item without an alias; a column's name has its table's spelling."""
    if isinstance(node, exp.Column) and PLUS not in node.meta:
        with positioned(node):
            column = scope.resolve(node.name, node.table or None)
        if column is not None:
            return column[0]
    return column_names.column_name(node)


def find_alias(items: Sequence[Item], name: str) -> int | None:
    """The index of the last item with an alias, or None."""
    for n in reversed(range(len(items))):
        if items[n].named and items[n].name.lower() == name.lower():
            return n
    return None


def within(node: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of an expression; a subquery's inner nodes are omitted."""
    stack = [node]
    while stack:
        n = stack.pop()
        yield n
        if not isinstance(n, exp.Query):
            stack.extend(n.iter_expressions())


def has_window(node: exp.Expr) -> bool:
    """True if an expression contains a window call of its own SELECT."""
    return any(isinstance(n, exp.Window) for n in within(node))


def keys_of_all(items: Sequence[Item], scope: Scope) -> list[int]:
    """The items of GROUP BY ALL: the items that read columns and contain no aggregate."""
    keys: list[int] = []
    for n in range(len(items)):
        nodes = list(_meaning(items, n, scope))
        aggregated = any(isinstance(x, exp.Window) or is_aggregate(x) for x in nodes)
        if not aggregated and any(isinstance(x, exp.Column | exp.Query) for x in nodes):
            keys.append(n)
    return keys


def _meaning(items: Sequence[Item], n: int, scope: Scope) -> Iterator[exp.Expr]:
    """The nodes of an item; the nodes of earlier items replace their aliases."""
    for node in within(items[n].node):
        named = None
        plain = isinstance(node, exp.Column) and not node.table
        if plain and all(s.get(node.name) is None for s in scope.sources):
            named = find_alias(items, node.name)
        if named is not None and named < n:
            yield from _meaning(items, named, scope)
        else:
            yield node


POSITION = "position"
"""The wanted name of the label of the elements."""


@dataclass
class ListElements:
    """The lists of UNNEST in a SELECT, whose elements are side by side.

    Their label is added behind the binding of all items, because windows reduce the other labels.

    Attributes:
        elements: The elements of each list by the number of its item; none for their numbers.
        size: The length of the lists; 0 without any.
        label: The label of the elements.
    """

    elements: dict[int, list[Typed]] = field(default_factory=dict)
    size: int = 0
    label: str = ""

    def bind(self, n: int, node: exp.Expr, bind: Callable[[exp.Expr], Typed]) -> Typed:
        """Binds an item, which may be UNNEST([a, b, …]) or GENERATE_SUBSCRIPTS([a, b, …], 1).

        Returns:
            The value of the item; of a list, what `value` replaces.

        Raises:
            NotSupportedError: The argument is no list of numbers, or lists differ in length.
        """
        if not isinstance(node, exp.Explode) and not is_subscripts(node):
            return bind(node)
        args = node.expressions
        array = node.this if isinstance(node, exp.Explode) else args[0] if args else None
        while isinstance(array, exp.Paren):
            array = array.this
        if array is not None and list_call(array) is not None:
            return bind(node)  # with `list_aggregates`
        if not isinstance(array, exp.Array) or not array.expressions:
            raise unsupported("UNNEST of anything but a list [a, b, …]", node)
        if self.size not in (0, len(array.expressions)):
            raise unsupported("UNNEST of lists of different lengths", node)
        self.size, self.elements[n] = len(array.expressions), []
        if isinstance(node, exp.Explode):
            self.elements[n] = [bind(e) for e in array.expressions]
            return self.elements[n][0]
        dimension = args[1] if len(args) == 2 else None
        if not isinstance(dimension, exp.Literal) or dimension.name != "1":
            raise unsupported("GENERATE_SUBSCRIPTS of another dimension", node)
        return Typed(bigint(1), DType.BIGINT)

    def value(self, n: int, domain: Domain, typed: Typed) -> Typed:
        """The value of an item over the rows of all elements.

        Args:
            n: The number of the item.
            domain: The domain of the SELECT, to which the label of the elements is added.
            typed: The value that `bind` returned.
        """
        if n not in self.elements:
            return typed
        self.label = self.label or domain.fresh(POSITION, 1, self.size + 1)
        if not self.elements[n]:
            return Typed(Label(self.label), DType.BIGINT)
        *first, last = self.elements[n]
        places = (
            call("eq", DType.BOOLEAN, Label(self.label), bigint(k + 1)) for k in range(len(first))
        )
        return functions.case([Typed(p, DType.BOOLEAN) for p in places], first, last)
