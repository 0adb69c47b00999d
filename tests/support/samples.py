"""How many random cases a test takes: some in the suite, all in `make properties`."""

from __future__ import annotations

import os

EVERYTHING = os.environ.get("EINSQL_EXAMPLES_DRAWN") == "new"


def sample(few: int, many: int) -> int:
    """The number of random cases: `few` in the suite, `many` in `make properties`.

    The cases of the suite are fixed, so more of them repeat the same lines in every run.
    """
    return many if EVERYTHING else few
