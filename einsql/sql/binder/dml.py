"""Binds UPDATE, DELETE and INSERT to graphs over the target's keys."""

from __future__ import annotations

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import InternalError, ProgrammingError, suggest
from einsql.ir.einsum.graph import TRUE, Const, EinSum, Expr, Node, Output, operands_of
from einsql.sql.binder.bind_bounds import settle
from einsql.sql.binder.context import Binder
from einsql.sql.binder.from_clause import FromBinder, bind_joined
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.select import SelectBinder
from einsql.sql.parameters.windows import Edge
from einsql.sql.parser.positions import position, positioned, unsupported
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.scope.relation import Relation
from einsql.sql.scope.scope import Source, read
from einsql.sql.typing.typed_expr import Typed, convert, truth

COUNT = ".count"
"""The name of the output with the number of FROM's rows that match a target row."""


@dataclass(frozen=True, slots=True)
class Touch:
    """The rows that a statement changes.

    Attributes:
        node: The node; its PRESENT output, if it has one, is true for the changed rows.
        labels: The label of each key of the target; the labels of a diagonal are equal.
        columns: The changed value columns; the node has an output for each.
        edges: The bounds of the node's keys from parameters, with the numbers of the keys.
    """

    node: Node
    labels: tuple[str, ...]
    columns: tuple[str, ...] = ()
    edges: tuple[tuple[int, Edge], ...] = ()


# ---- supported syntax

_ALLOWED: dict[type[exp.Expr], frozenset[str]] = {
    exp.Insert: frozenset({"this", "expression", "alternative", "by_name", "with_"}),
    exp.Update: frozenset({"this", "expressions", "from_", "where", "with_"}),
    exp.Delete: frozenset({"this", "where", "with_"}),
    exp.Schema: frozenset({"this", "expressions"}),
    exp.Table: frozenset({"this", "alias"}),
    exp.TableAlias: frozenset({"this"}),
    exp.Values: frozenset({"expressions"}),
}
"""The supported arguments of each syntax node; any other is refused."""

_CLAUSES = {
    "order": "ORDER BY",
    "conflict": "ON CONFLICT",
    "default": "DEFAULT VALUES",
    "exists": "IF EXISTS",
    "joins": "Changing several tables at once",
    "tables": "DELETE with names before FROM",
    "columns": "A column list after the alias",
    "alias": "VALUES with an alias",
}


_HINTS = {
    "using": "WHERE … IN (SELECT …) and EXISTS read tables too.",
    "returning": "SELECT from the tensor afterwards, or the new values from a WITH that both read.",
}


def _check_clauses(node: exp.Expr) -> None:
    """Refuses arguments of a node that are not in `_ALLOWED`."""
    if isinstance(node, exp.Table) and node.args.get("db") is not None:
        raise ProgrammingError(f"einsql has no schemas: {as_sql(node)}", position=position(node))
    for arg, value in node.args.items():
        if value and arg not in _ALLOWED[type(node)]:
            first = value[0] if isinstance(value, list) else value
            at = first if isinstance(first, exp.Expr) and position(first) is not None else node
            name = _CLAUSES.get(arg, arg.strip("_").upper())
            raise unsupported(f"{name} in {_statement_name(node)}", at, _HINTS.get(arg, ""))


def _statement_name(node: exp.Expr) -> str:
    statement = node.find_ancestor(exp.Insert, exp.Update, exp.Delete) or node
    return statement.key.upper()


@dataclass(frozen=True, slots=True)
class Target:
    """The tensor that a statement changes.

    Attributes:
        alias: The target's name in the statement's expressions.
        node: The target's syntax.
    """

    name: str
    alias: str
    node: exp.Table


def target_of(tree: exp.Insert | exp.Update | exp.Delete) -> Target:
    """The target of a statement; the statement's own clauses are checked, too.

    Raises:
        NotSupportedError: einsql does not support a clause of the statement.
        ProgrammingError: The target is not a plain name.
    """
    _check_clauses(tree)
    table = tree.this
    if isinstance(table, exp.Schema):
        _check_clauses(table)
        table = table.this
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise ProgrammingError("Expected the name of a tensor", position=position(tree))
    _check_clauses(table)
    if table.args.get("alias") is not None:
        _check_clauses(table.args["alias"])
    return Target(table.name, table.alias or table.name, table)


