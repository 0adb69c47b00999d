"""Reads FOR … DO … END FOR.

The variable of a loop is a parameter of the statements in its body, numbered after the caller's
parameters. Each use of the variable becomes `$n` in the text of a statement, which is then
parsed, planned and run like any other. Positions of errors are mapped back to the original text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from sqlglot import Token, TokenType, exp

from einsql.core.records import dataclass
from einsql.errors import Error, ProgrammingError
from einsql.sql.parser import syntax as st
from einsql.sql.parser.dialect import EinSQL
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parameter_marks import mark
from einsql.sql.parser.sqlglot_trees import TreeReader
from einsql.sql.parser.text_edits import Replaced, replaced
from einsql.sql.parser.tokens import TokenReader, tokenize

_HEAD = "FOR name IN range(n) DO statement; … END FOR"


Parse = Callable[[str], tuple[st.Statement, Error | None]]
"""Parses a statement; returns it and the error of DuckDB's grammar or None."""


def read_loop(sql: str, parse: Parse) -> st.For:
    """Reads a loop with all statements of its body.

    Args:
        sql: The loop's text.
        parse: The parser of the body's statements.

    Raises:
        Error: The loop or a statement of its body is wrong.
    """
    marked = mark(sql)
    words = [
        (t.start, t.end + 1, f"${marked.numbers[t.start]}")
        for t in tokenize(sql)
        if t.start in marked.numbers
    ]
    text = replaced(sql, words)
    highest = max(marked.numbers.values(), default=0)
    try:
        return _Loops(text, highest, parse).read(text.text, tokenize(text.text), {})
    except Error as error:
        text.relocate(error)
        raise


@dataclass(frozen=True, slots=True)
class _Loops:
    """The loops of one statement.

    Attributes:
        text: The statement's text with numbered parameters.
        highest: The highest number of a parameter.
        parse: The parser of the bodies' statements.
    """

    text: Replaced
    highest: int
    parse: Parse

    def read(self, sql: str, tokens: list[Token], around: Mapping[str, int]) -> st.For:
        """Reads a loop.

        Args:
            sql: The text up to the loop's end.
            tokens: The loop's tokens.
            around: The parameter numbers of the enclosing loops' variables, by lower-case name.
        """
        reader = TreeReader(sql, tokens)
        begin = reader.position()
        reader.expect("FOR", f"as in {_HEAD}")
        at = reader.position()
        variable = reader.name("the name of the loop's variable")
        if variable.lower() in around:
            raise ProgrammingError(f"A loop around this one has {variable}", position=at)
        reader.expect("IN", f"as in {_HEAD}")
        reader.expect("RANGE", f"as in {_HEAD}")
        reader.expect("(", "after range")
        start, end = reader.parenthesised()
        bounds = self.bounds(reader, start, end, around)
        reader.expect("DO", f"as in {_HEAD}")
        first = reader.at
        last = TokenReader(sql, tokens)
        last.at = max(first, len(tokens) - 2)
        if not last.take("END", "FOR"):
            raise ProgrammingError("This FOR has no END FOR", hint=f"{_HEAD}.", position=begin)
        number = self.highest + len(around) + 1
        inside = {**around, variable.lower(): number}
        body = tuple(self.body(sql, tokens[first:-2], tokens[first - 1].end + 1, inside))
        if not body:
            raise ProgrammingError("The loop has no statements", position=tokens[-2].start)
        return st.For(variable, number, bounds, start, body, self.text)

    def bounds(
        self, reader: TreeReader, start: int, end: int, around: Mapping[str, int]
    ) -> tuple[exp.Expr, ...]:
        """Reads the arguments of range."""
        if start == end:
            raise ProgrammingError("range() takes one to three numbers", position=start)
        tree = reader.tree(start, end, "SELECT ")
        for column in list(tree.find_all(exp.Column)):
            number = around.get(column.name.lower())
            if number is not None and not column.table:
                new = exp.Parameter(this=exp.Literal.number(number))
                new.meta.update(column.this.meta)
                column.replace(new)
        arguments = tuple(tree.expressions)
        if len(arguments) > 3:
            raise ProgrammingError("range() takes one to three numbers", position=start)
        return arguments

    def body(
        self, sql: str, tokens: list[Token], start: int, variables: Mapping[str, int]
    ) -> Iterator[st.Part]:
        """Reads the statements between DO and END FOR."""
        end = tokens[-1].end + 1 if tokens else start
        for span in scan(sql[start:end]):
            begin, stop = start + span.start, start + span.end
            own = [t for t in tokens if begin <= t.start < stop]
            try:
                if own[0].text.upper() == "FOR":
                    loop = self.read(sql[:stop], own, variables)
                    yield st.Part(begin, Replaced(""), (), loop)
                else:
                    yield self.part(" " * begin + sql[begin:stop], begin, own, variables)
            except Error as error:
                error.position = begin if error.position is None else error.position
                raise

    def part(
        self, sql: str, start: int, tokens: list[Token], variables: Mapping[str, int]
    ) -> st.Part:
        """Parses a statement of the body other than a loop."""
        statement, _ = self.parse(sql)
        if isinstance(statement, st.Transaction) and statement.action != "COMMIT":
            raise ProgrammingError(
                f"{statement.action} is not allowed in a loop",
                hint="Each step is atomic; COMMIT makes the previous steps permanent.",
                position=start,
            )
        text = replaced(sql, _uses(statement, tokens, variables))
        numbers = tuple(sorted(set(mark(text.text).numbers.values())))
        return st.Part(start, text, numbers, statement)


