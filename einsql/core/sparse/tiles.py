"""Sparse tiles: parts of a sparse relation that sites store, cut, send and assemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import cast

import numpy as np

from einsql.core.schema import PRESENT, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import Compressed, at_cells, sorted_matrix
from einsql.core.sparse.matrix import Fills, Sparse, sparse_of
from einsql.core.sparse.numbering import Extents, index_type, matrix_shape, numbers_of

_COUNTS = 16
"""Bytes of a packed tile before its fills: the number of elements, and whether there are fills."""

Origin = tuple[int, ...]
"""The position of a tile's first keys within another tile."""


def elements_of(fields: Sparse) -> Elements:
    """The elements by rows of the first key, whose columns increase.

    The arrays may be those of the fields.
    """
    matrix = fields.taken()
    names = [name for name in fields.names if name != PRESENT]
    if not fields.turned and matrix.increases:
        return Elements(matrix, {n: fields.taken(n).values for n in names}, fields.fills)
    numbers = np.arange(matrix.stored)
    if fields.turned:
        from scipy.sparse import csr_array  # takes 0.2 s, and few statements need it

        csc = csr_array((numbers, matrix.columns, matrix.starts), shape=matrix.shape).tocsc()
        ordered = Compressed(matrix.shape[::-1], csc.indptr, csc.indices, csc.data)
    else:
        ordered, _ = sorted_matrix(matrix.extents, matrix.rows, matrix.columns)
    values = {n: fields.taken(n).values[ordered.values] for n in names}
    return Elements(ordered.of(ordered.columns), values, fields.fills)


def present_elements(arrays: Mapping[str, np.ndarray]) -> Elements:
    """The present elements of dense arrays: all of them without a flag."""
    flags = arrays.get(PRESENT)
    if flags is None:
        flags = np.ones(next(iter(arrays.values())).shape, np.bool_)
    shape = matrix_shape(flags.shape)
    rows, columns = np.nonzero(flags.reshape(shape))
    kind = index_type(len(rows), *shape)
    starts = np.zeros(shape[0] + 1, kind)
    np.cumsum(np.count_nonzero(flags.reshape(shape), axis=1), out=starts[1:])
    structure = Compressed(flags.shape, starts, columns.astype(kind), columns)
    others = (n for n in arrays if n != PRESENT)
    values = {n: np.asarray(arrays[n]).reshape(shape)[rows, columns] for n in others}
    return Elements(structure, values)


def as_elements(arrays: Mapping[str, np.ndarray]) -> Elements:
    """A result of a kernel as sparse elements."""
    few = sparse_of(arrays)
    if few is None:
        return present_elements(arrays)
    return stored_elements(arrays) or elements_of(few)


def stored_elements(fields: Mapping[str, np.ndarray]) -> Elements | None:
    """A tile as sparse elements; None for arrays."""
    few = sparse_of(fields)
    return cast("Elements", few) if few is not None and few.is_tile else None


def part_of(
    fields: Mapping[str, np.ndarray], at: tuple[slice | EllipsisType, ...]
) -> Mapping[str, np.ndarray]:
    """A part of a tile, as views where possible.

    Args:
        fields: The fields of the tile, sparse or arrays.
        at: A slice with a start and a stop for each axis, and an ellipsis.
    """
    few = sparse_of(fields)
    if few is None:
        return {name: a[at] for name, a in fields.items()}
    return few.narrowed([slice(s.start, max(s.start, s.stop)) for s in at if isinstance(s, slice)])


def renamed_tile(
    fields: Mapping[str, np.ndarray], names: Mapping[str, str]
) -> Mapping[str, np.ndarray]:
    """Some fields of a tile under new names.

    Args:
        fields: The fields, sparse or arrays.
        names: The old name of each field by its new name.
    """
    few = stored_elements(fields)
    if few is None:
        return {new: fields[old] for new, old in names.items()}
    values = {new: few.values_by_name[old] for new, old in names.items() if old != PRESENT}
    if values.keys() == few.values_by_name.keys() and all(a == b for a, b in names.items()):
        return few  # kernels keep their arrangement of the object
    fills = few.fills
    if fills is not None:
        fills = {new: fills[old] for new, old in names.items() if old != PRESENT}
    return Elements(few.structure, values, fills)


def dtypes_of(schema: Schema) -> dict[str, np.dtype]:
    """The types of the values of sparse tiles: of all fields but the flag."""
    return {f.name: f.dtype.numpy for f in schema.fields if f.name != PRESENT}


def empty_tile(extents: Extents, dtypes: Mapping[str, np.dtype]) -> Elements:
    """A tile without stored elements, and without keys."""
    shape = matrix_shape(extents)
    kind = index_type(*shape)
    none = np.zeros(0, kind)
    structure = Compressed(extents, np.zeros(shape[0] + 1, kind), none, none)
    return Elements(structure, {n: np.zeros(0, dtype) for n, dtype in dtypes.items()})


