"""Expands `*` and `table.*` with EXCLUDE, REPLACE and RENAME to columns."""

from __future__ import annotations

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.sql.binder.syntax import check_syntax
from einsql.sql.parser.positions import position, positioned
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.scope.scope import Scope, Source


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of EXCLUDE, REPLACE or RENAME: its clause, column name and syntax."""

    clause: str
    table: str
    name: str
    node: exp.Expr

    def fits(self, source: Source, name: str) -> bool:
        """True if the entry names a column of a source."""
        owned = not self.table or source.answers_to(self.table)
        return owned and self.name.lower() == name.lower()

    def overlaps(self, other: Entry) -> bool:
        """True if the two entries can name the same column."""
        tables = {e.table.lower() for e in (self, other)} - {""}
        return self.name.lower() == other.name.lower() and len(tables) < 2


def expand_star(scope: Scope, node: exp.Expr) -> list[tuple[str, exp.Expr]]:
    """The names and expressions of the columns of `*` or `table.*`.

    Raises:
        ProgrammingError: An entry names no column or occurs twice, or the table is unknown.
    """
    star = node.this if isinstance(node, exp.Column) else node
    table = node.table if isinstance(node, exp.Column) else ""
    if isinstance(node, exp.Column) and node.args.get("db") is not None:
        raise ProgrammingError(f"einsql has no schemas: {as_sql(node)}", position=position(node))
    check_syntax(star)
    entries = _entries(star)
    with positioned(node):
        return _listed(scope, table or None, entries)


def _entries(star: exp.Expr) -> list[Entry]:
    entries: list[Entry] = []
    for arg, clause in (("except_", "EXCLUDE"), ("replace", "REPLACE"), ("rename", "RENAME")):
        nodes = star.args.get(arg)
        if nodes == []:
            raise ProgrammingError(f"{clause} names no columns", position=position(star))
        for node in nodes or []:
            entry = _entry(clause, node)
            for known in entries:
                if entry.overlaps(known):
                    where = dict.fromkeys((known.clause, clause))
                    raise ProgrammingError(
                        f'Column "{entry.name}" is given twice in {" and ".join(where)}',
                        position=position(node),
                    )
            entries.append(entry)
    return entries


def _entry(clause: str, node: exp.Expr) -> Entry:
    """Reads an entry: a name, `expression AS name` in REPLACE, or `name AS other` in RENAME."""
    column = node
    if clause != "EXCLUDE":
        if not isinstance(node, exp.Alias):
            raise ProgrammingError(f"{clause} needs … AS name", position=position(node))
        column = node.args["alias"] if clause == "REPLACE" else node.this
    if not isinstance(column, exp.Column | exp.Identifier) or column.args.get("db") is not None:
        raise ProgrammingError(f"{clause} needs names of columns", position=position(node))
    table = column.table if isinstance(column, exp.Column) else ""
    return Entry(clause, table, column.name, node)


def _listed(scope: Scope, table: str | None, entries: list[Entry]) -> list[tuple[str, exp.Expr]]:
    used: set[Entry] = set()

    def entry(clause: str, source: Source, name: str) -> Entry | None:
        match = next((e for e in entries if e.clause == clause and e.fits(source, name)), None)
        used.update([] if match is None else [match])
        return match

    def excluded(source: Source, name: str) -> bool:
        return entry("EXCLUDE", source, name) is not None

    items: list[tuple[str, exp.Expr]] = []
    for source, name, _ in scope.listed(table, excluded):
        known = set(used)
        replaced = entry("REPLACE", source, name)
        renamed = entry("RENAME", source, name)
        if replaced is not None:
            # The first of equal names is replaced, and the others are dropped.
            if replaced not in known:
                items.append((replaced.node.alias, replaced.node.this))
            continue
        column = exp.column(
            exp.to_identifier(name, quoted=True), exp.to_identifier(source.alias, quoted=True)
        )
        items.append((name if renamed is None else renamed.node.alias, column))
    if table is not None and not scope.knows(table):
        raise scope.unknown("*", table)
    for e in entries:
        if e not in used:
            error = scope.unknown(e.name, e.table or table)
            error.position = position(e.node)
            raise error
    return items
