"""Any node over the stored elements of its sparse operands.

The combinations of stored elements (`joins.py`) become the points of a node over one label, in
which the labels of the sparse operands are computed from data. Other kernels run this node. A
result whose keys are labels of sparse operands is sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import inf, prod

import numpy as np

from einsql.core.free_memory import require
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import at_cells
from einsql.core.sparse.matrix import Sparse, sparse_of
from einsql.core.sparse.numbering import numbers_of
from einsql.core.sparse.tiles import as_elements
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Value,
    conj,
    conjuncts,
    exprs,
    rewrite,
    stored_operands,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import fresh, map_exprs
from einsql.ir.einsum.partial_merge import Total
from einsql.ir.einsum.partial_states import merges, with_state
from einsql.ir.einsum.states import has_order
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.kernel import Arrays, Runner, Tick, no_progress
from einsql.kernels.sparse.joins import Joined, Side, order_of, parts
from einsql.kernels.sparse.products import product_of_stored
from einsql.kernels.sparse.row_wise import row_wise
from einsql.kernels.sparse.sides import Compile, find
from einsql.kernels.sparse.stored import over_stored, spans_of
from einsql.kernels.storage_choice import Choosing

GROUP = ".group"
"""The field with the number of a point's group."""
SIZES = 8
"""Greatest number of sizes for which compiled nodes are cached."""
POINTS_PER_ELEMENT: float = 1024
"""Points of a map to an array for each of its elements from which elements are visited. Loops over
40 million points take as long in memory that is in use; loops write every page of new memory, which
took 33 s for 2.7 GB, and joins of elements do not (`python -m benchmarks.sparse_maps`)."""
BYTES = 24
"""Bytes of a computed element besides its values: its position, before and after sorting."""


def over_elements(
    node: EinSum,
    compile_node: Compile,
    interpret: Compile,
    otherwise: Callable[[], Runner],
    has_loops: bool,
) -> Runner | None:
    """Matches nodes whose points are stored elements of sparse operands.

    Args:
        node: The node.
        compile_node: Compiles the conditions on one operand.
        interpret: Compiles the node over the elements, whose number is known at run time.
        otherwise: Compiles this node with another kernel, for operands that are not sparse.
        has_loops: Whether loops may be compiled.

    Returns:
        The runner, or None. It returns an `Elements` for a node that is sparse.
    """
    driving = stored_operands(node)
    if not driving:
        return None
    if not node.sparse and any(o.reduction is None for o in node.outputs):
        return _into_array(node, driving, compile_node, interpret, otherwise)
    if all(o.reduction and REDUCTIONS[o.reduction].places for o in node.outputs):
        return None  # the kernel of the best values reads them as elements
    if has_order(node) and not _leads(node, driving):
        return None
    joined = None if node.sparse else find(node)
    if joined is not None and over_stored(node, joined, compile_node) is not None:
        # Sums of all elements read the narrower range of keys, see `Stored.narrowest`.
        least = 0 if len(joined.sides) == 2 else 1
        is_by_rows = least <= len(node.keys) < 2
        if not (has_loops and is_by_rows and row_wise(node, driving) is not None):
            return None
    plan = _Elements(node, driving, compile_node, interpret, has_loops)
    other = cache(otherwise)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        computed: Arrays | None = None
        if all(sparse_of(operands[n]) is not None for n in driving):
            computed = plan.run(operands, tick)
        elif plan.product is not None:  # an operand is a product of dense copies
            computed = plan.product.run([*map(as_elements, operands)], tick)
        if computed is not None:
            return computed  # type: ignore[return-value] # announced by `may_be_sparse`
        return other()(operands, tick)

    return run if plan.product is None else Choosing(run, plan.product.choice)


def _into_array(
    node: EinSum,
    driving: Sequence[int],
    compile_node: Compile,
    interpret: Compile,
    otherwise: Callable[[], Runner],
) -> Runner | None:
    """Matches maps to arrays, some of whose keys only dense operands have."""
    labels = {x for n in driving for x in node.operands[n].labels}
    others = tuple(x for x in node.keys if x not in labels)
    if any(node.axis(x).define is not None for x in others):
        return None
    if not any(o.name == PRESENT for o in node.outputs):
        return None
    plan = _Elements(node, driving, compile_node, interpret, has_loops=False, others=others)
    other = cache(otherwise)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        share = prod(_share(sparse_of(operands[n])) for n in driving)
        if share * POINTS_PER_ELEMENT > 1:
            return other()(operands, tick)
        return plan.array(operands, tick)

    return run


