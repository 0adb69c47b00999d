"""Reads tests/sql/grammar.ebnf, and recognises texts by its productions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from docs.builder.source import ROOT

SOURCE = ROOT / "tests" / "sql" / "grammar.ebnf"
_TOKEN = re.compile(r"'(?:[^']|'')*'|/\*\+|\*/|::|:=|\d+(?:\.\d+)?|\w+|\S")
_SYMBOL = re.compile(r"'[^']*'|[A-Z][A-Z_]*|[a-z_]+|[][(){}|]")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_TYPES = {"BOOLEAN", "TINYINT", "INTEGER", "BIGINT", "HALF", "BFLOAT16", "FLOAT", "DOUBLE"}
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")


@dataclass(frozen=True, slots=True)
class Example:
    """A statement.

    Attributes:
        statement: The complete text.
        derived: The part that the production derives.
    """

    statement: str
    derived: str


@dataclass(frozen=True, slots=True)
class Production:
    """A production with its examples.

    Attributes:
        name: The name that other productions call it by.
        text: Its definition as it is written.
        examples: Statements with a part that it derives.
    """

    name: str
    text: str
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the grammar.

    Attributes:
        title: The heading.
        prose: What the part is about.
        productions: The productions in order.
    """

    title: str
    prose: str
    productions: tuple[Production, ...]


def sections() -> list[Section]:
    """The parts of the grammar."""
    _, *parts = re.split(r"^## ", SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [_section(part) for part in parts]


def _section(part: str) -> Section:
    title, *blocks = re.split(r"\n\n+", part.strip())
    prose = [b for b in blocks if "::=" not in b]
    return Section(title, "\n\n".join(prose), tuple(map(_production, (
        b for b in blocks if "::=" in b))))  # fmt: skip


def _production(block: str) -> Production:
    lines = block.split("\n")
    examples = tuple(_example(line[2:]) for line in lines if line.startswith("> "))
    text = "\n".join(line for line in lines if not line.startswith("> "))
    return Production(text.partition(" ::=")[0], text, examples)


def _example(line: str) -> Example:
    part = re.search("«(.*)»", line)
    return Example(re.sub("[«»]", "", line), part[1] if part else line)


# ---- recognition

Node = tuple[str, object]
"""A kind with its content: a word, signs, a name, or nodes of a sequence or a choice."""


class Grammar:
    """All productions, by which texts are recognised."""

    def __init__(self, productions: Sequence[Production]) -> None:
        self.rules: Mapping[str, Node] = {
            p.name: _parsed(_SYMBOL.findall(p.text.partition("::=")[2])) for p in productions
        }

    def derives(self, name: str, text: str) -> bool:
        """Whether a production derives a text."""
        tokens = _TOKEN.findall(text)
        return len(tokens) in self._ends(("name", name), tokens, 0)

    def _ends(self, node: Node, tokens: Sequence[str], at: int) -> Iterator[int]:
        """The positions at which a node may end that begins at a token."""
        kind, content = node
        if kind == "choice":
            for one in _nodes(content):
                yield from self._ends(one, tokens, at)
        elif kind == "sequence":
            yield from self._sequence(_nodes(content), tokens, at)
        elif kind == "repeated":
            yield at
            for end in self._ends(_nodes(content)[0], tokens, at):
                if end > at:
                    yield from self._ends(node, tokens, end)
        elif kind == "name" and content in self.rules:
            yield from self._ends(self.rules[str(content)], tokens, at)
        elif kind == "name":
            yield from _of_duckdb(str(content), tokens, at)
        else:
            yield from _signs(str(content), tokens, at)

    def _sequence(self, nodes: Sequence[Node], tokens: Sequence[str], at: int) -> Iterator[int]:
        if not nodes:
            yield at
            return
        for end in self._ends(nodes[0], tokens, at):
            yield from self._sequence(nodes[1:], tokens, end)


def _nodes(content: object) -> Sequence[Node]:
    assert isinstance(content, list)
    return content


def _signs(word: str, tokens: Sequence[str], at: int) -> Iterator[int]:
    if at < len(tokens) and tokens[at].upper() == word:
        yield at + 1


def _of_duckdb(kind: str, tokens: Sequence[str], at: int) -> Iterator[int]:
    """The ends of what DuckDB's grammar defines; long ones are any balanced tokens."""
    word = tokens[at] if at < len(tokens) else ""
    single = {"name": r"[A-Za-z_]\w*", "text": r"'.*'", "number": r"\d.*", "type": r"[A-Za-z]\w*"}
    if kind in single:
        fits = re.fullmatch(single[kind], word) is not None
        if fits and (kind != "type" or word.upper() in _TYPES):
            yield at + 1
        return
    if kind == "query" and word.upper() not in ("SELECT", "FROM", "WITH"):
        return
    depth = 0
    for end in range(at, len(tokens)):
        depth += (tokens[end] in _OPEN) - (tokens[end] in _CLOSE)
        if depth < 0:
            return
        if depth == 0:
            yield end + 1


def _parsed(symbols: list[str]) -> Node:
    node, rest = _choice(symbols)
    assert not rest, rest
    return node


def _choice(symbols: list[str]) -> tuple[Node, list[str]]:
    """Alternatives up to a closing bracket or the end."""
    choices: list[Node] = []
    items: list[Node] = []
    while symbols and symbols[0] not in (")", "]", "}"):
        first, *symbols = symbols
        if first == "|":
            choices.append(("sequence", items))
            items = []
        elif first in _CLOSING:
            inner, symbols = _choice(symbols)
            assert symbols.pop(0) == _CLOSING[first]
            empty: Node = ("sequence", [])
            items.append({
                "(": inner, "[": ("choice", [inner, empty]), "{": ("repeated", [inner])
            }[first])  # fmt: skip
        elif first.startswith("'"):
            items.append(("signs", first.strip("'")))
        else:
            items.append(("word" if first.isupper() else "name", first))
    return ("choice", [*choices, ("sequence", items)]), symbols
