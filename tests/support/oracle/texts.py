"""Random SELECT items that DuckDB computes beside what einsql runs."""

from __future__ import annotations

from tests.support.oracle.choices import Choices
from tests.support.oracle.relations import E

_TEXTS = (
    "({0} || '{1}')",
    "concat('{1} + 1 = ', {0} + 1)",
    "CASE WHEN {0} > 1 THEN '{1}' ELSE '{0}' END",
    "printf('%d {1}', {0})",
    "lpad(({0})::VARCHAR, 3, '0')",
    "list_transform([1, {0}], lambda {1}: {1} * 2 + 1)::VARCHAR",
    "[{0}, {0} + 1]::VARCHAR",
)
"""Expressions over a key `{0}` that hold its name `{1}` as a text or a parameter too."""

_NUMBERS = (
    "list_sum(list_transform([1, 2], lambda {1}: {1} * 2 + 1))",
    "list_sum(list_transform([1, 2], lambda w: w + {0}))",
    "gcd({0}, 6)",
    "struct_pack({1} := {0} + 1).{1}",
    "(SELECT max(z) FROM range(3) AS q({1}), range(2) AS p(z))",
)


def computed(c: Choices, key: E) -> E:
    """An item that einsql does not compute, over a key in scope."""
    name = key.sql.rpartition(".")[2].rstrip(")").split(" ")[0].lstrip("(-")
    if c.chance(15):
        return E(f"'{name}'", "VARCHAR", 0, 0)
    if c.chance(40):
        return E(c.pick(_NUMBERS).format(key.sql, name), "DECIMAL", 100.0, None)
    return E(c.pick(_TEXTS).format(key.sql, name), "VARCHAR", 0, 0)
