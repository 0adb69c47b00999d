"""Recognises frequent queries, whose text is checked without DuckDB's parser.

To load and open DuckDB takes a tenth of the time to the first answer, and most first statements
are plain. The language is a part of DuckDB's: SELECT, FROM with inner joins, WHERE, GROUP BY,
HAVING, WITH and scalar expressions. DuckDB's parser decides about all other texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST = 20_000
"""Characters of the longest text that is read here; DuckDB reads a character ten times as fast."""
DEEPEST = 30
"""Nested parentheses up to which a text is read here, which keeps the recursion short."""

_RESERVED = """
all analyse analyze and anti any array as asc asof asymmetric at authorization between bigint
binary bit boolean both by case cast char character check coalesce collate collation column
columns concurrently constraint create cross dec decimal default deferrable desc describe distinct
do else end except exists extract false fetch float for foreign freeze from full generated glob
group grouping grouping_id having ilike in initially inner inout int integer intersect interval
into is isnull join lambda lateral leading left like limit map national natural nchar none not
notnull null nullif numeric offset on only or order out outer overlaps overlay pivot pivot_longer
pivot_wider placing position positional precision primary qualify real references returning right
row select semi setof show similar smallint some struct substring summarize symmetric table
tablesample then time timestamp to trailing treat trim true try_cast tuple union unique unpack
unpivot using values varchar variadic verbose when where window with xmlattributes xmlconcat
xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
"""
KEYWORDS = frozenset(_RESERVED.split())
"""The words that DuckDB reserves in some places, which are no names here."""

_LEXEMES = re.compile(
    r"""
    \s*+ (?:
        (?P<word> [A-Za-z_][A-Za-z_0-9]*+ (?! [$'"] ) )
        | (?P<quoted> "(?: [^"] | "" )++" )
        | (?P<value> (?: \d++(?:\.\d*+)?+ | \.\d++ ) (?: [eE][-+]?\d++ )?+ (?! [\w.$'"] )
            | '(?: [^'] | '' )*+' (?! \s*+ [eExXbB]?' )
            | \ue000++ (?! [\w$] ) )
        | (?P<sign> :=|=>|::|<>|<=|>=|!=|==|\*\*|//|\|\|(?!/)|[-+*/%^<>=(),.] )
    )
    """,
    re.VERBOSE,
)

_COMPARISONS = frozenset(("=", "==", "<>", "!=", "<", "<=", ">", ">="))
_OPERATORS = frozenset(("+", "-", "*", "/", "//", "%", "^", "**", "||"))
_TYPES = frozenset(("bigint", "boolean", "float", "int", "integer", "real", "smallint", "varchar"))
_CONSTANTS = frozenset(("true", "false", "null"))


def is_frequent(text: str) -> bool:
    """True only for texts of the language above, which DuckDB's grammar accepts."""
    if len(text) > LONGEST or "--" in text or "/*" in text:
        return False
    lexemes: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        m = _LEXEMES.match(text, at)
        if m is None or m.end() > end:
            return False
        lexeme = m[m.lastgroup or 0]
        if m.lastgroup == "word":
            low = lexeme.lower()
            lexemes.append((low if low in KEYWORDS else "name", low))
        elif m.lastgroup == "quoted":
            lexemes.append(("name", lexeme.lower()))
        else:
            lexemes.append(("value" if m.lastgroup == "value" else lexeme, ""))
        at = m.end()
    try:
        reader = _Reader(lexemes)
        reader.query()
    except _OtherError:
        return False
    return reader.kind() == ""


class _OtherError(Exception):
    """The text is outside of the language."""


class _Reader:
    """Reads lexemes in order: a kind and, for words, the text in lower case."""

    def __init__(self, lexemes: list[tuple[str, str]]) -> None:
        self.lexemes = [*lexemes, ("", ""), ("", "")]  # a reader looks one lexeme further
        self.at = 0
        self.depth = 0

    def kind(self) -> str:
        """The kind of the next lexeme: a keyword, a sign, "name", "value", or "" at the end."""
        return self.lexemes[self.at][0]

    def skip(self, *kinds: str) -> bool:
        """Reads the next lexeme if it is of one of the kinds."""
        if self.kind() in kinds:
            self.at += 1
            return True
        return False

    def skip_word(self, word: str) -> bool:
        """Reads the next lexeme if it is an unreserved word."""
        if self.lexemes[self.at] == ("name", word):
            self.at += 1
            return True
        return False

    def take(self, *kinds: str) -> str:
        """Reads lexemes of these kinds; returns the text of the last."""
        for kind in kinds:
            if not self.skip(kind):
                raise _OtherError
        return self.lexemes[self.at - 1][1]

    def listed(self, read: Callable[[], object]) -> None:
        """Reads one or several parts with commas between them."""
        read()
        while self.skip(","):
            read()

    def enclosed(self, read: Callable[[], object]) -> None:
        """Reads a part in parentheses."""
        self.take("(")
        self.depth += 1
        if self.depth > DEEPEST:
            raise _OtherError
        read()
        self.depth -= 1
        self.take(")")

    def names(self) -> None:
        """`(name, …)`."""
        self.enclosed(lambda: self.listed(lambda: self.take("name")))

    # Queries

    def query(self) -> None:
        """`[WITH name AS (query), …] SELECT …`."""
        if self.skip("with"):
            parts: set[str] = set()
            self.listed(lambda: self.part(parts))
        self.take("select")
        self.listed(self.item)
        if self.skip("from"):
            self.listed(self.joined)
        if self.skip("where"):
            self.expression()
        if self.skip("group"):
            self.take("by")
            if not self.skip("all"):
                self.listed(self.expression)
        if self.skip("having"):
            self.expression()

    def part(self, parts: set[str]) -> None:
        """A part of WITH, whose name is new."""
        self.new(parts)
        if self.kind() == "(":
            self.names()
        self.take("as")
        self.enclosed(self.query)

    def new(self, names: set[str]) -> None:
        """A name that is not among some names, and is from now on."""
        name = self.take("name").strip('"')
        if name in names:
            raise _OtherError
        names.add(name)

    def item(self) -> None:
        """An item of SELECT: columns, or an expression with or without a name."""
        qualified = [kind for kind, _ in self.lexemes[self.at : self.at + 3]] == ["name", ".", "*"]
        if qualified or self.kind() == "*":
            self.at += 3 if qualified else 1
            self.changes()
            return
        self.expression()
        if self.skip("as"):
            self.take("name")

    def changes(self) -> None:
        """`[EXCLUDE (name, …)] [REPLACE (expression AS name, …)] [RENAME (name AS name, …)]`."""
        names: set[str] = set()
        if self.skip_word("exclude"):
            self.enclosed(lambda: self.listed(lambda: self.new(names)))
        if self.skip_word("replace"):
            self.enclosed(lambda: self.listed(lambda: self.replacement(names)))
        if self.skip_word("rename"):
            self.enclosed(lambda: self.listed(lambda: self.renaming(names)))

    def replacement(self, names: set[str]) -> None:
        """`expression AS name`."""
        self.expression()
        self.take("as")
        self.new(names)

    def renaming(self, names: set[str]) -> None:
        """`name AS name`."""
        self.new(names)
        self.take("as", "name")

    def joined(self) -> None:
        """Relations with JOIN between them."""
        self.relation()
        while True:
            if self.skip("natural"):
                self.skip("inner")
                self.take("join")
                self.relation()
            elif self.skip("cross"):
                self.take("join")
                self.relation()
            elif self.skip("inner", "join"):
                if self.lexemes[self.at - 1][0] == "inner":
                    self.take("join")
                self.relation()
                if self.skip("using"):
                    self.names()
                else:
                    self.take("on")
                    self.expression()
            else:
                return

    def relation(self) -> None:
        """A table, a call or a query, with or without an alias."""
        if self.kind() == "(":
            self.enclosed(self.query)
        else:
            self.take("name")
            if self.kind() == "(":
                self.call()
        if self.skip("as"):
            self.take("name")
        elif not self.skip("name"):
            return
        if self.kind() == "(":
            self.names()

    # Expressions

    def expression(self) -> None:
        """Conditions with AND and OR between them."""
        self.condition()
        while self.skip("and", "or"):
            self.condition()

    def condition(self) -> None:
        """`[NOT] sum [comparison sum | IS [NOT] NULL | [NOT] BETWEEN … | [NOT] IN (…)]`."""
        while self.skip("not"):
            pass
        self.sum()
        if self.skip(*_COMPARISONS):
            self.sum()
            return
        if self.skip("is"):
            self.skip("not")
            self.take("null")
            return
        negated = self.skip("not")
        if self.skip("between"):
            self.sum()
            self.take("and")
            self.sum()
        elif self.skip("in"):
            self.enclosed(lambda: self.listed(self.expression))
        elif negated:
            raise _OtherError

    def sum(self) -> None:
        """Operands with arithmetic between them."""
        self.operand()
        while self.skip(*_OPERATORS):
            self.operand()

    def operand(self) -> None:
        """A value, a column, a call, CASE, CAST, or an expression or query in parentheses."""
        while self.skip("-", "+"):
            pass
        if self.kind() == "(":
            self.enclosed(self.query_or_expression)
        elif self.skip("case"):
            self.case()
        elif self.skip("cast"):
            self.enclosed(self.cast)
        elif self.skip("coalesce"):
            self.enclosed(lambda: self.listed(self.expression))
        elif self.skip("name"):
            if self.kind() == "(":
                self.call()
            elif self.skip("."):
                self.take("name")
        elif not self.skip("value", *_CONSTANTS):
            raise _OtherError
        while self.skip("::"):
            self.type()

    def query_or_expression(self) -> None:
        """A query or an expression."""
        if self.kind() in ("select", "with"):
            self.query()
        else:
            self.expression()

    def case(self) -> None:
        """`CASE [expression] WHEN … THEN … [ELSE …] END` without its first word."""
        if self.kind() != "when":
            self.expression()
        self.take("when")
        while True:
            self.expression()
            self.take("then")
            self.expression()
            if not self.skip("when"):
                break
        if self.skip("else"):
            self.expression()
        self.take("end")

    def cast(self) -> None:
        """`expression AS type`."""
        self.expression()
        self.take("as")
        self.type()

    def type(self) -> None:
        """A type without arguments."""
        if not self.skip("name", *_TYPES):
            raise _OtherError

    def call(self) -> None:
        """The arguments of a call in parentheses: `*`, or expressions and named expressions."""
        if self.lexemes[self.at + 1][0] == ")":
            self.take("(", ")")
        elif [kind for kind, _ in self.lexemes[self.at : self.at + 3]] == ["(", "*", ")"]:
            self.at += 3
        else:
            self.enclosed(lambda: self.listed(self.argument))

    def argument(self) -> None:
        """`[name :=] expression`."""
        if self.lexemes[self.at + 1][0] in (":=", "=>"):
            self.take("name")
            self.at += 1
        self.expression()
