"""Counts in messages and plans."""

from __future__ import annotations


def plural(number: int, noun: str, several: str = "") -> str:
    """A count with its noun.

    Args:
        number: The count.
        noun: The noun in the singular.
        several: The plural if it is not the singular with an `s`.

    Example:
        >>> plural(1, "cell"), plural(2000, "axis", "axes")
        ('1 cell', '2,000 axes')
    """
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
