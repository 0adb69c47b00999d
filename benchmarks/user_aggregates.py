"""Aggregates that CREATE AGGREGATE defines, beside built-in ones of like arithmetic."""

from __future__ import annotations

import numpy as np

import einsql
from benchmarks.attention import CAUSAL, SQL, WIDTH
from benchmarks.matrices import connected, random
from benchmarks.measure import QUIET, measure
from benchmarks.report import Finding, Section, against

N, ROWS, HEADS, LENGTH = 512, 1000, 16, 1024
LIKE, BEST, ATTENTION = 0.67, 0.17, 0.9
"""The least ratios of the built-in aggregate's time to the user's: 4 best may take 1.5·4 times."""

DEFINITIONS = (
    """
CREATE AGGREGATE shortest(length FLOAT, via INTEGER)
STATE (v FLOAT INIT 'inf', who INTEGER INIT 2147483647)
LIFT (length, via)
MERGE (CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.v ELSE a.v END,
       CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.who ELSE a.who END)
FINISH (v AS length, who AS via)""",
    """
CREATE AGGREGATE best4(x FLOAT)
STATE (v FLOAT[4] INIT 'inf')
LIFT ([x, CAST('inf' AS FLOAT), CAST('inf' AS FLOAT), CAST('inf' AS FLOAT)])
MERGE ([least(a.v[1], b.v[1]),
        least(greatest(a.v[1], b.v[1]), a.v[2], b.v[2]),
        least(greatest(a.v[1], b.v[2]), greatest(a.v[2], b.v[1]), a.v[3], b.v[3]),
        least(greatest(a.v[1], b.v[3]), greatest(a.v[2], b.v[2]), greatest(a.v[3], b.v[1]),
              a.v[4], b.v[4])])
FINISH (v[1] AS first, v[2] AS second, v[3] AS third, v[4] AS fourth)""",
    """
CREATE AGGREGATE log_sum(x FLOAT)
STATE (m FLOAT INIT '-inf', s FLOAT INIT 0)
LIFT (x, 1) MERGE (greatest(a.m, b.m), a.s + b.s)
RESCALE (s * exp(old.m - new.m)) FINISH (m + ln(s))""",
    """
CREATE AGGREGATE welford(x DOUBLE)
STATE (n DOUBLE INIT 0, mean DOUBLE INIT 0, m2 DOUBLE INIT 0)
LIFT (1, x, 0)
MERGE (a.n + b.n,
       a.mean + (b.mean - a.mean) * b.n / greatest(n, 1),
       a.m2 + b.m2 + (b.mean - a.mean) * (b.mean - a.mean) * a.n * b.n / greatest(n, 1))
FINISH (m2 / (n - 1))""",
    """
CREATE AGGREGATE interval_sum(al FLOAT, ah FLOAT, bl FLOAT, bh FLOAT)
STATE (lo FLOAT INIT 0, hi FLOAT INIT 0)
LIFT (least(al * bl, al * bh, ah * bl, ah * bh), greatest(al * bl, al * bh, ah * bl, ah * bh))
MERGE (a.lo + b.lo, a.hi + b.hi)
FINISH (lo AS lo, hi AS hi)""",
    """
CREATE AGGREGATE attend(score FLOAT, v FLOAT)
STATE (m FLOAT INIT '-inf', s FLOAT INIT 0, o FLOAT INIT 0)
LIFT (score, 1, v)
MERGE (greatest(a.m, b.m), a.s + b.s, a.o + b.o)
RESCALE (s * exp(old.m - new.m), o * exp(old.m - new.m)) FINISH (o / s)""",
)
_JOIN = "FROM a JOIN b ON a.j = b.j GROUP BY a.i, b.i"
_CALL = "interval_sum(a.val - 1, a.val + 1, b.val, b.val + 2)"
_ENDS = ", ".join(f"(a.val {x} 1) * (b.val + {y})" for x in "-+" for y in (0, 2))
PRODUCTS = {
    "shortest paths with witnesses": (
        f"SELECT a.i, b.i AS k, shortest(a.val + b.val, a.j).length AS v, "
        f"shortest(a.val + b.val, a.j).via AS w {_JOIN}",
        f"SELECT a.i, b.i AS k, MIN(a.val + b.val) AS v, ARG_MIN(a.j, a.val + b.val) AS w {_JOIN}",
        LIKE,
    ),
    "4 best paths, vs min-plus": (
        "SELECT a.i, b.i AS k, "
        + ", ".join(f"best4(a.val + b.val).{n} AS {n}" for n in ("first", "second", "third"))
        + f", best4(a.val + b.val).fourth AS fourth {_JOIN}",
        f"SELECT a.i, b.i AS k, MIN(a.val + b.val) AS v {_JOIN}",
        BEST,
    ),
    "log-semiring": (
        f"SELECT a.i, b.i AS k, log_sum(a.val + b.val) AS v {_JOIN}",
        f"SELECT a.i, b.i AS k, LOGSUMEXP(a.val + b.val) AS v {_JOIN}",
        LIKE,
    ),
    "interval arithmetic": (
        f"SELECT a.i, b.i AS k, {_CALL}.lo AS lo, {_CALL}.hi AS hi {_JOIN}",
        f"SELECT a.i, b.i AS k, SUM(least({_ENDS})) AS lo, SUM(greatest({_ENDS})) AS hi {_JOIN}",
        LIKE,
    ),
}
ATTEND = """
WITH x AS (SELECT h, s, t, SUM(q.val * k.val) / 8 AS val
           FROM q JOIN k USING (h, d) {where} GROUP BY h, s, t)
SELECT h, s, d, attend(x.val, v.val) AS val FROM x JOIN v USING (h, t) GROUP BY h, s, d
"""


