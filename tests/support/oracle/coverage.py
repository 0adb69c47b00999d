"""Which lines of the semantics table the generated queries touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

LINES: Mapping[str, str] = {
    "no_rows": "aggregate over no rows",
    "bound_0": "contracted bound 0",
    "float_math": "SUM, AVG, EXP, SQRT, LN of FLOAT",
    "float_mixed": "FLOAT with decimal literal or integer / with DOUBLE",
    "float_literal": "val > 0.1 where val is 0.1f",
    "decimal": "i*0.1 = 0.3 at i = 3",
    "int_sum": "SUM of integers",
    "int_overflow": "integer overflow",
    "division": "/; //, %",
    "guarded": "guarded division",
    "nan": "NaN",
    "zero_inf": "0 · inf",
    "ties": "ARG_MIN ties",
    "bag": "SELECT i, val FROM x(i, j)",
    "fallback": "DISTINCT, UNION, GROUP BY a float, windows ordered by values",
    "natural": "NATURAL JOIN",
    "bounds": "different bounds in a join",
    "negative_key": "i - 1 AS i, GROUP BY it",
    "correlated": "correlated scalar subquery without match",
    "self_join": "inequality joins, self joins",
    "update_from": "UPDATE … FROM, several matches",
    "insert_existing": "INSERT of an existing key",
    "cast_round": "CAST / ROUND of 2.5",
    "select_order": "SELECT SUM(val), i",
    "ours": "ERF, LOGSUMEXP, SIGMOID, HALF, BFLOAT16",
}
"""Tag of each line of the table, in its order, with the line's first column."""

STATEMENTS = frozenset({"update_from", "insert_existing"})
"""Lines about statements that are no queries; test_semantics.py alone covers them."""


def table(hits: Counter[str]) -> str:
    """The hit counts as text, one line per line of the semantics table."""
    rows = [
        f"{'tests' if tag in STATEMENTS else hits[tag]:>7}  {text}" for tag, text in LINES.items()
    ]
    return "\n".join(rows)


def missed(hits: Counter[str]) -> list[str]:
    """Tags of the lines no query has touched."""
    return [tag for tag in LINES if tag not in STATEMENTS and not hits[tag]]
