"""Byte-level byte-pair encoding, with the vocabulary and the merges that a GGUF file has.

python examples/tokens.py model.gguf "The capital of France is"
"""

from __future__ import annotations

import re
import struct
import sys
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

_FIXED = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""GGUF's types of numbers, as `struct` spells them."""
_TEXT, _LIST = 8, 9
_CONTROL = 3
"""A token's type: it is written as a whole, and means what no text means."""

_ENDINGS = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
_PIECES = re.compile(r" ?L+| ?N+| ?O+|[ S]+(?![LNO])|[ S]+")
"""GPT-2's rule over classes of characters: Letters, Numbers, Others, Space and a space itself."""


def metadata(path: str | Path) -> dict[str, Any]:
    """What a GGUF file says of its model: names and numbers, the vocabulary, the merges."""
    with open(path, "rb") as file:

        def number(kind: str) -> Any:
            return struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0]

        def value(kind: int) -> Any:
            if kind == _TEXT:
                return file.read(number("Q")).decode("utf-8")
            if kind == _LIST:
                inner, length = number("I"), number("Q")
                return [value(inner) for _ in range(length)]
            return number(_FIXED[kind])

        if file.read(4) != b"GGUF" or number("I") not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        number("Q")  # tensors
        return {value(_TEXT): value(number("I")) for _ in range(number("Q"))}


def _letters() -> dict[int, str]:
    """A printable character for each byte: those that are printable stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


_LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}


class Tokenizer:
    """Text to the numbers of tokens and back.

    Args:
        known: The metadata of a GGUF file.

    Attributes:
        end: The token that ends an answer.
    """

    def __init__(self, known: dict[str, Any]) -> None:
        self._words: list[str] = known["tokenizer.ggml.tokens"]
        self._numbers = {word: n for n, word in enumerate(self._words)}
        self._ranks = {
            tuple(merge.split(" ")): n for n, merge in enumerate(known["tokenizer.ggml.merges"])
        }
        kinds = known.get("tokenizer.ggml.token_type", [])
        self._control = {w for w, kind in zip(self._words, kinds, strict=False) if kind == _CONTROL}
        longest = sorted(self._control, key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(map(re.escape, longest))})" if longest else "(?!)()")
        self.end: int = known.get("tokenizer.ggml.eos_token_id", -1)
        self._merged = lru_cache(maxsize=2**14)(self._merge)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; names of control tokens in it are these tokens."""
        found: list[int] = []
        for part in self._marks.split(text):
            if part in self._control:
                found.append(self._numbers[part])
            else:
                for piece in pieces(part):
                    found += self._merged(piece)
        return found

    def bytes_of(self, token: int) -> bytes:
        """The bytes a token stands for; a character may be spread over several tokens."""
        word = self._words[token]
        if word in self._control:
            return b""
        return bytes(_BYTES[letter] for letter in word)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", errors="replace")

    def _merge(self, piece: str) -> tuple[int, ...]:
        """The tokens of a piece: its bytes, the pair that was learnt first merged each time."""
        parts = [_LETTERS[b] for b in piece.encode("utf-8")]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairwise(parts)]
            best = min(ranks)
            if best == len(self._ranks):
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self._numbers[p] for p in parts)


def pieces(text: str) -> list[str]:
    """The pieces of a text that are encoded one by one; each digit is one."""
    found: list[str] = []
    start = 0
    for at, kind in enumerate(map(unicodedata.category, text)):
        if kind.startswith("N"):
            found += [*_words(text[start:at]), text[at]]
            start = at + 1
    return [*found, *_words(text[start:])]


def _words(text: str) -> list[str]:
    classes = "".join(map(_class, text))
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _ENDINGS.match(text, at) or _PIECES.match(classes, at)
        assert match is not None  # every character is of some class
        found.append(text[at : match.end()])
        at = match.end()
    return found


def _class(character: str) -> str:
    if character.isspace():
        return " " if character == " " else "S"
    kind = unicodedata.category(character)[0]
    return kind if kind in "LN" else "O"


if __name__ == "__main__":
    tokenizer = Tokenizer(metadata(sys.argv[1]))
    for token in tokenizer.encode(sys.argv[2]):
        print(token, repr(tokenizer.decode([token])))
