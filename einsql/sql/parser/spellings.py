"""Spellings that sqlglot's trees do not keep, for the names of columns: `**`, `+x`, `@x`, `INT4`.

They are found in the tokens beside the operands, whose positions the trees keep.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from sqlglot import Token, TokenType, exp

from einsql.sql.parser.dialect import EinSQL
from einsql.sql.parser.tokens import word_of

SPELLING = "spelling"
"""The spelling of a number, a type or an operator, in the meta of its node."""
PLUS = "plus"
"""Marks the operand of a unary plus, which the trees leave out."""
NEGATED = "negated"
"""Marks NOT before `x IS NULL`, which is no IS NOT."""

_TYPES = frozenset(
    (
        *("INT1", "INT4", "INT8", "INT16", "INT32", "INT64", "BOOL", "LOGICAL", "FLOAT4", "FLOAT8"),
        *("LONG", "SIGNED", "SHORT"),
    )
)
_FUNCTIONS = {"min_by", "max_by", "argmin", "argmax", "arg_min", "arg_max"}
_OPERATORS = frozenset(
    (
        *("(", "[", ",", "+", "-", "*", "/", "//", "%", "^", "**", "=", "==", "<>", "!=", "<", ">"),
        *("<=", ">=", "||", "&", "|"),
    )
)
_WORDS = frozenset(
    (
        *("SELECT", "DISTINCT", "WHERE", "AND", "OR", "NOT", "CASE", "WHEN", "THEN", "ELSE", "BY"),
        *("ON", "HAVING", "QUALIFY", "BETWEEN", "IN"),
    )
)
"""Words before a unary plus, besides operators."""
_RARE = re.compile(
    r"\*\*|@|(?:^|[^\w.\"'])\.\d|\d_\d|"
    rf"\b(?:min_by|max_by|argmin|argmax|{'|'.join(_TYPES)})\b|"
    rf"(?:[\[(,=<>*/+%^|&-]|\b(?:{'|'.join(_WORDS)}))\s*\+",
    re.IGNORECASE | re.DOTALL,
)


_NOT = re.compile(r"\bNOT\b", re.IGNORECASE)
_IS = re.compile(r"\bIS\b", re.IGNORECASE)


def keep_spellings(tree: exp.Expr, text: str) -> None:
    """Adds the spellings to the nodes of a tree whose positions are offsets in the text."""
    negation = _NOT.search(text)
    if _RARE.search(text) or (negation is not None and _IS.search(text, negation.end())):
        _Spellings(tree, text).keep()


class _Spellings:
    """The tokens of a text, and the nodes of its tree."""

    def __init__(self, tree: exp.Expr, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = list(EinSQL().tokenize(text))
        self.starts = [t.start for t in self.tokens]
        self.nodes = list(tree.walk(bfs=False))
        self.by_start: dict[object, exp.Expr] = {}
        for n in self.nodes:
            self.by_start.setdefault(n.meta.get("start"), n)
        self.ends: dict[int, int] = {}
        """The last token of casts, whose types have no position."""

    def keep(self) -> None:
        """Marks all nodes, operands before their operators."""
        for node in reversed(self.nodes):
            match node:
                case exp.Literal(is_string=False):
                    self._number(node)
                case exp.Cast():
                    self._cast(node)
                case exp.ArgMin() | exp.ArgMax():
                    name = next((w for w in self._before(node) if w in _FUNCTIONS), None)
                    node.meta.update({} if name is None else {"name": name})
                case exp.Abs():
                    if next((w for w in self._before(node) if w in ("@", "abs")), "") == "@":
                        node.meta[SPELLING] = "@"
                case exp.Pow():
                    if self._word(self._behind(node.this)) == "**":
                        node.meta[SPELLING] = "**"
                case exp.Not(this=exp.Is()):
                    at = self._behind(node.this.this)
                    if self._word(at) == "IS" and self._word(at + 1) != "NOT":
                        node.meta[NEGATED] = True
        for at in range(len(self.tokens) - 1):
            before = self._word(at - 1) if at else "SELECT"
            if self._word(at) == "+" and before in _OPERATORS | _WORDS:
                self._plus(at)

    def _word(self, at: int) -> str:
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return "" if token is None else word_of(token) or token.text

    def _at(self, position: int) -> int:
        return bisect_right(self.starts, position) - 1

    def _first(self, node: exp.Expr) -> int:
        """The first token of a node that has a position, or -1."""
        starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
        return self._at(min(starts)) if starts else -1

    def _behind(self, node: exp.Expr) -> int:
        """The first token behind a node and its closing parentheses, or -1."""
        places = [self._at(n.meta["end"]) for n in node.walk() if "end" in n.meta]
        places += [self.ends[id(n)] for n in node.walk() if id(n) in self.ends]
        at = max(places, default=-2) + 1
        while self._word(at) == ")":
            at += 1
        return at

    def _before(self, node: exp.Expr) -> Iterator[str]:
        """The opening parentheses and names of functions before a node's first operand."""
        at = self._first(node) - 1
        while at >= 0:
            token = self.tokens[at]
            yield token.text.lower()
            if token.text != "(" and self._word(at + 1) != "(":
                return
            at -= 1

    def _number(self, node: exp.Literal) -> None:
        if "start" in node.meta:
            written = self.text[node.meta["start"] : node.meta["end"] + 1]
            if written != node.name and written.replace("_", "") == node.name:
                node.meta[SPELLING] = written
        elif node.name.startswith("0."):  # `.5` has no position
            node.meta[SPELLING] = node.name[1:]

    def _cast(self, node: exp.Cast) -> None:
        at = self._behind(node.this)
        if self._word(at) not in ("::", "AS"):
            return
        if self.tokens[at + 1].text.upper() in _TYPES:
            node.args["to"].meta[SPELLING] = self.tokens[at + 1].text.upper()
        self.ends[id(node)] = at + 1

    def _plus(self, at: int) -> None:
        """Marks the operand of a unary plus: a column, a number, a call or parentheses."""
        first, parentheses = at + 1, 0
        while self._word(first) == "(":
            first, parentheses = first + 1, parentheses + 1
        is_call = self._word(first + 1) == "(" and self.tokens[first].token_type != TokenType.NUMBER
        begins = self.starts[first + 2 * is_call] if first + 2 * is_call < len(self.starts) else -1
        node = self.by_start.get(begins)
        if isinstance(node, exp.Identifier):
            node = node.parent
        while node is not None and (parentheses or is_call):
            node = node.parent
            if isinstance(node, exp.Paren):
                parentheses -= 1
            elif is_call and isinstance(node, exp.Func):
                is_call = False
        while node is not None and isinstance(node.parent, exp.Cast) and node.arg_key == "this":
            node = node.parent
        if node is not None:
            node.meta[PLUS] = True
