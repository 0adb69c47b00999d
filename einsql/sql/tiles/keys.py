"""The keys of the blocks that a FROM over tiles joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import Call, Expr, Label, conjuncts, operands_of
from einsql.ir.einsum.graph_rewriting import relabel
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import key_label
from einsql.sql.binder.domain import Domain


@dataclass
class KeyDomain(Domain):
    """A domain whose labels are keys of blocks: equalities join them, other conditions filter.

    Unlike elements, blocks are not cut to common bounds: Join requires equal bounds.
    """

    written: dict[str, str] = field(default_factory=dict)
    """The SQL notation of each raw label, such as `x.i`."""

    def require(self, condition: Expr) -> None:
        """Joins keys by their equalities, and stores every other condition.

        Raises:
            ProgrammingError: The condition reads arrays, or joined keys differ in their bounds.
        """
        for term in conjuncts(condition):
            if operands_of(term):
                raise ProgrammingError(
                    "Blocks are joined and selected by their keys, not by their elements",
                    hint="Compare elements in the SELECT list, as in CASE WHEN x.tile > 0 ….",
                )
            if not self._equal(term):
                self.guards.append(term)

    def _equal(self, term: Expr) -> bool:
        if not isinstance(term, Call) or term.fn != "eq":
            return False
        a, b = term.args
        if not isinstance(a, Label) or not isinstance(b, Label):
            return False
        keep, drop = self.find(a.name), self.find(b.name)
        if keep == drop:
            return True
        own = self.written[a.name].rpartition(".")[0] == self.written[b.name].rpartition(".")[0]
        (_, most), (_, other) = self.axes[keep], self.axes[drop]
        if most != other and not own:
            raise ProgrammingError(
                f"Tiles join on keys of equal bounds, but {self.written[a.name]} takes {most} "
                f"values and {self.written[b.name]} takes {other}",
                hint="Cut both into as many parts: TILES(…, parts).",
            )
        self.axes[keep] = 0, min(most, other)
        del self.axes[drop]
        self.merged[drop] = keep
        return True


def over_positions(expr: Expr, labels: Sequence[str]) -> Expr:
    """Converts an expression over labels to one over a relation's keys `k0`, `k1` and so on."""
    return relabel(expr, {x: key_label(n).name for n, x in enumerate(labels)})


def filtered(node: ra.Node, labels: Sequence[str], conditions: Sequence[Expr]) -> ra.Node:
    """Adds σ for each condition over labels."""
    for condition in conditions:
        node = ra.Filter(node, over_positions(condition, labels))
    return node
