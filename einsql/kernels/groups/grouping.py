"""The groups of a graph, and the reasons for nodes that are in none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from einsql.core.records import dataclass

if TYPE_CHECKING:
    from einsql.ir.einsum.graph import EinSum
    from einsql.ir.einsum.reasons import Reason
    from einsql.kernels.groups.group import Group


@dataclass(frozen=True, slots=True)
class Grouping:
    """The choice of nodes that run together.

    Attributes:
        groups: Disjoint groups of nodes.
        refused: By its identity, each large node that is in no group with the large results that
            it reads, with the reason.
    """

    groups: Sequence[Group] = ()
    refused: Mapping[int, Reason] | None = None

    def refusal(self, node: EinSum) -> Reason | None:
        """The reason why a single node is not fused; None if there is nothing to fuse it with."""
        return None if self.refused is None else self.refused.get(id(node))
