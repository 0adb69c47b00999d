"""Statements of all kinds, and NumPy doing the same; imports NumPy alone.

A tensor is written as its axes, then what its elements are: standard normal float32 numbers;
`> 0`, such numbers without their sign; `< v`, integers below the extent v; `~ 0.01`, a CSR matrix
with that share of its elements stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
CSR = ("data", "indices", "indptr")
ROOT = 0.7978845608028654
"""√(2/π)"""


@dataclass(frozen=True)
class Statement:
    """A statement over arrays.

    Attributes:
        name: What it computes.
        sql: Its text.
        tensors: The axes and elements of each array, by name.
        sizes: The extents of the axes.
        numpy: The same in NumPy, of the arrays in order.
        grown: The axes that are longer in the new shape.
        before: Statements that make tensors first; they are not measured.
        after: The query that reads what a change has changed.
        fill: The value of absent elements.
    """

    name: str
    sql: str
    tensors: Mapping[str, str]
    sizes: Mapping[str, int]
    numpy: Callable[..., Any]
    grown: str = ""
    before: str = ""
    after: str = ""
    fill: float | None = None

    def larger(self) -> Mapping[str, int]:
        """The extents of the new shape: an eighth more, and odd."""
        grown = self.grown.split() or list(self.sizes)[:1]
        return {x: (n + n // 8) | 1 if x in grown else n for x, n in self.sizes.items()}

    def arrays(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """The arrays at some extents; a CSR matrix as three of them."""
        return drawn(self.tensors, sizes)


def drawn(tensors: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays of fixed random elements; a CSR matrix as three of them."""
    found: dict[str, Array] = {}
    for number, (name, text) in enumerate(tensors.items()):
        axes, kind, argument = split(text)
        shape = tuple(sizes[x] for x in axes)
        chance = np.random.default_rng((number, *shape))
        if kind == "<":
            found[name] = chance.integers(0, sizes[argument], shape)
        elif kind == "~":
            found |= _stored(chance, name, shape, float(argument))
        else:
            normal = chance.standard_normal(shape, dtype=np.float32)
            found[name] = np.abs(normal) + np.float32(0.01) if kind == ">" else normal
    return found


def registered(
    tensors: Mapping[str, str], sizes: Mapping[str, int], arrays: Mapping[str, Array]
) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Name, array and keys of each tensor; a second axis of i is called j."""
    for name, text in tensors.items():
        axes, kind, _ = split(text)
        array: Any = arrays.get(name)
        if kind == "~":
            from scipy.sparse import csr_array

            parts = tuple(arrays[f"{name}.{part}"] for part in CSR)
            array = csr_array(parts, shape=tuple(sizes[x] for x in axes))
        yield name, array, tuple("j" if x == "i2" else x for x in axes)


def split(text: str) -> tuple[list[str], str, str]:
    """The axes, the sign of the elements' kind, and what follows the sign."""
    words = text.split()
    sign = next((n for n, word in enumerate(words) if word in "<>~"), len(words))
    kind, argument = (*words[sign:], "", "")[:2]
    return words[:sign], kind, argument


