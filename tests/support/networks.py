"""Networks written in SQL, for the tests of strategies: a feed-forward step and a transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import einsql
from einsql.ir.einsum.graph import Input, Node, children, walk
from einsql.ir.einsum.graph_rewriting import with_sources
from einsql.optimizer import optimize
from einsql.planner.queries import query_binder
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query

_GRADIENTS = """
WITH a AS (SELECT n, h, GREATEST(SUM(x.val * w1.val), 0) AS val
           FROM x JOIN w1 USING (d) GROUP BY n, h),
p AS (SELECT n, l, SUM(a.val * w2.val) AS val FROM a JOIN w2 USING (h) GROUP BY n, l),
g AS (SELECT n, l, p.val - y.val AS val FROM p JOIN y USING (n, l)),
dw2 AS (SELECT h, l, SUM(a.val * g.val) AS val FROM a JOIN g USING (n) GROUP BY h, l),
da AS (SELECT n, h, SUM(g.val * w2.val) AS val FROM g JOIN w2 USING (l) GROUP BY n, h),
dz AS (SELECT n, h, CASE WHEN a.val > 0 THEN da.val ELSE 0 END AS val
       FROM da JOIN a USING (n, h)),
dw1 AS (SELECT d, h, SUM(x.val * dz.val) AS val FROM x JOIN dz USING (n) GROUP BY d, h),
"""

_BY_GRADIENT = """
WITH a AS (SELECT n, h, GREATEST(SUM(x.val * w1.val), 0) AS val
           FROM x JOIN w1 USING (d) GROUP BY n, h),
p AS (SELECT n, l, SUM(a.val * w2.val) AS val FROM a JOIN w2 USING (h) GROUP BY n, l),
loss AS (SELECT SUM((p.val - y.val) * (p.val - y.val)) / 2 AS val FROM p JOIN y USING (n, l)),
dw1 AS (SELECT d, h, val FROM GRADIENT(loss, w1)),
dw2 AS (SELECT h, l, val FROM GRADIENT(loss, w2)),
"""

_BOTH = """
new1 AS (SELECT d, h, w1.val - 0.5 * dw1.val AS val FROM w1 JOIN dw1 USING (d, h)),
new2 AS (SELECT h, l, w2.val - 0.5 * dw2.val AS val FROM w2 JOIN dw2 USING (h, l)),
m1 AS (SELECT MAX(ABS(val)) AS val FROM new1),
m2 AS (SELECT MAX(ABS(val)) AS val FROM new2)
SELECT m1.val AS m1, m2.val AS m2 FROM m1, m2
"""

_UPDATES = """
s1 AS (UPDATE w1 SET val = w1.val - 0.5 * dw1.val FROM dw1 WHERE dw1.d = w1.d AND dw1.h = w1.h)
UPDATE w2 SET val = w2.val - 0.5 * dw2.val FROM dw2 WHERE dw2.h = w2.h AND dw2.l = w2.l
"""

FFNN = _GRADIENTS + _BOTH
"""One SGD step of a network of two layers on squared error; both new weights in one graph."""

FFNN_BY_GRADIENT = _BY_GRADIENT + _BOTH
"""The same step, its backward pass derived from the loss."""

FFNN_STEP = _GRADIENTS + _UPDATES
"""The same step, which stores both weights."""

FFNN_STEP_BY_GRADIENT = _BY_GRADIENT + _UPDATES
"""The step that stores both weights, its backward pass derived from the loss."""


def ffnn(n: int, d: int, h: int, layers: int) -> dict[str, dict[str, int]]:
    """Keys of the step's tensors: n points, d features, h hidden units, l labels."""
    return {
        "x": {"n": n, "d": d},
        "y": {"n": n, "l": layers},
        "w1": {"d": d, "h": h},
        "w2": {"h": h, "l": layers},
    }


