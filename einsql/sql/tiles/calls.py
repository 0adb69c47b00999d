"""Functions over tiles: scalar functions such as tensor_exp, tensor_einsum, and aggregates."""

from __future__ import annotations

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import Label
from einsql.ir.functions import SCALARS
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import key_label
from einsql.ir.tra.kernels import einsum
from einsql.sql.binder.items import within
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.functions.tile_functions import AGGREGATES, PREFIX, suffix
from einsql.sql.parser.arguments import surplus
from einsql.sql.parser.positions import position, unsupported
from einsql.sql.tiles.context import TileBlock
from einsql.sql.tiles.kernels import Leaf, joined, shaped
from einsql.sql.tiles.keys import over_positions
from einsql.sql.typing import functions
from einsql.sql.typing.typed_expr import Typed, apply, integer

AXES = "abcdefghijklmnopqrstuvwxyz"


def aggregates(node: exp.Expr) -> bool:
    """True if an expression contains an aggregate over tiles."""
    return any(_is_aggregate(n) for n in within(node))


def _is_aggregate(node: exp.Expr) -> bool:
    name = suffix(node.name) if isinstance(node, exp.Anonymous) else None
    return name == "stack" or (name in AGGREGATES and len(node.expressions) == 1)


class Calls:
    """Binds calls of tensor_… in one SELECT."""

    def __init__(self, select: TileBlock) -> None:
        self.select = select

    def bind(self, name: str, node: exp.Anonymous) -> Typed:
        """Binds a call.

        Args:
            name: The function's name without `tensor_`.
            node: The call.

        Raises:
            Error: The arguments are invalid.
        """
        extra = surplus(node)
        if extra is not None:
            raise unsupported(extra, node)
        if _is_aggregate(node):
            return self._aggregate(name, node)
        if name == "einsum":
            return self._einsum(node)
        args = [ScalarBinder(self.select).bind(a) for a in node.expressions]
        arity = SCALARS[name].arity if name in SCALARS else 1
        if len(args) != arity:
            raise ProgrammingError(
                f"{PREFIX}{name} takes {arity} argument{'s' * (arity > 1)}, not {len(args)}"
            )
        match name:
            case "transpose" | "diag":
                leaf = self._leaf(args[0], node.expressions[0])
                axes = AXES[: leaf.tile.rank]
                notation = f"{axes}->{axes[::-1]}" if name == "transpose" else "ii->i"
                return self.select.leaves.value(shaped(leaf, einsum(notation)))
            case "relu":
                return functions.extreme("greatest", [args[0], integer(0, literal=True)])
            case "sigmoid":
                return functions.sigmoid(args[0], self.select.float_stays)
        return apply(name, args, self.select.float_stays)

    def _leaf(self, typed: Typed, node: exp.Expr) -> Leaf:
        return self.select.leaves.arrays(self.select.array(typed, node))

    def _einsum(self, node: exp.Anonymous) -> Typed:
        """tensor_einsum('ij,jk->ik', a, b [, ⊗ [, ⊕]])."""
        args = list(node.expressions)
        texts = [a.name if isinstance(a, exp.Literal) and a.is_string else None for a in args]
        if not texts or texts[0] is None:
            raise ProgrammingError("tensor_einsum needs its notation as text first")
        count = next((n for n, t in enumerate(texts[1:], 1) if t is not None), len(args))
        words = [t for t in texts[count:] if t is not None]
        if len(words) != len(args) - count or len(words) > 2:
            raise ProgrammingError(
                "tensor_einsum takes arrays, then maybe the names of ⊗ and ⊕",
                hint="As in tensor_einsum('ij,jk->ik', a, b, 'add', 'min').",
            )
        kernel = einsum(texts[0], *words)
        bound = [ScalarBinder(self.select).bind(a) for a in args[1:count]]
        leaves = [self._leaf(t, a) for t, a in zip(bound, args[1:count], strict=True)]
        template = kernel.template([leaf.tile for leaf in leaves])
        return self.select.leaves.value(joined(leaves, template))

    # ---- aggregates

    def _aggregate(self, name: str, node: exp.Anonymous) -> Typed:
        if self.select.clause != "SELECT" or self.select.groups is None:
            raise ProgrammingError(
                f"{PREFIX}{name} is not allowed in {self.select.clause}",
                hint="Aggregates belong into SELECT.",
            )
        if name == "stack" and len(node.expressions) != 3:
            raise ProgrammingError(
                "tensor_stack takes an array, the key that orders, and the number of a dimension"
            )
        first = node.expressions[0]
        with self.select.within("an aggregate"):
            typed = ScalarBinder(self.select).bind(first)
        rows = self.select.rows(typed, first)
        leaf = self._stack(rows, node) if name == "stack" else self._merge(rows, AGGREGATES[name])
        return self.select.leaves.value(leaf)

    def _merge(self, rows: Leaf, reduce: str) -> Leaf:
        groups = self.select.groups
        assert groups is not None
        node, labels = rows.node, rows.labels
        if any(Label(x) != expr for x, expr in groups.items()):
            keys = [over_positions(expr, labels) for expr in groups.values()]
            node = ra.ReKey(node, (*keys, *(key_label(n) for n in range(len(labels)))))
            labels = (*groups, *labels)
        places = tuple(labels.index(x) for x in groups)
        return Leaf(ra.Aggregate(node, places, reduce), tuple(groups))

    def _stack(self, rows: Leaf, node: exp.Anonymous) -> Leaf:
        """tensor_stack(tile, key, dimension): concatenates arrays in the order of a key."""
        groups = self.select.groups
        assert groups is not None
        _, by, dimension = node.expressions
        with self.select.within("an aggregate"):
            key = self.select.key(ScalarBinder(self.select).bind(by), by)
        if not isinstance(key, Label):
            raise ProgrammingError("tensor_stack is ordered by a key", position=position(by))
        if not isinstance(dimension, exp.Literal) or not dimension.name.isdigit():
            raise ProgrammingError(
                "tensor_stack takes the number of a dimension, counted from 0",
                position=position(dimension),
            )
        exprs = [*groups.values(), key]
        loose = [x for x in rows.labels if Label(x) not in exprs]
        if loose and all(isinstance(e, Label) for e in exprs):
            name = self.select.domain.written[loose[0]]
            raise ProgrammingError(
                f"tensor_stack needs every other key in GROUP BY, but {name} is not",
                hint=f"Write GROUP BY {name}.",
            )
        computed = any(Label(name) != e for name, e in groups.items())
        if loose or key.name in groups or computed:
            keys = tuple(over_positions(e, rows.labels) for e in exprs)
            rows = Leaf(ra.ReKey(rows.node, keys), (*groups, ""))
            place = len(groups)
        else:
            place = rows.labels.index(key.name)
        stacked = ra.Stack(rows.node, place, int(dimension.name))
        return Leaf(stacked, (*rows.labels[:place], *rows.labels[place + 1 :]))
