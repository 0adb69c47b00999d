"""Parses JSON in the headers of files, with a bound on its size."""

from __future__ import annotations

import json
from typing import Any

MOST = 2**19
"""Greatest number of commas and opening brackets: a short text may describe gigabytes of lists."""


def parsed(text: str, *, strict: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: The JSON text.
        strict: Whether duplicate names and NaN are errors.

    Raises:
        ValueError: The text is no JSON, or has too many values.
        RecursionError: The text nests too deeply.
    """
    marks = sum(text.count(mark) for mark in ",[{")
    if marks > MOST:
        raise ValueError(f"it has {marks} values, more than {MOST}")
    if not strict:
        return json.loads(text)
    return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name is duplicate")
    return mapping


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
