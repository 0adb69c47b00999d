"""The arguments of each kind of syntax node that the binder reads; any other is refused.

sqlglot parses more than einsql binds and more than DuckDB supports. Without this check, the binder
would ignore other arguments of a node.
"""

from __future__ import annotations

from sqlglot import exp

from einsql.sql.functions.aggregate_functions import AGGREGATES, OF_PAIRS
from einsql.sql.parser.sql_text import kind

_ONE = frozenset({"this"})
_PAIR = frozenset({"this", "expression"})
_LIST = frozenset({"this", "expressions"})
_READ: dict[type[exp.Expr], frozenset[str]] = {
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.If: frozenset({"this", "true", "false"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.Round: frozenset({"this", "decimals"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "alias", "first"}),
    **dict.fromkeys(
        (exp.In, exp.Coalesce, exp.Greatest, exp.Least, exp.Count, exp.Anonymous), _LIST
    ),
    **dict.fromkeys((exp.Nullif, exp.Log, exp.Atan2, exp.Filter, exp.ArgMin, exp.ArgMax), _PAIR),
    **dict.fromkeys((exp.PercentileCont, exp.PercentileDisc, exp.WithinGroup), _PAIR),
    **dict.fromkeys((exp.Quantile, exp.ApproxQuantile), frozenset({"this", "quantile"})),
    **dict.fromkeys(
        (k for k, name in AGGREGATES.items() if name in OF_PAIRS and isinstance(k, type)), _PAIR
    ),
}
_HARMLESS = {
    "typed": False,
    "safe": False,
    "big_int": True,
    "ignore_nulls": True,
    "over": "OVER",
}
"""Arguments that sqlglot sets by default, with their values."""
_NAMES = {
    "expression": "a second argument",
    "expressions": "several arguments",
    "decimals": "digits",
    "count": "a count",
    "db": "a schema name",
    "field": "a bare value",
    "query": "a subquery",
    "default": "a DEFAULT",
}


def surplus(node: exp.Expr) -> str | None:
    """The name of an argument of a node that the binder does not read, or None."""
    read = _READ.get(type(node), _PAIR if isinstance(node, exp.Binary) else _ONE)
    for name, value in node.args.items():
        if name not in read and value and _HARMLESS.get(name) != value:
            return f"{kind(node)} with {_NAMES.get(name, name.upper())}"
    return None
