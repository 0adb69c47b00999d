"""The tiles of one rank: reading, writing, counting and sending."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsql.core.boxes import extents
from einsql.engine.exchange import Held
from einsql.engine.ranks.messages import Count, Fetch, Fill, Handle, Paste, Read, Write
from einsql.storage import files
from einsql.storage.array_ownership import distinct, owner
from einsql.storage.fields import count_keys
from einsql.storage.out_of_memory import enough_memory

Alone = Fill | Paste | Write | Count | Fetch
"""Commands that involve no other rank."""


def obey(command: Alone, known: dict[Handle, Held], proceed: Callable[[], None]) -> object:
    """Executes a command that involves no other rank.

    Args:
        command: The command.
        known: All tiles of this rank.
        proceed: Called between tiles; raises to cancel.

    Returns:
        The answer to the driver.

    Raises:
        OperationalError: A file has changed or cannot be written, or memory is short.
    """
    with enough_memory:
        if isinstance(command, Fill):
            known[command.handle] = tiles = read(command.source, proceed)
            return nbytes(tiles)
        stored = known[command.handle]
        if isinstance(command, Paste):
            known[command.made] = _pasted(command, stored)
            return None
        if isinstance(command, Write):
            return _write(command, stored, proceed)
        if isinstance(command, Count):
            return sum(count_keys(stored[n], command.terms) for n in command.tiles)
        return _parts(command, stored)


def read(source: Read, proceed: Callable[[], None]) -> Held:
    """Reads tiles of a file; sites of one rank with equal tiles share one array.

    Raises:
        OperationalError: The file has changed since it was described.
    """
    by_content: dict[bytes, dict[str, np.ndarray]] = {}
    tiles: Held = {}
    file = files.reopen(source.file) if source.boxes else None
    for n, box in source.boxes.items():
        proceed()
        assert file is not None
        key = box.tobytes()
        if key not in by_content:
            sound = np.stack([box[:, 0], box[:, 0] + extents(box)], axis=1)
            by_content[key] = {source.name: file.read(sound)}
        tiles[n] = by_content[key]
    return tiles


def nbytes(tiles: Held) -> int:
    """Returns the bytes of tiles; shared arrays count once."""
    return sum({id(a): a.nbytes for fields in tiles.values() for a in fields.values()}.values())


def _pasted(command: Paste, tiles: Held) -> Held:
    """Returns the tiles with new values; unchanged fields are shared."""
    pasted = dict(tiles)
    for n, (at, values) in command.pieces.items():
        pasted[n] = dict(tiles[n])
        for name, piece in values.items():
            pasted[n][name] = tiles[n][name].copy()
            pasted[n][name][at] = piece
    return pasted


def _write(command: Write, tiles: Held, proceed: Callable[[], None]) -> int:
    """Writes tiles, and returns the number of bytes."""
    written = 0
    for n, box in command.boxes.items():
        proceed()
        tile = tiles[n][command.name].transpose(command.axes)
        files.write_box(command.draft, box, tile)
        written += tile.nbytes
    return written


def _parts(command: Fetch, tiles: Held) -> Sequence[np.ndarray]:
    """Returns contiguous parts of tiles, which are sent without a copy."""
    return [
        np.asarray(tiles[n][name][where], order="C")
        for n, where in command.parts
        for name in command.names
    ]


def compact(tiles: Held) -> Held:
    """Returns the tiles; arrays that keep much unused memory alive are copied."""
    return {n: {k: _own(a) for k, a in fields.items()} for n, fields in tiles.items()}


def _own(array: np.ndarray) -> np.ndarray:
    """Returns the array, copied if it is less than half of the memory that it keeps alive."""
    base = owner(array)
    total = base.nbytes if isinstance(base, np.ndarray | memoryview) else 0
    return array if total <= 2 * distinct(array).nbytes else array.copy()
