"""Descriptions of SQL's functions, for completion and for the reference of functions."""

from __future__ import annotations

from einsql.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Description:
    """A function as its users see it.

    Attributes:
        call: A call with named arguments; optional ones are in brackets.
        meaning: The function's result, as one sentence without a period.
        example: An expression that calls it; for table functions the text after FROM. Aggregates
            have the argument `val`.
        algebra: The scalar function or the reduction of the algebra that it is, if it is one.
        type: The type of the result, where no function of the algebra gives it.
    """

    call: str
    meaning: str
    example: str = ""
    algebra: str = ""
    type: str = ""

    @property
    def name(self) -> str:
        """The function's name in lower case."""
        return self.call.partition("(")[0].lower()


_FLOATING = "FLOAT of FLOAT, else DOUBLE"

OPERATORS = (
    Description("x + y", "the sum; an integer overflow is an error", "7 + 2", "add"),
    Description("x - y", "the difference; an integer overflow is an error", "7 - 2", "sub"),
    Description("-x", "the negative number", "-(7)", "neg"),
    Description("x * y", "the product; an integer overflow is an error", "7 * 2", "mul"),
    Description("x / y", "the quotient as a float; infinite or NaN if y is 0", "7 / 2", "div"),
    Description("x // y", "the quotient without its fraction; by an integer 0 an error",
                "-7 // 2", "idiv"),
    Description("x % y", "the remainder, with the sign of x", "-7 % 2", "mod"),
    Description("x ** y, x ^ y", "x to the power of y", "2 ** 10", "pow"),
    Description("x = y", "whether both are equal; NaN equals NaN", "1 = 1.0", "eq"),
    Description("x <> y, x != y", "whether both differ", "1 <> 2", "ne"),
    Description("x < y, x > y", "whether one is less; NaN is the greatest float", "1 < 2", "lt"),
    Description("x <= y, x >= y", "whether one is not greater", "2 <= 1", "le"),
    Description("p AND q", "whether both hold", "TRUE AND FALSE", "and"),
    Description("p OR q", "whether one holds", "TRUE OR FALSE", "or"),
    Description("NOT p", "whether p does not hold", "NOT TRUE", "not"),
    Description("x & y", "the bits that both integers have", "5 & 3", "bitand"),
    Description("x | y", "the bits that one of the integers has", "5 | 3", "bitor"),
    Description("x [NOT] BETWEEN low AND high", "whether low <= x <= high", "3 BETWEEN 1 AND 5",
                type="BOOLEAN"),
    Description("x [NOT] IN (y, …)", "whether x equals one of the values", "3 IN (1, 2)",
                type="BOOLEAN"),
    Description("x IS [NOT] NULL", "whether x is NULL", "1 IS NULL", type="BOOLEAN"),
    Description(
        "x IS [NOT] DISTINCT FROM y", "whether both differ; NULL equals NULL",
        "2 IS DISTINCT FROM NULL", type="BOOLEAN",
    ),
    Description(
        "CASE WHEN p THEN x … [ELSE y] END", "the value of the first condition that holds",
        "CASE WHEN 1 > 2 THEN 3 ELSE 4 END", "if",
    ),
    Description("x::type", "CAST(x AS type)", "7::DOUBLE", type="the named type"),
)  # fmt: skip
"""Operators of expressions."""

