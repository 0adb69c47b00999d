"""How much a test takes: a fixed sample in the suite, everything in `make properties`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import cycle, islice, product
from typing import Any, TypeVar

EVERYTHING = os.environ.get("EINSQL_EXAMPLES_DRAWN") == "new"
_T = TypeVar("_T")


def sample(few: _T, many: _T) -> _T:
    """Gives `few` in the suite, and `many` in `make properties`.

    Both are numbers of random cases, or the parameters, seeds or sizes themselves. The cases of
    the suite are fixed, so more of them repeat the same lines in every run.
    """
    return many if EVERYTHING else few


def spread(cases: Iterable[_T], few: int) -> list[_T]:
    """Gives `few` cases in the suite, and all in `make properties`.

    Neighbours in a list of cases are alike, so the few have equal distances, from the first case to
    the last one.
    """
    every = list(cases)
    if EVERYTHING or few >= len(every):
        return every
    return [every[n * (len(every) - 1) // max(few - 1, 1)] for n in range(few)]


def combinations(*values: Collection[Any]) -> list[tuple[Any, ...]]:
    """Gives combinations of parameters' values: all in `make properties`, few in the suite.

    In the suite there are as many as the parameter with the most values has, and each value of
    every parameter is in one of them.
    """
    if EVERYTHING:
        return list(product(*values))
    return list(islice(zip(*map(cycle, values), strict=False), max(map(len, values))))
