"""The arrays of a SELECT: the leaves of expressions, and the kernels over them.

An expression over tiles is bound as an expression over their elements, in which `Value(n)` is the
array of leaf n. To compute its arrays, its leaves are joined on the labels of their keys by one
kernel that evaluates the expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Expr, Operand, Output, Value, operands_of
from einsql.ir.einsum.graph_rewriting import renumber
from einsql.ir.tra import plan as ra
from einsql.ir.tra.kernels import VALUE, Kernel, Tile, element_axes, operand
from einsql.sql.typing.typed_expr import Typed


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation whose arrays expressions read.

    Attributes:
        labels: The labels of the keys, in order.
        items: The FROM items of the leaf's rows; empty after aggregation.
    """

    node: ra.Node
    labels: tuple[str, ...]
    items: frozenset[int] = frozenset()

    @property
    def tile(self) -> Tile:
        """The rank and type of the arrays."""
        return Tile(len(self.node.schema.dims), self.node.schema.dtype)


@dataclass
class Leaves:
    """The leaves of one SELECT; the FROM items come first."""

    all: list[Leaf] = field(default_factory=list)

    def value(self, leaf: Leaf) -> Typed:
        """The value of a leaf's array in expressions."""
        dtype = leaf.node.schema.dtype
        known = next((n for n, x in enumerate(self.all) if x is leaf), None)
        if known is None:
            known = len(self.all)
            self.all.append(leaf)
        return Typed(Value(known, VALUE, dtype), dtype)

    def read(self, expr: Expr) -> list[Leaf]:
        """The leaves that an expression reads."""
        return [self.all[n] for n in sorted(operands_of(expr))]

    def arrays(self, expr: Expr, also: Sequence[Leaf] = ()) -> Leaf:
        """The arrays of an expression over leaves, one for each match of their keys.

        Args:
            expr: The expression, over leaves of equal rank or of rank 0.
            also: Further leaves whose keys have to match.

        Raises:
            ProgrammingError: Ranks or shapes are incompatible.
        """
        numbers = sorted(operands_of(expr))
        read = [self.all[n] for n in numbers]
        if not also and isinstance(expr, Value):
            return read[0]
        axes = element_axes(leaf.tile for leaf in read)
        operands = [*read, *(_presence(leaf) for leaf in also)]
        places = {number: n for n, number in enumerate(numbers)}
        kernel = EinSum(
            tuple(Axis(x, 0, 1) for x in axes),
            tuple(_operand(n, leaf.tile, axes) for n, leaf in enumerate(operands)),
            TRUE,
            axes,
            (Output(VALUE, (renumber(expr, places),), expr.dtype),),
        )
        return joined(operands, kernel)


def joined(leaves: Sequence[Leaf], kernel: EinSum) -> Leaf:
    """⋈ of leaves on their common labels; λ for one leaf.

    Raises:
        ProgrammingError: The kernel does not fit.
    """
    items = frozenset[int]().union(*(leaf.items for leaf in leaves))
    if len(leaves) == 1:
        return Leaf(ra.Transform(leaves[0].node, kernel), leaves[0].labels, items)
    order = tuple(dict.fromkeys(x for leaf in leaves for x in leaf.labels))
    keys = tuple(tuple(order.index(x) for x in leaf.labels) for leaf in leaves)
    return Leaf(ra.Join(tuple(leaf.node for leaf in leaves), keys, kernel), order, items)


def shaped(leaf: Leaf, kernel: Kernel) -> Leaf:
    """λ: applies a kernel in einsum notation to every array.

    Raises:
        ProgrammingError: The kernel does not fit.
    """
    return joined([leaf], kernel.template([leaf.tile]))


def _operand(number: int, tile: Tile, axes: tuple[str, ...]) -> Operand:
    return operand(number, axes if tile.rank else (), tile.dtype)


def _presence(leaf: Leaf) -> Leaf:
    """Arrays of rank 0 with the keys of a leaf, for kernels that do not read its elements."""
    rank = leaf.tile.rank
    axes = tuple(f".{n}" for n in range(rank))
    kernel = EinSum(
        tuple(Axis(x, 0, 1) for x in axes),
        (_operand(0, leaf.tile, axes),),
        TRUE,
        (),
        (Output(VALUE, (TRUE,), DType.BOOLEAN, "bool_or" if rank else None),),
    )
    return Leaf(ra.Transform(leaf.node, kernel), leaf.labels, leaf.items)
