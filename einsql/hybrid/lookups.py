"""Lookups of splitters: names, columns, and whether a query is tensor work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.errors import Error, UnknownHere
from einsql.hybrid.fragments import FragmentRunner, calls_aggregate
from einsql.hybrid.split.core import split_block
from einsql.hybrid.split.crossing_joins import with_common_column
from einsql.hybrid.split.parts import Parts
from einsql.hybrid.system_tables import system_table
from einsql.ir.einsum.graph import EinSum, walk
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.planner.queries import query_binder
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS
from einsql.sql.macros.macros import Macro, called_name
from einsql.sql.macros.mapped_tables import is_function_of_numbers, mapped, table_in
from einsql.sql.query_binder import QueryBinder
from einsql.sql.scope.relation import Column, Relation
from einsql.storage.duckdb.operands import Tables
from einsql.storage.files import READABLE, suffix_of
from einsql.storage.objects import Damaged, Definition, damage_error, macro_key

if TYPE_CHECKING:
    from einsql.planner.context import Context

_DUCKDBS = ("range", "generate_series")
"""Table functions of einsql that DuckDB also has."""
_GRADIENT = re.compile(r"\bgradient\s*\(", re.IGNORECASE)


def statement_parts(ctx: Context, sql: str) -> tuple[Parts, FragmentRunner]:
    """The state of the splitters of one statement, with their lookups."""
    has_gradient = _GRADIENT.search(sql) is not None
    runner = FragmentRunner(ctx, Tables(ctx.duck, ctx.has_table, ctx.tick), has_gradient)
    parts = Parts(
        bind=lambda tree, foreign: _bind(ctx, tree, foreign, parts, runner),
        columns=partial(_columns, ctx),
        never_raises=partial(_never_raises, ctx),
        names=partial(_column_names, ctx),
        kind=lambda name: _kind(ctx, name),
        is_macro=lambda name: _is_macro(ctx, name),
        is_file=lambda name: is_tensor_file(ctx, name),
        is_ours=lambda prefix, name: is_ours(ctx, prefix, name),
        aggregates=lambda: ctx.duck.aggregates,
        is_aggregate=lambda name: _is_aggregate(ctx, name),
        split_block=split_block,
        expand=partial(_expanded, query_binder(ctx)),
        system_table=partial(system_table, ctx),
    )
    return parts, runner


def _expanded(binder: QueryBinder, call: exp.Func) -> exp.Expr | None:
    """The query of a call of a table macro, or of a function of numbers over a table.

    The total size of expansions is limited.
    """
    macro = binder.catalog.macro(called_name(call))
    if macro is None or not macro.is_table:
        return mapped(call, table_in(call), ["val"]) if _maps(macro, called_name(call)) else None
    assert isinstance(call, exp.Anonymous)
    binder.macros.admit(macro, call)
    return with_common_column(binder.macros.body(macro, call))


def is_ours(ctx: Context, prefix: Sequence[str], name: str) -> bool:
    """Returns True if a qualified name refers to the einsql object of that bare name.

    A file that DuckDB wrote may contain a table and a tensor of the same name. Qualified by the
    database, the name then refers to the table.
    """
    if ctx.store.get(name) is None:
        return False
    low, own = [p.lower() for p in prefix], ctx.duck.database.lower()
    if low == ["main"]:
        return ctx.duck.execute("SELECT lower(current_database())") == [(own,)]
    return low in ([own], [own, "main"]) and name.lower() not in ctx.duck.names()


def _bind(
    ctx: Context,
    tree: exp.Expr,
    foreign: frozenset[str],
    parts: Parts,
    runner: FragmentRunner,
) -> list[str] | Error:
    binder = query_binder(ctx)
    binder.foreign, binder.refused, binder.notices = foreign, parts.refused, []
    columns_or_error: list[str] | Error
    try:
        return [c.name for c in binder.bind_any(tree).columns]
    except UnknownHere as error:
        columns_or_error = runner.with_tables(tree, foreign, error)
    except Error as error:
        columns_or_error = error
    if isinstance(columns_or_error, Error) and calls_aggregate(ctx, tree):
        parts.aggregating.append(columns_or_error)
    return columns_or_error


def _columns(ctx: Context, tree: exp.Expr) -> Sequence[Column] | None:
    try:
        relation = query_binder(ctx).bind_any(tree)
    except Error:
        return None
    return relation.columns if isinstance(relation, Relation) else None


def _never_raises(ctx: Context, tree: exp.Expr) -> bool:
    """Whether no expression of a query of tensors raises for any element."""
    relation = query_binder(ctx).bind_any(tree)
    if not isinstance(relation, Relation):
        return False
    for node in walk(relation.node):
        if isinstance(node, EinSum):
            read = (node.guard, *(e for o in node.outputs for e in (*o.args, o.where)))
            defined = (a.define for a in node.axes if a.define is not None)
            if any(can_raise(e, bounds_of(node)) for e in (*read, *defined)):
                return False
    return True


def _column_names(ctx: Context, table: exp.Table) -> list[str] | None:
    if _kind(ctx, table.name) is not None and not table.db:
        columns = _columns(ctx, exp.select("*").from_(exp.Table(this=table.this.copy())))
        return None if columns is None else [c.name for c in columns]
    if table.db or not ctx.has_table(table.name):
        return None
    return [name for name, _ in ctx.duck.columns(table.name)]


def _kind(ctx: Context, name: str) -> str | None:
    existing = ctx.store.get(name)
    if isinstance(existing, Damaged):
        raise damage_error(existing)
    if isinstance(existing, Definition):
        return existing.kind if existing.is_view else None  # FROM "f()" names no macro
    if existing is not None or ctx.array_named(name) is not None:
        return "tensor"
    ctx.show_table(name)  # DuckDB reads it by its name
    return None


def _maps(macro: Macro | None, name: str) -> bool:
    """True for a function of numbers; in FROM it maps the values of a table."""
    return is_function_of_numbers(name) if macro is None else macro.law is None


def _is_macro(ctx: Context, name: str) -> bool:
    known = name.lower() in TABLE_FUNCTIONS and name.lower() not in _DUCKDBS
    known = known or is_function_of_numbers(name)
    return known or query_binder(ctx).catalog.macro(name) is not None


def _is_aggregate(ctx: Context, name: str) -> bool:
    existing = ctx.store.get(macro_key(name))
    body = existing.body.tree if isinstance(existing, Definition) else None
    return isinstance(body, Macro) and body.law is not None


def is_tensor_file(ctx: Context, name: str) -> bool:
    """Returns True if FROM reads a file of this name as a tensor."""
    known = suffix_of(name) in READABLE
    return known and not query_binder(ctx).catalog.is_table_file(name)
