"""Zarr stores of version 3: directories of metadata and chunks, read and written by zarr.

https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html

The metadata are checked before zarr reads them: shapes, types and codecs must be supported.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.core import boxes
from einsql.core.schema import DType
from einsql.errors import NotSupportedError, OperationalError
from einsql.storage.files.drafts import part_name, synchronise, writing
from einsql.storage.files.json_text import parsed
from einsql.storage.files.mapped import RegularFile, pick, refusing
from einsql.storage.files.regular_files import open_regular
from einsql.storage.files.rows import damaged
from einsql.storage.files.tensor import AT_ONCE, Content, Pieces, slices, unmapped
from einsql.storage.files.writing import Column
from einsql.storage.out_of_memory import Room

NODE = "zarr.json"
LONGEST = 2**24
"""Greatest size of metadata in bytes."""
MOST_CHUNKS = 2**22
"""Greatest number of chunks of an array; it limits the memory of their list."""
AT_A_TIME = 2**12
"""Chunks that are read together. If an array has more, its existing chunks are listed first."""
MOST_CODECS = 8
"""Greatest number of codecs of a chunk; it limits the time of their checks."""
MOST_IN_SHARD = 2**15
"""Greatest number of chunks in a shard."""
LEAST_CHUNK = 2**26
"""Size of a chunk in bytes that is permitted for arrays of any size."""
_DEPTH = 8
"""Greatest nesting of groups."""
_MOST_NODES = 2**16
"""Greatest number of arrays in a group; it limits the time of a search."""
_TYPES = {d.numpy_name: d for d in DType if d is not DType.BFLOAT16}
_CODECS = {"bytes", "endian", "transpose", "gzip", "zstd", "blosc", "crc32c", "sharding_indexed"}
_NUMBER = re.compile(r"[0-9]+")
_CHUNK = 2**22
"""Size of a written chunk in bytes."""


def find(path: str, member: str | None, memory: Room | None = None) -> tuple[RegularFile, Content]:
    """Finds an array of a store by its name; a store of a single array has no names.

    Raises:
        OperationalError: The path is no store, the store is damaged, has no such array or links
            out of its directory, or zarr is not installed.
    """
    with refusing(path):
        if os.path.exists(path) and not os.path.isfile(os.path.join(path, NODE)):
            raise OperationalError(
                f"'{path}' is no Zarr store of version 3: it has no file {NODE}",
                hint="Version 2 has other files; zarr's command line migrates them.",
            )
        file = RegularFile(path, NODE, memory)
        _zarr(path)
        with damaged(file):
            node = _node(file, "")
            if node.get("node_type") == "array":
                if member is not None:
                    raise file.refusal(
                        f"has no array '{member}'", "It has one array without a name."
                    )
                return file, _content(file, None, node)
            names = dict(_arrays(file, ""))
            name = pick(file, list(names), member)
            return RegularFile(path, f"{name}/{NODE}", memory), _content(file, name, names[name])


def _zarr(path: str) -> Any:
    """Imports zarr and einsql's stores and codecs for it."""
    try:
        import zarr  # an extra, which few sessions need

        from einsql.storage.files import zarr_codecs
    except ImportError as error:
        raise OperationalError(
            f"'{path}' is a Zarr store, and the package zarr is not installed",
            hint="pip install 'einsql[formats]' installs it.",
        ) from error
    return zarr, zarr_codecs


def _node(file: RegularFile, group: str) -> Mapping[str, Any]:
    from einsql.storage.files.zarr_codecs import checked_file

    key = os.path.join(group, NODE)
    checked_file(file.absolute, key)
    with open_regular(os.path.join(file.absolute, key)) as text:
        written = text.read(LONGEST + 1)
    if len(written) > LONGEST:
        raise file.refusal(f"is damaged: {key} has more than {LONGEST} bytes")
    metadata = parsed(written.decode("utf-8"))
    if not isinstance(metadata, dict) or metadata.get("zarr_format") != 3:
        raise file.refusal(f"is damaged: {key} is no metadata of Zarr's version 3")
    return metadata


