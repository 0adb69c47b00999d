"""The queries of the benchmark `spellings`: each takes a millisecond or more.

The arrays are those of `benchmarks.statements`: axes, then the kind of their elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    """A query, its arrays and the extents of their axes."""

    name: str
    sql: str
    tensors: Mapping[str, str]
    sizes: Mapping[str, int]

    def small(self) -> Mapping[str, int]:
        """Extents for DuckDB: few, and different ones."""
        return {x: min(n, 5 + number) for number, (x, n) in enumerate(self.sizes.items())}


_MAP = "SELECT i, j, {} AS val FROM x"
_TWO = "SELECT i, j, {} AS val FROM x JOIN y USING (i, j)"
_PAIRS = "SELECT i, j, {} AS val FROM a JOIN b USING (k) GROUP BY i, j"
_PAIR = {"a": "i k", "b": "j k"}
_ROWS = "SELECT i, {} AS val FROM x GROUP BY i"
_COLUMNS = "SELECT j, {} AS val FROM x GROUP BY j"
_LARGE = {"i": 2500, "j": 2000}
_THREE = {"n": 60, "i": 200, "j": 250}
_CUBE = {"x": "n i j"}
_MATRIX = {"x": "i j"}
_BOTH = {"x": "i j", "y": "i j"}
_HEADS = {"q": "h t d", "k": "h u d", "v": "h u c"}
_HEADED = {"h": 8, "t": 384, "u": 384, "d": 64, "c": 64}
_ATTENTION = """WITH s AS (SELECT h, q.t, k.u, SUM(q.val * k.val) / 8 AS val
  FROM q JOIN k USING (h, d) {} GROUP BY h, q.t, k.u),
