"""Rules of the implementation algebra as cuts of an operation (TRA §4.2).

The labels of a contraction of two operands are of four kinds: i only in the left operand, k only
in the right one, j in both and reduced, and batch labels in both and in the result. Which of these
a vector cuts determines the algorithm of the product, because every site runs one cell:

* BMM cuts i or k. The operand without that label is broadcast.
* CPMM cuts j. Every site has a share of both operands, and the partial results are merged.
* RMM cuts i and k. Both operands are copied along the label that they lack.
* 3D cuts j and at least one of i and k.

A vector that cuts a reduced label merges partial results in two phases (R2-5). One that cuts other
labels only aggregates each group at one site, without a shuffle (R2-4). One that cuts a label of
all operands and of the result joins tiles that are distributed alike, without a broadcast (R2-6).
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import numpy as np

from einsql.core.records import dataclass


class CutRule(StrEnum):
    """A rule of the implementation algebra that a vector can have the outcome of, by its name.

    Whether it has that of MAP_AND_MOVE or MOVE_BEFORE_JOIN depends on the vectors of its operands
    and readers (`exchanges`).
    """

    BMM = "BMM"
    CPMM = "CPMM"
    RMM = "RMM"
    THREE_DIMENSIONAL = "3D"
    NO_SHUFFLE = "R2-4"
    TWO_PHASES = "R2-5"
    ALIKE = "R2-6"
    MAP_AND_MOVE = "R2-3"
    MOVE_BEFORE_JOIN = "R2-7"


PRODUCTS = (CutRule.BMM, CutRule.CPMM, CutRule.RMM, CutRule.THREE_DIMENSIONAL)
"""The algorithms of products."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of an operation's labels, by position, which determine what its vectors imply.

    Attributes:
        contraction: True if it reduces a label over several operands.
        reduced: The labels that are aggregated.
        operands: The labels of each operand.
    """

    contraction: bool
    reduced: frozenset[int]
    operands: tuple[frozenset[int], ...]


def implied(roles: Roles, vectors: np.ndarray) -> dict[CutRule, np.ndarray]:
    """For each rule whether a vector implies its outcome, bool (vectors,).

    Args:
        roles: The roles of the operation's labels.
        vectors: int64 (vectors, labels).
    """
    every = frozenset(range(vectors.shape[1]))
    partial = _cuts(vectors, roles.reduced)
    rules = {CutRule.TWO_PHASES: partial}
    if roles.reduced:
        rules[CutRule.NO_SHUFFLE] = ~partial & _cuts(vectors, every - roles.reduced)
    if len(roles.operands) > 1:
        common = frozenset.intersection(*roles.operands) - roles.reduced
        rules[CutRule.ALIKE] = _cuts(vectors, common)
    if roles.contraction and len(roles.operands) == 2:
        left, right = roles.operands
        i, k = _cuts(vectors, left - right), _cuts(vectors, right - left)
        j = _cuts(vectors, left & right & roles.reduced)
        rules |= {
            CutRule.BMM: ~j & (i ^ k),
            CutRule.CPMM: j & ~i & ~k,
            CutRule.RMM: ~j & i & k,
            CutRule.THREE_DIMENSIONAL: j & (i | k),
        }
    return rules


def _cuts(vectors: np.ndarray, labels: frozenset[int]) -> np.ndarray:
    """True for the vectors that cut one of the labels."""
    return np.asarray((vectors[:, sorted(labels)] > 1).any(axis=1))


def allowed(roles: Roles, vectors: np.ndarray, disabled: frozenset[str]) -> np.ndarray:
    """True for the vectors that imply no disabled rule; for all if each implies one."""
    allow = np.ones(len(vectors), bool)
    for rule, there in implied(roles, vectors).items():
        if rule in disabled:
            allow &= ~there
    return allow if allow.any() else ~allow


def rules_of(roles: Roles, vector: np.ndarray) -> tuple[CutRule, ...]:
    """The rules whose outcome a vector implies."""
    return _rules_of(roles, tuple(vector.tolist()))


@lru_cache(maxsize=4096)
def _rules_of(roles: Roles, vector: tuple[int, ...]) -> tuple[CutRule, ...]:
    rules = implied(roles, np.array(vector, np.int64)[None])
    return tuple(rule for rule in CutRule if rule in rules and rules[rule][0])