SCALARS = (
    Description("abs(x)", "the magnitude", "abs(-2)", "abs"),
    Description("acos(x)", "the arc cosine in radians; NaN beyond [-1, 1]", "acos(0)", "acos"),
    Description("acosh(x)", "the inverse hyperbolic cosine", "acosh(1)", "acosh"),
    Description(
        "adam(m, v, t [, rate, decay, decay2, eps])",
        "the step of Adam from the means m of gradients and v of their squares after t steps; "
        "not in DuckDB",
        "adam(0.1, 0.01, 1)", type=_FLOATING,
    ),
    Description("add(x, y)", "x + y", "add(7, 2)", "add"),
    Description("asin(x)", "the arc sine in radians; NaN beyond [-1, 1]", "asin(0)", "asin"),
    Description("asinh(x)", "the inverse hyperbolic sine", "asinh(0)", "asinh"),
    Description("atan(x)", "the arc tangent in radians", "atan(0)", "atan"),
    Description("atan2(y, x)", "the angle of the point (x, y) in radians", "atan2(0, 1)", "atan2"),
    Description("atanh(x)", "the inverse hyperbolic tangent", "atanh(0)", "atanh"),
    Description("cast(x AS type)", "x in another type; a value out of range is an error",
                "cast(2.6 AS INTEGER)", type="the named type"),
    Description("cast_to_type(x, y)", "x in the type of y", "cast_to_type(1, 2.5::FLOAT)",
                type="that of y"),
    Description("cbrt(x)", "the cube root", "cbrt(8)", "cbrt"),
    Description("ceil(x)", "the least whole number that is not less", "ceil(2.1::DOUBLE)", "ceil"),
    Description("ceiling(x)", "ceil(x)", "ceiling(2.1::DOUBLE)", "ceil"),
    Description("coalesce(x, …)", "the first argument that is not NULL", "coalesce(NULL, 2)",
                type="that of x"),
    Description("cos(x)", "the cosine of an angle in radians", "cos(0)", "cos"),
    Description("cosh(x)", "the hyperbolic cosine", "cosh(0)", "cosh"),
    Description("degrees(x)", "an angle of radians in degrees", "degrees(0)", "degrees"),
    Description("divide(x, y)", "x // y", "divide(7, 2)", "idiv"),
    Description("erf(x)", "the error function; not in DuckDB", "erf(0)", "erf"),
    Description("exp(x)", "e to the power of x", "exp(0)", "exp"),
    Description("floor(x)", "the greatest whole number that is not greater", "floor(2.9::DOUBLE)",
                "floor"),
    Description("fmod(x, y)", "the remainder as a float, with the sign of y", "fmod(-7, 2)",
                "fmod"),
    Description("gelu(x)", "x · Φ(x), the Gaussian error linear unit; not in DuckDB",
                "gelu(0.0::DOUBLE)", type=_FLOATING),
    Description("greatest(x, …)", "the greatest argument that is not NULL", "greatest(1, 3, 2)",
                "greatest"),
    Description("if(p, x, y)", "x if p holds, else y", "if(1 < 2, 3, 4)", "if"),
    Description("isfinite(x)", "whether x is neither infinite nor NaN", "isfinite('inf'::DOUBLE)",
                "isfinite"),
    Description("isinf(x)", "whether x is infinite", "isinf('inf'::DOUBLE)", "isinf"),
    Description("isnan(x)", "whether x is NaN", "isnan('nan'::DOUBLE)", "isnan"),
    Description("least(x, …)", "the least argument that is not NULL", "least(1, 3, 2)", "least"),
    Description("lgamma(x)", "the logarithm of the gamma function's magnitude", "lgamma(1)",
                "lgamma"),
    Description("ln(x)", "the natural logarithm", "ln(1)", "ln"),
    Description("log([base,] x)", "the logarithm to a base, 10 if none is given", "log(2, 8)",
                type=_FLOATING),
    Description("log10(x)", "the logarithm to the base 10", "log10(100)", "log10"),
    Description("log2(x)", "the logarithm to the base 2", "log2(8)", "log2"),
    Description("mod(x, y)", "x % y", "mod(-7, 2)", "mod"),
    Description("multiply(x, y)", "x * y", "multiply(7, 2)", "mul"),
    Description("nullif(x, y)", "NULL if both are equal, else x", "nullif(1, 2)",
                type="that of the first argument"),
    Description("pi()", "π", "pi()", type="DOUBLE"),
    Description("pow(x, y)", "x to the power of y", "pow(2, 10)", "pow"),
    Description("power(x, y)", "pow(x, y)", "power(2, 10)", "pow"),
    Description("radians(x)", "an angle of degrees in radians", "radians(0)", "radians"),
    Description("relu(x)", "greatest(x, 0), the rectified linear unit; not in DuckDB",
                "relu(-1.5::DOUBLE)", type="that of x"),
    Description("round(x [, digits])", "the nearest number with these digits; halves away from 0",
                "round(2.345::DOUBLE, 1)", "round"),
    Description("sigmoid(x)", "1 / (1 + exp(-x)), the logistic function; not in DuckDB",
                "sigmoid(0)", "sigmoid"),
    Description("sign(x)", "-1, 0 or 1; 0 of NaN", "sign(-2.5)", "sign"),
    Description("silu(x)", "x * sigmoid(x), the sigmoid linear unit; not in DuckDB",
                "silu(0.0::DOUBLE)", type=_FLOATING),
    Description("sin(x)", "the sine of an angle in radians", "sin(0)", "sin"),
    Description("sinh(x)", "the hyperbolic sine", "sinh(0)", "sinh"),
    Description("sqrt(x)", "the square root", "sqrt(9)", "sqrt"),
    Description("square(x)", "x * x; not in DuckDB", "square(3)", type=_FLOATING),
    Description("stop_gradient(x)", "x, whose derivative is 0; not in DuckDB", "stop_gradient(2)",
                "stop_gradient"),
    Description("subtract(x, y)", "x - y", "subtract(7, 2)", "sub"),
    Description("tan(x)", "the tangent of an angle in radians", "tan(0)", "tan"),
    Description("tanh(x)", "the hyperbolic tangent", "tanh(0)", "tanh"),
    Description("trunc(x)", "x without its fraction", "trunc(-2.7::DOUBLE)", "trunc"),
    Description("xor(x, y)", "the bits that exactly one of the integers has", "xor(5, 3)", "xor"),
)  # fmt: skip
"""Functions of expressions; those without a name in the algebra are composed of others."""

