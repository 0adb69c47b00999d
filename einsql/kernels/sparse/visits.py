"""The order in which a loop nest visits sparse operands, starting from a row.

A visit of an operand whose row is known expands the row: a loop over its elements gives the labels
of the columns. An operand with two labels that are known is looked up, if one of them is the row of
the outermost loop. An operand with one known label is expanded to its element, if it has one there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.numbering import places_of
from einsql.ir.einsum.graph import EinSum

MOST = 3
"""The greatest number of sparse operands, whose orders are all compared."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit of a sparse operand.

    Attributes:
        number: The number of the operand.
        rows: The label of its rows.
        columns: The labels that its columns number, in the order of its keys.
        looks_up: Whether the columns' label is known, so that the element is looked up.
    """

    number: int
    rows: str
    columns: tuple[str, ...]
    looks_up: bool


@dataclass(frozen=True, slots=True)
class Route:
    """The visits of all sparse operands.

    Attributes:
        row: The label of the outermost loop.
        visits: The visits in order.
        target: The number of the operand whose elements are the result's keys; None for a result
            with other keys.
        computes_keys: Whether the result's keys are a row and a column of different operands.
        scatters: Whether the points of a row have any keys, for a dense result.
    """

    row: str
    visits: tuple[Visit, ...]
    target: int | None = None
    computes_keys: bool = False
    scatters: bool = False


def key_of(node: EinSum, visit: Visit) -> int:
    """The position of the key of a visit's rows in its operand."""
    return node.operands[visit.number].labels.index(visit.rows)


def routes_of(node: EinSum, driving: Sequence[int]) -> list[Route]:
    """All routes over the sparse operands of a node; none for other nodes.

    Args:
        node: The node.
        driving: The operands, each with different labels.
    """
    if not 1 <= len(driving) <= MOST or (node.sparse and len(node.keys) < 2):
        return []
    own = {n: node.operands[n].labels for n in driving}
    if all(len(labels) == 1 for labels in own.values()):
        return []  # rows of one element
    labels = list(dict.fromkeys(x for names in own.values() for x in names))
    keys = [k for k in node.keys if k in labels]
    scatters = not node.sparse and (len(keys) > 1 or (not keys and bool(node.keys)))
    scatters = scatters or any(node.axis(k).define is not None for k in node.keys)
    if scatters and (node.sparse or node.is_elementwise):
        return []
    routes = []
    for row in labels if scatters or not keys else keys[:1]:
        for visits in _orders(own, (), {row}, row):
            if scatters:
                routes.append(Route(row, visits, scatters=True))
            else:
                routes += _routes(node, own, keys, row, visits)
    return routes


def _orders(
    own: Mapping[int, tuple[str, ...]], before: tuple[Visit, ...], known: set[str], row: str
) -> Iterator[tuple[Visit, ...]]:
    left = [n for n in own if n not in {v.number for v in before}]
    if not left:
        yield before
        return
    for n in left:
        if known >= set(own[n]):
            visit = _last_visit(n, own[n], row)
            if visit is not None:
                yield from _orders(own, (*before, visit), known, row)
                return  # it only removes points
    for n in left:
        for rows in own[n]:
            columns = tuple(x for x in own[n] if x != rows)
            if rows in known and columns and not known & set(columns):
                visit = Visit(n, rows, columns, False)
                yield from _orders(own, (*before, visit), known | set(columns), row)


def _last_visit(number: int, labels: tuple[str, ...], row: str) -> Visit | None:
    """The visit of an operand whose labels are known; None if no loop finds its element."""
    if len(labels) == 1:
        return Visit(number, labels[0], (), False)
    if len(labels) > 2 or row not in labels:
        return None  # its row changes inside of the loops
    return Visit(number, row, tuple(x for x in labels if x != row), True)


