"""Products of two sparse matrices.

SciPy computes them row by row: first the number of elements, then the elements. Matrices with many
elements are copied to dense ones, and BLAS multiplies these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from einsql.core.free_memory import fits, require
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.numbering import index_type
from einsql.core.sparse.tiles import present_elements
from einsql.ir.einsum.graph import EinSum
from einsql.kernels.kernel import Arrays, Tick, share
from einsql.kernels.runtime import thread_pool
from einsql.kernels.sparse.costs import times_sparse
from einsql.kernels.sparse.dense_rows import counts_by_copies, dense_copy, multiply_copy, with_pairs
from einsql.kernels.sparse.multiply import IN_ORDER, balanced
from einsql.kernels.sparse.sides import Compile, Joined, find, groups_of, work_type
from einsql.kernels.sparse.stored import Stored, stored_operand, values_of_side
from einsql.kernels.storage_choice import Predicted, StorageChoice
from einsql.kernels.vectorized.sums import from_zero

COPIED, COUNT = 16, 4
"""Bytes of an element of dense copies of a matrix, values and flags, and of a number of pairs."""
SAMPLE = 16
"""Rows of a product whose elements are counted before dense copies are made."""
ALL_ABOVE = 4
"""A product by dense copies is an array if at least 1/4 of its keys exist, and else elements."""
TRANSPOSED = 0.5
"""Elements of a piece for each column from which two transpositions sort its rows. 2 elements were
sorted 2.7 to 3.6 times as fast in 125 to 1,000 rows of 20,000 or 100,000 columns, 1.2 times as fast
with a million columns, and 0.5 in half to twice the time (`python -m benchmarks.sparse_sort`)."""
ROWS = 2**15
"""Elements of the left matrix by thread and piece; a piece reports progress after it."""


def product_of_stored(
    node: EinSum, driving: Sequence[int], compile_node: Compile
) -> Product | None:
    """Matches sums of products of two sparse operands over one common label.

    Args:
        node: The node.
        driving: The operands whose absent elements make no point exist.
        compile_node: Compiles the conditions on one operand.
    """
    if len(driving) != 2 or len(node.operands) != 2 or not node.sparse:
        return None
    joined = find(node)
    if joined is None or len(joined.sides) != 2:
        return None
    groups = groups_of(node, joined)
    if groups.batch or any(groups.gone) or len(groups.terms) != 1:
        return None
    if any(o.dtype.is_short for o in node.outputs) or any(
        f.dtype.is_short for o in node.operands for f in o.source.schema.values
    ):
        return None
    sides = [stored_operand(node, s, bool(joined.counts), compile_node) for s in joined.sides]
    left, right = sides
    if left is None or right is None or left.filled or right.filled:
        return None
    turned = groups.rows != node.keys[:1]
    product: Product

    def estimate(stored: Mapping[int, float]) -> Predicted:
        first, second = (stored[product.sides[n].side.operand] for n in product.numbers)
        return product.predicted((first, second))

    choice = StorageChoice(estimate)
    product = Product(node, joined, (left, right), groups.terms[0], turned, choice)
    return product


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of products of two sparse operands.

    Attributes:
        node: The node.
        joined: Its sums and counts.
        sides: The operands.
        term: The label that is summed.
        turned: Whether the rows of the result are a label of the second operand.
        choice: The choice between stored elements and dense copies.
    """

    node: EinSum
    joined: Joined
    sides: tuple[Stored, Stored]
    term: str
    turned: bool
    choice: StorageChoice

    @property
    def numbers(self) -> tuple[int, int]:
        """The number of the side with the rows of the result, and of the other one."""
        return (1, 0) if self.turned else (0, 1)

    def predicted(
        self,
        stored: tuple[float, float],
        pairs: float | None = None,
        results: float | None = None,
    ) -> Predicted:
        """The times of both methods; see `times_sparse`."""
        rows, columns, terms = (self.node.axis(x).extent for x in (*self.node.keys, self.term))
        itemsize = max((work_type(t.output).itemsize for t in self.joined.terms), default=4)
        counts = any(o.reduction == "sum" for o in self.joined.counts)
        return times_sparse((rows, terms, columns), stored, itemsize, pairs, results, counts)

    def _takes_copies(self, left: Compressed, right: Compressed) -> bool:
        """Whether dense copies are predicted to be faster."""
        stored = left.stored, right.stored
        pairs = float(np.bincount(left.columns, minlength=left.shape[1]) @ right.counts)
        times = self.predicted(stored, pairs)
        if times.is_dense:  # as for random places, which have the most elements of the result
            times = self.predicted(stored, pairs, expected_results(left, right))
        return self.choice.takes_copy(times)

    def run(self, operands: Sequence[Arrays], tick: Tick, has_loops: bool = False) -> Arrays | None:
        """The product; None if SciPy lacks the functions, or an operand is stored otherwise.

        Args:
            operands: The node's operands.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
            has_loops: Whether compiled loops can compute the product. They take a third of the
                time where SciPy has to multiply several times (`python -m benchmarks.recommender`).
        """
        numbers, keys = self.numbers, self.node.keys
        left = self.sides[numbers[0]].matrix(operands, keys[0])
        right = self.sides[numbers[1]].matrix(operands, self.term)
        if left is None or right is None:
            return None
        if self._takes_copies(left, right):
            by_copies = self._by_copies(left, right, tick)
            if by_copies is not None:
                return by_copies
        terms = _most_terms(left, right)
        counts = [o for o in self.joined.counts if o.reduction == "sum"]
        if has_loops and (counts or terms > IN_ORDER):
            return None
        structure: Compressed | None = None
        fields_of_result: dict[str, np.ndarray] = {}
        steps = len(self.joined.terms) + 1
        for n, term in enumerate(self.joined.terms):
            pair = [
                values_of_side(m, self.joined, s, n)
                for m, s in zip((left, right), numbers, strict=True)
            ]
            work, own = work_type(term.output), term.output.dtype.numpy
            if terms > IN_ORDER and work == np.float32:
                pair = [m.of(m.values.astype(np.float64)) for m in pair]
            part = share(tick, n, steps)
            product = None
            if structure is None and not counts and (terms <= IN_ORDER or work == np.float32):
                product = multiply(pair[0], pair[1], part)
            if product is None:
                if structure is None:
                    structure = _counted(left, right, tick)
                    if structure is None:
                        return None
                product = structure.of(_aligned(structure, pair[0], pair[1], terms, part))
            structure = structure or product
            values = product.values
            if term.scale != 1.0:
                values = from_zero(values * values.dtype.type(term.scale))
            fields_of_result[term.output.name] = values.astype(own, copy=False)
        if structure is None:
            structure = _counted(left, right, tick)
            if structure is None:
                return None
        for o in counts:
            fields_of_result[o.name] = structure.values.astype(np.int64)
        return Elements(structure, fields_of_result) if fields_of_result else None

    def _by_copies(self, left: Compressed, right: Compressed, tick: Tick) -> Arrays | None:
        """The product of dense copies, as arrays; None if zeros would be multiplied by infinity.

        Also None if the copies do not fit into memory.
        """
        size = left.shape[0] * right.shape[1]
        width = sum(f.dtype.numpy.itemsize for f in self.node.schema.fields)
        if not fits(size * (width + COUNT) + right.size * COPIED):
            return None
        steps, fields = len(self.joined.terms) + 1, dict[str, np.ndarray]()
        there: np.ndarray | None = None
        for n, term in enumerate(self.joined.terms):
            first, second = (
                values_of_side(m, self.joined, s, n)
                for m, s in zip((left, right), self.numbers, strict=True)
            )
            if not (np.isfinite(first.values).all() and np.isfinite(second.values).all()):
                return None
            values = multiply_copy(first, dense_copy(second), share(tick, n, steps))
            if there is None:
                there = values != 0  # other elements may have pairs whose sum is 0
            if term.scale != 1.0:
                values = from_zero(values * values.dtype.type(term.scale))
            fields[term.output.name] = values.astype(term.output.dtype.numpy, copy=False)
        counts: np.ndarray | None = None
        if there is None or any(o.reduction == "sum" for o in self.joined.counts):
            counts = counts_by_copies(left, right, share(tick, steps - 1, steps))
            there = counts > 0
        else:
            there = with_pairs(there, left, right, share(tick, steps - 1, steps))
        for o in self.joined.counts:
            fields[o.name] = (
                there if counts is None or o.reduction != "sum" else counts.astype(np.int64)
            )
        few = ALL_ABOVE * np.count_nonzero(there) < size
        return present_elements({**fields, PRESENT: there}) if few else fields