def _uses(
    statement: st.Statement, tokens: list[Token], variables: Mapping[str, int]
) -> Iterator[tuple[int, int, str]]:
    """The uses of variables in a statement: start, end, and the parameter that replaces the use."""
    if isinstance(statement, st.DuckDBStatement):
        yield from _written(tokens, variables)
        return
    if isinstance(statement, st.Explain | st.ExportPlan):
        yield from _uses(statement.statement, tokens, variables)
    for field in fields(statement):
        value = getattr(statement, field.name)
        if isinstance(value, exp.Expr):
            for column in value.find_all(exp.Column):
                number = variables.get(column.name.lower())
                if number is not None and _is_value(column):
                    at = column.this.meta["start"]
                    shown = column.parent is not None and column.arg_key == "expressions"
                    named = shown and isinstance(column.parent, exp.Select)
                    new = (
                        f"${number} AS {column.this.sql(dialect=EinSQL)}" if named else f"${number}"
                    )
                    yield at, column.this.meta["end"] + 1, new


def _is_value(column: exp.Column) -> bool:
    """True if a column reference is an unqualified name that is used as a value."""
    if column.table or isinstance(column.parent, exp.Star) or "start" not in column.this.meta:
        return False
    parent = column.parent
    inner = parent if isinstance(parent, exp.Ordered) else column
    if isinstance(inner.parent, exp.OnConflict) and inner.arg_key == "conflict_keys":
        return False
    if not isinstance(parent, exp.EQ) or not isinstance(parent.parent, exp.Update | exp.OnConflict):
        return True
    return (
        column.arg_key != "this" or parent.arg_key != "expressions"
    )  # the column that SET changes


_BEFORE_COLUMNS = frozenset(("TABLE", "INTO", "INSERT", "CONFLICT", "USING"))
"""Clauses whose parentheses hold names of columns."""
_CLAUSES = _BEFORE_COLUMNS | {
    *("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "WINDOW", "ORDER", "LIMIT", "SET"),
    *("VALUES", "ON", "RETURNING", "UNION", "EXCEPT", "INTERSECT", "WITH"),
}
_BEFORE_ITEMS = frozenset(("SELECT", "DISTINCT", "ALL", ","))
_BEHIND_ITEMS = frozenset(
    ("", ",", ")", "FROM", "WHERE", "GROUP", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT")
)


def _written(tokens: list[Token], variables: Mapping[str, int]) -> Iterator[tuple[int, int, str]]:
    """The uses of variables in the tokens of a statement that only DuckDB parses."""
    clauses = [""]
    """The last clause in each open parenthesis; a list of columns is the clause `COLUMNS`."""
    for n, token in enumerate(tokens):
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        word = "" if quoted else token.text.upper()
        if word == "(":
            clauses.append("COLUMNS" if clauses[-1] in _BEFORE_COLUMNS else "")
        elif word == ")" and len(clauses) > 1:
            clauses.pop()
            clauses[-1] = "" if clauses[-1] in _BEFORE_COLUMNS else clauses[-1]
        elif word in _CLAUSES:
            clauses[-1] = word
        number = variables.get(token.text.lower())
        if number is None or quoted:
            continue
        before = tokens[n - 1].text.upper() if n else ""
        after = tokens[n + 1].text.upper() if n + 1 < len(tokens) else ""
        if before in (".", "AS", "COLUMN") or after in (".", "("):
            continue
        if clauses[-1] == "COLUMNS" and before in ("(", ","):
            continue
        if clauses[-1] == "SET" and before in ("SET", ",") and after == "=":
            continue
        named = clauses[-1] == "SELECT" and before in _BEFORE_ITEMS and after in _BEHIND_ITEMS
        yield token.start, token.end + 1, f"${number} AS {token.text}" if named else f"${number}"