def _routes(
    node: EinSum,
    own: Mapping[int, tuple[str, ...]],
    keys: Sequence[str],
    row: str,
    visits: tuple[Visit, ...],
) -> list[Route]:
    """The route of visits for a result by rows or by elements; none for other results."""
    expanded = [v for v in visits if not v.looks_up]
    if len(keys) < 2:
        return [] if node.is_elementwise else [Route(row, visits)]
    for v in visits:
        if set(own[v.number]) == set(keys):
            fits = v.looks_up or (v is visits[0] and (v.rows, *v.columns) == tuple(keys))
            if node.is_elementwise:
                fits = v is visits[0] and len(expanded) == 1
            return [Route(row, visits, v.number)] if fits else []
    chained = len(visits) == len(expanded) == 2 and expanded[1].columns == (keys[1],)
    chained = chained and len(keys) == 2 and all(len(v.columns) == 1 for v in visits)
    return [Route(row, visits, computes_keys=True)] if chained and not node.is_elementwise else []


def work_by_row(visits: Sequence[Visit], matrices: Mapping[int, Compressed]) -> np.ndarray:
    """The approximate number of points of each row of the outermost loop, and 1.

    Args:
        visits: The visits of a route.
        matrices: The matrix of each operand within the domain, by the rows of its visit.
    """
    first, *later = (v for v in visits if not v.looks_up)
    counts = matrices[first.number].counts
    work = counts.astype(np.int64)
    for v in later:
        matrix = matrices[v.number]
        if v.rows == first.rows:
            work *= matrix.counts
        elif v.rows in first.columns:
            work //= np.maximum(counts, 1)
            at = first.columns.index(v.rows)
            work *= _summed(matrices[first.number], at, matrix.counts)
        else:
            work *= max(1, matrix.stored // max(1, matrix.shape[0]))
    return work + 1


def work_until(visits: Sequence[Visit], matrices: Mapping[int, Compressed]) -> Callable[[int], int]:
    """A function from a row to the sum of `work_by_row` over the rows up to it, and of its own.

    The sum of one operand follows from the starts of rows, of which the caller reads few.

    Args:
        visits: The visits of a route.
        matrices: As of `work_by_row`.
    """
    expanded = [v for v in visits if not v.looks_up]
    if len(expanded) > 1:
        return np.cumsum(work_by_row(expanded, matrices)).item
    start_of = matrices[expanded[0].number].starts.item
    shift = 1 - start_of(0)
    return lambda row: start_of(row + 1) + row + shift


def _summed(matrix: Compressed, key: int, counts: np.ndarray) -> np.ndarray:
    """The sum of counts over the elements of each row.

    Columns may be out of bounds if the owner has changed them; kernels raise an error for these.

    Args:
        matrix: The matrix.
        key: The number of the key of its columns that `counts` has.
        counts: The counts.
    """
    before = np.zeros(matrix.stored + 1, np.int64)
    places = places_of(matrix.columns, matrix.extents[1:])[key]
    np.cumsum(counts.take(places, mode="clip"), out=before[1:])
    summed: np.ndarray = before[matrix.starts[1:]] - before[matrix.starts[:-1]]
    return summed


Counts = Callable[[int, str], np.ndarray]
"""The number of elements of an operand for each value of a label within the domain."""


def points_of(route: Route, stored: Mapping[int, int], counts: Counts) -> float:
    """The approximate number of points of all loops of a route.

    Args:
        route: The route.
        stored: The number of elements of each operand.
        counts: The numbers of elements by label.
    """
    first, *later = (v for v in route.visits if not v.looks_up)
    points = total = float(stored[first.number])
    for v in later:
        if v.rows in (first.rows, *first.columns):
            each = counts(first.number, v.rows).astype(np.float64)  # int32 products overflow
            pairs = float(np.dot(each, counts(v.number, v.rows)))
            points *= pairs / max(1, stored[first.number])
        else:
            points *= stored[v.number] / max(1, len(counts(v.number, v.rows)))
        total += points
    return total
