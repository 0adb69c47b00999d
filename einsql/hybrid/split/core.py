"""Splits a SELECT: its relation, otherwise its groups, become a fragment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import TokenType, exp

from einsql.hybrid.split.blocks import Block, Range
from einsql.hybrid.split.groups import Groups
from einsql.hybrid.split.partial_aggregates import PartialAggregates
from einsql.hybrid.split.parts import Why, column_of, shown
from einsql.hybrid.split.scopes import Scope
from einsql.hybrid.split.select_text import SelectText
from einsql.hybrid.split.split import Splitter, changed
from einsql.sql.parser.column_names import column_name


def split_block(
    splitter: Splitter, block: Block, modifiers: dict[str, Range], scope: Scope, tree: exp.Select
) -> bool:
    """Makes the largest part of a SELECT a fragment.

    Returns:
        False, without a change, if no part is tensor work.
    """
    return Core(splitter, block, modifiers, scope, tree).split()


class Core(SelectText):
    """Splits one SELECT."""

    def split(self) -> bool:
        """Splits the SELECT. Returns False, without a change, if no part is tensor work."""
        distinct = self.tree.args.get("distinct")
        if "USING SAMPLE" in self.block.clauses or self.tree.args.get("sample"):
            return False
        if distinct is not None and distinct.args.get("on") is not None:
            return False
        is_fragment = self._relation(distinct is not None) or self._groups()
        return is_fragment or PartialAggregates(self).split()

    # ---- the relation, in another order or without duplicates

    def _relation(self, distinct: bool) -> bool:
        splitter = self.splitter
        start, end = splitter.structure.span(self.block.range)
        plain = changed(self.tree, distinct=None)
        binding = splitter.bound(plain, self.scope, start)
        if binding is None:
            return False
        columns = binding[2]
        hidden: list[tuple[Range, exp.Expr]] = []
        for item in self._orders():
            verdict = self._order(item, columns)
            if verdict is False or (verdict is not True and distinct):
                return False
            if isinstance(verdict, exp.Expr):
                hidden.append((item, verdict))
        if hidden:
            items = [*plain.expressions, *(e for _, e in hidden)]
            binding = splitter.bound(changed(plain, expressions=items), self.scope, start)
            if binding is None or len(binding[2]) != len(columns) + len(hidden):
                return False
        if not distinct:
            binding = self._first_rows(binding)
        name = splitter.parts.add(*binding, splitter.sql[start:end])
        text = shown(name, columns)
        if distinct:
            text = text.replace("SELECT", "SELECT DISTINCT", 1)
            splitter.parts.why.append(Why(start, "DISTINCT runs in DuckDB"))
        splitter.edits.replace(start, end, text)
        for n, (item, _) in enumerate(hidden):
            a, b = splitter.structure.span(item)
            splitter.edits.replace(a, b, f"{name}.{column_of(len(columns) + n)}")
        for word, part in self.modifiers.items():
            splitter.parts.why.append(
                Why(splitter.structure.span(part)[0], f"{word} runs in DuckDB")
            )
        return True

    def _first_rows(
        self, binding: tuple[exp.Expr, frozenset[str], list[str]]
    ) -> tuple[exp.Expr, frozenset[str], list[str]]:
        """A bound SELECT with no other rows than those that ORDER BY and LIMIT may return.

        QUALIFY selects them by their ROW_NUMBER, if the SELECT binds with it.
        """
        tree, foreign, names = binding
        assert isinstance(tree, exp.Select)
        clause, most = self.modifiers.get("ORDER BY"), self._most()
        if clause is None or most is None or tree.args.get("qualify") is not None:
            return binding
        ordered = self.splitter.tree(*self.splitter.structure.span(clause), "SELECT 1 ")
        order = None if ordered is None else ordered.args.get("order")
        if order is None:
            return binding
        for term in order.expressions:
            meant = _meant(term.this, tree.expressions)
            if meant is None:
                return binding
            term.set("this", meant.copy())
        window = exp.Window(this=exp.RowNumber(), order=order.copy(), over="OVER")
        limit = exp.LTE(this=window, expression=exp.Literal.number(most))
        limited = changed(tree, qualify=exp.Qualify(this=limit))
        bound = self.splitter.parts.bind(limited, foreign)
        return (limited, foreign, names) if isinstance(bound, list) else binding

    def _most(self) -> int | None:
        """The number of rows up to the end of LIMIT and OFFSET; None if it is no literal."""
        structure, most = self.splitter.structure, 0
        for word, clause in self.modifiers.items():
            if word == "ORDER BY":
                continue
            number = structure.tokens[clause.last - 1].text
            if word not in ("LIMIT", "OFFSET") or clause.last - clause.first != 2:
                return None
            if not number.isdecimal():
                return None
            most += int(number)
        return most if "LIMIT" in self.modifiers and most > 0 else None

    def _orders(self) -> Iterator[Range]:
        """Yields the token ranges of ORDER BY's expressions."""
        clause = self.modifiers.get("ORDER BY")
        if clause is None:
            return
        word = self.splitter.structure.word
        for item in self.items(clause.first + 1, clause.last):
            last = item.last
            while word(last - 1) in ("ASC", "DESC", "FIRST", "LAST", "NULLS"):
                last -= 1
            yield Range(item.first, last)

    def _order(self, item: Range, columns: list[str]) -> exp.Expr | bool:
        """Decides on an ORDER BY expression.

        Returns:
            True to keep the expression, the expression of a hidden column, or False if the SELECT
            cannot be a fragment.
        """
        structure, tokens = self.splitter.structure, self.splitter.structure.tokens
        if item.first >= item.last:
            return False
        known = [c.lower() for c in columns]
        while structure.closes.get(item.first) == item.last - 1:
            item = Range(item.first + 1, item.last - 1)
        if item.last - item.first == 1:
            token = tokens[item.first]
            if structure.word(item.first) == "ALL" or token.text.isdecimal():
                return True
            if token.text.lower() in known:
                return known.count(token.text.lower()) == 1
        start, end = structure.span(item)
        select = self.splitter.tree(start, end, "SELECT ")
        if not isinstance(select, exp.Select) or len(select.expressions) != 1:
            return False
        expression = select.expressions[0]
        if expression.find(exp.Query, exp.Window) is not None:
            return False
        aliases = {
            e.alias.lower(): e.this for e in self.tree.expressions if isinstance(e, exp.Alias)
        }
        names = list(expression.find_all(exp.Column))
        for column in names:
            alias = None if column.table else aliases.get(column.name.lower())
            if alias is not None and column_name(alias).lower() != column.name.lower():
                # The alias may hide a column; DuckDB and einsql resolve that differently.
                return all(not n.table and known.count(n.name.lower()) == 1 for n in names) and (
                    expression.find(exp.AggFunc) is None and not self._is_column(column.name)
                )
        group = self.tree.args.get("group")
        if group is not None and group.args.get("all"):
            return False
        assert isinstance(expression, exp.Expr)
        return expression

    def _is_column(self, name: str) -> bool:
        """Returns True if a column in FROM may have the alias's name."""
        probe = changed(self.tree, distinct=None, group=None, having=None, qualify=None)
        probe.set("expressions", [exp.column(exp.to_identifier(name, quoted=True))])
        return isinstance(self.splitter.parts.bind(probe, frozenset()), list)

    # ---- the groups, which the rest of the SELECT reads

    def _groups(self) -> bool:
        clauses = self.block.clauses
        if next(iter(clauses), "") != "SELECT" or "FROM" not in clauses:
            return False
        outer = [c for c in ("SELECT", "HAVING", "WINDOW", "QUALIFY") if c in clauses]
        ranges = [*(clauses[c] for c in outer), *self.modifiers.values()]
        structure = self.splitter.structure
        if any(True for r in ranges for _ in structure.children(r.first, r.last)):
            return False  # aggregates of a query in it are not those of the SELECT
        keys = self._keys()
        if keys is None:
            return False
        calls = [c for r in ranges for c in self.calls(r)]
        dependent = [c for r in ranges for c in self._dependent(r, keys)]
        if not calls and not keys:
            return False
        if self._hides(keys, dependent, ranges):
            return False
        if Groups(self, keys, [*calls, *dependent], ranges).split():
            return True
        self._read_any_values([node for node, _, _ in keys], dependent)
        return False

    def _hides(
        self,
        keys: Sequence[tuple[exp.Expr, Range, int | None]],
        dependent: Sequence[Range],
        ranges: Sequence[Range],
    ) -> bool:
        """True if a parameter of a lambda or of a list comprehension may be taken for a column.

        It has the name of a column that would be replaced, or its fields are read.
        """
        structure = self.splitter.structure
        tokens, text = structure.tokens, [t.text.lower() for t in structure.tokens]
        hidden = set[str]()
        places = [at for part in ranges for at in range(part.first, part.last)]
        for at in places:
            first, last = at + 1, at
            if structure.word(at) in ("LAMBDA", "FOR"):  # lambda x, y: …, [… FOR x IN …]
                while text[last + 1] == "," or tokens[last + 1].token_type in _NAMES:
                    last += 1
            elif text[at] == "->":  # x -> …, (x, y) -> …
                first = next((a for a, b in structure.closes.items() if b == at - 1), at - 1)
            hidden.update(text[first : last + 1])
        columns = {c.name.lower() for node, _, _ in keys for c in node.find_all(exp.Column)}
        return not hidden.isdisjoint(columns | {text[part.last - 1] for part in dependent}) or any(
            text[at] in hidden and structure.word(at + 1) == "." for at in places
        )

    def _keys(self) -> list[tuple[exp.Expr, Range, int | None]] | None:
        """Returns each key of GROUP BY, its tokens, and the index of its SELECT item, if any."""
        group = self.tree.args.get("group")
        if group is None:
            return []
        if any(v for a, v in group.args.items() if a != "expressions"):
            return None
        clause = self.block.clauses["GROUP BY"]
        ranges = list(self.items(clause.first + 1, clause.last))
        if len(ranges) != len(group.expressions):
            return None
        keys: list[tuple[exp.Expr, Range, int | None]] = []
        items = self.tree.expressions
        aliases = [e.alias.lower() if isinstance(e, exp.Alias) else "" for e in items]
        for node, part in zip(group.expressions, ranges, strict=True):
            n: int | None = None
            if isinstance(number := node.unnest(), exp.Literal):
                n = int(number.name) - 1 if number.name.isdecimal() else -1
            elif isinstance(node, exp.Column) and not node.table:
                name = node.name.lower()
                n = aliases.index(name) if name in aliases else None
                if n is not None and self._is_column(name):
                    n = None
            if n is not None and not 0 <= n < len(items):
                return None
            keys.append((node if n is None else items[n].unalias(), part, n))
        return keys

    def _dependent(
        self, part: Range, keys: Sequence[tuple[exp.Expr, Range, int | None]]
    ) -> list[Range]:
        """The columns beside aggregates, with or without a table, which GROUP BY determines."""
        structure, word = self.splitter.structure, self.splitter.structure.word
        named = {node.name.lower() for node, _, _ in keys if isinstance(node, exp.Column)}
        taken = {n for _, key, _ in keys for n in range(key.first, key.last)}
        aggregates = self.splitter.parts.aggregates()
        grouped = {c.name.lower() for node, _, _ in keys for c in node.find_all(exp.Column)}
        bare = self._bare_columns() - grouped
        columns, at = [], part.first
        while keys and at < part.last:
            close = structure.closes.get(at + 1)
            name = structure.tokens[at].text.lower()
            if close is not None and (name in aggregates or self.is_aggregate(at)):
                at = self.call_end(close)
                continue
            is_qualified = word(at + 1) == "." and word(at - 1) != "."
            if is_qualified and at not in taken and word(at + 3) not in (".", "("):
                if structure.tokens[at + 2].text.lower() not in {*named, "*"}:
                    columns.append(Range(at, at + 3))
                at += 2
            elif name in bare and at not in taken and self._is_operand(at):
                columns.append(Range(at, at + 1))
            at += 1
        return columns

    def _bare_columns(self) -> set[str]:
        """The lower-case names of columns without a table that no SELECT item has as its alias."""
        aliases = {e.alias.lower() for e in self.tree.expressions if isinstance(e, exp.Alias)}
        columns = {c.name.lower() for c in self.tree.find_all(exp.Column) if not c.table}
        return columns - aliases - {"", "*"}

    def _is_operand(self, at: int) -> bool:
        """True for a name that is neither an alias nor qualified nor called."""
        tokens, word = self.splitter.structure.tokens, self.splitter.structure.word
        if word(at - 1) in (".", "AS") or word(at + 1) in (".", "(", ":="):
            return False
        return tokens[at].token_type in _NAMES and tokens[at - 1].token_type not in _ENDS

    def _read_any_values(self, keys: list[exp.Expr], columns: list[Range]) -> None:
        """Writes ANY_VALUE for columns that GROUP BY determines, because DuckDB requires it."""
        splitter = self.splitter
        # Keys of DuckDB alone, such as texts, only make the groups smaller.
        known = [k for k in keys if self._binds([k], [k])] if columns else []
        for part in columns:
            start, end = splitter.structure.span(part)
            select = splitter.tree(start, end, "SELECT ")
            if known and isinstance(select, exp.Select) and self._binds(select.expressions, known):
                splitter.edits.replacements += [(start, start, "ANY_VALUE("), (end, end, ")")]

    def _binds(self, items: list[exp.Expr], keys: list[exp.Expr]) -> bool:
        """Whether the SELECT with other items and keys of GROUP BY is tensor work."""
        dropped = dict.fromkeys(("distinct", "having", "qualify", "windows"))
        group = exp.Group(expressions=[k.copy() for k in keys]) if keys else None
        items = [item.copy() for item in items]
        probe = changed(self.tree, **dropped, expressions=items, group=group)
        return self.splitter.binds(probe, self.scope)


