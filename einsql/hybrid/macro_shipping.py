"""Definitions in DuckDB of the einsql views and macros that a statement needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.big_stack import require_room
from einsql.core.quoting import in_quotes
from einsql.errors import OF_A_TABLE, Error, NotSupportedError
from einsql.hybrid.macro_sizes import MacroSizes
from einsql.hybrid.split.edits import Edited
from einsql.hybrid.split.parts import Parts
from einsql.hybrid.split.prelude import ERF, PRELUDE, called
from einsql.hybrid.split.split import Splitter
from einsql.hybrid.split.statement import split_statement
from einsql.ir.functions.python_functions import function_name
from einsql.planner.queries import query_binder
from einsql.planner.stored_macros import refuse_variables
from einsql.sql.macros.builtin_macros import built_in
from einsql.sql.macros.macros import Macro
from einsql.sql.parser.sqlglot_trees import parse_tree
from einsql.storage.objects import Body, Damaged, Definition, damage_error, macro_key

if TYPE_CHECKING:
    from einsql.planner.context import Context

Defined = tuple[str, str, str]
"""The kind to DROP, the name, and the text after CREATE VIEW or MACRO."""
_IN_NUMBERS = (
    "Aggregate a tensor, or a table of numbers: CREATE TEMP TABLE t AS SELECT "
    "DENSE_RANK() OVER (ORDER BY name) AS g, CAST(x AS DOUBLE) AS x FROM …."
)
"""The hint of errors about an aggregate of CREATE AGGREGATE that DuckDB would have to run."""


def definitions(ctx: Context, text: Edited, parts: Parts) -> tuple[list[Defined], tuple[str, ...]]:
    """Returns the views and macros that a text for DuckDB needs, in dependency order.

    Returns:
        The definitions, and the Python functions that they or the text call, by their names in
        DuckDB.

    Raises:
        NotSupportedError: A macro reads its parameter as a table.
    """
    relations = parts.relations
    defined: list[Defined] = []
    functions: list[str] = []
    depth = 0
    seen: set[str] = set()

    def visit(read: str) -> None:
        for low in [*relations]:
            view(low)
        for low in called(read):
            macro(low)

    def within(work: Callable[[], str]) -> str:
        """Adds the definitions that a definition reads and calls; returns the definition's text."""
        before = dict(relations)
        relations.clear()
        body = work()
        visit(body)
        relations.update({n: r for n, r in before.items() if n not in relations})
        return body

    def read(definition: Definition) -> Definition:
        """Checks that the stack has room for a definition and its enclosing definitions."""
        nonlocal depth
        depth += 1 + definition.body.depth
        require_room(depth)
        return definition

    def view(low: str) -> None:
        existing = ctx.store.get(low)
        if not isinstance(existing, Definition) or not existing.is_view:
            return
        relations.pop(low)
        if low not in seen:
            seen.add(low)
            read(existing)
            with ctx.scope.hidden() if ctx.is_stored(low) else nullcontext():
                defined.append(("VIEW", existing.name, within(lambda: _view(existing, parts))))

    def macro(low: str) -> None:
        existing, name = ctx.store.get(macro_key(low)), macro_key(low)
        if name in seen:
            return
        seen.add(name)
        if function_name(low) is not None:
            functions.append(low)
        if existing is None and (known := built_in(low)) is not None:
            existing = Definition(name, "macro", known.text, lambda: Body(known, 0))
        if isinstance(existing, Damaged):
            raise damage_error(existing)
        if isinstance(existing, Definition):
            definition = read(existing)
            _refuse_aggregate(definition.body.tree, parts)
            _refuse_tables(definition.body.tree, text)
            _refuse_variables(ctx, definition.body.tree)
            body = within(lambda: _macro(definition, parts))
        elif low in PRELUDE:
            body = PRELUDE[low]
            visit(body)
            if low == "erf":
                functions.append(ERF)
        else:
            return
        defined.append(("MACRO TABLE" if " AS TABLE " in body.upper() else "MACRO", low, body))

    visit(text.text)
    if any(kind == "MACRO" for kind, _, _ in defined):
        _check_sizes(ctx, text)
    return defined, tuple(functions)