# ---- UPDATE and DELETE


def _scan(query: Binder, target: Target) -> tuple[SelectBinder, Relation, list[str]]:
    """A binder over the target's rows, the target, and the labels of its keys."""
    relation = query.catalog.relation(target.name)
    if relation is None:
        raise InternalError(f"{target.name} was found, but not by the binder")
    select = SelectBinder(query)
    number, labels = select.domain.scan(relation.node)
    replaced = target.name if target.node.alias else ""
    source = Source(target.alias, read(relation, number, labels), replaced=replaced)
    select.scope.add(source, target.node)
    return select, relation, [labels[k.name] for k in relation.node.schema.keys]


def bind_update(query: Binder, target: Target, tree: exp.Update) -> Touch:
    """Binds UPDATE … SET … [FROM …] [WHERE …].

    Raises:
        Error: A column is unknown, SET assigns a key, or a type is incompatible.
    """
    return query.with_ctes(tree, lambda: _bind_update(query, target, tree))


def _bind_update(query: Binder, target: Target, tree: exp.Update) -> Touch:
    if not tree.expressions:
        raise ProgrammingError("UPDATE needs SET", position=position(target.node))
    select, relation, keys = _scan(query, target)
    clause = tree.args.get("from_")
    if clause is not None:
        bind_joined(FromBinder(query, select), clause)
    _where(select, tree)
    select.clause = "SET"
    labels = [select.domain.find(k) for k in keys]
    settled = set(labels) == set(select.domain.free)
    outputs: list[Output] = []
    columns: list[str] = []
    for item in tree.expressions:
        column, typed = _assignment(select, relation, target, item)
        if column in columns:
            raise ProgrammingError(f"{item.this.name} is SET twice", position=position(item))
        columns.append(column)
        reduction = None if settled else "max"
        outputs.append(Output(column, (typed.value,), typed.value.dtype, reduction))
        if typed.valid != TRUE:
            flag = None if settled else "bool_and"
            outputs.append(Output(valid(column), (typed.valid,), DType.BOOLEAN, flag))
    if not settled:
        one: Expr = Const(1, DType.BIGINT)
        outputs.append(Output(COUNT, (one,), DType.BIGINT, "sum"))
    node = _node(select, labels, outputs)
    return Touch(node, tuple(labels), tuple(columns), _edges(select, labels))


def _assignment(
    select: SelectBinder, relation: Relation, target: Target, item: exp.Expr
) -> tuple[str, Typed]:
    if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
        raise ProgrammingError("SET needs column = expression", position=position(item))
    if item.this.table and item.this.table.lower() != target.alias.lower():
        raise ProgrammingError(
            f"UPDATE {target.alias} cannot SET {as_sql(item.this)}",
            hint=f"SET changes columns of {target.alias} only.",
            position=position(item),
        )
    if item.expression == exp.column("DEFAULT"):
        raise ProgrammingError(
            "DEFAULT is no value of a tensor's column",
            hint="Write the value itself.",
            position=position(item),
        )
    wanted = item.this.name
    column = next((c for c in relation.columns if c.name.lower() == wanted.lower()), None)
    if column is None or column.field is None:
        values = [c.name for c in relation.columns if c.field is not None]
        reason = f"{wanted} is a key and cannot be SET" if column else f'No column "{wanted}"'
        raise ProgrammingError(
            reason, hint=suggest(wanted, values, "value columns"), position=position(item)
        )
    with positioned(item):
        typed = convert(ScalarBinder(select).bind(item.expression), column.dtype)
    return column.field, typed


def bind_delete(query: Binder, target: Target, tree: exp.Delete) -> Touch:
    """Binds DELETE FROM … [WHERE …]."""
    return query.with_ctes(tree, lambda: _bind_delete(query, target, tree))