AGGREGATES = (
    Description("any_value(x)", "the first value that is not NULL in the order of keys",
                "any_value(val)"),
    Description("approx_count_distinct(x)", "count(DISTINCT x), exactly",
                "approx_count_distinct(val)", "count_distinct"),
    Description("approx_quantile(x, fraction)", "quantile_cont of the finite values",
                "approx_quantile(val, 0.5)", "quantile_cont"),
    Description("arbitrary(x)", "first(x)", "arbitrary(val)"),
    Description("arg_max(a, x [, n])", "a where x is greatest; a list of the n best ones",
                "arg_max(i, val)", "arg_max"),
    Description("arg_min(a, x [, n])", "a where x is least; a list of the n best ones",
                "arg_min(i, val)", "arg_min"),
    Description("array_agg(a ORDER BY x)[1:n]", "list(a ORDER BY x)[1:n]",
                "array_agg(i ORDER BY val)[1:2]"),
    Description("avg(x)", "the mean, rounded once", "avg(val)"),
    Description("bit_and(x)", "the bits that all integers have", "bit_and(i)", "bit_and"),
    Description("bit_or(x)", "the bits that one of the integers has", "bit_or(i)", "bit_or"),
    Description("bit_xor(x)", "the bits that an odd number of integers has", "bit_xor(i)",
                "bit_xor"),
    Description("bool_and(p)", "whether all conditions hold", "bool_and(val > 1)", "bool_and"),
    Description("bool_or(p)", "whether one condition holds", "bool_or(val > 1)", "bool_or"),
    Description("corr(y, x)", "Pearson's correlation", "corr(val, i)"),
    Description("count(*), count(x)", "the number of rows, or of values that are not NULL",
                "count(val)", "sum"),
    Description("count_if(p)", "the number of rows for which a condition holds",
                "count_if(val > 1)", "sum"),
    Description("covar_pop(y, x)", "the covariance of a population", "covar_pop(val, i)"),
    Description("covar_samp(y, x)", "the covariance of a sample", "covar_samp(val, i)"),
    Description("first(x)", "the value of the row with the least keys", "first(val)"),
    Description("geomean(x)", "the geometric mean", "geomean(val)"),
    Description("kurtosis(x)", "the excess kurtosis of a sample", "kurtosis(val)"),
    Description("kurtosis_pop(x)", "the excess kurtosis of a population", "kurtosis_pop(val)"),
    Description("last(x)", "the value of the row with the greatest keys", "last(val)"),
    Description("list(a ORDER BY x)[1:n]", "the n first a in the order of x",
                "list(i ORDER BY val)[1:2]"),
    Description("logsumexp(x)", "ln(sum(exp(x))) without overflow; not in DuckDB",
                "logsumexp(val)"),
    Description("max(x [, n])", "the greatest value; a list of the n greatest ones", "max(val)",
                "max"),
    Description("mean(x)", "avg(x)", "mean(val)"),
    Description("median(x)", "quantile_cont(x, 0.5)", "median(val)", "quantile_cont"),
    Description("min(x [, n])", "the least value; a list of the n least ones", "min(val)", "min"),
    Description("mode(x)", "the most frequent value, the least of several", "mode(val)", "mode"),
    Description("percentile_cont(fraction) WITHIN GROUP (ORDER BY x)", "quantile_cont(x, fraction)",
                "percentile_cont(0.5) WITHIN GROUP (ORDER BY val)", "quantile_cont"),
    Description("percentile_disc(fraction) WITHIN GROUP (ORDER BY x)", "quantile_disc(x, fraction)",
                "percentile_disc(0.5) WITHIN GROUP (ORDER BY val)", "quantile_disc"),
    Description("product(x)", "the product", "product(val)", "product"),
    Description("quantile(x, fraction)", "quantile_disc(x, fraction)", "quantile(val, 0.5)",
                "quantile_disc"),
    Description("quantile_cont(x, fraction)", "an interpolated quantile",
                "quantile_cont(val, 0.25)", "quantile_cont"),
    Description("quantile_disc(x, fraction)", "a quantile that is one of the values",
                "quantile_disc(val, 0.25)", "quantile_disc"),
    Description("regr_avgx(y, x)", "the mean of x", "regr_avgx(val, i)"),
    Description("regr_avgy(y, x)", "the mean of y", "regr_avgy(val, i)"),
    Description("regr_count(y, x)", "the number of pairs", "regr_count(val, i)"),
    Description("regr_intercept(y, x)", "where the line of regression meets x = 0",
                "regr_intercept(val, i)"),
    Description("regr_r2(y, x)", "the coefficient of determination", "regr_r2(val, i)"),
    Description("regr_slope(y, x)", "the slope of the line of regression", "regr_slope(val, i)"),
    Description("regr_sxx(y, x)", "the sum of squared distances of x from its mean",
                "regr_sxx(val, i)"),
    Description("regr_sxy(y, x)", "the sum of products of the distances from both means",
                "regr_sxy(val, i)"),
    Description("regr_syy(y, x)", "the sum of squared distances of y from its mean",
                "regr_syy(val, i)"),
    Description("sem(x)", "the standard error of the mean", "sem(val)"),
    Description("skewness(x)", "the skewness of a sample", "skewness(val)"),
    Description("stddev(x)", "stddev_samp(x)", "stddev(val)"),
    Description("stddev_pop(x)", "the standard deviation of a population", "stddev_pop(val)"),
    Description("stddev_samp(x)", "the standard deviation of a sample", "stddev_samp(val)"),
    Description("sum(x)", "the sum", "sum(val)", "sum"),
    Description("var_pop(x)", "the variance of a population", "var_pop(val)"),
    Description("var_samp(x)", "the variance of a sample", "var_samp(val)"),
    Description("variance(x)", "var_samp(x)", "variance(val)"),
)  # fmt: skip
"""Aggregates; those without a reduction of the algebra are composed of several."""