def user_aggregates() -> Section:
    """Products of 512³, variances of 1000², attention of 16 heads × 1024 × 64."""
    title = "Aggregates of the user: the built-in aggregate's time / the user's time"
    return Section(title, (*_products(), *_variances(), *_attention()))


def _compared(con: einsql.Connection, name: str, own: str, other: str, aim: float) -> Finding:
    taken = measure(
        {
            "einsql": lambda: con.execute(own).fetch_arrow_table(),
            "built in": lambda: con.execute(other).fetch_arrow_table(),
        },
        rounds=9,
        seconds=3.0,
        pause=QUIET,
    )
    return against(name, taken, "built in", aim)


def _products() -> list[Finding]:
    con = connected({"a": random(N, N), "b": random(N, N, seed=1)})
    for definition in DEFINITIONS:
        con.execute(definition)
    findings = [
        _compared(con, f"{name}, {N}³ FLOAT", own, other, aim)
        for name, (own, other, aim) in PRODUCTS.items()
    ]
    wide = DEFINITIONS[0].replace("INTEGER INIT 2147483647", "BIGINT INIT 9223372036854775807")
    con.execute(wide.replace("shortest(", "shortest_64(").replace("via INTEGER", "via BIGINT"))
    own, other, aim = PRODUCTS["shortest paths with witnesses"]
    own = own.replace("shortest(", "shortest_64(")
    return [*findings, _compared(con, "the same with BIGINT witnesses", own, other, aim)]


def _variances() -> list[Finding]:
    con = connected({"x": random(ROWS, ROWS).astype(np.float64)})
    con.execute(DEFINITIONS[3])
    columns = {"rows": "i, ", "columns": "j, ", "all values": ""}
    return [
        _compared(
            con,
            f"Welford's variance of {name}, {ROWS}² DOUBLE",
            f"SELECT {keys}welford(val) AS v FROM x{group}",
            f"SELECT {keys}VAR_SAMP(val) AS v FROM x{group}",
            LIKE,
        )
        for name, keys in columns.items()
        for group in (f" GROUP BY {keys[0]}" if keys else "",)
    ]


def _attention() -> list[Finding]:
    con = einsql.connect()
    for name, rows in zip("qkv", "stt", strict=True):
        array = random(HEADS, LENGTH, WIDTH, seed=ord(name))
        con.register(name, array, dims=("h", rows, "d"))
    con.execute(DEFINITIONS[5])
    return [
        _compared(con, name, ATTEND.format(where=where), SQL.format(where=where), ATTENTION)
        for name, where in (("attention", ""), ("causal attention", CAUSAL))
    ]
