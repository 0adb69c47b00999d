"""The protocol of a SELECT over tiles, for the binders of its FROM and its calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlglot import exp

from einsql.ir.einsum.graph import Expr
from einsql.sql.binder.context import Joining
from einsql.sql.tiles.kernels import Leaf, Leaves
from einsql.sql.tiles.keys import KeyDomain
from einsql.sql.typing.typed_expr import Typed


class TileBlock(Joining, Protocol):
    """A SELECT over tiles during binding."""

    leaves: Leaves
    groups: dict[str, Expr] | None
    """Label and expression of each GROUP BY item; None without groups."""

    @property
    def domain(self) -> KeyDomain:
        """The keys of the blocks that FROM joins."""

    def within(self, clause: str) -> AbstractContextManager[None]:
        """Sets the clause that error messages name."""

    def rows(self, typed: Typed, node: exp.Expr) -> Leaf:
        """The arrays of an expression, one for each row of FROM and WHERE."""

    def array(self, typed: Typed, node: exp.Expr) -> Expr:
        """The value of an expression that is an array."""

    def key(self, typed: Typed, node: exp.Expr) -> Expr:
        """A key computed from keys."""
