"""What the site adds to tables, titles and the search; Sphinx loads this extension."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish

LISTS = ("reference/settings", "reference/functions")
"""The pages whose rows begin with the name of a setting or a function."""


class EveryWord(SearchEnglish):  # type: ignore[misc]  # Sphinx is not checked
    """English whose common words are found, too: FOR, IF and OVER are words of SQL."""

    stopwords: frozenset[str] = frozenset()


def read(app: Any, tree: Any) -> None:
    """Changes the tables of a page after Sphinx has parsed it."""
    for table in tree.findall(nodes.table):
        _label(table)
    if app.env.docname in LISTS:
        entries = [("single", name, name, "main", None) for name in _anchored(tree)]
        tree.append(addnodes.index(entries=entries))


def _label(table: Any) -> None:
    """Puts the title of its column before the text of a cell; narrow pages show it."""
    titles = [entry.astext() for head in table.findall(nodes.thead) for entry in head[0]]
    for row in next(table.findall(nodes.tbody)):
        for title, cell in list(zip(titles, row, strict=False))[1:]:
            if title and cell.astext():
                cell[0].insert(0, nodes.inline("", f"{title}: ", classes=["column"]))


def _anchored(tree: Any) -> Iterator[str]:
    """Names the rows of tables by the name in their first cell, each name once."""
    seen: set[str] = set()
    for row in tree.findall(nodes.row):
        literal = next(row[0].findall(nodes.literal), None)
        name = re.match(r"([a-z]\w+)(?=\(|:|$)", literal.astext()) if literal else None
        if name and name[1] not in seen:
            seen.add(name[1])
            row["ids"].append(name[1])
            yield name[1]


def title(app: Any, page: str, _: str, context: dict[str, Any], tree: Any) -> None:
    """Puts the part of the site before the title of a page, for the tabs of a browser."""
    part = app.env.titles.get(f"{page.partition('/')[0]}/index")
    if tree is not None and part is not None and not page.endswith("/index"):
        context["title"] = f"{part.astext()}: {context['title']}"


def setup(app: Any) -> dict[str, object]:
    """Registers the additions; Sphinx calls it."""
    app.connect("doctree-read", read)
    app.connect("html-page-context", title)
    app.add_search_language(EveryWord)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