e AS (SELECT h, t, u, EXP(val - MAX(val) OVER (PARTITION BY h, t)) AS val FROM s),
p AS (SELECT h, t, u, val / SUM(val) OVER (PARTITION BY h, t) AS val FROM e)
SELECT h, t, c, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, u) GROUP BY h, t, c"""
_MEANS = "WITH m AS (SELECT {0}, AVG(val) AS val FROM x GROUP BY {0})"
_GELU = "0.5 * {0} * (1 + TANH(0.797 * ({0} + 0.0447 * {0} * {0} * {0})))"
_K = {"i": 600, "j": 700, "k": 500}
_SMALLER = {"i": 400, "j": 350, "k": 300}

QUERIES = (
    Query("product", _PAIRS.format("SUM(a.val * b.val)"), _PAIR, _K),
    Query("product of the other layout", _PAIRS.format("SUM(a.val * b.val)"),
          {"a": "k i", "b": "k j"}, _K),
    Query("product with a factor", _PAIRS.format("0.5 * SUM(a.val * b.val)"), _PAIR, _K),
    Query("product and GELU", "WITH p AS (" + _PAIRS.format("SUM(a.val * b.val)")
          + ") SELECT i, j, " + _GELU.format("p.val") + " AS val FROM p", _PAIR, _K),
    Query("product, bias, ReLU", "WITH p AS (" + _PAIRS.format("SUM(a.val * b.val)")
          + ") SELECT i, j, GREATEST(p.val + c.val, 0) AS val FROM p JOIN c USING (j)",
          {**_PAIR, "c": "j"}, _K),
    Query("min-plus", _PAIRS.format("MIN(a.val + b.val)"), _PAIR, _SMALLER),
    Query("squared distances", _PAIRS.format("SUM((a.val - b.val) * (a.val - b.val))"), _PAIR, _K),
    Query("Manhattan distances", _PAIRS.format("SUM(ABS(a.val - b.val))"), _PAIR, _SMALLER),
    Query("Chebyshev distances", _PAIRS.format("MAX(ABS(a.val - b.val))"), _PAIR, _SMALLER),
    Query("RBF kernel", "WITH s AS (" + _PAIRS.format("SUM((a.val - b.val) * (a.val - b.val))")
          + ") SELECT i, j, EXP(-s.val / 500) AS val FROM s", _PAIR, _K),
    Query("batched product", "SELECT n, i, j, SUM(a.val * b.val) AS val FROM a JOIN b USING (n, k) "
          "GROUP BY n, i, j", {"a": "n i k", "b": "n k j"},
          {"n": 128, "i": 128, "j": 96, "k": 96}),
    Query("product by heads", "SELECT t, h, e, SUM(x.val * w.val) AS val FROM x JOIN w USING (i) "
          "GROUP BY t, h, e", {"x": "t i", "w": "h e i"},
          {"t": 512, "h": 12, "e": 32, "i": 384}),
    Query("product of heads", "SELECT t, i, SUM(x.val * w.val) AS val FROM x JOIN w USING (h, e) "
          "GROUP BY t, i", {"x": "t h e", "w": "i h e"},
          {"t": 512, "h": 12, "e": 32, "i": 384}),
    Query("product of three", "SELECT i, l, SUM(a.val * b.val * c.val) AS val FROM a "
          "JOIN b USING (j) JOIN c USING (k) GROUP BY i, l",
          {"a": "i j", "b": "j k", "c": "k l"}, {"i": 1500, "j": 200, "k": 1200, "l": 180}),
    Query("product of four", "SELECT i, m, SUM(a.val * b.val * c.val * d.val) AS val FROM a "
          "JOIN b USING (j) JOIN c USING (k) JOIN d USING (l) GROUP BY i, m",
          {"a": "i j", "b": "j k", "c": "k l", "d": "l m"},
          {"i": 1200, "j": 150, "k": 1000, "l": 120, "m": 900}),
    Query("quadratic forms", "SELECT n, SUM(x.val * m.val * y.val) AS val FROM x JOIN m USING (d) "
          "JOIN y USING (n, e) GROUP BY n", {"x": "n d", "m": "d e", "y": "n e"},
          {"n": 20_000, "d": 96, "e": 80}),
    Query("outer product", "SELECT i, j, a.val * b.val AS val FROM a, b", {"a": "i", "b": "j"},
          {"i": 5000, "j": 4000}),
    Query("Hadamard", _TWO.format("x.val * y.val"), _BOTH, _LARGE),
    Query("sum of two", _TWO.format("2 * x.val + 3 * y.val"), _BOTH, _LARGE),
    Query("sum with a transpose", "SELECT x.i, x.j, x.val + y.val AS val FROM x, y "
          "WHERE x.i = y.j AND x.j = y.i", _BOTH, {"i": 1400, "j": 1400}),
    Query("inner product", "SELECT SUM(x.val * y.val) AS val FROM x JOIN y USING (i, j)",
          _BOTH, {"i": 2500, "j": 1500}),
    Query("GELU", _MAP.format(_GELU.format("val")), _MATRIX, _LARGE),
    Query("SiLU", _MAP.format("val / (1 + EXP(-val))"), _MATRIX, _LARGE),
    Query("polynomial", _MAP.format("((2 * val - 3) * val + 1) * val - 0.5"), _MATRIX, _LARGE),
    Query("clip", _MAP.format("CASE WHEN val > 1 THEN 1 WHEN val < -1 THEN -1 ELSE val END"),
          _MATRIX, _LARGE),
    Query("row and column added", "SELECT i, j, x.val + r.val * c.val AS val FROM x "
          "JOIN r USING (i) JOIN c USING (j)", {"x": "i j", "r": "i", "c": "j"}, _LARGE),
    Query("softmax by row", "WITH e AS (SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY i)) "
          "AS val FROM x) SELECT i, j, val / SUM(val) OVER (PARTITION BY i) AS val FROM e",
          _MATRIX, _LARGE),
    Query("softmax by column", "WITH e AS (SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY j)) "
          "AS val FROM x) SELECT i, j, val / SUM(val) OVER (PARTITION BY j) AS val FROM e",
          _MATRIX, _LARGE),
    Query("softmax by joins", """WITH m AS (SELECT i, MAX(val) AS val FROM x GROUP BY i),
e AS (SELECT i, j, EXP(x.val - m.val) AS val FROM x JOIN m USING (i)),
z AS (SELECT i, SUM(val) AS val FROM e GROUP BY i)
SELECT i, j, e.val / z.val AS val FROM e JOIN z USING (i)""", _MATRIX, _LARGE),
    Query("softmax in the middle", "WITH e AS (SELECT n, i, j, EXP(val - MAX(val) OVER "
          "(PARTITION BY n, j)) AS val FROM x) SELECT n, i, j, "
          "val / SUM(val) OVER (PARTITION BY n, j) AS val FROM e", _CUBE, _THREE),
    Query("LogSumExp", "WITH m AS (SELECT i, MAX(val) AS val FROM x GROUP BY i) "
          "SELECT i, MAX(m.val) + LN(SUM(EXP(x.val - m.val))) AS val FROM x JOIN m USING (i) "
          "GROUP BY i", _MATRIX, _LARGE),
    Query("layer norm", _MEANS.format("i") + """,