def _arrays(
    file: RegularFile, group: str, depth: int = 0
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth > _DEPTH:
        raise file.refusal(f"has more than {_DEPTH} nested groups")
    entries = sorted(os.listdir(os.path.join(file.absolute, group)))
    if len(entries) > _MOST_NODES:
        raise file.refusal(f"has more than {_MOST_NODES} arrays in a group")
    for entry in entries:
        name = f"{group}/{entry}" if group else entry
        if not os.path.isfile(os.path.join(file.absolute, name, NODE)):
            continue
        node = _node(file, name)
        if node.get("node_type") == "array":
            yield name, node
        else:
            yield from _arrays(file, name, depth + 1)


def _content(file: RegularFile, name: str | None, node: Mapping[str, Any]) -> Content:
    """Opens an array after checks of its metadata."""
    shape, kind = node.get("shape"), node.get("data_type")
    grid = node.get("chunk_grid")
    chunks = grid.get("configuration", {}).get("chunk_shape") if isinstance(grid, dict) else None
    sound = (
        isinstance(shape, list)
        and isinstance(chunks, list)
        and len(shape) == len(chunks)
        and all(type(n) is int for n in (*shape, *chunks))
        and all(n > 0 for n in chunks)
        and isinstance(grid, dict)
        and grid.get("name") == "regular"
    )
    if not sound or not isinstance(shape, list) or not isinstance(chunks, list):
        raise file.refusal("is damaged: its shape, or the shape of its chunks, is wrong")
    file.check_shape(shape)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise file.no_type(str(kind))
    dtype = _TYPES[kind]
    _check_codecs(file, node.get("codecs"), chunks)
    size = prod(shape) * dtype.numpy.itemsize
    chunk = prod(chunks) * dtype.numpy.itemsize
    many = prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    if chunk > max(LEAST_CHUNK, 2 * size) or many > MOST_CHUNKS:
        raise file.refusal(f"is damaged: it declares {many} chunks of {chunk} bytes")
    array = _opened(file, name, chunk)
    if array.shape != tuple(shape) or np.dtype(array.dtype) != dtype.numpy:
        raise file.refusal("has changed while it was read", "Run the statement again.")

    def parts(wanted: np.ndarray) -> Pieces:
        step = np.array(chunks, np.int64)[:, None]
        cells = np.stack([wanted[:, 0] // step[:, 0], -(-wanted[:, 1] // step[:, 0])], axis=-1)
        known = _present(file, name, len(shape)) if many > AT_A_TIME else None
        for some in boxes.runs(cells, max(1, min(AT_A_TIME, AT_ONCE // chunk))):
            box = boxes.common(some * step, wanted)
            with damaged(file):
                if known is None:
                    yield box, np.asarray(array[slices(box)])
                    continue
                block = np.full(boxes.extents(box), array.fill_value, dtype.numpy)
                inside = ((known >= some[:, 0]) & (known < some[:, 1])).all(axis=1)
                for cell in known[inside]:
                    one = boxes.common(np.stack([cell, cell + 1], axis=-1) * step, box)
                    block[slices(one - box[:, :1])] = array[slices(one)]
                yield box, block

    return unmapped(name, dtype, tuple(shape), parts=parts)


def _present(file: RegularFile, name: str | None, axes: int) -> np.ndarray | None:
    """Positions of the chunks with a file, int64 (chunks, axes); None if a link hides some."""
    root = os.path.join(file.absolute, name or "")
    positions: list[list[int]] = []
    for folder, folders, names in os.walk(root):
        if any(os.path.islink(os.path.join(folder, f)) for f in folders):
            return None
        before = _NUMBER.findall(os.path.relpath(folder, root))  # such as c/0/1 or c.0.1
        for entry in names:
            numbers = [*before, *_NUMBER.findall(entry)][-axes:]
            if len(numbers) == axes:
                positions.append([int(n) for n in numbers])
    with damaged(file):
        return np.array(positions, np.int64).reshape(-1, axes)


def _check_codecs(file: RegularFile, codecs: object, chunks: Sequence[int], depth: int = 0) -> None:
    """Refuses codecs that are not in the format's core, as others could run code."""
    sound = isinstance(codecs, list) and depth < 3 and len(codecs) <= MOST_CODECS
    for codec in codecs if isinstance(codecs, list) else ():
        name = codec.get("name") if isinstance(codec, dict) else codec
        if name not in _CODECS:
            raise file.refusal(f"has chunks of the codec {name}, which einsql does not read")
        inner = codec.get("configuration", {}) if isinstance(codec, dict) else {}
        sound = sound and isinstance(inner, dict)
        if name == "sharding_indexed" and sound:
            within = inner.get("chunk_shape")
            shaped = isinstance(within, list) and len(within) == len(chunks)
            if not isinstance(within, list) or not (
                shaped and all(type(n) is int and n > 0 for n in within)
            ):
                raise file.refusal("is damaged: the chunks in its shards have a wrong shape")
            if prod(-(-n // c) for n, c in zip(chunks, within, strict=True)) > MOST_IN_SHARD:
                raise file.refusal(f"has more than {MOST_IN_SHARD} chunks in a shard")
            _check_codecs(file, inner.get("codecs"), within, depth + 1)
            _check_codecs(file, inner.get("index_codecs"), (), depth + 1)
    if not sound:
        raise file.refusal("is damaged: its codecs are wrong")


def _opened(file: RegularFile, name: str | None, chunk: int) -> Any:
    zarr, codecs = _zarr(file.path)
    store = codecs.ConfinedStore(file.absolute, read_only=True)
    with zarr.config.set(codecs.CONFIG):
        array = zarr.open_array(store=store, path=name, mode="r", zarr_format=3)
    array.store.most = 2 * chunk + 2**20
    return array


def write(path: str, shape: tuple[int, ...], columns: Sequence[Column]) -> None:
    """Writes a store: a single array without a name set by the user, or a group of arrays.

    An existing store is replaced when the new one is complete.

    Raises:
        OperationalError: The store cannot be written, or the path exists and is no store.
        NotSupportedError: Zarr lacks the type.
    """
    zarr, _ = _zarr(path)
    if any(c.dtype is DType.BFLOAT16 for c in columns):
        raise NotSupportedError(
            "A Zarr store cannot hold BFLOAT16",
            hint="A .safetensors or .arrow file can; or CAST the values to FLOAT, which is exact.",
        )
    target = os.path.realpath(path)
    if os.path.lexists(target) and not os.path.isfile(os.path.join(target, NODE)):
        raise OperationalError(f"'{path}' cannot be written: it exists and is no Zarr store")
    part = part_name(target)
    with writing(path):
        try:
            os.mkdir(part)
            unnamed = len(columns) == 1 and not columns[0].named
            if not unnamed:
                zarr.create_group(part, zarr_format=3)
            for column in columns:
                _write(zarr, part, None if unnamed else column.name, shape, column)
            _synchronise(part)
            _replace(part, target)
            synchronise(os.path.dirname(target))
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _write(zarr: Any, part: str, name: str | None, shape: tuple[int, ...], column: Column) -> None:
    most = max(1, _CHUNK // column.dtype.numpy.itemsize)
    bounds = np.array([(0, n) for n in shape], np.int64).reshape(-1, 2)
    first = next(boxes.runs(bounds, most), np.ones((len(shape), 2), np.int64) * [0, 1])
    array = zarr.create_array(
        part,
        name=name,
        shape=shape,
        dtype=column.dtype.numpy,
        zarr_format=3,
        chunks=tuple(boxes.extents(first).tolist()),
        fill_value=0,
    )
    for box, piece in column.pieces(most):  # each piece is a chunk
        array[slices(box)] = piece


def _synchronise(part: str) -> None:
    for folder, _, names in os.walk(part):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        synchronise(folder)


def _replace(part: str, target: str) -> None:
    """Replaces a directory by another one; the old one is restored if that fails."""
    if not os.path.lexists(target):
        os.rename(part, target)
        return
    old = part_name(target)
    os.rename(target, old)
    try:
        os.rename(part, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