TABLES = (
    Description("attention(q, k, v, t, d)",
                "softmax of q · k / √d over the key t, times v: attention with queries, keys, "
                "values", "attention(x, x, x, t, d)"),
    Description("einsum(subscripts, x, … [, combine := f] [, reduce := g] [, sharded := true])",
                "the Einstein sum of tensors with f in place of the product and g in place of the "
                "sum; sharded labels carry mesh axes", "einsum('ij,kj->ik', x, x)"),
    Description("elements(tiles)", "the tensor of a relation of tiles",
                "elements((SELECT * FROM tiles(x, 1, 1)))"),
    Description("generate_series([start,] end [, step])",
                "the integers from start, or 0, to end; a step other than 1 runs in DuckDB",
                "generate_series(0, 2) AS r(i)"),
    Description("gradient(loss, x)", "the derivative of a query without keys by every element of x",
                "gradient((SELECT SUM(val * val) AS val FROM x), x)"),
    Description("layer_norm(x, axis [, eps])",
                "(x - mean) / √(variance + eps) along a key", "layer_norm(x, d)"),
    Description("log_softmax(x, axis)", "the logarithm of softmax(x, axis), without overflow",
                "log_softmax(x, d)"),
    Description("range([start,] end [, step])",
                "the integers from start, or 0, below end; a step other than 1 runs in DuckDB",
                "range(3) AS r(i)"),
    Description("read_tensor(file [, name])", "the tensor of a file, or one of its tensors",
                "read_tensor('examples/data/karate.npy') AS e(i, j)"),
    Description("rms_norm(x, axis [, eps])", "x / √(mean of x² + eps) along a key",
                "rms_norm(x, d)"),
    Description("softmax(x, axis)", "exp(x) / sum of exp(x) along a key, without overflow",
                "softmax(x, d)"),
    Description("tile(tiles, dimension, size)", "tiles cut further along a dimension",
                "tile((SELECT * FROM tiles(x, 1, 1)), 0, 1)"),
    Description("tiles(x [, parts, …])",
                "a tensor cut into parts along each key, a row for each tile; without numbers the "
                "optimizer chooses them", "tiles(x, 2, 1)"),
)  # fmt: skip
"""Functions of FROM, and built-in macros that are tables."""

FUNCTION_NAMES = sorted(d.name for d in SCALARS)
"""Names of functions in expressions, for hints and completion."""

AGGREGATE_NAMES = sorted(d.name for d in AGGREGATES)
"""Names of aggregates, for hints and completion."""
