"""The declared partition of a stored tensor: PARTITION BY, REPLICATE OVER and PARTIAL(SUM) OVER.

A partition is kept as it was declared. The sites of tiles follow from the number of sites, and for
a partition over mesh axes from the mesh of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from einsql.core.records import dataclass
from einsql.ir.layout import Layout, Mesh, placement


@dataclass(frozen=True, slots=True)
class Parts:
    """PARTITION BY (i 4, j 2): numbers of parts.

    Attributes:
        numbers: The number of parts of each key, all 1 for a copy at every site.
        order: Positions of the keys in declared order, in which blocks are numbered with the
            last key fastest.
    """

    numbers: tuple[int, ...]
    order: tuple[int, ...]
    over: ClassVar[list[str]] = []

    def listed(self, keys: Sequence[str]) -> str:
        """The content of the parentheses of PARTITION BY, such as `i 4, j 2`."""
        cut = ((keys[n], self.numbers[n]) for n in self.order)
        return ", ".join(f"{key} {parts}" for key, parts in cut if parts > 1)

    def clauses(self, keys: Sequence[str]) -> str:
        """The clauses of CREATE TENSOR; `keys` are the names of the keys in SQL notation."""
        return f"PARTITION BY ({self.listed(keys)})"


@dataclass(frozen=True, slots=True)
class OnMesh:
    """PARTITION BY (b data) REPLICATE OVER (model) PARTIAL(SUM) OVER (rack): mesh axes.

    Attributes:
        axes: For each key the names of the mesh axes that shard it, the outer one first.
        copies: The mesh axes that REPLICATE OVER names. Axes that no clause names have copies too.
        partial: The mesh axes that PARTIAL(SUM) OVER names: a sum is kept unreduced along them. A
            complete value has copies there.
    """

    axes: tuple[tuple[str, ...], ...]
    copies: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """Every mesh axis that the partition names."""
        return (*(name for names in self.axes for name in names), *self.copies, *self.partial)

    def layout(self, mesh: Mesh, kept: bool = False) -> Layout:
        """The layout of a complete value on a mesh; of a sum that is kept unreduced if `kept`.

        Raises:
            InterfaceError: The mesh lacks an axis.
        """
        partial = dict.fromkeys(self.partial, "sum") if kept else {}
        return Layout(mesh, placement(mesh, self.axes, partial))

    def listed(self, keys: Sequence[str]) -> str:
        """The content of the parentheses of PARTITION BY, such as `b data, h model`."""
        cut = zip(keys, self.axes, strict=True)
        return ", ".join(" ".join((key, *names)) for key, names in cut if names)

    def clauses(self, keys: Sequence[str]) -> str:
        """The clauses of CREATE TENSOR; `keys` are the names of the keys in SQL notation."""
        by = self.listed(keys)
        return " ".join([f"PARTITION BY ({by})"] * bool(by) + self.over)

    @property
    def over(self) -> list[str]:
        """The clauses other than PARTITION BY."""
        named = (("REPLICATE", self.copies), ("PARTIAL(SUM)", self.partial))
        return [f"{word} OVER ({', '.join(axes)})" for word, axes in named if axes]


Partition = Parts | OnMesh