def _bind_delete(query: Binder, target: Target, tree: exp.Delete) -> Touch:
    select, _, keys = _scan(query, target)
    _where(select, tree)
    labels = [select.domain.find(k) for k in keys]
    return Touch(_node(select, labels, []), tuple(labels), (), _edges(select, labels))


def _where(select: SelectBinder, tree: exp.Expr) -> None:
    where = tree.args.get("where")
    if where is not None:
        select.clause = "WHERE"
        select.domain.require(truth(ScalarBinder(select).condition(where.this)))
    settle(select.domain)


def _node(select: SelectBinder, labels: list[str], outputs: list[Output]) -> EinSum:
    unique = list(dict.fromkeys(labels))
    present = Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or")
    return select.domain.node(unique, [*outputs, present])


def _edges(select: SelectBinder, labels: list[str]) -> tuple[tuple[int, Edge], ...]:
    return tuple(
        (n, e)
        for n, label in enumerate(dict.fromkeys(labels))
        for e in select.domain.edges_of(label)
        if isinstance(e, Edge)
    )


# ---- INSERT


@dataclass(frozen=True, slots=True)
class Insertion:
    """A checked INSERT.

    Attributes:
        columns: The listed columns with their syntax nodes; empty without a list.
        source: The VALUES clause or the query.
    """

    tree: exp.Insert
    target: Target
    columns: list[tuple[str, exp.Expr]]
    source: exp.Expr
    by_name: bool
    replaces: bool


def insertion(tree: exp.Insert) -> Insertion:
    """Reads an INSERT.

    Raises:
        Error: einsql does not support a clause of the statement.
    """
    target = target_of(tree)
    alternative = str(tree.args.get("alternative") or "").upper()
    if alternative not in ("", "REPLACE"):
        raise unsupported(f"INSERT OR {alternative}", target.node)
    listed = tree.this.expressions if isinstance(tree.this, exp.Schema) else []
    for column in listed:
        if not isinstance(column, exp.Identifier):
            raise ProgrammingError("Expected column names", position=position(column))
    source, by_name = tree.expression, bool(tree.args.get("by_name"))
    if source is None:
        raise ProgrammingError("INSERT needs VALUES or a SELECT", position=position(tree))
    if isinstance(source, exp.Values):
        _check_clauses(source)
    if by_name and (listed or isinstance(source, exp.Values)):
        raise ProgrammingError(
            "INSERT BY NAME takes a SELECT and no column list", position=position(target.node)
        )
    columns = [(c.name, c) for c in listed]
    return Insertion(
        tree=tree,
        target=target,
        columns=columns,
        source=source,
        by_name=by_name,
        replaces=alternative == "REPLACE",
    )


def bind_insert(query: Binder, statement: Insertion) -> Relation:
    """Binds the SELECT of an INSERT."""
    return query.with_ctes(statement.tree, lambda: query.bind(statement.source))


@dataclass(frozen=True, slots=True)
class LiteralRow:
    """A row of VALUES: the bound cells, and their offsets in the text."""

    cells: tuple[Typed, ...]
    positions: tuple[int | None, ...]


def literal_rows(query: Binder, values: exp.Values) -> list[LiteralRow]:
    """Binds the rows of VALUES; each cell is a constant expression.

    Raises:
        Error: A cell refers to columns or data.
    """
    select = SelectBinder(query)
    select.clause = "VALUES"
    binder = ScalarBinder(select)
    rows: list[LiteralRow] = []
    for row in values.expressions:
        cells = row.expressions if isinstance(row, exp.Tuple) else [row]
        bound = tuple(_literal(binder, c) for c in cells)
        rows.append(LiteralRow(bound, tuple(position(c) for c in cells)))
    return rows


def _literal(binder: ScalarBinder, cell: exp.Expr) -> Typed:
    typed = binder.bind(cell)
    if operands_of(typed.value) | operands_of(typed.valid):
        raise unsupported("A subquery in VALUES", cell, "INSERT INTO … SELECT computes values.")
    return typed
