"""How much a test takes: a fixed sample in the suite, everything in `make properties`."""

from __future__ import annotations

import os
from typing import TypeVar

EVERYTHING = os.environ.get("EINSQL_EXAMPLES_DRAWN") == "new"
_T = TypeVar("_T")


def sample(few: _T, many: _T) -> _T:
    """Gives `few` in the suite, and `many` in `make properties`.

    Both are numbers of random cases, or the parameters, seeds or sizes themselves. The cases of
    the suite are fixed, so more of them repeat the same lines in every run.
    """
    return many if EVERYTHING else few