def assembled(pieces: Sequence[tuple[Origin, Elements]], extents: Extents) -> Elements:
    """One tile of disjoint pieces, at least one, in new arrays.

    Args:
        pieces: The pieces with their positions in the tile.
        extents: The numbers of values of the keys of the tile.
    """
    cells = [_cells(e.structure, at, extents) for at, e in pieces]
    structure, _ = at_cells(extents, np.concatenate(cells))
    first = pieces[0][1]
    values = {
        n: np.concatenate([e.values_by_name[n] for _, e in pieces])[structure.values]
        for n in first.values_by_name
    }
    return Elements(structure.of(structure.columns), values, _fills([e for _, e in pieces]))


def _cells(piece: Compressed, origin: Origin, extents: Extents) -> np.ndarray:
    """The positions of a piece's elements in key order of its tile."""
    pairs = zip(piece.positions, origin, strict=True)
    return numbers_of([place.astype(np.int64) + at for place, at in pairs], extents)


def _fills(pieces: Sequence[Elements]) -> Fills | None:
    """The values of the keys that no piece stores; a piece that stores all of its keys has any."""
    partly = [e for e in pieces if e.structure.stored < e.structure.size]
    return next((e.fills for e in partly or pieces if partly or e.fills is not None), None)


# ---- tiles as bytes


def packed_bytes(extents: Extents, stored: int, width: int) -> int:
    """The size of a packed tile.

    Args:
        extents: The number of values of each key.
        stored: The number of stored elements.
        width: Bytes of the values of an element.
    """
    rows, columns = matrix_shape(extents)
    index = index_type(stored, rows, columns).itemsize
    return _header_bytes(width) + index * (min(rows + 1, stored) + stored) + width * stored


def _header_bytes(width: int) -> int:
    """The size of the counts and of the values of other keys, whose arrays are aligned behind."""
    return _COUNTS + -(-width // 8) * 8


def packed(tile: Elements, dtypes: Mapping[str, np.dtype]) -> np.ndarray:
    """The tile as bytes: a header, then the values, and the positions in CSR or by element.

    The starts of rows take the place of the rows of elements where there are fewer rows.

    Args:
        tile: The tile.
        dtypes: The type of each value, in the order of the bytes.
    """
    structure = tile.structure
    kind = index_type(structure.stored, *structure.shape)
    by_element = structure.stored < structure.shape[0] + 1
    firsts = structure.rows if by_element else structure.starts
    arrays = [
        *(tile.values_by_name[n].astype(d, copy=False) for n, d in dtypes.items()),
        firsts.astype(kind, copy=False),
        structure.columns.astype(kind, copy=False),
    ]
    header = np.zeros(_header_bytes(sum(d.itemsize for d in dtypes.values())), np.uint8)
    header[:_COUNTS].view(np.int64)[:] = structure.stored, tile.filled
    if tile.filled:
        fills = b"".join(tile.fill(n).astype(d).tobytes() for n, d in dtypes.items())
        header[_COUNTS : _COUNTS + len(fills)] = np.frombuffer(fills, np.uint8)
    parts = [header, *sorted(arrays, key=lambda a: -a.itemsize)]
    return np.concatenate([np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in parts])


def unpacked(buffer: np.ndarray, extents: Extents, dtypes: Mapping[str, np.dtype]) -> Elements:
    """The tile of `packed`, as views of the bytes.

    Args:
        buffer: The bytes.
        extents: The numbers of values of the keys.
        dtypes: The type of each value, in the order of the bytes.
    """
    stored, is_filled = buffer[:_COUNTS].view(np.int64).tolist()
    fills: dict[str, np.ndarray] = {}
    at = _COUNTS
    for name, dtype in dtypes.items():
        fills[name] = np.frombuffer(buffer[at : at + dtype.itemsize].tobytes(), dtype)[0:1].reshape(
            ()
        )
        at += dtype.itemsize
    shape = matrix_shape(extents)
    kind = index_type(stored, *shape)
    by_element = stored < shape[0] + 1
    sizes = [(dtype, stored) for dtype in dtypes.values()]
    sizes += [(kind, stored if by_element else shape[0] + 1), (kind, stored)]
    arrays: dict[int, np.ndarray] = {}
    at = _header_bytes(at - _COUNTS)
    for n in sorted(range(len(sizes)), key=lambda n: -sizes[n][0].itemsize):
        dtype, count = sizes[n]
        arrays[n] = buffer[at : at + count * dtype.itemsize].view(dtype)
        at += count * dtype.itemsize
    starts, columns = arrays[len(dtypes)], arrays[len(dtypes) + 1]
    if by_element:
        counts = np.bincount(starts, minlength=shape[0])
        starts = np.zeros(shape[0] + 1, kind)
        np.cumsum(counts, out=starts[1:])
    structure = Compressed(extents, starts, columns, columns)
    return Elements(
        structure, {name: arrays[n] for n, name in enumerate(dtypes)}, fills if is_filled else None
    )
