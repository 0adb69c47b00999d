"""Queries of DuckDB that have an effect, or whose results differ between runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from einsql.hybrid.split.prelude import called
from einsql.ir.functions.python_functions import function_name
from einsql.sql.parser.tokens import tokenize, word_of

if TYPE_CHECKING:
    from einsql.hybrid.hybrid_plan import Hybrid
    from einsql.planner.context import Context

UNSTABLE = {
    *("nextval", "currval", "setval", "setseed", "write_log", "random", "uuid", "uuidv4", "uuidv7"),
    *("gen_random_uuid", "now", "today", "get_current_time", "get_current_timestamp"),
    *("current_date", "transaction_timestamp", "txid_current", "current_transaction_id"),
    *("current_localtime", "current_localtimestamp", "age", "current_query_id", "query"),
}
"""DuckDB's functions with effects, of chance or of time; and `query`, which runs a text."""
_CLOCKS = {"CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP"}
"""Functions that are called without parentheses."""
_SAMPLES = re.compile(r"TABLESAMPLE|(USING )?SAMPLE")


def runs_once(ctx: Context, hybrid: Hybrid) -> bool:
    """Returns True if a second run of a split query may have an effect or other rows."""
    texts = [hybrid.text.text, *(text for _, _, text in hybrid.defined)]
    if any(map(_is_unstable, texts)) or any(map(_has_side_effects, hybrid.functions)):
        return True
    views = {name.lower(): text for name, kind, text in ctx.duck.definitions() if kind == "view"}
    waiting, seen = list(texts), set[str]()
    while waiting and views:
        words = {t.text.lower() for t in tokenize(waiting.pop())}
        reached = words & views.keys() - seen
        seen |= reached
        waiting += [views[name] for name in reached]
        if any(_is_unstable(views[name]) for name in reached):
            return True
    return False


def _is_unstable(text: str) -> bool:
    if not UNSTABLE.isdisjoint(called(text)):
        return True
    before = ""
    for token in tokenize(text):
        word = word_of(token)
        if word in _CLOCKS and before not in (".", "AS"):
            return True
        if _SAMPLES.fullmatch(word) and (word != "SAMPLE" or before == "USING"):
            return True
        before = word
    return False


def _has_side_effects(name: str) -> bool:
    """True for a Python function that was created with side effects."""
    python = function_name(name)
    return python is not None and bool(python.function.native.get("side_effects"))