def transformer(
    layers: int, b: int = 4, s: int = 64, a: int = 32, h: int = 4, d: int = 8, f: int = 96,
    names: str = "bsathdf",
) -> tuple[dict[str, dict[str, int]], str]:  # fmt: skip
    """LLaMA's layers.

    Args:
        layers: How many.
        b: Batch.
        s: Positions.
        a: Width.
        h: Heads.
        d: Width of a head.
        f: Width between the two weights of the feed-forward part.
        names: One letter for each of batch, position, width, other position, head, width of
            a head and hidden width, for nothing may depend on them.

    Returns:
        Keys of the tensors, and the statement.
    """
    B, S, A, T, H, D, F = tuple(names)  # noqa: N806 - labels; extents are lower case
    tensors: dict[str, dict[str, int]] = {"x": {B: b, S: s, A: a}}
    parts = [f"x0 AS (SELECT {B}, {S}, {A}, val FROM x)"]

    def normed(into: str, out: str, gain: str, squares: str) -> list[str]:
        tensors[gain] = {A: a}
        return [
            f"{squares} AS (SELECT {B}, {S}, AVG(val * val) AS val FROM {into} GROUP BY {B}, {S})",
            f"{out} AS (SELECT x.{B}, x.{S}, x.{A}, x.val / SQRT(m.val + 1) * g.val AS val "
            f"FROM {into} x JOIN {squares} m USING ({B}, {S}) JOIN {gain} g USING ({A}))",
        ]

    def product(out: str, left: str, right: str, on: str, *keys: str) -> str:
        shown = ", ".join(keys)
        group = ", ".join(k.split(" AS ")[0] for k in keys)
        return (
            f"{out} AS (SELECT {shown}, SUM(l.val * r.val) AS val FROM {left} l "
            f"JOIN {right} r USING ({on}) GROUP BY {group})"
        )

    for n in range(layers):
        for w in ("wq", "wk", "wv"):
            tensors[f"{w}{n}"] = {A: a, H: h, D: d}
        tensors[f"wo{n}"] = {H: h, D: d, A: a}
        tensors[f"wg{n}"] = tensors[f"wu{n}"] = {A: a, F: f}
        tensors[f"wd{n}"] = {F: f, A: a}
        heads = f"r.{H}", f"r.{D}"
        parts += [
            *normed(f"x{n}", f"n{n}", f"g{n}", f"s{n}"),
            product(f"q{n}", f"n{n}", f"wq{n}", A, f"l.{B}", f"l.{S}", *heads),
            product(f"k{n}", f"n{n}", f"wk{n}", A, f"l.{B}", f"l.{S} AS {T}", *heads),
            product(f"v{n}", f"n{n}", f"wv{n}", A, f"l.{B}", f"l.{S} AS {T}", *heads),
            product(f"c{n}", f"q{n}", f"k{n}", f"{B}, {H}, {D}",
                    f"l.{B}", f"l.{H}", f"l.{S}", f"r.{T}"),
            f"e{n} AS (SELECT {B}, {H}, {S}, {T}, "
            f"EXP(val - MAX(val) OVER (PARTITION BY {B}, {H}, {S})) AS val FROM c{n})",
            f"p{n} AS (SELECT {B}, {H}, {S}, {T}, "
            f"val / SUM(val) OVER (PARTITION BY {B}, {H}, {S}) AS val FROM e{n})",
            product(f"o{n}", f"p{n}", f"v{n}", f"{B}, {H}, {T}",
                    f"l.{B}", f"l.{S}", f"l.{H}", f"r.{D}"),
            product(f"y{n}", f"o{n}", f"wo{n}", f"{H}, {D}", f"l.{B}", f"l.{S}", f"r.{A}"),
            f"r{n} AS (SELECT {B}, {S}, {A}, x.val + y.val AS val "
            f"FROM x{n} x JOIN y{n} y USING ({B}, {S}, {A}))",
            *normed(f"r{n}", f"j{n}", f"h{n}", f"i{n}"),
            product(f"a{n}", f"j{n}", f"wg{n}", A, f"l.{B}", f"l.{S}", f"r.{F}"),
            product(f"u{n}", f"j{n}", f"wu{n}", A, f"l.{B}", f"l.{S}", f"r.{F}"),
            f"t{n} AS (SELECT {B}, {S}, {F}, g.val * sigmoid(g.val) * u.val AS val "
            f"FROM a{n} g JOIN u{n} u USING ({B}, {S}, {F}))",
            product(f"z{n}", f"t{n}", f"wd{n}", F, f"l.{B}", f"l.{S}", f"r.{A}"),
            f"x{n + 1} AS (SELECT {B}, {S}, {A}, r.val + z.val AS val "
            f"FROM r{n} r JOIN z{n} z USING ({B}, {S}, {A}))",
        ]  # fmt: skip
    with_ = "WITH " + ",\n".join(parts)
    return tensors, with_ + f"\nSELECT {B}, {S}, {A}, val FROM x{layers}"


def connected(tensors: Mapping[str, Mapping[str, int]]) -> einsql.Connection:
    """A connection with declared tensors; they take no memory before something is stored."""
    con = einsql.connect()
    for name, keys in tensors.items():
        columns = ", ".join(f"{k} DIM({n})" for k, n in keys.items())
        con.execute(f"CREATE TENSOR {name} ({columns}, val FLOAT) DEFAULT 0")
    return con


def graph(
    tensors: Mapping[str, Mapping[str, int]],
    sql: str,
    parts: Mapping[str, tuple[int, ...]] | None = None,
) -> Node:
    """The optimised graph of a statement; `parts` declares how stored tensors are cut."""
    statement, _ = parse(sql)
    assert isinstance(statement, Query)
    con = connected(tensors)
    root = optimize(query_binder(con.context).bind(statement.tree).node).root
    done: dict[int, Node] = {}
    for node in walk(root):
        if isinstance(node, Input):
            done[id(node)] = replace(node, parts=(parts or {}).get(node.name))
        else:
            done[id(node)] = with_sources(node, [done[id(c)] for c in children(node)])
    return done[id(root)]
