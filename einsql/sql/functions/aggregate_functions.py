"""Aggregates, with their syntax nodes and names."""

from __future__ import annotations

from sqlglot import exp

AGGREGATES: dict[type[exp.Expr] | str, str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.Avg: "avg", exp.Count: "count",
    exp.CountIf: "count_if", exp.Variance: "var_samp", exp.VariancePop: "var_pop",
    exp.Stddev: "stddev_samp", exp.StddevSamp: "stddev_samp", exp.StddevPop: "stddev_pop",
    exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or", exp.ArgMin: "arg_min",
    exp.ArgMax: "arg_max", "product": "product", "mean": "avg", "logsumexp": "logsumexp",
    "var_samp": "var_samp", "countif": "count_if",
}  # fmt: skip
"""Syntax nodes and function names of the aggregates."""

AGGREGATE_NAMES = sorted({*AGGREGATES.values(), "variance", "stddev", "mean"})
"""Names of aggregates, for hints and completion."""
