"""PRAGMA integrity_check: verifies a database file and its payload directory completely."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.errors import OperationalError
from einsql.storage.database.checks import checksums
from einsql.storage.database.layout import CSR, Part, Segment
from einsql.storage.database.payload import frame_of
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.sparse_blocks import rows_text, spans_in
from einsql.storage.database.stored import FieldsInFiles
from einsql.storage.database.tiles.tile_grid import TileGrid
from einsql.storage.objects import Damaged, Definition, Object, Tensor, bare_name, kind_of

_AT_ONCE = 16
"""Units that several threads verify: 16 MiB."""
_PARSING = 2**12
"""Bytes of a payload that are read in the time of parsing one character; weighs progress."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a database.

    Attributes:
        name: The affected object or file.
        problem: The fault.
        remedy: The user's way out.
    """

    name: str
    problem: str
    remedy: str


def findings(
    objects: Mapping[str, Object],
    is_current: Callable[[str, Object], bool],
    tick: Callable[[float], None],
) -> Iterator[Finding]:
    """Checks the objects of a commit: rows, definitions and payloads.

    Args:
        objects: The objects by lower-case name.
        is_current: Whether a name still refers to the object: later commits remove payloads.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
    """
    total = 1 + sum(map(_work, objects.values()))
    done = 0

    def step(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        tick(min(1.0, done / total))

    tick(0.0)
    for low, item in sorted(objects.items()):
        if isinstance(item, Damaged):
            problem = f"its row in the catalog is damaged: {item.fault}"
            yield Finding(item.name, problem, _remedy(item))
        elif isinstance(item, Definition):
            yield from _of_definition(item)
            step(_work(item))
        elif isinstance(item.relation.fields, FieldsInFiles):
            for problem in _of_segments(item.relation.fields, step):
                if is_current(low, item):
                    yield Finding(item.name, problem, _remedy(item))


def stray(path: str) -> Finding:
    """The finding for an einsql file that belongs to no object."""
    part = path.endswith(".part")
    problem = "an unfinished file is left over" if part else "the file belongs to no tensor"
    return Finding(path, problem, "VACUUM removes it; so does opening the database for writing.")


def _work(item: Object) -> int:
    """The work for an object, in bytes of payloads."""
    if isinstance(item, Definition):
        return _PARSING * len(item.text)
    layout = item.relation.fields.layout if isinstance(item, Tensor) else None
    return 0 if layout is None else layout.size


def _remedy(item: Object) -> str:
    kind = kind_of(item).upper().replace("OBJECT", "VIEW")
    name = bare_name(item)
    return f'Restore the database from a copy, or DROP {kind} "{name}" and make it again.'


def _of_definition(item: Definition) -> Iterator[Finding]:
    try:
        _ = item.body
    except OperationalError as error:
        if item.fault:
            problem = f"its definition cannot be read: {item.fault}"
            yield Finding(item.name, problem, _remedy(item))
        else:
            raise error


# ---- segments


def _of_segments(stored: FieldsInFiles, step: Callable[[int], None]) -> Iterator[str]:
    """The faults of the segments of a tensor, of the newest versions of its tiles."""
    entries, base = stored.layout.index.entries, stored.base
    if stored.layout.base.format == CSR:
        yield from _of_file(base, step, lambda part: _base_units(base, part, entries["tile"][:0]))
        for number, file in stored.newer.items():
            here = entries[entries["segment"] == number]
            yield from _of_file(file, step, partial(_block_units, file, stored, here))
        return
    grid = stored.layout.grid(base.schema)

    def base_units(part: Part) -> list[_Unit]:
        is_full = part.shape == base.schema.shape
        return _base_units(base, part, entries["tile"] if is_full else entries["tile"][:0])

    yield from _of_file(base, step, base_units)
    for number, file in stored.newer.items():
        assert grid is not None  # there are newer tiles
        here = entries[entries["segment"] == number]
        yield from _of_file(file, step, partial(_newer_units, file, grid, here))


def _of_file(
    file: SegmentFile,
    step: Callable[[int], None],
    units: Callable[[Part], list[_Unit]],
) -> Iterator[str]:
    """The faults of a file. It is read, not mapped: a failing disk raises no SIGBUS then.

    Args:
        file: The file.
        step: Callback with the number of bytes after each piece.
        units: Returns the units of a part.
    """
    try:
        # Opening a FIFO of that name would block until it has a writer.
        handle = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield f"its payload '{file.path}' is missing"
        return
    except OSError as error:
        yield f"its payload '{file.path}' cannot be read: {error.strerror}"
        return
    try:
        for problem in _of_bytes(handle, file.segment, file.schema, step, units):
            yield f"its payload '{file.path}' is damaged: {problem}"
    except OSError as error:
        yield f"its payload '{file.path}' cannot be read: {error.strerror}"
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Bytes with a checksum.

    Attributes:
        lo: The offset of the first byte in the part.
        hi: The offset of the end.
        row: The number of the checksum among those of the part.
        tile: The number of the tile.
        where: Returns its keys.
    """

    lo: int
    hi: int
    row: int
    tile: int
    where: Callable[[], str]