def expected_results(left: Compressed, right: Compressed) -> float:
    """The expected number of elements of a product, from the elements of some of its rows."""
    rows = np.linspace(0, left.shape[0] - 1, min(SAMPLE, left.shape[0])).astype(np.int64)
    met = np.zeros((len(rows), right.shape[1]), np.bool_)
    for n, row in enumerate(rows.tolist()):
        terms = left.columns[left.starts[row] : left.starts[row + 1]]
        firsts, counts = right.starts[terms], right.counts[terms]
        ends = np.cumsum(counts)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts + counts - ends, counts)
        met[n, right.columns[at]] = True
    return float(met.mean()) * left.shape[0] * right.shape[1] if met.size else 0.0


def _most_terms(left: Compressed, right: Compressed) -> int:
    """An upper bound of the number of terms of a sum."""
    most_left = int(left.counts.max(initial=0))
    columns = np.bincount(right.columns, minlength=1)
    return min(most_left, int(columns.max(initial=0)))


def _counted(left: Compressed, right: Compressed, tick: Tick) -> Compressed | None:
    """The positions of the product's elements, with the number of terms of each one."""
    ones, others = (m.of(np.ones(m.stored)) for m in (left, right))
    return multiply(ones, others, tick)


def _aligned(
    structure: Compressed, left: Compressed, right: Compressed, terms: int, tick: Tick
) -> np.ndarray:
    """The values of a product at known positions, in sums of at most `IN_ORDER` terms.

    SciPy leaves out elements whose sum is 0.
    """
    size = IN_ORDER // 2
    pieces = ceil(int(left.counts.max(initial=0)) / size) if terms > IN_ORDER else 1
    total = np.zeros(structure.stored, left.values.dtype)
    at = np.arange(left.stored) - np.repeat(left.starts[:-1].astype(np.int64), left.counts)
    for n in range(pieces):
        part = left if pieces == 1 else left.only(at // size == n)
        product = _numeric(part, right, share(tick, n, pieces))
        assert product is not None  # as for the positions
        rows, columns = product.rows, product.columns
        total[structure.places(rows, columns)] += product.values
    return total


def multiply(left: Compressed, right: Compressed, tick: Tick) -> Compressed | None:
    """The product of two matrices, with every element that has a term; None without SciPy's.

    Also None if a sum is 0, because SciPy leaves it out.
    """
    return _numeric(left, right, tick, complete=True)


def _numeric(
    left: Compressed, right: Compressed, tick: Tick, complete: bool = False
) -> Compressed | None:
    """The product of two matrices by SciPy, on all threads, with increasing columns.

    Args:
        left: The left matrix.
        right: The right matrix, of the same type.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        complete: Whether None is returned if elements are left out because their sum is 0.

    Raises:
        OperationalError: The product does not fit into memory.
    """
    try:
        # The functions behind SciPy's `@`. Called directly, they run in several threads.
        from scipy.sparse._sparsetools import csr_matmat, csr_matmat_maxnnz
    except ImportError:  # they are not public
        return None
    shape = left.shape[0], right.shape[1]
    kind = index_type(left.stored, right.stored, *left.shape, *right.shape)
    a, b = (_of_kind(m, kind) for m in (left, right))
    pieces = balanced(a, max(2 * thread_pool.threads(), a.stored // ROWS))
    sizes = np.zeros(len(pieces), np.int64)

    def count(n: int) -> None:
        starts = a.starts[pieces[n].start : pieces[n].stop + 1]
        rows = len(starts) - 1
        sizes[n] = csr_matmat_maxnnz(rows, shape[1], starts, a.columns, b.starts, b.columns)

    order = range(len(pieces))
    thread_pool.run(count, order, len(pieces), share(tick, 0, 2))
    total = int(sizes.sum())
    require(total * (kind.itemsize + a.values.itemsize))
    columns, values = np.empty(total, kind), np.empty(total, a.values.dtype)
    ends, offsets = np.zeros(shape[0], np.int64), np.cumsum(sizes) - sizes

    def compute(n: int) -> None:
        rows, lo = pieces[n], int(offsets[n])
        starts, hi = a.starts[rows.start : rows.stop + 1], lo + int(sizes[n])
        own, into, numbers = np.empty(len(starts), kind), columns[lo:hi], values[lo:hi]
        count = len(starts) - 1
        csr_matmat(
            count, shape[1], starts, a.columns, a.values, b.starts, b.columns, b.values,
            own, into, numbers,
        )  # fmt: skip
        sort_rows(own, into, numbers, shape[1])
        ends[rows] = own[1:]

    thread_pool.run(compute, order, len(pieces), share(tick, 1, 2))
    return _assembled(shape, pieces, ends, offsets, sizes, columns, values, complete)


def sort_rows(starts: np.ndarray, columns: np.ndarray, values: np.ndarray, extent: int) -> None:
    """Sorts the elements of each row by columns, in place.

    Args:
        starts: The first element of each row, and the number of all elements.
        columns: The columns.
        values: The values.
        extent: The number of columns.
    """
    rows, stored = len(starts) - 1, int(starts[-1])
    try:
        from scipy.sparse._sparsetools import csr_sort_indices, csr_tocsc
    except ImportError:  # they are not public
        numbers = np.repeat(np.arange(rows), np.diff(starts))
        order = np.lexsort((columns[:stored], numbers))
        columns[:stored], values[:stored] = columns[order], values[order]
        return
    if stored < TRANSPOSED * extent:
        csr_sort_indices(rows, starts, columns, values)
        return
    # Two transpositions sort in linear time: the elements of a column come in the order of rows.
    by_columns = np.empty(extent + 1, starts.dtype), np.empty(stored, starts.dtype)
    turned = np.empty(stored, values.dtype)
    csr_tocsc(rows, extent, starts, columns[:stored], values[:stored], *by_columns, turned)
    csr_tocsc(extent, rows, *by_columns, turned, np.empty_like(starts), columns, values)


def _assembled(
    shape: tuple[int, int],
    pieces: Sequence[slice],
    ends: np.ndarray,
    offsets: np.ndarray,
    sizes: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    complete: bool,
) -> Compressed | None:
    """Joins the pieces of a product; see `_numeric`.

    Args:
        shape: The product's shape.
        pieces: The rows of each piece.
        ends: The end of each row's elements within its piece.
        offsets: The offset of each piece's elements.
        sizes: The number of each piece's elements before zeros are left out.
        columns: The columns of the elements.
        values: The values of the elements.
        complete: Whether None is returned if elements are left out.
    """
    kept = np.array([ends[p.stop - 1] if p.stop > p.start else 0 for p in pieces], np.int64)
    if (kept < sizes).any():
        if complete:
            return None
        stays = np.zeros(len(columns), np.bool_)
        for lo, count in zip(offsets.tolist(), kept.tolist(), strict=True):
            stays[lo : lo + count] = True
        columns, values = columns[stays], values[stays]
        offsets = np.cumsum(kept) - kept
    starts = np.zeros(shape[0] + 1, np.int64)
    for p, lo in zip(pieces, offsets.tolist(), strict=True):
        starts[p.start + 1 : p.stop + 1] = ends[p] + lo
    kind = index_type(len(columns), *shape)
    return Compressed(shape, starts.astype(kind), columns.astype(kind, copy=False), values)


def _of_kind(matrix: Compressed, kind: np.dtype) -> Compressed:
    starts, columns = (a.astype(kind, copy=False) for a in (matrix.starts, matrix.columns))
    return Compressed(matrix.shape, starts, np.ascontiguousarray(columns), matrix.values)
