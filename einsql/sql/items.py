"""SELECT items: `*` written out, and the aliases that other expressions may use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from einsql.errors import Error, ProgrammingError
from einsql.sql.calls import aggregates_in, column_name
from einsql.sql.scalar import locate, position
from einsql.sql.scope import Scope


@dataclass(frozen=True, slots=True)
class Item:
    """One SELECT item: its column name and its expression.

    Attributes:
        named: True if the name is an alias, which expressions may use.
    """

    name: str
    node: exp.Expr
    named: bool = False


def expand(select: exp.Select, scope: Scope) -> list[Item]:
    """The items of a SELECT, with `*` written out.

    Raises:
        ProgrammingError: A `*` names unknown columns, or finds none.
    """
    items: list[Item] = []
    for node in select.expressions:
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            table = node.table if isinstance(node, exp.Column) else None
            items += _expand_star(scope, star, table or None, node)
        elif isinstance(node, exp.Alias):
            items.append(Item(node.alias, node.this, named=True))
        else:
            items.append(Item(column_name(node), node))
    if not items:
        raise ProgrammingError("SELECT * found no columns", position=position(select))
    return items


def _expand_star(scope: Scope, star: exp.Star, table: str | None, at: exp.Expr) -> list[Item]:
    dropped = {e.name.lower() for e in star.args.get("except_") or []}
    replaced = {e.alias.lower(): e.this for e in star.args.get("replace") or []}
    renamed = {e.this.name.lower(): e.alias for e in star.args.get("rename") or []}
    items: list[Item] = []
    seen: set[str] = set()
    try:
        for s in scope.sources:
            if table is not None and s.alias.lower() != table.lower():
                continue
            for name, _ in s.columns:
                low = name.lower()
                seen.add(low)
                if low in dropped or (table is None and low in s.merged):
                    continue
                column = exp.column(
                    exp.to_identifier(name, quoted=True),
                    exp.to_identifier(s.alias, quoted=True),
                )
                items.append(Item(renamed.get(low, name), replaced.get(low, column)))
        if table is not None and not seen:
            raise scope.unknown("*", table)
        for name in (*dropped, *replaced, *renamed):
            if name not in seen:
                raise scope.unknown(name, table)
    except Error as error:
        raise locate(error, at) from None
    return items


def find_alias(items: Sequence[Item], name: str) -> int | None:
    """The index of the item with an alias; the last one counts if several have it."""
    for n in reversed(range(len(items))):
        if items[n].named and items[n].name.lower() == name.lower():
            return n
    return None


def within(node: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of an expression that belong to its own SELECT, not to a subquery."""
    stack = [node]
    while stack:
        n = stack.pop()
        if not isinstance(n, exp.Query):
            yield n
            stack.extend(n.iter_expressions())


def has_window(node: exp.Expr) -> bool:
    """True if an expression holds a window call of its own SELECT."""
    return any(isinstance(n, exp.Window) for n in within(node))


def is_aggregated(items: Sequence[Item], n: int) -> bool:
    """True if an item holds an aggregate, itself or through the alias of an earlier item."""
    node = items[n].node
    if aggregates_in(node):
        return True
    names = [c.name for c in within(node) if isinstance(c, exp.Column) and not c.table]
    used = {m for name in names if (m := find_alias(items, name)) is not None and m < n}
    return any(is_aggregated(items, m) for m in used)
