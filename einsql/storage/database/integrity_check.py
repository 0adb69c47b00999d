"""PRAGMA integrity_check: verifies a database file and its payload directory completely."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.errors import OperationalError
from einsql.storage.database.checks import CHUNK, checksums
from einsql.storage.database.directory import payload_of
from einsql.storage.database.layout import Part
from einsql.storage.database.payload import frame_of, tile_text
from einsql.storage.database.stored import StoredFields
from einsql.storage.objects import Damaged, Definition, Object, Tensor, bare_name, kind_of

_AT_ONCE = 16
"""Chunks per read: 16 MiB, which several threads verify."""
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
        elif (payload := payload_of(item.relation.fields)) is not None:
            for problem in _of_payload(payload, payload.schema, step):
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


# ---- payloads


def _of_payload(stored: StoredFields, schema: Schema, step: Callable[[int], None]) -> Iterator[str]:
    """The faults of a payload. It is read, not mapped: a failing disk raises no SIGBUS then."""
    try:
        # Opening a FIFO of that name would block until it has a writer.
        handle = os.open(stored.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield f"its payload '{stored.path}' is missing"
        return
    except OSError as error:
        yield f"its payload '{stored.path}' cannot be read: {error.strerror}"
        return
    try:
        for problem in _of_bytes(handle, stored, schema, step):
            yield f"its payload '{stored.path}' is damaged: {problem}"
    except OSError as error:
        yield f"its payload '{stored.path}' cannot be read: {error.strerror}"
    finally:
        os.close(handle)


def _of_bytes(
    handle: int, stored: StoredFields, schema: Schema, step: Callable[[int], None]
) -> Iterator[str]:
    layout, status = stored.layout, os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        yield "it is no regular file"
        return
    if status.st_size != layout.size:
        yield f"it has {status.st_size:,} bytes, and should have {layout.size:,}"
        return
    if frame_of(layout, schema, lambda lo, hi: _read(handle, lo, hi)) != layout.frame:
        yield "the checksum of its frame is wrong"
        return
    sums = np.frombuffer(_read(handle, layout.sums, layout.sums + 4 * layout.count), "<u4")
    for part in layout.parts:
        wrong = _wrong_tiles(handle, part, schema, sums, step)
        if wrong:
            where = tile_text(part, schema, wrong[0])
            count = -(-_nbytes(part, schema) // CHUNK)
            yield (
                f"the checksums of {len(wrong):,} of {count:,} tiles of {part.name} are wrong, "
                f"first that of tile {wrong[0]} ({where})"
            )


def _wrong_tiles(
    handle: int, part: Part, schema: Schema, sums: np.ndarray, step: Callable[[int], None]
) -> list[int]:
    """Numbers of the chunks of a field whose checksums differ."""
    wrong: list[int] = []
    nbytes = _nbytes(part, schema)
    for start in range(0, nbytes, _AT_ONCE * CHUNK):
        end = min(nbytes, start + _AT_ONCE * CHUNK)
        data = memoryview(_read(handle, part.offset + start, part.offset + end))
        actual = checksums([data[n : n + CHUNK] for n in range(0, len(data), CHUNK)])
        first = start // CHUNK
        wrong += [
            first + n for n, crc in enumerate(actual) if crc != int(sums[part.first + first + n])
        ]
        step(end - start)
    return wrong


def _nbytes(part: Part, schema: Schema) -> int:
    return prod(part.shape) * schema.dtype(part.name).numpy.itemsize


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
