"""Aggregates, with their syntax nodes and names."""

from __future__ import annotations

from sqlglot import exp

AGGREGATES: dict[type[exp.Expr] | str, str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.Avg: "avg", exp.Count: "count",
    exp.CountIf: "count_if", exp.Variance: "var_samp", exp.VariancePop: "var_pop",
    exp.Stddev: "stddev_samp", exp.StddevSamp: "stddev_samp", exp.StddevPop: "stddev_pop",
    exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or", exp.ArgMin: "arg_min",
    exp.ArgMax: "arg_max", exp.BitwiseAndAgg: "bit_and", exp.BitwiseOrAgg: "bit_or",
    exp.BitwiseXorAgg: "bit_xor", "product": "product", "mean": "avg", "logsumexp": "logsumexp",
    "var_samp": "var_samp", "countif": "count_if", exp.Corr: "corr", exp.CovarPop: "covar_pop",
    exp.CovarSamp: "covar_samp", exp.RegrSlope: "regr_slope",
    exp.RegrIntercept: "regr_intercept", exp.RegrR2: "regr_r2", exp.RegrCount: "regr_count",
    exp.RegrAvgx: "regr_avgx", exp.RegrAvgy: "regr_avgy", exp.RegrSxx: "regr_sxx",
    exp.RegrSyy: "regr_syy", exp.RegrSxy: "regr_sxy", exp.Skewness: "skewness",
    exp.Kurtosis: "kurtosis", "kurtosis_pop": "kurtosis_pop", "sem": "sem",
    "geomean": "geomean", "geometric_mean": "geomean", exp.Median: "median",
    exp.PercentileCont: "quantile_cont", exp.PercentileDisc: "quantile_disc",
    exp.Quantile: "quantile_disc", exp.Mode: "mode", exp.First: "first", exp.Last: "last",
    exp.AnyValue: "any_value", "arbitrary": "first", exp.ApproxQuantile: "approx_quantile",
    exp.ApproxDistinct: "count_distinct",
}  # fmt: skip
"""Syntax nodes and function names of the aggregates."""

CHOOSING = frozenset({"arg_min", "arg_max"})
"""Aggregates that return the first argument where the second is extreme."""
OF_PAIRS = frozenset(
    name for name in AGGREGATES.values() if name.startswith(("corr", "covar", "regr"))
)
"""Statistics of pairs (y, x) of which neither is NULL."""
OF_MOMENTS = frozenset({"skewness", "kurtosis", "kurtosis_pop", "sem", "geomean"})
"""Statistics of numbers that are DOUBLE for every type."""

QUANTILES = frozenset({"quantile_cont", "quantile_disc", "approx_quantile"})
"""Aggregates of a value and a fraction."""
OF_ROWS = frozenset({"first", "last", "any_value"})
"""Aggregates that depend on the order of rows."""
DISTINCT = {
    "count": "count_distinct", "sum": "sum_distinct", "avg": "avg_distinct",
    **{name: name for name in ("min", "max", "bool_and", "bool_or", "bit_and", "bit_or")},
}  # fmt: skip
"""The aggregates of distinct values, by name; repeated values do not change those with one name."""
