"""Sums over sparsely stored relations, without expansion to dense arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from einsql.core.free_memory import fits
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import Compressed, reshaped, transposed
from einsql.core.sparse.matrix import sparse_of
from einsql.core.sparse.selection import BLOCK
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
    Value,
    call,
    conj,
    conjuncts,
    constant_labels,
    filled_operands,
    labels_of,
    stored_operands,
)
from einsql.ir.einsum.graph_rewriting import renumber
from einsql.kernels.kernel import Arrays, Runner, Tick, no_progress, share
from einsql.kernels.scalars import values_of
from einsql.kernels.sparse.costs import times_dense
from einsql.kernels.sparse.dense_rows import copy_bytes, multiply_copy
from einsql.kernels.sparse.multiply import IN_ORDER, multiply_rows
from einsql.kernels.sparse.sides import (
    Compile,
    Groups,
    Joined,
    Matrices,
    Reader,
    Side,
    counts_pairs,
    groups_of,
    work_type,
)
from einsql.kernels.storage_choice import Predicted, StorageChoice
from einsql.kernels.vectorized.sums import from_zero

Sums = tuple[list[np.ndarray], np.ndarray]
"""The sum of each term by key, and the number of joined elements."""
Run = Callable[[Sequence[Arrays], Tick], Sums | None]
"""Computes the sums; returns None for unsupported data."""
Multiply = Callable[[Compressed, np.ndarray, Tick], np.ndarray]
"""Multiplies a sparse matrix with a dense one."""
Condition = Callable[[np.ndarray], np.ndarray]
"""A function from stored values to flags of the selected ones."""
WIDEST = 8
"""Bytes of the widest element of a product."""
SIZES = 4
"""Greatest number of sizes for which compiled conditions are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method to compute the sums of a node.

    Attributes:
        run: Computes the sums.
        choice: The choice between stored elements and a dense copy; None for stored elements.
    """

    run: Run
    choice: StorageChoice | None = None


def over_stored(node: EinSum, joined: Joined, compile_node: Compile) -> Method | None:
    """Creates a method for sparsely stored operands; None if no operand may be stored sparsely.

    Args:
        node: The node.
        joined: Its sums.
        compile_node: Compiles nodes that compute which elements are present.
    """
    candidates = [
        (n, stored)
        for n, side in enumerate(joined.sides)
        if (stored := stored_operand(node, side, bool(joined.counts), compile_node)) is not None
    ]
    if not candidates:
        return None
    if len(joined.sides) == 1:
        alone = _alone(node, joined, candidates[0][1])
        return None if alone is None else Method(alone)
    groups = groups_of(node, joined)
    if groups.batch or len(groups.terms) != 1:
        return None
    for n, stored in candidates:
        if counts_pairs(joined) and groups.gone[1 - n]:
            continue  # the multiplicity of elements is more than a flag
        outer = groups.columns if n else groups.rows
        if set(stored.side.labels) == {*groups.terms, *outer, *groups.gone[n]}:
            return _times_dense(node, joined, groups, stored, compile_node)
    return None


@dataclass(frozen=True, slots=True)
class Stored:
    """An operand of one value that may be stored sparsely.

    Attributes:
        node: The node that reads it.
        side: The operand's side in the node.
        filled: Whether elements that are not stored are zeros.
        condition: The selection of stored elements.
    """

    node: EinSum
    side: Side
    filled: bool
    condition: Condition | None

    def matrix(self, operands: Sequence[Arrays], by: str) -> Compressed | None:
        """The selected elements within the domain, row by row.

        Args:
            operands: The node's operands.
            by: The label of the rows.

        Returns:
            None if the operand is not stored sparsely.
        """
        part = self.part(operands, by)
        if part is None or self.condition is None:
            return part
        return part.only(self.condition(part.values))

    def part(self, operands: Sequence[Arrays], by: str) -> Compressed | None:
        """The elements within the domain regardless of the condition; see `matrix`."""
        fields = sparse_of(operands[self.side.operand])
        if fields is None or fields.filled != self.filled:
            return None
        if fields.filled and not fields.zeros:
            return None
        key = self.side.labels.index(by)
        spans = spans_of(self.node, self.node.operands[self.side.operand])
        return fields.rows_of(key).part(*(spans[::-1] if key else spans))

    def narrowest(self, operands: Sequence[Arrays]) -> str:
        """The label by whose rows the fewest elements are read."""
        fields = sparse_of(operands[self.side.operand])
        if fields is None or not fields.is_constant:
            return self.side.labels[0 if fields is None else int(fields.turned)]
        keys = self.node.operands[self.side.operand].source.schema.keys
        parts = [
            self.node.axis(x).extent / max(1, k.hi - k.lo)
            for x, k in zip(self.side.labels, keys, strict=True)
        ]
        other = 1 - int(fields.turned)
        return self.side.labels[other if parts[other] < parts[1 - other] else 1 - other]


def stored_operand(node: EinSum, side: Side, counted: bool, compile_node: Compile) -> Stored | None:
    """The operand of a side that may be stored sparsely, with one value; None for other ones.

    Args:
        node: The node.
        side: One of its sides.
        counted: Whether joined elements are counted.
        compile_node: Compiles the conditions on the operand.
    """
    operand = node.operands[side.operand]
    if not operand.source.sparse or len(operand.source.schema.values) != 1:
        return None
    asked = split(side)
    if asked is None or not len(side.labels) == len(operand.labels) == 2:
        return None
    present, rest = asked
    if not present and (rest != TRUE or counted):
        return None  # zeros that are not stored take part
    (field,) = operand.source.schema.values
    return Stored(node, side, not present, condition_of(side, rest, field, compile_node))


def values_of_side(matrix: Compressed, joined: Joined, side: int, term: int) -> Compressed:
    """The product of one side's factors of a term, in the type of its sum."""
    times, work = len(joined.terms[term].factors[side]), work_type(joined.terms[term].output)
    if not times:
        return matrix.of(np.ones(matrix.stored, work))
    values = first = matrix.values.astype(work, copy=False)
    for _ in range(times - 1):
        values = values * first
    return matrix.of(values)


