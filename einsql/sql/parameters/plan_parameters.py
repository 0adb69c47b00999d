"""The parameters of a statement, as a protocol for its bounds and windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from einsql.ir.einsum.graph import EinSum


class PlanParameters(Protocol):
    """Records the parameter values that a plan is made for, and the scalars it reads."""

    inputs: dict[str, Any]
    """Fields of the scalars and views that have been made, by input."""

    def require(self, test: str, numbers: Iterable[int]) -> None:
        """Makes the plan one for values that meet a condition."""

    def extent(self, text: str, most: int, numbers: set[int]) -> int:
        """The extent of a key in the plan, where values leave only a part of it."""

    def scalar_name(self, text: str) -> str:
        """The name of a BIGINT scalar with the value of an expression."""

    def lowered(self, node: EinSum) -> EinSum:
        """The node with scalars as operands where its expressions read parameters."""
