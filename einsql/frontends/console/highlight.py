"""Syntax highlighting at the prompt."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.styles import BaseStyle, Style

from einsql.frontends.console.words import pieces

STYLE: BaseStyle = Style.from_dict(
    {
        "prompt": "bold",
        "sql.keyword": "ansiblue bold",
        "sql.function": "ansicyan",
        "sql.string": "ansigreen",
        "sql.number": "ansimagenta",
        "sql.comment": "ansibrightblack italic",
        "sql.command": "ansiyellow",
    }
)
"""Colours of the terminal's palette, which suit dark and light screens."""


class SQLLexer(Lexer):
    """Assigns styles to keywords, functions, strings, numbers, comments and dot commands."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """A function from the line number to the styled pieces of the line."""
        if document.text.startswith("."):
            lines: list[StyleAndTextTuples] = [
                [("class:sql.command", line)] for line in document.lines
            ]
        else:
            lines = [[]]
            for kind, text in pieces(document.text):
                first, *more = text.split("\n")
                lines[-1].append((f"class:sql.{kind}", first))
                lines += [[(f"class:sql.{kind}", line)] for line in more]
        return lambda number: lines[number] if number < len(lines) else []