def _check_sizes(ctx: Context, text: Edited) -> None:
    """Refuses a text whose macros become very long in DuckDB."""
    try:
        tree, _ = parse_tree(text.text, 0)
    except Error:
        return  # DuckDB reads syntax that sqlglot does not know
    try:
        MacroSizes(query_binder(ctx).catalog.macro).check(tree)
    except Error as error:
        error.position = None if error.position is None else text.origin(error.position)
        raise


def _view(definition: Definition, parts: Parts) -> str:
    """Returns the text after CREATE VIEW, with the view's query split."""
    splitter = Splitter(definition.text, parts)
    tokens = splitter.structure.tokens
    named = next(n for n, t in enumerate(tokens) if t.text.upper() == "VIEW") + 1
    first = next(n for n in range(named, len(tokens)) if splitter.structure.word(n) == "AS") + 1
    splitter.query(splitter.structure.query(first, len(tokens)), {})
    columns = definition.text[tokens[named].end + 1 : tokens[first].start]
    body = splitter.edits.result(tokens[first].start, len(definition.text)).text
    return f"{in_quotes(definition.name)}{columns}{body}"


def _macro(definition: Definition, parts: Parts) -> str:
    """Returns the text after CREATE MACRO, with the macro's queries split."""
    body = definition.body.tree
    assert isinstance(body, Macro)
    names = frozenset(p.lower() for p in body.parameters)

    def bind(tree: exp.Expr, foreign: frozenset[str]) -> list[str] | Error:
        for column in tree.find_all(exp.Column):
            if column.name.lower() in names:
                return NotSupportedError(f"{column.name} is a parameter of {body.name}()")
        return parts.bind(tree, foreign)

    # A parameter hides the tensor of its name.
    own = replace(parts, bind=bind, why=[], wrong=[])
    splitter = Splitter(definition.text, own, of_macro=True)
    words = [t.text.upper() for t in splitter.structure.tokens]
    kind = next(n for n, w in enumerate(words) if w in ("MACRO", "FUNCTION"))
    split_statement(splitter, kind + 1, dict.fromkeys(names))
    return splitter.edits.result(
        splitter.structure.tokens[kind + 1].start, len(definition.text)
    ).text


def _refuse_aggregate(body: object, parts: Parts) -> None:
    """Refuses a user's aggregate, whose law DuckDB does not run, with the reason of einsql."""
    if not isinstance(body, Macro) or body.law is None:
        return
    reason, hint, at = "", _IN_NUMBERS, None
    if parts.aggregating:
        error = parts.aggregating[-1]
        reason, at = f"{error.reason}, and ", error.position
        hint = error.hint if error.hint and error.hint != OF_A_TABLE else _IN_NUMBERS
    raise NotSupportedError(
        f"{reason}DuckDB cannot run {body.name}(), an aggregate of CREATE AGGREGATE",
        hint=hint,
        position=at,
    )


def _refuse_variables(ctx: Context, body: object) -> None:
    """Refuses a stored macro that names a variable; see `stored_macros`."""
    if isinstance(body, Macro):
        refuse_variables(ctx, body, query_binder(ctx).catalog.macro)


def _refuse_tables(body: object, text: Edited) -> None:
    """Refuses a macro with a table parameter, because DuckDB takes arguments as values."""
    if not isinstance(body, Macro) or not body.table_parameters:
        return
    named = body.table_parameters
    at = re.search(rf"\b{re.escape(body.name)}\s*\(", text.text, re.IGNORECASE)
    raise NotSupportedError(
        f"{body.name}() reads its parameter {named[0]} as a table, "
        "which it cannot in what DuckDB runs",
        hint="Make it a table macro (AS TABLE) and call it in FROM, or make the table a "
        "tensor: CREATE TENSOR … AS SELECT.",
        position=None if at is None else text.origin(at.start()),
    )
