"""Replacements in a text, with a map from new offsets to offsets in the original."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import field

from einsql.core.records import dataclass
from einsql.sql.parser.parameter_marks import mark


@dataclass
class Edits:
    """Replacements in a text. A replacement inside a larger one has no effect."""

    text: str
    replacements: list[tuple[int, int, str | Edited]] = field(default_factory=list)

    def replace(self, start: int, end: int, text: str | Edited) -> None:
        """Replaces `[start, end)`; an empty interval inserts.

        Parameters in an `Edited` text keep their numbers in the statement.
        """
        self.replacements.append((start, end, text))

    def covers(self, at: int) -> bool:
        """Returns True if the character at an offset is replaced."""
        return any(a <= at < b for a, b, _ in self.replacements)

    def result(self, start: int, end: int) -> Edited:
        """Returns the edited text of `[start, end)`, with parameters numbered from 1."""
        parts: list[str] = []
        origins: list[tuple[int, int]] = []
        numbers = mark(self.text).numbers
        order: dict[int, int] = {}
        length = 0

        def keep(a: int, b: int) -> None:
            nonlocal length
            for at in sorted(n for n in numbers if a <= n < b):
                origins.append((length, a))
                new = order.setdefault(numbers[at], len(order) + 1)
                parts.extend((self.text[a:at], f"${new}"))
                length += at - a + len(f"${new}")
                a = at + 1
                while a < b and (self.text[a].isalnum() or self.text[a] == "_"):
                    a += 1
            origins.append((length, a))
            parts.append(self.text[a:b])
            length += b - a

        at = start

        def part(a: int, b: int, new: str) -> None:
            """Appends the text of `[a, b)`; a blank keeps words apart that others separated."""
            nonlocal length
            before, after = self.text[a - 1 : a], self.text[b : b + 1]
            text = f" {new}" if _is_word(before) and _is_word(new[:1]) else new
            text = f"{text} " if _is_word(after) and _is_word(new[-1:]) else text
            parts.append(text)
            length += len(text)

        # Insertions precede a replacement that begins at the same place.
        for a, b, new in sorted(self.replacements, key=lambda e: (e[0], e[0] < e[1], -e[1])):
            if a < at or b > end or (a == at and a < start):
                continue
            keep(at, a)
            origins.append((length, a))
            part(a, b, new if isinstance(new, str) else _numbered(new, order))
            at = b
        keep(at, end)
        return Edited("".join(parts), tuple(order), origins)


def _is_word(text: str) -> bool:
    return text.isalnum() or text == "_"


def _numbered(edited: Edited, order: dict[int, int]) -> str:
    """Returns an edited text with parameters numbered as in the surrounding text."""
    parts, last = [], 0
    for at, n in sorted(mark(edited.text).numbers.items()):
        new = order.setdefault(edited.parameters[n - 1], len(order) + 1)
        parts += [edited.text[last:at], f"${new}"]
        last = at + len(f"${n}")
    return "".join((*parts, edited.text[last:]))


@dataclass(frozen=True, slots=True)
class Edited:
    """An edited text.

    Attributes:
        text: The text.
        parameters: The statement's parameter for each of `$1`, `$2`, …
        origins: Pairs of offsets, here and in the original, at which parts begin.
    """

    text: str
    parameters: tuple[int, ...]
    origins: list[tuple[int, int]]

    def origin(self, at: int) -> int:
        """Returns a character's offset in the original.

        Inside an inserted text it is at most the original's offset after the insertion.
        """
        n = max(0, bisect_right(self.origins, (at, 2**62)) - 1)
        here, there = self.origins[n]
        behind = [after for _, after in self.origins[n + 1 : n + 2]]
        return min(there + at - here, *behind) if behind else there + at - here
