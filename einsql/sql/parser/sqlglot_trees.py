"""Parses text to sqlglot's trees; positions count from the start of the statement's text."""

from __future__ import annotations

import re
from bisect import bisect_left

from sqlglot import exp
from sqlglot.errors import ParseError

from einsql.errors import Error, NotSupportedError, ProgrammingError, UnknownHere
from einsql.sql.parser import result_fields
from einsql.sql.parser.dialect import parsed
from einsql.sql.parser.grammar import check_grammar, spaced
from einsql.sql.parser.long_literals import without_long_literals
from einsql.sql.parser.parameter_marks import mark, place
from einsql.sql.parser.partition_hints import numbered, placed
from einsql.sql.parser.spellings import keep_spellings
from einsql.sql.parser.tokens import TokenReader, did_you_mean


class TreeReader(TokenReader):
    """Reads queries and expressions.

    Attributes:
        doubt: The error of DuckDB's grammar for a text that sqlglot has parsed, or None.
    """

    doubt: Error | None = None

    def tree(self, start: int, end: int | None = None, prefix: str = "") -> exp.Expr:
        """Parses a part of the statement with sqlglot, and checks it with DuckDB's grammar."""
        tree, doubt = parse_tree(self.sql[:end], start, prefix)
        self.doubt = self.doubt or doubt
        return tree

    def rest(self) -> exp.Expr:
        """Parses the remaining text with sqlglot; positions count from the statement's start."""
        start = self.position()
        self.at = len(self.tokens)
        return self.tree(start)

    def query(self) -> exp.Query:
        """Parses the remaining text as a query."""
        position = self.position()
        if self.ended:
            raise self.error("Expected a SELECT")
        return as_query(self.rest(), position)

    def query_or_text(self) -> tuple[exp.Query | None, Error | None]:
        """The remaining text as a query, or the error of a text that only DuckDB's grammar accepts.

        Raises:
            Error: The text is not a query.
        """
        start = self.position()
        try:
            return self.query(), None
        except (NotSupportedError, UnknownHere) as error:
            try:
                check_grammar(" " * start + self.sql[start:])
            except ProgrammingError:
                raise error from None
            self.at = len(self.tokens)
            return None, error

    def refuse_parameters(self, tree: exp.Expr, start: int) -> None:
        """Refuses `?` and `$n` in a definition, which outlives the call with their values."""
        if tree.find(exp.Placeholder, exp.Parameter) is not None:
            marks = (t.start for t in self.tokens if t.start >= start and t.text in ("?", "$"))
            raise ProgrammingError(
                "A parameter is not allowed in a definition",
                hint="The argument of a macro takes its place.",
                position=next(marks, start),
            )


def parse_tree(sql: str, start: int, prefix: str = "") -> tuple[exp.Expr, Error | None]:
    """Parses `sql[start:]` with sqlglot; positions in the tree count from the start of `sql`.

    Returns:
        The tree, and the error of DuckDB's grammar or None.

    Raises:
        ProgrammingError: A syntax error.
    """
    marked = mark(sql)
    # Spaces preserve the offsets. A prefix that completes a fragment replaces some of them.
    body, hints = numbered(without_long_literals(marked.text)[start:], start)
    body, fields = result_fields.blanked(body, start)
    text = " " * (start - len(prefix)) + prefix + body
    ahead = max(0, len(prefix) - start)
    apart, blanks = spaced(text)
    doubt: Error | None = None
    try:
        tree = parsed(apart)
        keep_spellings(tree, apart)
        check_grammar(text)
    except ParseError as error:
        raise _syntax_error(text, error) from error
    except ProgrammingError as error:
        error.position = max(0, (error.position or 0) - ahead)
        doubt = error
    if ahead or blanks:
        for node in tree.walk():
            if "start" in node.meta:
                node.meta["start"] -= ahead + bisect_left(blanks, node.meta["start"])
    _keep_calls(tree)
    placed(tree, hints)
    result_fields.place(tree, fields)
    here = {at: number for at, number in marked.numbers.items() if at >= start}
    return (place(tree, here) if here else tree), doubt


def _keep_calls(tree: exp.Expr) -> None:
    """Keeps mod(x, 2) in FROM a call; sqlglot reads it as the operator."""
    for mod in tree.find_all(exp.Mod):
        if isinstance(mod.parent, exp.Table):
            call = exp.Anonymous(this="mod", expressions=[mod.this, mod.expression])
            call.meta.update(mod.meta)
            mod.replace(call)


def changing(tree: exp.Expr) -> list[exp.CTE]:
    """The parts of a statement's own WITH that change data instead of returning rows."""
    clause = tree.args.get("with_")
    ctes = [] if clause is None else clause.expressions
    return [c for c in ctes if isinstance(c.this, exp.Insert | exp.Update | exp.Delete | exp.Merge)]


def as_query(tree: exp.Expr, position: int) -> exp.Query:
    """The tree as a query.

    Raises:
        ProgrammingError: The tree is not a query.
    """
    if not isinstance(tree, exp.Query):
        raise ProgrammingError("Expected a SELECT", position=position)
    return tree


_LATER = ("LIMIT", "OFFSET", "ORDER", "RETURNING")
"""Clauses that DuckDB accepts in more places than sqlglot."""

_CLAUSES = (
    "SELECT",
    "DISTINCT",
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "JOIN",
    "USING",
    "UNION",
    "PARTITION",
    "WINDOW",
    "QUALIFY",
    "VALUES",
    "BETWEEN",
)
"""First words of the clauses of a query, for hints on misspelt words."""

_WHERE_CALL = re.compile(r"(?:,|\bSELECT)\s*WHERE\s*\(", re.IGNORECASE)
_LAST_WORD = re.compile(r"(?<![\w$\"'.])(\w+)\s*$")


def _syntax_error(sql: str, error: ParseError) -> Error:
    detail = error.errors[0] if error.errors else {}
    description = str(detail.get("description") or "it cannot be read").split(" but got <")[0]
    if description.startswith("Required keyword"):
        description = "something is missing before this point"
    line, col = detail.get("line") or 1, detail.get("col") or 1
    starts = [0]
    for text in sql.split("\n"):
        starts.append(starts[-1] + len(text) + 1)
    highlight = str(detail.get("highlight") or "")
    position = max(0, starts[int(line) - 1] + int(col) - max(1, len(highlight)))
    if highlight.upper() in _LATER:
        return NotSupportedError(
            f"{highlight.upper()} is outside the tensor fragment", position=position
        )
    at, meant = _misspelt(sql, position, highlight)
    if _WHERE_CALL.search(sql, 0, position):
        meant = "CASE WHEN condition THEN x ELSE y END chooses a value."
    return UnknownHere(
        f"Syntax error: {description.rstrip('.')}",
        hint=meant.rstrip(),
        position=min(at, max(0, len(sql) - 1)),
    )


def _misspelt(sql: str, position: int, word: str) -> tuple[int, str]:
    """Searches a misspelt keyword at an error, or before it if it was read as a name.

    Returns:
        The word's position and the keyword; if no keyword is similar, the error's position and "".
    """
    before = _LAST_WORD.search(sql[:position])
    for at, candidate in ((position, word), (before.start(1), before[1]) if before else (0, "")):
        meant = did_you_mean(candidate, _CLAUSES)
        if meant:
            return at, meant
    return position, ""
