"""Filters that DuckDB pushes down to a scan, as boxes of keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.records import dataclass

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_ATOM = re.compile(r"\((\w+) (<|<=|>|>=|==) (-?[0-9]+)\)")
_VALUE = re.compile(r"\(\w+ (?:<|<=|>|>=|==|!=) (?:-?[0-9][-+.e0-9]*|true|false)\)")
_REST = re.compile(r"(?:[A() ]|and)*")


@dataclass(frozen=True)
class Condition:
    """The bounds of keys implied by a filter on rows.

    Attributes:
        box: int64 (keys, 2); keys outside it do not satisfy the filter.
        exact: Whether all keys inside the box satisfy the filter.
        columns: The names of the columns that the filter reads; None if they are unknown.
    """

    box: np.ndarray
    exact: bool
    columns: frozenset[str] | None


def understood(
    where: ds.Expression | None, box: np.ndarray, keys: Mapping[str, int], names: Sequence[str]
) -> Condition:
    """Converts a filter to bounds, as far as it is a conjunction of comparisons with numbers.

    Args:
        where: The filter; pyarrow gives access to its text only.
        box: int64 (keys, 2), the bounds of all keys.
        keys: Positions in the box by the names of the key columns.
        names: The names of all columns.
    """
    if where is None:
        return Condition(box, True, frozenset())
    text = str(where)
    plain = all(re.fullmatch(r"\w+", n) for n in names)
    if not plain or _REST.fullmatch(_VALUE.sub("A", text)) is None:
        return Condition(box, False, None)
    box, exact = box.copy(), True
    used = {m[0].split(" ")[0][1:] for m in _VALUE.finditer(text)}
    atoms = [(m[1], m[2], int(m[3])) for m in _ATOM.finditer(text)]
    exact = len(atoms) == len(_VALUE.findall(text)) and all(a[0] in keys for a in atoms)
    for name, compared, value in atoms:
        if name not in keys:
            continue
        first, last = lo, hi = box[keys[name]].tolist()
        if compared in (">", ">=", "=="):
            lo = min(max(lo, value + (compared == ">")), last)
        if compared in ("<", "<=", "=="):
            hi = max(min(hi, value + (compared != "<")), first)
        box[keys[name]] = lo, max(lo, hi)
    return Condition(box, exact, frozenset(used))