def _share(fields: Sparse | None) -> float:
    """The fraction of stored elements; infinite for an operand that is not sparse."""
    if fields is None:
        return inf
    matrix = fields.taken()
    return matrix.stored / max(1, prod(matrix.extents))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The numbers of which the node over the elements depends.

    Attributes:
        points: The number of points.
        groups: The number of groups by which they are reduced; None for other results.
    """

    points: int
    groups: int | None


class _Elements:
    """A node over the stored elements of some operands."""

    def __init__(
        self,
        node: EinSum,
        driving: Sequence[int],
        compile_node: Compile,
        interpret: Compile,
        has_loops: bool,
        others: Sequence[str] = (),
    ) -> None:
        self.node = node
        self.driving = driving
        self.others = others
        self.labels = {x for n in driving for x in node.operands[n].labels} | {*others}
        self.product = product_of_stored(node, driving, compile_node)
        self.rows = row_wise(node, driving) if has_loops else None
        free = {a.label for a in node.axes if a.define is None}
        read: dict[int, dict[str, Field]] = {}
        for e in (e for root in exprs(node) for e in subexpressions(root)):
            if isinstance(e, Value) and not (e.operand in driving and e.field == PRESENT):
                read.setdefault(e.operand, {})[e.field] = Field(e.field, e.dtype)
        self.read = read
        self.is_map = any(o.reduction is None for o in node.outputs)
        self.gathered = tuple(
            n
            for n, o in enumerate(node.operands)
            if n not in driving and o.labels and set(o.labels) <= self.labels & free
        )
        self.point = fresh("point", (a.label for a in node.axes))
        self.compiled = lru_cache(SIZES)(lambda sizes: interpret(self._over(sizes)))
        self.partial = lru_cache(SIZES)(lambda sizes: interpret(with_state(self._over(sizes))))

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Arrays | None:
        """The node's result; None if its parts cannot be merged."""
        if self.product is not None:
            product = self.product.run(operands, tick, self.rows is not None)
            if product is not None:
                return product
        same = self._same(operands)
        if same is not None:
            return same
        if self.rows is not None:
            by_rows = self.rows.run(operands, tick)
            if by_rows is not None:
                return by_rows
        mapped = self._mapped(operands)
        if mapped is not None:
            return mapped
        ordered = order_of([self._side(operands, n) for n in self.driving], self.node.keys)
        if self.node.sparse:
            return self._sparse(ordered, operands, tick)
        return self._dense(ordered, operands, tick)

    def _side(self, operands: Sequence[Arrays], number: int) -> Side:
        fields, operand = sparse_of(operands[number]), self.node.operands[number]
        assert fields is not None
        matrix = fields.taken()
        spans = spans_of(self.node, operand)
        numbered = matrix.of(np.arange(matrix.stored))
        part = numbered.part(*(spans[::-1] if fields.turned else spans))
        return Side(number, part, operand.labels[::-1] if fields.turned else operand.labels)

    # ---- results

    def _same(self, operands: Sequence[Arrays]) -> Elements | None:
        """The result of a node that only renames fields of one operand; None for another node."""
        side = self._only_side(operands)
        if side is None:
            return None
        fields = sparse_of(operands[side.number])
        assert fields is not None
        values = self._renamed(fields, side.matrix.values)
        if values is None:
            return None
        return Elements(side.matrix if fields.is_constant else side.matrix.copied(), values)

    def _only_side(self, operands: Sequence[Arrays]) -> Side | None:
        """The operand of a map that keeps the order of its elements; None for another node."""
        node = self.node
        if node.reduced or not node.sparse or len(self.driving) > 1:
            return None
        side, fields = self._side(operands, self.driving[0]), sparse_of(operands[self.driving[0]])
        assert fields is not None
        fits = side.labels == node.keys and fields.increases
        return side if fits else None

    def _mapped(self, operands: Sequence[Arrays]) -> Elements | None:
        """The result of a map of one operand's elements, which keeps their order; else None."""
        node, side = self.node, self._only_side(operands)
        if side is None:
            return None
        fields = sparse_of(operands[side.number])
        assert fields is not None
        matrix = side.matrix if fields.is_constant else side.matrix.copied()
        require(matrix.stored * (BYTES + sum(f.dtype.numpy.itemsize for f in node.schema.fields)))
        joined = Joined(matrix.stored, self._places(side), {side.number: matrix.values})
        sizes = _Sizes(matrix.stored, None)
        computed = self.compiled(sizes)(self._operands(joined, operands, None), no_progress)
        there = computed[PRESENT]
        every = bool(there.all())
        values = {n: a if every else a[there] for n, a in computed.items() if n != PRESENT}
        return Elements(matrix if every else matrix.only(there), values)

    def _places(self, side: Side) -> dict[str, np.ndarray]:
        """The positions of a side's elements by label, int64, for the labels that are read."""
        gathered = (x for n in self.gathered for x in self.node.operands[n].labels)
        read = {*self.labels, *gathered}
        if read.isdisjoint(side.labels):
            return {}
        pairs = zip(side.labels, side.matrix.positions, strict=True)
        return {x: place.astype(np.int64, copy=False) for x, place in pairs if x in read}

    def _renamed(self, fields: Sparse, elements: np.ndarray) -> dict[str, np.ndarray] | None:
        """The values of a node that only renames fields of one operand; None for another node.

        Args:
            fields: The operand.
            elements: The numbers of the elements within the domain.
        """
        (number,) = self.driving
        if self.node.guard != Value(number, PRESENT, DType.BOOLEAN):
            return None
        shared = fields.is_constant and len(elements) == fields.matrix.stored
        values: dict[str, np.ndarray] = {}
        for o in self.node.outputs:
            if o.name == PRESENT and o.args == (TRUE,):
                continue
            arg = o.args[0]
            if o.reduction is not None or not isinstance(arg, Value):
                return None
            if arg.operand != number or arg.field == PRESENT:
                return None
            stored = fields.taken(arg.field).values
            values[o.name] = stored if shared else stored[elements]
        return values

    def _in_order(self, joined: Joined) -> Joined:
        """The combinations in the order in which their states are merged."""
        if not has_order(self.node):
            return joined
        places = [joined.places[x] for x in self.node.reduced if x in joined.places]
        return joined.only(np.lexsort(places[::-1])) if places else joined

    def _dense(
        self, ordered: Sequence[Side], operands: Sequence[Arrays], tick: Tick
    ) -> dict[str, np.ndarray] | None:
        total: Total | None = None
        every = merges(self.node)
        for joined in parts(ordered, divisible=every and not has_order(self.node)):
            joined = self._in_order(joined)
            sizes = _Sizes(joined.count, None)
            tick(0.0)
            if total is None:
                total = Total(with_state(self._over(sizes)) if every else self._over(sizes))
            run = self.partial(sizes) if every else self.compiled(sizes)
            total.add(run(self._operands(joined, operands, None), no_progress))
        assert total is not None
        merged = total.result()
        return {o.name: merged[o.name] for o in self.node.outputs}

    def _sparse(self, ordered: Sequence[Side], operands: Sequence[Arrays], tick: Tick) -> Elements:
        keys, extents = self.node.keys, self.node.schema.shape
        flat: list[np.ndarray] = []
        values: dict[str, list[np.ndarray]] = {}
        width = BYTES + sum(f.dtype.numpy.itemsize for f in self.node.schema.fields)
        done = 0
        # Parts have different keys of the result if their rows are one of these keys.
        for joined in parts(ordered, ordered[0].labels[0] in keys):
            tick(0.0)
            joined = self._in_order(joined)
            at = numbers_of([joined.places[x] for x in keys], extents)
            groups: np.ndarray | None = None
            if self.node.reduced and not self.is_map:  # a map has one point for each key
                order = np.argsort(at, kind="stable")
                joined, at = joined.only(order), at[order]
                begins = np.ones(len(at), np.bool_)
                begins[1:] = at[1:] != at[:-1]
                groups, at = np.cumsum(begins) - 1, at[begins]
            done += len(at)
            require(done * width)
            sizes = _Sizes(joined.count, None if groups is None else len(at))
            fields = self.compiled(sizes)(self._operands(joined, operands, groups), no_progress)
            there = fields[PRESENT]
            flat.append(at[there])
            for name, array in fields.items():
                if name != PRESENT:
                    values.setdefault(name, []).append(array[there])
        structure, _ = at_cells(extents, np.concatenate(flat))
        numbers = structure.values
        values_by_name = {name: np.concatenate(pieces)[numbers] for name, pieces in values.items()}
        return Elements(structure, values_by_name)

    def array(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """The array of a map whose keys beside those of the elements have all their values."""
        node, keys, shape = self.node, self.node.keys, self.node.schema.shape
        sides = [self._side(operands, n) for n in self.driving]
        for n, x in enumerate(self.others, start=len(node.operands)):
            every, _ = at_cells((node.axis(x).extent,), np.arange(node.axis(x).extent))
            sides.append(Side(n, every, (x,)))
        # Pages of zeros are taken when they are written.
        arrays = {f.name: np.zeros(node.schema.size, f.dtype.numpy) for f in node.schema.fields}
        for joined in parts(order_of(sides, keys)):
            tick(0.0)
            at = numbers_of([joined.places[x] for x in keys], shape)
            sizes = _Sizes(joined.count, None)
            fields = self.compiled(sizes)(self._operands(joined, operands, None), no_progress)
            there = fields[PRESENT]
            for name, values in fields.items():
                arrays[name][at[there]] = values[there]
        return {name: array.reshape(shape) for name, array in arrays.items()}

    # ---- the node over the elements

    def _over(self, sizes: _Sizes) -> EinSum:
        """The node over points, reduced to the node's keys, to groups, or not at all."""
        node, point = self.node, self.point
        at = len(node.operands)
        operands = [self._operand(n, sizes.points) for n in range(at)]
        wanted = {x for o in operands for x in o.labels if x in self.labels}
        keys = node.keys
        if sizes.groups is not None:
            keys = (GROUP,)
        elif node.sparse or self.is_map:
            keys = (point,)
        wanted |= {x for x in keys if x in self.labels}
        named = sorted(self.labels)
        fields = [Field(_place(x), DType.BIGINT) for x in named]
        bounds = {_place(x): (node.axis(x).lo, node.axis(x).hi - 1) for x in named}
        if sizes.groups is not None:
            fields.append(Field(GROUP, DType.BIGINT))
            bounds[GROUP] = 0, sizes.groups - 1
        source = Input("points", Schema((Key("point", 0, sizes.points),), tuple(fields)))

        def of_points(name: str) -> Value:
            return Value(at, name, DType.BIGINT, bounds[name])

        def changed(e: Expr) -> Expr:
            if isinstance(e, Label) and e.name in self.labels:
                return of_points(_place(e.name))
            stored = isinstance(e, Value) and e.operand in self.driving and e.field == PRESENT
            return TRUE if stored else e

        axes = [Axis(point, 0, sizes.points)]
        axes += [a for a in node.axes if a.label not in self.labels]
        axes += [replace(node.axis(x), define=of_points(_place(x))) for x in sorted(wanted)]
        if sizes.groups is not None:
            axes.append(Axis(GROUP, 0, sizes.groups, of_points(GROUP)))
        over = map_exprs(node, lambda e: _simplified(rewrite(e, changed)))
        every = [axis for axis in axes if axis.label in self.labels or axis.label == GROUP]
        kept = {a.label: a for a in over.axes}
        own = [kept.get(a.label, a) for a in axes if a not in every]
        return replace(
            over,
            axes=(*own, *every),
            operands=(*operands, Operand(source, (point,))),
            keys=keys,
            hint=(),
            grid=(),
        )

    def _operand(self, number: int, points: int) -> Operand:
        operand = self.node.operands[number]
        if number not in self.driving and number not in self.gathered:
            return operand
        fields = tuple(self.read.get(number, {}).values())
        key = Key("point", 0, points)
        return Operand(Input(f"elements {number}", Schema((key,), fields)), (self.point,))

    def _operands(
        self, joined: Joined, operands: Sequence[Arrays], groups: np.ndarray | None
    ) -> list[Arrays]:
        """The arrays of the node over the elements."""
        fields_of: list[Arrays] = []
        for n, fields in enumerate(operands):
            names = self.read.get(n, {})
            if n in self.driving:
                few, elements = sparse_of(fields), joined.elements[n]
                assert few is not None
                fields_of.append({name: few.taken(name).values[elements] for name in names})
            elif n in self.gathered:
                fields_of.append(self._gathered(n, fields, joined))
            else:
                fields_of.append(fields)
        places = {_place(x): joined.places[x] + self.node.axis(x).lo for x in sorted(self.labels)}
        fields_of.append(places if groups is None else {**places, GROUP: groups})
        return fields_of

    def _gathered(self, number: int, fields: Arrays, joined: Joined) -> dict[str, np.ndarray]:
        """The fields of an operand at the keys of the points."""
        operand = self.node.operands[number]
        at = [
            joined.places[x] + (self.node.axis(x).lo - k.lo)
            for x, k in zip(operand.labels, operand.source.schema.keys, strict=True)
        ]
        names = self.read.get(number, {})
        few = sparse_of(fields)
        if few is None:
            return {name: fields[name][tuple(at)] for name in names}
        places = few.taken().numbers_at(at[::-1] if few.turned else at)
        there = places >= 0
        gathered = {}
        for name in names:
            if name == PRESENT:
                gathered[name] = there
                continue
            values = few.taken(name).values
            gathered[name] = np.full(len(places), few.fill(name), values.dtype)
            gathered[name][there] = values[places[there]]
        return gathered


def _place(label: str) -> str:
    """The field with the values of a label at the points."""
    return f".at:{label}"


def _simplified(expr: Expr) -> Expr:
    """A conjunction without constant terms."""
    return conj(*conjuncts(expr)) if expr.dtype is DType.BOOLEAN else expr


def _leads(node: EinSum, driving: Sequence[int]) -> bool:
    """Whether the reduced labels of sparse operands precede all others in an ordered merge."""
    labels = {x for n in driving for x in node.operands[n].labels}
    inside = [x in labels for x in node.reduced if node.axis(x).define is None]
    return inside == sorted(inside, reverse=True)