def _base_units(file: SegmentFile, part: Part, outdated: np.ndarray) -> list[_Unit]:
    units = file.units[part.name]
    numbers = np.setdiff1d(np.arange(units.count), outdated)
    return [
        _Unit(lo, hi, n, n, partial(file.keys_of, part, n))
        for n, (lo, hi) in zip(numbers.tolist(), units.spans(numbers).tolist(), strict=True)
    ]


def _newer_units(file: SegmentFile, grid: TileGrid, entries: np.ndarray, part: Part) -> list[_Unit]:
    itemsize = file.itemsize(part)
    spans = grid.spans(entries["tile"], grid.shape)
    sizes = ((spans[:, 1] - spans[:, 0]) * itemsize).tolist()
    return [
        _Unit(
            start * itemsize, start * itemsize + size, row, tile, partial(file.keys_in, grid, tile)
        )
        for (tile, start, _, row), size in zip(entries.tolist(), sizes, strict=True)
    ]


def _block_units(
    file: SegmentFile, stored: FieldsInFiles, entries: np.ndarray, part: Part
) -> list[_Unit]:
    key = stored.schema.keys[0]
    spans = spans_in(part.name, stored.schema, entries) * file.itemsize(part)
    return [
        _Unit(lo, hi, int(row), int(row), partial(rows_text, key, int(begin), int(end)))
        for (lo, hi), begin, end, row in zip(
            spans.tolist(), entries["tile"], entries["end"], entries["row"], strict=True
        )
    ]


def _of_bytes(
    handle: int,
    segment: Segment,
    schema: Schema,
    step: Callable[[int], None],
    units: Callable[[Part], list[_Unit]],
) -> Iterator[str]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        yield "it is no regular file"
        return
    if status.st_size != segment.size:
        yield f"it has {status.st_size:,} bytes, and should have {segment.size:,}"
        return
    if frame_of(segment, schema, lambda lo, hi: _read(handle, lo, hi)) != segment.frame:
        yield "the checksum of its frame is wrong"
        return
    sums = np.frombuffer(_read(handle, segment.sums, segment.sums + 4 * segment.count), "<u4")
    for part in segment.parts:
        listed = units(part)
        wrong = _wrong_units(handle, part.offset, listed, segment.sums_of(part, sums), step)
        if wrong:
            yield (
                f"the checksums of {len(wrong):,} of {len(listed):,} tiles of {part.name} are "
                f"wrong, first that of tile {wrong[0].tile} ({wrong[0].where()})"
            )


def _wrong_units(
    handle: int, offset: int, units: list[_Unit], sums: np.ndarray, step: Callable[[int], None]
) -> list[_Unit]:
    """The units whose checksums differ."""
    wrong: list[_Unit] = []
    for first in range(0, len(units), _AT_ONCE):
        some = units[first : first + _AT_ONCE]
        pieces = [memoryview(_read(handle, offset + u.lo, offset + u.hi)) for u in some]
        actual = checksums(pieces)
        wrong += [u for u, crc in zip(some, actual, strict=True) if crc != int(sums[u.row])]
        step(sum(map(len, pieces)))
    return wrong


def _read(handle: int, lo: int, hi: int) -> bytes:
    """Bytes of a file from `lo` to `hi`, or to its end."""
    pieces = []
    while lo < hi:
        piece = os.pread(handle, hi - lo, lo)
        if not piece:
            break
        pieces.append(piece)
        lo += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
