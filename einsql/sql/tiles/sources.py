"""FROM over tiles, whose columns are keys of blocks and arrays."""

from __future__ import annotations

from sqlglot import exp

from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import Label, Value
from einsql.ir.tra.kernels import VALUE
from einsql.sql.binder.from_clause import FromBinder
from einsql.sql.binder.syntax import renamed
from einsql.sql.parser.positions import position
from einsql.sql.scope.relation import Relation, TileRelation
from einsql.sql.scope.scope import Scope, Source
from einsql.sql.tiles.context import TileBlock
from einsql.sql.tiles.kernels import Leaf
from einsql.sql.typing.typed_expr import Typed


class TileFrom(FromBinder):
    """Binds the FROM of a SELECT over tiles."""

    select: TileBlock

    def scan(self, bound: Relation | TileRelation, item: exp.Expr, name: str) -> Source:
        """Adds a relation of tiles to the domain, with a label for each key of its blocks."""
        if isinstance(bound, Relation):
            raise ProgrammingError(
                f"{name} has elements, but other items of its FROM have tiles",
                hint="TILES(…) cuts a tensor into tiles, ELEMENTS(…) reads tiles as a tensor.",
                position=position(item),
            )
        relation = renamed(bound, item)
        domain, leaves = self.select.domain, self.select.leaves
        schema = relation.node.schema
        labels = [domain.fresh(k, 0, b) for k, b in zip(relation.keys, schema.bounds, strict=True)]
        for label, key in zip(labels, relation.keys, strict=True):
            domain.written[label] = f"{name}.{key}"
        number = len(leaves.all)
        leaves.all.append(Leaf(relation.node, tuple(labels), frozenset([number])))
        array = Typed(Value(number, VALUE, schema.dtype), schema.dtype)
        columns = [
            (c.name, array if c.key is None else Typed(Label(labels[c.key]), DType.BIGINT))
            for c in relation.columns
        ]
        return Source(name, columns)

    def key_range(self, item: exp.Table, call: exp.GenerateSeries, left: Scope) -> Source:
        """Refuses range(), which returns elements."""
        raise ProgrammingError(
            "A range has elements, but other items of its FROM have tiles",
            hint="TILES((SELECT i, i AS val FROM range(n) AS r(i)), parts) cuts it into tiles.",
            position=position(item),
        )