_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_ENDS = (*_NAMES, TokenType.NUMBER, TokenType.STRING, TokenType.R_PAREN, TokenType.R_BRACKET)
"""The tokens that end an expression; a name behind them is an alias."""


def _meant(term: exp.Expr, items: Sequence[exp.Expr]) -> exp.Expr | None:
    """The expression of a term of ORDER BY, in which the names of SELECT items precede columns.

    Returns:
        None if a name inside of an expression may be that of an item.
    """
    term = term.unnest()
    stars = [
        s for e in items if isinstance(s := e.this if isinstance(e, exp.Column) else e, exp.Star)
    ]
    if isinstance(term, exp.Literal) and term.name.isdecimal():
        number = 0 if stars else int(term.name)  # `*` has several columns
        return items[number - 1].unalias() if 0 < number <= len(items) else None
    if any(s.args.get("replace") or s.args.get("rename") for s in stars):
        return None  # its names, too, precede columns
    aliases: dict[str, exp.Expr] = {
        e.alias.lower(): e.this for e in items if isinstance(e, exp.Alias)
    }
    if isinstance(term, exp.Column) and not term.table:
        return aliases.get(term.name.lower(), term)
    columns = term.find_all(exp.Column)
    return None if any(not c.table and c.name.lower() in aliases for c in columns) else term
