"""Binds UPDATE, DELETE and INSERT to graphs over the target's keys."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from einsql.einsum import TRUE, Const, EinSum, Expr, Output
from einsql.errors import Error, ProgrammingError, suggest
from einsql.schema import PRESENT, DType, valid
from einsql.sql.query import QueryBinder
from einsql.sql.scalar import ScalarBinder, locate, position, unsupported
from einsql.sql.scope import Relation, Source, read
from einsql.sql.select import SelectBinder
from einsql.sql.sources import bind_joined
from einsql.sql.typed import Typed, convert, truth

COUNT = ".count"
"""Output telling how many rows of FROM meet a target row."""


@dataclass(frozen=True, slots=True)
class Touch:
    """The rows a statement changes.

    Attributes:
        name: The target's name.
        node: Keyed by some labels; its PRESENT output, if any, tells the touched rows.
        labels: The label of each of the target's keys; a diagonal repeats one.
        columns: The changed value columns; the node has an output for each.
    """

    name: str
    node: EinSum
    labels: tuple[str, ...]
    columns: tuple[str, ...] = ()


def target(query: QueryBinder, tree: exp.Expr) -> tuple[str, str, Relation]:
    """Name, alias and relation of the tensor a statement changes.

    Raises:
        ProgrammingError: There is none of that name.
    """
    table = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(table, exp.Table):
        raise ProgrammingError("Expected the name of a tensor", position=position(tree))
    found = query.catalog.relation(table.name)
    if found is None:
        raise ProgrammingError(
            f'There is no tensor "{table.name}"',
            hint=suggest(table.name, query.catalog.names(), "tensors"),
            position=position(table),
        )
    return table.name, table.alias or table.name, found


def _scan(query: QueryBinder, tree: exp.Update | exp.Delete) -> tuple[str, SelectBinder, list[str]]:
    name, alias, relation = target(query, tree)
    select = SelectBinder(query)
    number, labels = select.domain.scan(relation.node)
    select.scope.add(Source(alias, read(relation, number, labels)), tree)
    return name, select, [labels[k.name] for k in relation.node.schema.keys]


def bind_update(query: QueryBinder, tree: exp.Update) -> Touch:
    """Binds UPDATE … SET … [FROM …] [WHERE …].

    Raises:
        Error: Unknown columns, a key in SET, or types that do not fit.
    """
    name, select, keys = _scan(query, tree)
    _, _, relation = target(query, tree)
    clause = tree.args.get("from_")
    if clause is not None:
        bind_joined(query, select, clause)
    _where(select, tree)
    select.clause = "SET"
    labels = [select.domain.find(k) for k in keys]
    settled = set(labels) == set(select.domain.free)
    outputs: list[Output] = []
    columns: list[str] = []
    for item in tree.expressions:
        column, typed = _assignment(select, relation, item)
        columns.append(column)
        reduction = None if settled else "max"
        outputs.append(Output(column, (typed.value,), typed.value.dtype, reduction))
        if typed.valid != TRUE:
            flag = None if settled else "bool_and"
            outputs.append(Output(valid(column), (typed.valid,), DType.BOOLEAN, flag))
    if not settled:
        one: Expr = Const(1, DType.BIGINT)
        outputs.append(Output(COUNT, (one,), DType.BIGINT, "sum"))
    return Touch(name, _node(select, labels, outputs), tuple(labels), tuple(columns))


def _assignment(select: SelectBinder, relation: Relation, item: exp.Expr) -> tuple[str, Typed]:
    if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
        raise ProgrammingError("SET needs column = expression", position=position(item))
    wanted = item.this.name
    found = next((c for c in relation.columns if c.name.lower() == wanted.lower()), None)
    if found is None or found.field is None:
        values = [c.name for c in relation.columns if c.field is not None]
        reason = f"{wanted} is a key and cannot be SET" if found else f'No column "{wanted}"'
        raise ProgrammingError(
            reason, hint=suggest(wanted, values, "value columns"), position=position(item)
        )
    try:
        typed = convert(ScalarBinder(select).bind(item.expression), found.dtype)
    except Error as error:
        raise locate(error, item) from None
    return found.field, typed


def bind_delete(query: QueryBinder, tree: exp.Delete) -> Touch:
    """Binds DELETE FROM … [WHERE …]."""
    if tree.args.get("using"):
        raise unsupported("DELETE … USING", tree)
    name, select, keys = _scan(query, tree)
    _where(select, tree)
    labels = [select.domain.find(k) for k in keys]
    return Touch(name, _node(select, labels, []), tuple(labels))


def _where(select: SelectBinder, tree: exp.Expr) -> None:
    where = tree.args.get("where")
    if where is not None:
        select.clause = "WHERE"
        select.domain.require(truth(ScalarBinder(select).condition(where.this)))


def _node(select: SelectBinder, labels: list[str], outputs: list[Output]) -> EinSum:
    unique = list(dict.fromkeys(labels))
    present = Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or")
    return select.domain.node(unique, [*outputs, present])


def bind_insert(query: QueryBinder, tree: exp.Insert) -> tuple[Relation | None, list[str]]:
    """Binds the source of INSERT … SELECT, None for VALUES, and the listed columns."""
    columns = [c.name for c in tree.this.expressions] if isinstance(tree.this, exp.Schema) else []
    source = tree.expression
    if isinstance(source, exp.Values):
        return None, columns
    if source is None:
        raise ProgrammingError("INSERT needs VALUES or a SELECT", position=position(tree))
    return query.bind(source), columns


@dataclass(frozen=True, slots=True)
class LiteralRow:
    """A row of VALUES: its bound cells and where each stands in the text."""

    cells: tuple[Typed, ...]
    positions: tuple[int | None, ...]


def literal_rows(query: QueryBinder, values: exp.Values) -> list[LiteralRow]:
    """Binds the rows of VALUES; each cell is a constant expression.

    Raises:
        Error: A cell refers to columns.
    """
    binder = ScalarBinder(SelectBinder(query))
    rows: list[LiteralRow] = []
    for row in values.expressions:
        cells = row.expressions if isinstance(row, exp.Tuple) else [row]
        bound = tuple(binder.bind(c) for c in cells)
        rows.append(LiteralRow(bound, tuple(position(c) for c in cells)))
    return rows
