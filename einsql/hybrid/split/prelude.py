"""Functions that einsql has and DuckDB lacks, for text that DuckDB runs."""

from __future__ import annotations

from einsql.hybrid.split.blocks import Structure
from einsql.sql.parser.tokens import tokenize

ERF = "__einsql_erf"
"""The error function of a DOUBLE, a Python function that a session registers in DuckDB."""

PRELUDE = {
    "sigmoid": "sigmoid(v) AS if(v::DOUBLE < 0, exp(v::DOUBLE), 1) / (1 + exp(-abs(v::DOUBLE)))",
    "square": "square(v) AS pow(v, 2)",
    "stop_gradient": "stop_gradient(v) AS v",
    "erf": f"erf(v) AS {ERF}(v::DOUBLE)",
    "logsumexp": "logsumexp(v) AS if(isinf(max(v)::DOUBLE), max(v)::DOUBLE, max(v) + "
    "ln(list_sum(list_transform(list(v::DOUBLE), lambda e: exp(e - list_max(list(v)))))))",
}
"""Macros by name."""


def called(text: str) -> list[str]:
    """Returns the lower-case names of the macros that a text calls."""
    structure = Structure(tokenize(text))
    names = (t.text.lower() for n, t in enumerate(structure.tokens) if n + 1 in structure.closes)
    return list(dict.fromkeys(n for n in names if n[:1].isalpha()))
