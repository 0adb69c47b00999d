"""JSON in the headers of files, which is parsed only if it is as short as headers are."""

from __future__ import annotations

import json
from typing import Any

MOST = 2**19
"""Commas and brackets: a short text may describe lists that take gigabytes."""


def parsed(text: str, *, strict: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: JSON.
        strict: Whether a name that is given twice, or NaN, is an error.

    Raises:
        ValueError: It is no JSON, or has too many values.
        RecursionError: It nests too deeply.
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
        raise ValueError("a name is given twice")
    return mapping


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
