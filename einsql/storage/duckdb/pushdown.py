"""Conditions that DuckDB hands to a scan, as boxes of keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_ATOM = re.compile(r"\((\w+) (<|<=|>|>=|==) (-?[0-9]+)\)")
_VALUE = re.compile(r"\(\w+ (?:<|<=|>|>=|==|!=) (?:-?[0-9][-+.e0-9]*|true|false)\)")
_REST = re.compile(r"(?:[A() ]|and)*")


@dataclass(frozen=True)
class Condition:
    """The bounds that follow from a condition on rows.

    Attributes:
        box: int64 (keys, 2), keys outside of which do not meet it.
        exact: Whether all keys inside meet it.
        columns: Names of the columns that it reads, or None if that is not known.
    """

    box: np.ndarray
    exact: bool
    columns: frozenset[str] | None


def understood(
    where: ds.Expression | None, box: np.ndarray, keys: Mapping[str, int], names: Sequence[str]
) -> Condition:
    """Reads a condition as far as it is a conjunction of comparisons with numbers.

    Args:
        where: The condition; pyarrow gives no access to its parts but its text.
        box: int64 (keys, 2), all keys there are.
        keys: Positions in the box, by the columns that show keys.
        names: All columns.
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
        lo, hi = box[keys[name]].tolist()
        if compared in (">", ">=", "=="):
            lo = max(lo, value + (compared == ">"))
        if compared in ("<", "<=", "=="):
            hi = min(hi, value + (compared != "<"))
        box[keys[name]] = lo, max(lo, hi)
    return Condition(box, exact, frozenset(used))