def _alone(node: EinSum, joined: Joined, stored: Stored) -> Run | None:
    """Computes sums of rows, of columns, or of all elements."""
    if len(node.keys) > 1:
        return None
    shape = node.schema.shape

    def run(operands: Sequence[Arrays], tick: Tick) -> Sums | None:
        matrix = stored.part(operands, node.keys[0] if node.keys else stored.narrowest(operands))
        if matrix is None:
            return None
        kept = None if stored.condition is None else stored.condition(matrix.values)
        counts = np.zeros(matrix.shape[0], np.int64)
        of_rows = [np.zeros(matrix.shape[0]) for _ in joined.terms]
        for block in blocks_of_rows(matrix):
            part = matrix.part_of_rows(block)
            if kept is not None:
                part = part.only(kept[matrix.starts[block.start] : matrix.starts[block.stop]])
            counts[block] = part.counts
            there = counts[block] > 0
            starts = part.starts[:-1][there]
            for n, rows in enumerate(of_rows):
                elements = values_of_side(part, joined, 0, n).values
                if len(starts):
                    rows[block][there] = np.add.reduceat(elements.astype(np.float64), starts)
            tick(block.stop / matrix.shape[0])
        sums = []
        for term, rows in zip(joined.terms, of_rows, strict=True):
            total = np.asarray(rows if node.keys else np.add.reduce(rows))
            sums.append(from_zero(total).astype(work_type(term.output)).reshape(shape))
        return sums, np.asarray(counts if node.keys else counts.sum()).reshape(shape)

    return run


def blocks_of_rows(matrix: Compressed) -> Iterator[slice]:
    """Yields consecutive rows with at most BLOCK elements, or a single row with more."""
    rows, start = matrix.shape[0], 0
    while start < rows:
        limit = min(int(matrix.starts[start]) + BLOCK, matrix.stored)
        typed = matrix.starts.dtype.type(limit)  # another type would copy the starts
        stop = int(np.searchsorted(matrix.starts, typed, side="right")) - 1
        stop = min(rows, max(start + 1, stop))
        yield slice(start, stop)
        start = stop