v AS (SELECT i, AVG((x.val - m.val) * (x.val - m.val)) AS val FROM x JOIN m USING (i) GROUP BY i)
SELECT i, j, (x.val - m.val) / SQRT(v.val + 0.00001) AS val
FROM x JOIN m USING (i) JOIN v USING (i)""", _MATRIX, _LARGE),
    Query("layer norm, gain and bias", _MEANS.format("i") + """,
v AS (SELECT i, AVG((x.val - m.val) * (x.val - m.val)) AS val FROM x JOIN m USING (i) GROUP BY i)
SELECT i, j, (x.val - m.val) / SQRT(v.val + 0.00001) * g.val + c.val AS val
FROM x JOIN m USING (i) JOIN v USING (i) JOIN g USING (j) JOIN c USING (j)""",
          {"x": "i j", "g": "j", "c": "j"}, _LARGE),
    Query("columns normalised", "WITH s AS (SELECT j, AVG(val) AS mean, STDDEV_POP(val) AS "
          "deviation FROM x GROUP BY j) SELECT i, j, (x.val - s.mean) / s.deviation AS val "
          "FROM x JOIN s USING (j)", _MATRIX, _LARGE),
    Query("columns centred", _MEANS.format("j") + " SELECT i, j, x.val - m.val AS val "
          "FROM x JOIN m USING (j)", _MATRIX, _LARGE),
    Query("unit rows", "WITH n AS (SELECT i, SQRT(SUM(val * val)) AS val FROM x GROUP BY i) "
          "SELECT i, j, x.val / n.val AS val FROM x JOIN n USING (i)", _MATRIX, _LARGE),
    Query("covariance", _MEANS.format("i") + """,
c AS (SELECT i, k, x.val - m.val AS val FROM x JOIN m USING (i)),
d AS (SELECT i AS j, k, val FROM c)
SELECT i, j, SUM(c.val * d.val) / 4000 AS val FROM c JOIN d USING (k) GROUP BY i, j""",
          {"x": "i k"}, {"i": 200, "k": 4000}),
    Query("cosine", """WITH n AS (SELECT i, SQRT(SUM(val * val)) AS val FROM a GROUP BY i),
m AS (SELECT j, SQRT(SUM(val * val)) AS val FROM b GROUP BY j),
p AS (SELECT i, j, SUM(a.val * b.val) AS val FROM a JOIN b USING (k) GROUP BY i, j)
SELECT i, j, p.val / (n.val * m.val) AS val FROM p JOIN n USING (i) JOIN m USING (j)""",
          _PAIR, {"i": 1000, "j": 900, "k": 64}),
    Query("AVG by row", _ROWS.format("AVG(val)"), _MATRIX, {"i": 5000, "j": 2500}),
    Query("AVG by column", _COLUMNS.format("AVG(val)"), _MATRIX, {"i": 5000, "j": 2500}),
    Query("variance by column", _COLUMNS.format("VAR_POP(val)"), _MATRIX, _LARGE),
    Query("sum of squares", "SELECT n, j, SUM(val * val) AS val FROM x GROUP BY n, j", _CUBE,
          {"n": 100, "i": 300, "j": 350}),
    Query("sum of the first axis", "SELECT i, j, SUM(val) AS val FROM x GROUP BY i, j", _CUBE,
          {"n": 100, "i": 300, "j": 350}),
    Query("greatest of the last axis", "SELECT n, i, MAX(val) AS val FROM x GROUP BY n, i", _CUBE,
          {"n": 100, "i": 300, "j": 350}),
    Query("place of the greatest", _ROWS.format("ARG_MAX(j, val)"), _MATRIX,
          {"i": 5000, "j": 2500}),
    Query("SUM of EXP", _ROWS.format("SUM(EXP(val))"), _MATRIX, _LARGE),
    Query("count of positive", "SELECT j, COUNT(*) FILTER (WHERE val > 0) AS val FROM x GROUP BY j",
          _MATRIX, {"i": 5000, "j": 2500}),
    Query("weighted means", "SELECT j, SUM(x.val * w.val) / SUM(w.val) AS val FROM x "
          "JOIN w USING (i) GROUP BY j", {"x": "i j", "w": "i >"}, {"i": 8000, "j": 2500}),
    Query("below the diagonal", "SELECT i, SUM(val) AS val FROM x WHERE j <= i GROUP BY i",
          _MATRIX, {"i": 2500, "j": 2500}),
    Query("attention", _ATTENTION.format(""), _HEADS, _HEADED),
    Query("causal attention", _ATTENTION.format("WHERE k.u <= q.t"), _HEADS, _HEADED),
    Query("convolution 3×3", """SELECT o, p.h, q.w, SUM(x.val * f.val) AS val
