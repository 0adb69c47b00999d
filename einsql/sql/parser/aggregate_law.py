"""The law of a user's aggregate, and the calls that aggregate the fields of its state."""

from __future__ import annotations

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.states import StateField

EARLIER, LATER, OLD, NEW = "a", "b", "old", "new"
"""The tables of the fields in MERGE, and in RESCALE."""


@dataclass(frozen=True, slots=True, eq=False)
class AggregateLaw:
    """The clauses of CREATE AGGREGATE that define a reduction.

    Attributes:
        name: The name of the aggregate.
        parameters: The names of the parameters with their types; None for any type.
        fields: The fields of the state. The elements of an array are fields `name[1]`, `name[2]`.
        lift: For each field its value at a point, over the parameters.
        merge: For each field its merged value, over the fields of the tables EARLIER and LATER,
            and over merged fields without a table.
        rescale: For a field that depends on other fields, its value after a change of these from
            OLD to NEW, over its own value.
        order: The keys in whose order rows are merged: names of parameters or of keys in FROM.
            Empty if MERGE is commutative.
    """

    name: str
    parameters: tuple[tuple[str, DType | None], ...]
    fields: tuple[StateField, ...]
    lift: tuple[exp.Expr, ...]
    merge: tuple[exp.Expr, ...]
    rescale: dict[str, exp.Expr]
    order: tuple[str, ...] = ()

    def place(self, name: str) -> int | None:
        """The position of a field, or None."""
        names = [f.name for f in self.fields]
        return names.index(name.lower()) if name.lower() in names else None


def state_call(law: AggregateLaw, place: int) -> exp.Anonymous:
    """The call that aggregates one field of a state; users cannot write it.

    Its arguments are the values of all fields at a point, the arguments of the aggregate, and the
    keys that order the points.
    """
    names = [*(name for name, _ in law.parameters), *law.order]
    columns = [exp.column(name, quoted=True) for name in names]
    call = exp.Anonymous(
        this=f"{law.name}.{law.fields[place].name}",
        expressions=[*(e.copy() for e in law.lift), *columns],
    )
    call.args |= {"law": law, "place": place}
    return call


def law_of(node: object) -> AggregateLaw | None:
    """The law of a state call; None for any other node."""
    law = node.args.get("law") if isinstance(node, exp.Anonymous) else None
    return law if isinstance(law, AggregateLaw) else None