def _times_dense(
    node: EinSum, joined: Joined, groups: Groups, stored: Stored, compile_node: Compile
) -> Method:
    """Creates a product with a stored matrix as the node's left or right side."""
    number = joined.sides.index(stored.side)
    other = 1 - number
    rows, columns = (groups.rows, groups.columns)[number], (groups.rows, groups.columns)[other]
    gone = bool(groups.gone[number])
    (by,) = groups.gone[number] or rows
    reader = Reader(
        node, joined, other, ((), groups.terms, columns), groups.gone[other], compile_node
    )
    order = (*rows, *columns)
    turn = tuple(order.index(k) for k in node.keys)
    extents = tuple(node.axis(x).extent for x in order)
    size = {x: node.axis(x).extent for x in order}
    terms = prod(node.axis(x).extent for x in groups.terms)
    height, width = (prod(size[x] for x in own) for own in (rows, columns))
    copied = copy_bytes(height, terms, WIDEST)
    choice = StorageChoice(lambda known: predicted(known[stored.side.operand]))

    def predicted(elements: float) -> Predicted | None:
        if gone or not reader.types:
            return None  # the sum of all rows is one row
        itemsize = max(work.itemsize for work in reader.types)
        return times_dense(height, terms, width, elements, itemsize)

    def arranged(product: np.ndarray) -> np.ndarray:
        return product.reshape(extents).transpose(turn)

    def run(operands: Sequence[Arrays], tick: Tick) -> Sums | None:
        matrix = stored.matrix(operands, by)
        if matrix is None:
            return None
        read = reader.read(operands)
        multiply = multiply_rows
        times = predicted(matrix.stored)
        if times is not None and fits(copied) and choice.takes_copy(times):
            multiply = multiply_copy
        sums = []
        for n, work in enumerate(reader.types):
            sparse, dense = values_of_side(matrix, joined, number, n), read.filled(n)[0]
            if (stored.filled or gone) and not np.isfinite(dense).all():
                return None  # it is multiplied by a 0 that is not stored, or by a sum
            checks = read.present is not None or groups.gone[other]
            if checks and not np.isfinite(sparse.values).all():
                return None  # the same for the other side
            part = share(tick, n, len(joined.terms) + 1)
            sparse = collapsed(sparse) if gone else sparse
            sums.append(arranged(multiply(sparse, dense.astype(work, copy=False), part)))
        if not joined.counts:
            return sums, np.zeros(())
        part = share(tick, len(joined.terms), len(joined.terms) + 1)
        return sums, arranged(_joined(matrix, read, gone, multiply, part))

    return Method(run, choice)


def collapsed(matrix: Compressed) -> Compressed:
    """The sum of all rows, as a matrix with one row."""
    counts = np.bincount(matrix.columns, minlength=matrix.shape[1])
    there = np.flatnonzero(counts)
    if matrix.values.dtype == np.float64 and counts.max(initial=0) > IN_ORDER:
        turned = transposed(matrix)  # NumPy adds adjacent elements in pairs
        sums = np.add.reduceat(turned.values, turned.starts[:-1][there])
    else:
        sums = np.bincount(matrix.columns, matrix.values, minlength=matrix.shape[1])[there]
    starts = np.array([0, len(there)], matrix.starts.dtype)
    values = sums.astype(matrix.values.dtype)
    return Compressed((1, matrix.shape[1]), starts, there.astype(matrix.columns.dtype), values)


def _joined(
    matrix: Compressed, read: Matrices, gone: bool, multiply: Multiply, tick: Tick
) -> np.ndarray:
    """The number of pairs of stored and present elements, integers `[rows, columns]`."""
    if read.present is None:
        counts = np.array([matrix.stored]) if gone else matrix.counts
        return np.broadcast_to(counts[:, None], (len(counts), read.columns))
    ones = matrix.of(np.ones(matrix.stored))
    flags = read.present[0].astype(np.float64)
    return multiply(collapsed(ones) if gone else ones, flags, tick).astype(np.int64)


def split(side: Side) -> tuple[bool, Expr] | None:
    """Whether a side requires present elements, and its other conditions on their values.

    Returns:
        None if the guard reads more than the operand's value.
    """
    asked = Value(side.operand, PRESENT, DType.BOOLEAN)
    terms = list(conjuncts(side.guard))
    rest = conj(*(t for t in terms if t != asked))
    if labels_of(rest) or any(
        v.operand != side.operand or v.field == PRESENT for v in values_of(rest)
    ):
        return None
    return asked in terms, rest


def condition_of(
    side: Side, rest: Expr, field: Field, compile_node: Callable[[EinSum], Runner]
) -> Condition | None:
    """Compiles the conditions of a side; None if there are none.

    Args:
        side: The side.
        rest: The conditions.
        field: The operand's value.
        compile_node: Compiles a node.
    """
    if rest == TRUE:
        return None
    guard = renumber(rest, {side.operand: 0})

    @lru_cache(maxsize=SIZES)
    def compiled(stored: int) -> Runner:
        source = Input("stored", Schema((Key("n", 0, stored),), (field,)))
        kept = Output("kept", (guard,), DType.BOOLEAN)
        axes, operands = (Axis("n", 0, stored),), (Operand(source, ("n",)),)
        return compile_node(EinSum(axes, operands, TRUE, ("n",), (kept,)))

    return lambda values: compiled(len(values))([{field.name: values}], no_progress)["kept"]