def _stored(
    chance: np.random.Generator, name: str, shape: tuple[int, ...], share: float
) -> dict[str, Array]:
    rows, columns = shape
    each = max(1, round(columns * share))
    places = np.sort(chance.random((rows, columns)).argsort(1)[:, :each], axis=1)
    return {
        f"{name}.data": chance.standard_normal(rows * each, dtype=np.float32),
        f"{name}.indices": places.reshape(-1),
        f"{name}.indptr": np.arange(0, rows * each + 1, each),
    }


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _squares(a: Array, b: Array) -> Array:
    products = a @ b.T
    return np.asarray((a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * products)


def _min_plus(a: Array, b: Array) -> Array:
    return np.stack([(row + b).min(1) for row in a])


def _causal(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.swapaxes(1, 2) / np.float32(8)
    below = np.tri(q.shape[1], k.shape[1], dtype=bool)
    return np.asarray(_softmax(np.where(below, scores, np.float32(-np.inf))) @ v)


def _cross_entropy(x: Array, y: Array) -> Array:
    top = x.max(1)
    return np.asarray(
        (np.log(np.exp(x - top[:, None]).sum(1)) + top - x[np.arange(len(y)), y]).mean()
    )


def _convolution(x: Array, f: Array) -> Array:
    from numpy.lib.stride_tricks import sliding_window_view

    windows = sliding_window_view(x, (3, 3), (1, 2))
    return np.asarray(np.einsum("chwrs,ocrs->ohw", windows, f, optimize=True))


def _sums(keys: Array, values: Array, count: int) -> Array:
    return np.bincount(keys, values, count)


def _csr(data: Array, indices: Array, indptr: Array, d: Array) -> Array:
    return np.add.reduceat(data.reshape(-1, *(1,) * (d.ndim - 1)) * d[indices], indptr[:-1])


def _means(x: Array, m: Array) -> Array:
    nearest = _squares(x, m).argmin(1)
    found = np.zeros((len(m), x.shape[1]), np.float32)
    np.add.at(found, nearest, x)
    return np.asarray(found / np.bincount(nearest, minlength=len(m))[:, None])


def _power(m: Array, x: Array) -> Array:
    for _ in range(8):
        x = m @ x
        x = x / np.abs(x).max()
    return x


def _smoothed(x: Array) -> Array:
    for _ in range(10):
        x = np.concatenate([(x[:-1] + x[1:]) / 2, x[-1:]])
    return x


def _logistic(x: Array, w: Array, y: Array) -> Array:
    return np.asarray(x.T @ (1 / (1 + np.exp(-(x @ w))) - y))


def _network(x: Array, w: Array, u: Array) -> Array:
    hidden = np.maximum(x @ w, 0)
    return np.asarray(x.T @ ((2 * (hidden @ u) @ u.T) * (hidden > 0)))


_PRODUCT = "SELECT i, j, SUM(a.val * b.val) AS val FROM a JOIN b USING (k) GROUP BY i, j"
_PAIRS = "SELECT i, j, {} AS val FROM a JOIN b USING (d) GROUP BY i, j"
_SQUARED = _PAIRS.format("SUM((a.val - b.val) * (a.val - b.val))")
_MAP = "SELECT i, j, {} AS val FROM x"
_SOFTMAX = """WITH e AS (SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY i)) AS val FROM x)
SELECT i, j, val / SUM(val) OVER (PARTITION BY i) AS val FROM e"""
_ATTENTION = """WITH s AS (SELECT h, q.t, k.u, SUM(q.val * k.val) / 8 AS val
  FROM q JOIN k USING (h, d) {} GROUP BY h, q.t, k.u),
e AS (SELECT h, t, u, EXP(val - MAX(val) OVER (PARTITION BY h, t)) AS val FROM s),
p AS (SELECT h, t, u, val / SUM(val) OVER (PARTITION BY h, t) AS val FROM e)
SELECT h, t, c, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, u) GROUP BY h, t, c"""
_HEADS = {"q": "h t d", "k": "h u d", "v": "h u c"}
_HEADED = {"t": 256, "u": 256, "h": 4, "d": 64, "c": 64}
_SQUARE = {"i": 512, "j": 512}
_NEAREST = """WITH far AS (SELECT i, c, SUM((x.val - m.val) * (x.val - m.val)) AS val
  FROM x JOIN m USING (d) GROUP BY i, c)"""

STATEMENTS = (
    Statement("product", _PRODUCT, {"a": "i k", "b": "k j"}, {"i": 512, "k": 512, "j": 512},
              lambda a, b: a @ b),
    Statement("min-plus", _PRODUCT.replace("SUM(a.val * b.val)", "MIN(a.val + b.val)"),
              {"a": "i k", "b": "k j"}, {"i": 512, "k": 512, "j": 512},
              lambda a, b: _min_plus(a, np.ascontiguousarray(b.T))),
    Statement("squared distances", _SQUARED, {"a": "i d", "b": "j d"},
              {"i": 1000, "j": 300, "d": 64}, _squares),
    Statement("Manhattan distances", _PAIRS.format("SUM(ABS(a.val - b.val))"),
              {"a": "i d", "b": "j d"}, {"i": 400, "j": 300, "d": 32},
              lambda a, b: np.abs(a[:, None] - b).sum(2)),
    Statement("Chebyshev distances", _PAIRS.format("MAX(ABS(a.val - b.val))"),
              {"a": "i d", "b": "j d"}, {"i": 400, "j": 300, "d": 32},
              lambda a, b: np.abs(a[:, None] - b).max(2)),
    Statement("RBF kernel", f"WITH s AS ({_SQUARED}) SELECT i, j, EXP(-val / 64) AS val FROM s",
              {"a": "i d", "b": "j d"}, {"i": 500, "j": 400, "d": 32},
              lambda a, b: np.exp(-_squares(a, b) / 64)),
    Statement("cosine", """WITH n AS (SELECT i, SQRT(SUM(val * val)) AS val FROM a GROUP BY i),
m AS (SELECT j, SQRT(SUM(val * val)) AS val FROM b GROUP BY j),
p AS (SELECT i, j, SUM(a.val * b.val) AS val FROM a JOIN b USING (d) GROUP BY i, j)
SELECT i, j, p.val / (n.val * m.val) AS val FROM p JOIN n USING (i) JOIN m USING (j)""",
              {"a": "i d", "b": "j d"}, {"i": 800, "j": 500, "d": 64},
              lambda a, b: a @ b.T / (np.linalg.norm(a, axis=1)[:, None]
                                      * np.linalg.norm(b, axis=1))),
    Statement("equal counts", """SELECT i, j, COUNT(*) FILTER (WHERE a.val = b.val) AS val
FROM a JOIN b USING (d) GROUP BY i, j""", {"a": "i d < v", "b": "j d < v"},
              {"i": 300, "j": 300, "d": 32, "v": 4}, lambda a, b: (a[:, None] == b).sum(2)),
    Statement("tanh-GELU",
              _MAP.format(f"0.5 * val * (1 + TANH({ROOT} * (val + 0.044715 * val * val * val)))"),
              {"x": "i j"}, _SQUARE,
              lambda x: 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x * x * x)))),
    Statement("SiLU", _MAP.format("val / (1 + EXP(-val))"), {"x": "i j"}, _SQUARE,
              lambda x: x / (1 + np.exp(-x))),
    Statement("logarithms and roots", _MAP.format("LN(1 + ABS(val)) + SQRT(ABS(val))"),
              {"x": "i j"}, _SQUARE, lambda x: np.log(1 + np.abs(x)) + np.sqrt(np.abs(x))),
    Statement("polynomial", _MAP.format("((2 * val - 3) * val + 1) * val - 0.5"), {"x": "i j"},
              {"i": 1024, "j": 1024}, lambda x: ((2 * x - 3) * x + 1) * x - 0.5),
    Statement("clip", _MAP.format("CASE WHEN val > 1 THEN 1 WHEN val < -1 THEN -1 ELSE val END"),
              {"x": "i j"}, _SQUARE, lambda x: np.clip(x, -1, 1)),
    Statement("transpose and add", "SELECT x.i, x.j, x.val + y.val AS val FROM x, x AS y "
              "WHERE x.i = y.j AND x.j = y.i", {"x": "i i2"}, {"i": 1000, "i2": 1000},
              lambda x: x + x.T, "i i2"),
    Statement("softmax", _SOFTMAX, {"x": "i j"}, _SQUARE, _softmax),
    Statement("LogSumExp by row", "WITH m AS (SELECT i, MAX(val) AS val FROM x GROUP BY i) "
              "SELECT i, MAX(m.val) + LN(SUM(EXP(x.val - m.val))) AS val FROM x JOIN m USING (i) "
              "GROUP BY i", {"x": "i j"}, _SQUARE,
              lambda x: np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1)),
    Statement("layer norm", """WITH mu AS (SELECT i, AVG(val) AS val FROM x GROUP BY i),
va AS (SELECT i, AVG((x.val - mu.val) * (x.val - mu.val)) AS val
  FROM x JOIN mu USING (i) GROUP BY i)
SELECT i, j, (x.val - mu.val) / SQRT(va.val + 1e-5) AS val
FROM x JOIN mu USING (i) JOIN va USING (i)""", {"x": "i j"}, {"i": 1024, "j": 384},
              lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)),
    Statement("AVG and STDDEV by column",
              "SELECT j, AVG(val) AS mean, STDDEV_POP(val) AS deviation FROM x GROUP BY j",
              {"x": "i j"}, {"i": 2000, "j": 64}, lambda x: np.stack([x.mean(0), x.std(0)])),
    Statement("columns normalised", """WITH s AS (
  SELECT j, AVG(val) AS mean, STDDEV_POP(val) AS deviation FROM x GROUP BY j)
SELECT i, j, (x.val - s.mean) / s.deviation AS val FROM x JOIN s USING (j)""",
              {"x": "i j"}, {"i": 2000, "j": 64}, lambda x: (x - x.mean(0)) / x.std(0)),
    Statement("norms of rows", "SELECT i, SQRT(SUM(val * val)) AS val FROM x GROUP BY i",
              {"x": "i j"}, {"i": 2000, "j": 512}, lambda x: np.linalg.norm(x, axis=1)),
    Statement("greatest of columns", "SELECT j, MAX(val) AS val FROM x GROUP BY j",
              {"x": "i j"}, {"i": 2000, "j": 512}, lambda x: x.max(0)),
    Statement("variance of all", "SELECT VAR_POP(val) AS val FROM x", {"x": "i j"},
              {"i": 1024, "j": 1024}, lambda x: x.var()),
    Statement("place of the greatest", "SELECT i, ARG_MAX(j, val) AS val FROM x GROUP BY i",
              {"x": "i j"}, {"i": 2000, "j": 512}, lambda x: x.argmax(1)),
    Statement("count of positive", "SELECT i, COUNT(*) FILTER (WHERE val > 0) AS val FROM x "
              "GROUP BY i", {"x": "i j"}, {"i": 2000, "j": 512}, lambda x: (x > 0).sum(1)),
    Statement("sum below the diagonal", "SELECT i, SUM(val) AS val FROM x WHERE j <= i GROUP BY i",
              {"x": "i j"}, {"i": 1000, "j": 1000}, lambda x: np.tril(x).sum(1), "i j"),
    Statement("batched product", "SELECT n, i, j, SUM(a.val * b.val) AS val FROM a "
              "JOIN b USING (n, k) GROUP BY n, i, j", {"a": "n i k", "b": "n k j"},
              {"n": 32, "i": 64, "k": 64, "j": 64}, lambda a, b: a @ b),
    Statement("product of three", "SELECT i, l, SUM(a.val * b.val * c.val) AS val FROM a "
              "JOIN b USING (j) JOIN c USING (k) GROUP BY i, l",
              {"a": "i j", "b": "j k", "c": "k l"}, {"i": 500, "j": 100, "k": 500, "l": 100},
              lambda a, b, c: a @ (b @ c)),
    Statement("covariance", """WITH m AS (SELECT j, AVG(val) AS val FROM x GROUP BY j),
c AS (SELECT i, j, x.val - m.val AS val FROM x JOIN m USING (j))
SELECT a.j, b.j AS k, SUM(a.val * b.val) / COUNT(*) AS val
FROM c AS a JOIN c AS b USING (i) GROUP BY a.j, b.j""", {"x": "i j"}, {"i": 2000, "j": 64},
              lambda x: np.cov(x.T, bias=True)),
    Statement("quadratic forms", "SELECT x.n, SUM(x.val * m.val * y.val) AS val FROM x, m, x AS y "
              "WHERE x.d = m.d AND m.e = y.d AND x.n = y.n GROUP BY x.n",
              {"x": "n d", "m": "d e"}, {"n": 2000, "d": 64, "e": 64},
              lambda x, m: ((x @ m) * x).sum(1)),
    Statement("attention", _ATTENTION.format(""), _HEADS, _HEADED,
              lambda q, k, v: _softmax(q @ k.swapaxes(1, 2) / np.float32(8)) @ v, "t u"),
    Statement("causal attention", _ATTENTION.format("WHERE k.u <= q.t"), _HEADS, _HEADED, _causal,
              "t u"),
    Statement("cross entropy", "SELECT AVG(-s.val) AS val FROM log_softmax(x, j) AS s "
              "JOIN y ON y.i = s.i AND y.val = s.j", {"x": "i j", "y": "i < j"},
              {"i": 1024, "j": 512}, _cross_entropy),
    Statement("convolution 3×3", """SELECT o, p.h, q.w, SUM(x.val * f.val) AS val
FROM range({h} - 2) AS p(h), range({w} - 2) AS q(w), x JOIN f USING (c)
WHERE x.h = p.h + f.r AND x.w = q.w + f.s GROUP BY o, p.h, q.w""",
              {"x": "c h w", "f": "o c r s"},
              {"h": 64, "w": 64, "c": 8, "o": 16, "r": 3, "s": 3}, _convolution),
    Statement("pooling", "SELECT h // 4 AS h, w // 4 AS w, c, MAX(val) AS val FROM x "
              "GROUP BY h // 4, w // 4, c", {"x": "h w c"}, {"h": 256, "w": 256, "c": 8},
              lambda x: x[: len(x) // 4 * 4].reshape(-1, 4, 64, 4, x.shape[2]).max((1, 3))
              if len(x) % 4 == 0 else np.concatenate([
                  x[: len(x) // 4 * 4].reshape(-1, 4, 64, 4, x.shape[2]).max((1, 3)),
                  x[len(x) // 4 * 4 :].reshape(1, -1, 64, 4, x.shape[2]).max((1, 3))])),
    Statement("sums by key", "SELECT k.val AS n, SUM(w.val) AS val FROM k JOIN w USING (e) "
              "GROUP BY k.val", {"k": "e < n", "w": "e"}, {"e": 200_000, "n": 1000},
              lambda k, w: _sums(k, w, 1000)),
    Statement("sums of rows by key", "SELECT k.val AS n, f, SUM(x.val) AS val FROM k "
              "JOIN x USING (e) GROUP BY k.val, f", {"k": "e < n", "x": "e f"},
              {"e": 20_000, "n": 500, "f": 16},
              lambda k, x: np.stack([_sums(k, x[:, f], 500) for f in range(16)], 1)),
    Statement("histogram", "SELECT val AS n, COUNT(*) AS rows FROM k GROUP BY val",
              {"k": "e < n"}, {"e": 500_000, "n": 256}, lambda k: np.bincount(k, minlength=256)),
    Statement("rows by number", "SELECT e, d, t.val FROM k JOIN t ON t.w = k.val",
              {"k": "e < w", "t": "w d"}, {"e": 2048, "w": 10_000, "d": 128}, lambda k, t: t[k]),
    Statement("rows by number, product", """WITH r AS (
  SELECT e, d, t.val FROM k JOIN t ON t.w = k.val)
SELECT e, f, SUM(r.val * m.val) AS val FROM r JOIN m USING (d) GROUP BY e, f""",
              {"k": "e < w", "t": "w d", "m": "d f"}, {"e": 1024, "w": 5000, "d": 128, "f": 256},
              lambda k, t, m: t[k] @ m),
    Statement("sparse product", "SELECT i, k, SUM(m.val * d.val) AS val FROM m JOIN d USING (j) "
              "GROUP BY i, k", {"m": "i j ~ 0.01", "d": "j k"}, {"i": 2000, "j": 2000, "k": 64},
              _csr),
    Statement("sparse × vector", "SELECT i, SUM(m.val * d.val) AS val FROM m JOIN d USING (j) "
              "GROUP BY i", {"m": "i j ~ 0.02", "d": "j"}, {"i": 4000, "j": 4000}, _csr),
    Statement("k-means: nearest", f"{_NEAREST} SELECT i, ARG_MIN(c, val) AS val FROM far "
              "GROUP BY i", {"x": "i d", "m": "c d"}, {"i": 4000, "c": 16, "d": 64},
              lambda x, m: _squares(x, m).argmin(1)),
    Statement("k-means: a step", f"""{_NEAREST},
n AS (SELECT i, ARG_MIN(c, val) AS c FROM far GROUP BY i)
SELECT n.c, x.d, AVG(x.val) AS val FROM x JOIN n USING (i) GROUP BY n.c, x.d""",
              {"x": "i d", "m": "c d"}, {"i": 4000, "c": 16, "d": 16}, _means),
    Statement("running sums", "SELECT a.i, SUM(b.val) AS val FROM x AS a, x AS b "
              "WHERE b.i <= a.i GROUP BY a.i", {"x": "i"}, {"i": 5000}, np.cumsum),
    Statement("running sums by row", "SELECT SUM(val) OVER (PARTITION BY r ORDER BY i) AS val "
              "FROM x ORDER BY r, i", {"x": "r i"}, {"r": 20, "i": 500},
              lambda x: np.cumsum(x, 1, np.float64).reshape(1, -1)),
    Statement("moving averages", "SELECT i, AVG(x.val) AS val FROM range({t} - 8) AS r(i), "
              "x, range(9) AS k(d) WHERE x.t = r.i + k.d GROUP BY i", {"x": "t"}, {"t": 100_000},
              lambda x: np.lib.stride_tricks.sliding_window_view(x, 9).mean(1)),
    Statement("power iteration", "WITH " + "".join(
                  f"y{n} AS (SELECT m.i, SUM(m.val * x.val) AS val FROM m JOIN x{n} AS x "
                  f"ON m.j = x.i GROUP BY m.i), "
                  f"x{n + 1} AS (SELECT y.i, y.val / (SELECT MAX(ABS(val)) FROM y{n}) AS val "
                  f"FROM y{n} AS y), " for n in range(8)) + "z AS (FROM x8) SELECT i, val FROM x8",
              {"m": "i j", "x0": "i"}, {"i": 600, "j": 600}, _power, "i j"),
    Statement("loop of averages", """CREATE OR REPLACE TENSOR w AS SELECT i, val FROM x;
FOR step IN range(10) DO
  UPDATE w SET val = s.val FROM (
    SELECT a.i, (a.val + b.val) / 2 AS val FROM w AS a, w AS b WHERE b.i = a.i + 1) AS s
  WHERE s.i = w.i;
END FOR""", {"x": "i"}, {"i": 20_000}, _smoothed, after="SELECT i, val FROM w"),
    Statement("UPDATE by a query", "UPDATE w SET val = s.val / 2 FROM "
              "(SELECT i, j, a.val + b.val AS val FROM a JOIN b USING (i, j)) AS s "
              "WHERE s.i = w.i AND s.j = w.j", {"a": "i j", "b": "i j"}, {"i": 800, "j": 500},
              lambda a, b: (a + b) / 2, before="CREATE TENSOR w AS SELECT i, j, val FROM a",
              after="SELECT i, j, val FROM w"),
    Statement("tensor from a query", "CREATE OR REPLACE TENSOR w AS "
              "SELECT i, j, a.val * b.val - 1 AS val FROM a JOIN b USING (i, j)",
              {"a": "i j", "b": "i j"}, {"i": 800, "j": 500}, lambda a, b: a * b - 1,
              after="SELECT i, j, val FROM w"),
    Statement("gradient, logistic", """WITH s AS (
  SELECT i, SUM(x.val * w.val) AS val FROM x JOIN w USING (p) GROUP BY i),
loss AS (SELECT SUM(LN(1 + EXP(s.val)) - y.val * s.val) AS val FROM s JOIN y USING (i))
SELECT p, val FROM GRADIENT(loss, w)""", {"x": "i p", "w": "p", "y": "i > 0"},
              {"i": 4000, "p": 64}, _logistic),
    Statement("gradient, two layers", """WITH h AS (
  SELECT i, h, GREATEST(SUM(x.val * w.val), 0) AS val FROM x JOIN w USING (p) GROUP BY i, h),
o AS (SELECT i, c, SUM(h.val * u.val) AS val FROM h JOIN u USING (h) GROUP BY i, c),
loss AS (SELECT SUM(val * val) AS val FROM o)
SELECT p, h, val FROM GRADIENT(loss, w)""", {"x": "i p", "w": "p h", "u": "h c"},
              {"i": 1000, "p": 64, "h": 128, "c": 10}, _network),
)  # fmt: skip
