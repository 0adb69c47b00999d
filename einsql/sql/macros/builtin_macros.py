"""The built-in macros: ordinary CREATE MACRO texts, which are parsed at the first call.

A user's macro of the same name replaces a built-in macro.
"""

from __future__ import annotations

from functools import lru_cache

from sqlglot import exp

from einsql.sql.functions.scalar_functions import SCALAR_MACROS
from einsql.sql.functions.table_functions import TABLE_MACROS
from einsql.sql.macros.macros import MAY_CROSS, Macro
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import CreateMacro

# Internal columns have names that keys do not have by chance. Constants are cast to the type in
# which a tensor is computed, because a literal such as 1e-12 is a DOUBLE. attention() renames the
# key t of k and v, because the queries of self-attention have another key t.
_TEXTS = (
    """CREATE MACRO softmax(x, axis) AS TABLE
WITH _top AS (SELECT * EXCLUDE (axis, val), MAX(val) AS "#top" FROM x GROUP BY ALL),
_exp AS (
  SELECT x.* REPLACE (EXP(x.val - STOP_GRADIENT(_top."#top")) AS val) FROM x NATURAL JOIN _top),
_sum AS (SELECT * EXCLUDE (axis, val), SUM(val) AS "#sum" FROM _exp GROUP BY ALL)
SELECT _exp.* REPLACE (_exp.val / _sum."#sum" AS val) FROM _exp NATURAL JOIN _sum""",
    """CREATE MACRO log_softmax(x, axis) AS TABLE
WITH _top AS (SELECT * EXCLUDE (axis, val), MAX(val) AS "#top" FROM x GROUP BY ALL),
_low AS (SELECT x.* REPLACE (x.val - STOP_GRADIENT(_top."#top") AS val) FROM x NATURAL JOIN _top),
_sum AS (SELECT * EXCLUDE (axis, val), LN(SUM(EXP(val))) AS "#sum" FROM _low GROUP BY ALL)
SELECT _low.* REPLACE (_low.val - _sum."#sum" AS val) FROM _low NATURAL JOIN _sum""",
    """CREATE MACRO layer_norm(x, axis, eps := 0.00001) AS TABLE
WITH _mean AS (SELECT * EXCLUDE (axis, val), AVG(val) AS "#mean" FROM x GROUP BY ALL),
_low AS (SELECT x.* REPLACE (x.val - _mean."#mean" AS val) FROM x NATURAL JOIN _mean),
_var AS (SELECT * EXCLUDE (axis, val), AVG(val * val) AS "#var" FROM _low GROUP BY ALL)
SELECT _low.* REPLACE (_low.val / SQRT(_var."#var" + CAST_TO_TYPE(eps, _var."#var")) AS val)
FROM _low NATURAL JOIN _var""",
    """CREATE MACRO rms_norm(x, axis, eps := 0.000001) AS TABLE
WITH _mean AS (SELECT * EXCLUDE (axis, val), AVG(val * val) AS "#mean" FROM x GROUP BY ALL)
SELECT x.* REPLACE (x.val / SQRT(_mean."#mean" + CAST_TO_TYPE(eps, _mean."#mean")) AS val)
FROM x NATURAL JOIN _mean""",
    """CREATE MACRO attention(q, k, v, t, d) AS TABLE
WITH _score AS (
  SELECT * EXCLUDE (d, "#q", "#k"), SUM("#q" * "#k") / SQRT(SUM(COALESCE(1, "#q"))) AS val
  FROM (SELECT * RENAME (val AS "#q") FROM q)
  NATURAL JOIN (SELECT * RENAME (val AS "#k", t AS "#t") FROM k)
  GROUP BY ALL),
_weight AS (SELECT * RENAME (val AS "#w") FROM softmax(_score, "#t"))
SELECT * EXCLUDE ("#t", "#w", "#v"), SUM("#w" * "#v") AS val
FROM _weight NATURAL JOIN (SELECT * RENAME (val AS "#v", t AS "#t") FROM v) GROUP BY ALL""",
    "CREATE MACRO relu(x) AS GREATEST(x, 0)",
    "CREATE MACRO silu(x) AS x * sigmoid(x)",
    "CREATE MACRO gelu(x) AS 0.5 * x * (1 + ERF(x * 0.7071067811865476))",
    # The corrections are DOUBLE; m and v have a type of their own. Each correction is rounded to
    # FLOAT, and the rounding error is added in the type of m or v. It completes the digits of a
    # DOUBLE and does not change a FLOAT.
    """CREATE MACRO adam(m, v, t, rate := 0.001, decay := 0.9, decay2 := 0.999, eps := 0.00000001)
AS m * (COALESCE(CAST(rate / (1 - POW(decay, t)) AS FLOAT), m) + CAST(
    rate / (1 - POW(decay, t)) - CAST(rate / (1 - POW(decay, t)) AS FLOAT) AS FLOAT))
  / (SQRT(v * (COALESCE(CAST(1 / (1 - POW(decay2, t)) AS FLOAT), v) + CAST(
    1 / (1 - POW(decay2, t)) - CAST(1 / (1 - POW(decay2, t)) AS FLOAT) AS FLOAT)))
    + CAST_TO_TYPE(eps, SQRT(v)))""",
)


def built_in(name: str) -> Macro | None:
    """The built-in macro of a name, which ignores case, or None."""
    low = name.lower()
    return _read(low) if low in SCALAR_MACROS or low in TABLE_MACROS else None


@lru_cache(maxsize=len(_TEXTS))
def _read(low: str) -> Macro:
    text = next(t for t in _TEXTS if t.startswith(f"CREATE MACRO {low}("))
    macro, _ = parse(text)
    assert isinstance(macro, CreateMacro)
    for join in macro.body.find_all(exp.Join):
        join.meta[MAY_CROSS] = True
    return Macro(
        name=macro.name,
        parameters=macro.parameters,
        body=macro.body,
        is_table=macro.is_table,
        text=macro.text,
        types=macro.types,
        defaults=macro.defaults,
    )
