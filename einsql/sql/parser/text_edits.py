"""Replaces words of a text, and maps offsets back to the original text."""

from __future__ import annotations

from collections.abc import Iterable

from einsql.core.records import dataclass
from einsql.errors import Error


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text after replacements.

    Attributes:
        text: The new text.
        places: For each replacement, from left to right: its offset in the former text, the
            length of the old word and the length of the new word.
    """

    text: str
    places: tuple[tuple[int, int, int], ...] = ()

    def before(self, position: int) -> int:
        """The offset in the original text for an offset in the new text."""
        grown = 0
        for at, old, new in self.places:
            if position < at + grown + new:
                return (
                    min(position - grown, at + old - 1)
                    if position >= at + grown
                    else (position - grown)
                )
            grown += new - old
        return position - grown

    def relocate(self, error: Error) -> None:
        """Maps the position of an error to the original text."""
        if error.position is not None:
            error.position = self.before(error.position)


def replaced(text: str, words: Iterable[tuple[int, int, str]]) -> Replaced:
    """Replaces words of a text.

    Args:
        text: The original text.
        words: The start, end and replacement of each word; words do not overlap.
    """
    parts, last = list[str](), 0
    places = list[tuple[int, int, int]]()
    for start, end, new in sorted(words):
        parts += [text[last:start], new]
        places.append((start, end - start, len(new)))
        last = end
    return Replaced("".join(parts) + text[last:], tuple(places))
