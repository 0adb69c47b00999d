"""Finds the largest tensor fragments of a query and replaces their text by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from einsql.core.quoting import in_quotes
from einsql.errors import Error, NotSupportedError, ProgrammingError, UnknownHere
from einsql.hybrid.split.blocks import Block, Cte, QueryText, Range, Reference, Structure
from einsql.hybrid.split.edits import Edited, Edits
from einsql.hybrid.split.parts import Expansion, Parts, Why, shown
from einsql.hybrid.split.scopes import Scope, define, foreign_names, with_names
from einsql.sql.macros.macros import FREE, called_name
from einsql.sql.parser.dialect import EinSQL
from einsql.sql.parser.sqlglot_trees import parse_tree
from einsql.sql.parser.tokens import is_parameter, tokenize
from einsql.sql.query_binder import REENTRIES

_NAMING = ("TABLE", "PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE")
"""First words of a query that name relations without FROM."""
MAX_IN_DUCKDB = 50_000
"""Most words of the text of a table macro for DuckDB, which plans them in seconds.

benchmarks/nested_macros.py
"""


class Splitter:
    """Splits the text of a statement, a view or a macro."""

    def __init__(
        self, sql: str, parts: Parts, within: tuple[str, ...] = (), of_macro: bool = False
    ) -> None:
        """Reads the structure of a text.

        Args:
            sql: The text.
            parts: The shared state; fragments are added to it.
            within: The table macros under expansion, outermost first.
            of_macro: Whether the text is a macro, whose tensors are qualified. DuckDB would read
                the caller's WITH in the place of other names.
        """
        self.of_macro = of_macro
        self.sql = sql
        self.parts = parts
        self.within = within
        self.structure = Structure(tokenize(sql))
        self.edits = Edits(sql)
        self.expanded: dict[int, frozenset[str]] = {}
        """The lower-case words of expanded table macros, by the position of the call."""

    # ---- queries

    def query(self, query: QueryText, scope: Scope) -> None:
        """Makes a query a fragment, or splits it if it does not bind.

        Raises:
            ProgrammingError: ORDER BY has a parameter instead of a column.
        """
        self._check_order(query)
        is_single = len(query.operands) == 1 and not query.modifiers
        if is_single and self._whole(query.range, scope):
            return
        inner = self._names(query.ctes, scope, query.recursive)
        if len(query.operands) == 1 and isinstance(query.operands[0], Block):
            block = query.operands[0]
            if not self._block(block, query.modifiers, inner):
                self._rest_of(block, inner)
        else:
            if len(query.operands) > 1:
                at = self.structure.span(query.operands[1].range)[0]
                self.parts.why.append(Why(at, "set operations run in DuckDB"))
            for operand in query.operands:
                if isinstance(operand, QueryText):
                    self.query(operand, inner)
                elif not self._block(operand, {}, inner):
                    self._rest_of(operand, inner)
        for child in query.children:
            self.query(child, inner)
        self._with(query, scope)

    def _check_order(self, query: QueryText) -> None:
        """Refuses a parameter of ORDER BY, which would be a constant; DuckDB does the same."""
        clause = query.modifiers.get("ORDER BY")
        if clause is None:
            return
        word = self.structure.word
        for at in self.structure.outer(clause.first + 1, clause.last):
            if at > clause.first + 1 and word(at - 1) != ",":
                continue
            first, end = at, self.structure.closes.get(at, at) + 1
            while word(first) == "(":
                first += 1
            is_last = end >= clause.last or word(end) in (",", "ASC", "DESC", "NULLS")
            token = self.structure.tokens[first]
            if is_last and end - first == first - at + 1 and is_parameter(token):
                raise ProgrammingError(
                    "A parameter is no column that ORDER BY could take",
                    hint="A column's name or number is part of the text: write it there.",
                    position=token.start,
                )

    def _whole(self, part: Range, scope: Scope) -> bool:
        start, end = self.structure.span(part)
        tree = self.tree(start, end)
        binding = None if tree is None else self.bound(tree, scope, start)
        if binding is None:
            return False
        name = self.parts.add(*binding, self.sql[start:end])
        self.edits.replace(start, end, shown(name, binding[2]))
        return True

    def tree(self, start: int, end: int, prefix: str = "") -> exp.Expr | None:
        """Parses a part of the text. Returns None if sqlglot cannot read it."""
        try:
            return parse_tree(self.sql[:end], start, prefix)[0]
        except Error as error:
            self.parts.why.append(Why(start, error.reason))
            return None

    def bound(
        self, tree: exp.Expr, scope: Scope, at: int
    ) -> tuple[exp.Expr, frozenset[str], list[str]] | None:
        """Binds a query as tensor work.

        Returns:
            The arguments of `Parts.add`. None if the query does not bind; the reason is recorded.
        """
        named, foreign = with_names(tree, scope), foreign_names(scope)
        if named is None:
            return None
        tree = named
        columns_or_error = self.parts.bind(tree, foreign)
        if isinstance(columns_or_error, list):
            return tree, foreign, columns_or_error
        place = columns_or_error.position if columns_or_error.position is not None else at
        if isinstance(columns_or_error, NotSupportedError | UnknownHere):
            reason = columns_or_error.reason
            if isinstance(columns_or_error, UnknownHere):
                reason = columns_or_error.outside
            self.parts.why.append(Why(place, reason))
        if not isinstance(columns_or_error, NotSupportedError):
            self.parts.wrong.append(columns_or_error)
        return None

    def binds(self, tree: exp.Expr, scope: Scope) -> bool:
        """Returns True if a query binds as tensor work; records no reason otherwise."""
        named = with_names(tree, scope)
        return named is not None and isinstance(self.parts.bind(named, foreign_names(scope)), list)

    # ---- WITH

    def _names(self, ctes: Sequence[Cte], scope: Scope, recursive: bool = False) -> Scope:
        inner = dict(scope)
        for cte in ctes:
            tree = self._cte(cte, inner) if cte.plain and not recursive else None
            define(inner, cte.name, tree)
        return inner

    def _cte(self, cte: Cte, scope: Scope) -> exp.CTE | None:
        start, end = self.structure.span(cte.range)
        try:
            tree = parse_tree(self.sql[:end] + " SELECT 1", start, "WITH ")[0]
        except Error:
            return None
        clause = tree.args.get("with_")
        if clause is None or len(clause.expressions) != 1:
            return None
        definition: exp.CTE = clause.expressions[0]
        probe = exp.Select(expressions=[exp.Star()])
        table = exp.Table(this=exp.to_identifier(cte.name, quoted=True))
        probe.set("from_", exp.From(this=table))
        probe.set("with_", exp.With(expressions=[definition.copy()]))
        named = with_names(probe, scope)
        if named is None:
            return None
        columns_or_error = self.parts.bind(named, foreign_names(scope))
        if isinstance(columns_or_error, Error):
            self.parts.refused[cte.name.lower()] = columns_or_error
            return None
        return definition

    def _with(self, query: QueryText, scope: Scope) -> None:
        """Splits the queries of WITH that the remaining text reads, and removes the others."""
        if not query.ctes:
            return
        inner = dict(scope)
        scopes = []
        for cte in query.ctes:
            if query.recursive:
                define(inner, cte.name, None)
            scopes.append(dict(inner))
            if not query.recursive:
                define(inner, cte.name, None)
        readers = [query.body]
        kept = []
        for cte, names in reversed(list(zip(query.ctes, scopes, strict=True))):
            if any(self._reads(r, cte.name) for r in readers):
                before = query.ctes[: query.ctes.index(cte)]
                self.query(cte.query, names if query.recursive else self._names(before, names))
                readers.append(cte.range)
                kept.append(cte)
        kept.reverse()
        first, last = query.ctes[0].range, query.ctes[-1].range
        start, end = self.structure.span(Range(first.first, last.last))
        if not kept:
            self.edits.replace(self.structure.span(query.range)[0], end, "")
            return
        at = start
        for cte in kept:
            here, behind = self.structure.span(cte.range)
            if at < here:
                self.edits.replace(at, here, "" if at == start else ", ")
            at = behind
        if at < end:
            self.edits.replace(at, end, "")

    def _reads(self, part: Range, name: str) -> bool:
        tokens, low = self.structure.tokens, name.lower()
        return any(
            low in self.expanded.get(tokens[n].start, ())
            or (tokens[n].text.lower() == low and not self.edits.covers(tokens[n].start))
            for n in range(part.first, part.last)
        )

    # ---- the rest of a block

    def _rest_of(self, block: Block, scope: Scope) -> None:
        """Splits FROM items and subqueries of a SELECT that DuckDB runs."""
        for child in block.children:
            self.query(child, scope)
        clause = block.clauses.get("FROM")
        if clause is not None:
            for reference in self.structure.references(clause):
                self.refer(reference, scope)
        elif self.structure.word(block.range.first) in _NAMING:
            for reference in self.structure.references(self._named_by(block.range)):
                if not (reference.is_call or reference.is_text):
                    self.expose(reference.name, scope)

    def _named_by(self, block: Range) -> Range:
        """Returns the tokens of TABLE, PIVOT and others that name relations, with the word."""
        first = block.first + (self.structure.word(block.first + 1) == "TABLE")
        last = first
        while last < block.last and self.structure.word(last) != "ON":
            last = self.structure.closes.get(last, last) + 1
        return Range(first, last)

    def refer(self, reference: Reference, scope: Scope) -> None:
        """Registers the relation of a FROM item for DuckDB."""
        start, end = self.structure.span(reference.range)
        if self._is_system_table(start, end, reference):
            return
        if reference.qualified:
            within = range(reference.range.first, reference.range.last - 1, 2)
            prefix = [self.structure.tokens[n].text for n in within]
            if not reference.is_call and self.parts.is_ours(prefix, reference.name):
                self.parts.relations.setdefault(reference.name.lower(), reference.name)
                self.edits.replace(start, end, f"temp.main.{in_quotes(reference.name)}")
            return
        is_path = reference.is_text or self.sql[start] == '"'
        if reference.is_call:
            if self.parts.is_macro(reference.name):
                self._item(start, end, reference, scope)
        elif is_path and self._is_file(reference.name, start):
            self._item(start, end, reference, scope)
        elif not reference.is_text:
            self.expose(reference.name, scope)
            if self.of_macro and reference.name.lower() in self.parts.relations:
                self._qualify(start, end, reference, scope)

    def _qualify(self, start: int, end: int, reference: Reference, scope: Scope) -> None:
        """Names a tensor or view by its schema, unless a name of WITH hides it."""
        if reference.name.lower() not in scope:
            name = in_quotes(reference.name)
            alias = "" if reference.aliased else f" AS {name}"
            self.edits.replace(start, end, f"temp.main.{name}{alias}")

    def _is_system_table(self, start: int, end: int, reference: Reference) -> bool:
        """Replaces a system table of DuckDB by a query that also lists tensors and views."""
        at, last = reference.range.first, reference.range.last
        is_schema = self.structure.tokens[at].text.lower() == "information_schema"
        if not (reference.is_call or (reference.qualified and is_schema)):
            return False
        name = self.sql[start:end].split("(")[0] if is_schema else reference.name
        argument = self.structure.tokens[last - 2].text if reference.is_call else ""
        query = self.parts.system_table(name, argument)
        if query is not None:
            alias = "" if reference.aliased else f" AS {in_quotes(reference.name)}"
            self.edits.replace(start, end, f"({query}){alias}")
        return query is not None

    def _is_file(self, name: str, at: int) -> bool:
        try:
            return self.parts.is_file(name)
        except Error as error:
            error.position = at
            raise

    def expose(self, name: str, scope: Scope) -> None:
        """Registers a tensor or view for DuckDB, if the name refers to one."""
        if name.lower() not in scope and self.parts.kind(name) is not None:
            self.parts.relations.setdefault(name.lower(), name)

    def _item(self, start: int, end: int, reference: Reference, scope: Scope) -> None:
        tree = self.tree(start, end, "SELECT * FROM ")
        binding = None if tree is None else self.bound(tree, scope, start)
        alias = "" if reference.aliased else f" AS {in_quotes(_stem(reference))}"
        if binding is not None:
            name = self.parts.add(*binding, f"SELECT * FROM {self.sql[start:end]}")
            self.edits.replace(start, end, f"({shown(name, binding[2])}){alias}")
        elif tree is not None and reference.is_call:
            self._expand(start, end, tree, alias, scope)

    def _expand(self, start: int, end: int, tree: exp.Expr, alias: str, scope: Scope) -> None:
        """Replaces a call of a table macro by the macro's query, and splits the query.

        DuckDB cannot pass a table's name as an argument: it would read the relation with the
        parameter's name.
        """
        call = tree.args["from_"].this.this
        body = self.parts.expand(call) if isinstance(call, exp.Func) else None
        if body is None:
            return
        low, text = called_name(call).lower(), body.sql(dialect=EinSQL)
        for node in body.find_all(exp.Table, exp.Column):
            if FREE in node.meta and node.name.lower() in scope:
                raise ProgrammingError(
                    f'The macro {low} reads "{node.name}" of the database, and this WITH '
                    "names another part so",
                    hint="Rename the part of WITH.",
                    position=start,
                )
        if self.within.count(low) >= REENTRIES:
            raise ProgrammingError(f"The macro {low} refers to itself", position=start)
        expansion, words = self._expansion(low, text, start, scope)
        self.expanded[start] = words
        self.edits.replace(
            start, end, Edited(f"({expansion.text}){alias}", expansion.parameters, [])
        )

    def _expansion(self, low: str, text: str, start: int, scope: Scope) -> Expansion:
        """The split query of a table macro; equal queries over equal names are split once.

        Args:
            low: The macro's name in lower case.
            text: The query.
            start: The position of the call.
            scope: The names of WITH around the call.
        """
        key = (text, *((name, id(tree)) for name, tree in sorted(scope.items())))
        known = self.parts.expansions.get(key)
        if known is not None:
            return known[1]
        own = replace(self.parts, why=[], wrong=[])
        inner = Splitter(text, own, (*self.within, low))
        try:
            inner.query(inner.structure.query(0, len(inner.structure.tokens)), scope)
        except Error as error:
            error.position = start
            raise
        for wrong in own.wrong:
            wrong.position = start
        self.parts.wrong += own.wrong
        self.parts.why += [Why(start, why.reason) for why in own.why]
        edited = inner.edits.result(0, len(text))
        tokens = tokenize(edited.text)
        if len(tokens) > MAX_IN_DUCKDB:
            raise ProgrammingError(
                f"The macro {low} makes the text for DuckDB more than {MAX_IN_DUCKDB:,} words long",
                hint="Name repeated calls in WITH, which DuckDB runs once.",
                position=start,
            )
        expansion = edited, frozenset(t.text.lower() for t in tokens)
        self.parts.expansions[key] = scope, expansion  # the reference keeps the ids unique
        return expansion

    # ---- a block without DISTINCT, ORDER BY, LIMIT and OFFSET

    def _block(self, block: Block, modifiers: dict[str, Range], scope: Scope) -> bool:
        """Makes a SELECT without DISTINCT, ORDER BY, LIMIT and OFFSET a fragment."""
        start, end = self.structure.span(block.range)
        if "SELECT" not in block.clauses and "FROM" not in block.clauses:
            return False
        tree = self.tree(start, end)
        if not isinstance(tree, exp.Select):
            return False
        return self.parts.split_block(self, block, modifiers, scope, tree)


def _stem(reference: Reference) -> str:
    """Returns DuckDB's default alias of a file or a function."""
    if not reference.is_text and reference.is_call:
        return reference.name
    return reference.name.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]


def changed(tree: exp.Select, **args: object) -> exp.Select:
    """Returns a copy of a SELECT with other clauses."""
    select = tree.copy()
    for name, value in args.items():
        select.set(name, value)
    return select