FROM range({h} - 2) AS p(h), range({w} - 2) AS q(w), x JOIN f USING (c)
WHERE x.h = p.h + f.r AND x.w = q.w + f.s GROUP BY o, p.h, q.w""",
          {"x": "c h w", "f": "o c r s"}, {"h": 128, "w": 136, "c": 16, "o": 24, "r": 3, "s": 3}),
    Query("moving averages", "SELECT r, t.i, AVG(x.val) AS val FROM range({i} - 8) AS t(i), "
          "range(9) AS k(d), x WHERE x.i = t.i + k.d GROUP BY r, t.i", {"x": "r i"},
          {"r": 100, "i": 8000}),
    Query("pooling", "SELECT n, i // 4 AS i, j // 5 AS j, MAX(val) AS val FROM x "
          "GROUP BY n, i // 4, j // 5", _CUBE, {"n": 60, "i": 200, "j": 250}),
    Query("rows by number", "SELECT e, d, t.val FROM k JOIN t ON t.w = k.val",
          {"k": "e < w", "t": "w d"}, {"e": 20_000, "w": 9000, "d": 250}),
    Query("rows by number, product", """WITH r AS (
  SELECT e, d, t.val FROM k JOIN t ON t.w = k.val)
SELECT e, f, SUM(r.val * m.val) AS val FROM r JOIN m USING (d) GROUP BY e, f""",
          {"k": "e < w", "t": "w d", "m": "d f"}, {"e": 2000, "w": 3000, "d": 200, "f": 150}),
    Query("sums of rows by key", "SELECT k.val AS n, f, SUM(x.val) AS val FROM k JOIN x USING (e) "
          "GROUP BY k.val, f", {"k": "e < n", "x": "e f"}, {"e": 60_000, "n": 400, "f": 32}),
    Query("sums by key", "SELECT k.val AS n, SUM(w.val) AS val FROM k JOIN w USING (e) "
          "GROUP BY k.val", {"k": "e < n", "w": "e"}, {"e": 2_000_000, "n": 1000}),
    Query("sparse product", "SELECT i, k, SUM(m.val * d.val) AS val FROM m JOIN d USING (j) "
          "GROUP BY i, k", {"m": "i j ~ 0.01", "d": "j k"}, {"i": 3000, "j": 3000, "k": 64}),
    Query("nearest centre", """WITH s AS (
  SELECT i, c, SUM((x.val - m.val) * (x.val - m.val)) AS val FROM x JOIN m USING (d) GROUP BY i, c)
SELECT i, ARG_MIN(c, val) AS val FROM s GROUP BY i""", {"x": "i d", "m": "c d"},
          {"i": 20_000, "c": 32, "d": 64}),
    Query("feed-forward", """WITH h AS (
  SELECT t, f, GREATEST(SUM(x.val * w.val), 0) AS val FROM x JOIN w USING (i) GROUP BY t, f)
SELECT t, o, SUM(h.val * u.val) AS val FROM h JOIN u USING (f) GROUP BY t, o""",
          {"x": "t i", "w": "f i", "u": "o f"}, {"t": 256, "i": 200, "f": 800, "o": 220}),
    Query("cross entropy", """WITH m AS (SELECT i, MAX(val) AS val FROM x GROUP BY i),
z AS (SELECT i, MAX(m.val) + LN(SUM(EXP(x.val - m.val))) AS val FROM x JOIN m USING (i) GROUP BY i),
g AS (SELECT i, x.val FROM y JOIN x USING (i) WHERE x.j = y.val)
SELECT AVG(z.val - g.val) AS val FROM z JOIN g USING (i)""", {"x": "i j", "y": "i < j"}, _LARGE),
)  # fmt: skip
