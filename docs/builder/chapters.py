"""Chapters, run and written as Markdown that Sphinx reads in their place."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.report import machine
from docs.builder.session import BlockError, Session
from docs.builder.source import Block, Chapter

TOUR = "explanation/tour"
"""The folder of the chapters in docs/."""


class BuildError(Exception):
    """The site cannot be built; the text says what to do."""


def run(
    chapters: Sequence[Chapter], *, quick: bool = False, say: Callable[[str], None] = print
) -> Iterator[tuple[str, str]]:
    """Runs chapters in one session and gives their names with their Markdown.

    Args:
        chapters: The chapters in order.
        quick: Measures once instead of several times.
        say: Is called with each line of progress.

    Raises:
        BuildError: A block failed.
    """
    session = Session(quick=quick)
    for number, chapter in enumerate(chapters, 1):
        say(f"chapter {number} of {len(chapters)}: {chapter.title}")
        start = time.perf_counter()
        yield chapter.name, _written(chapter, session)
        say(f"  {time.perf_counter() - start:.1f} s")


def _written(chapter: Chapter, session: Session) -> str:
    pieces: list[str] = []
    for part in chapter.parts:
        try:
            if isinstance(part, Block):
                pieces.append(session.run(part) + "\n")
            else:
                pieces.append(session.filled(part.text))
        except BlockError as error:
            raise BuildError(f"{chapter.path}:{part.line}: {error}") from error
        except Exception as error:
            raise BuildError(f"{chapter.path}:{part.line}: {error!r}") from error
    return "".join(pieces)


def colophon() -> str:
    """The day and the machine of a run, as Markdown for the first page of the tour."""
    lines = "\n".join(f"- {line}" for line in machine())
    today = datetime.date.today().isoformat()
    return (
        f"\nThe chapters were run on {today}. Figures without another date were measured then, "
        f"on this machine:\n\n{lines}\n"
    )