def with_free_labels(node: EinSum) -> EinSum:
    """The node with a free label for each label that is a constant.

    A free label has the constant as its only value. A key with several values keeps all of them, as
    the result has them; a condition selects the constant. A free label that is no key needs
    reductions, so such labels of a map stay as they are.
    """
    is_map = any(o.reduction is None for o in node.outputs)
    axes = {x: node.axis(x) for x in constant_labels(node)}
    wide = {x: a for x, a in axes.items() if a.extent > 1 and x in node.keys}
    free = _freed(node, {x for x in axes if x not in wide and (x in node.keys or not is_map)})
    if not wide:
        return free
    are_constants = (
        call("eq", DType.BOOLEAN, Label(x), a.define)
        for x, a in wide.items()
        if a.define is not None
    )
    return replace(
        free,
        axes=tuple(replace(a, define=None) if a.label in wide else a for a in free.axes),
        guard=conj(free.guard, *are_constants),
    )


def with_constant_keys(node: EinSum) -> EinSum | None:
    """A map with a key of one value for each constant label of sparse operands; None without any.

    The positions of its result in key order are those of the map's result.
    """
    if not any(o.reduction is None for o in node.outputs):
        return None
    numbers = stored_operands(node) or filled_operands(node)
    order = [x for n in numbers for x in node.operands[n].labels]
    more = (constant_labels(node) & set(order)) - set(node.keys)
    if not more:
        return None
    keys = list(node.keys)
    for label in dict.fromkeys(x for x in order if x in more):
        before = order[order.index(label) - 1] if order.index(label) else None
        keys.insert(keys.index(before) + 1 if before in keys else 0, label)
    return replace(_freed(node, more), keys=tuple(keys), hint=(), grid=())


def without_constant_keys(node: EinSum, run: Runner) -> Runner:
    """The runner of a node, from that of the node with constant keys."""
    shape = node.schema.shape

    def without(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        computed = run(operands, tick)
        few = sparse_of(computed)
        if few is None or not shape:  # a result without keys is an array
            return {name: array.reshape(shape) for name, array in computed.items()}
        structure = reshaped(few.taken(), shape)
        values = {name: few.taken(name).values for name in few.names if name != PRESENT}
        return Elements(structure, values, few.fills)  # type: ignore[return-value] # announced by `may_be_sparse`

    return without


def _freed(node: EinSum, chosen: Set[str]) -> EinSum:
    """The node with a free label of one value for each of some constant labels."""
    if not chosen:
        return node

    def axis(a: Axis) -> Axis:
        if a.label not in chosen:
            return a
        assert isinstance(a.define, Const)
        return Axis(a.label, a.define.integer, a.define.integer + 1)

    return replace(node, axes=tuple(map(axis, node.axes)))


def narrowed(node: EinSum) -> EinSum | None:
    """The node over the parts of sparse tensors that it reads; None if it reads all elements."""
    operands = tuple(_narrowed(node, o) for o in node.operands)
    if all(a is b for a, b in zip(operands, node.operands, strict=True)):
        return None
    return replace(node, operands=operands)


def over_parts(node: EinSum, run: Runner) -> Runner:
    """Runs a narrowed node on the operands of the original node."""
    parts = {
        n: spans_of(node, o) for n, o in enumerate(node.operands) if _narrowed(node, o) is not o
    }

    def over(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        narrowed_operands = list(operands)
        for n, spans in parts.items():
            fields = narrowed_operands[n]
            few = sparse_of(fields)
            if few is not None:
                narrowed_operands[n] = few.narrowed(spans)
            else:
                narrowed_operands[n] = {name: array[spans] for name, array in fields.items()}
        return run(narrowed_operands, tick)

    return over


def spans_of(node: EinSum, operand: Operand) -> tuple[slice, ...]:
    """The ranges of an operand's keys within a node's domain; empty ones are within the keys."""

    def span(a: Axis, k: Key) -> slice:
        first = min(max(a.lo, k.lo), k.hi) - k.lo
        return slice(first, max(first, min(a.hi, k.hi) - k.lo))

    keys = operand.source.schema.keys
    return tuple(span(node.axis(x), k) for x, k in zip(operand.labels, keys, strict=True))


def _narrowed(node: EinSum, operand: Operand) -> Operand:
    source = operand.source
    if not (isinstance(source, Input) and source.sparse) or not operand.labels:
        return operand
    axes = [node.axis(x) for x in operand.labels]
    keys = tuple(
        Key(k.name, a.lo, max(a.lo, a.hi)) for k, a in zip(source.schema.keys, axes, strict=True)
    )
    if keys == source.schema.keys:
        return operand
    schema = Schema(keys, source.schema.fields)
    return Operand(Input(source.name, schema, sparse=True), operand.labels)
