"""The .safetensors format: a length, a JSON header, then the bytes of every tensor.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import IO, Any

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.storage.files.json_text import parsed
from einsql.storage.files.mapped import Mapped
from einsql.storage.files.stacks import picked
from einsql.storage.files.tensor import Content, single

LONGEST = 100_000_000
"""Greatest size of a header in bytes, by the format."""
_METADATA = "__metadata__"
_NAMES = {
    DType.BOOLEAN: "BOOL",
    DType.TINYINT: "I8",
    DType.INTEGER: "I32",
    DType.BIGINT: "I64",
    DType.HALF: "F16",
    DType.BFLOAT16: "BF16",
    DType.FLOAT: "F32",
    DType.DOUBLE: "F64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class _Entry:
    """The header entry of a tensor; offsets are in bytes from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    lo: int
    hi: int


def find(file: Mapped, member: str | None) -> Content:
    """Finds a tensor of a .safetensors file by its name.

    Raises:
        OperationalError: The file is damaged, has no such member, or the member's type is
            no tensor type.
    """
    header, start = _header(file)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(t, str) for t in metadata.values()):
        raise file.refusal(f"is damaged: its {_METADATA} are no texts")
    entries = {name: _entry(file, name, description) for name, description in header.items()}
    _check_ranges(file, entries, start)
    return picked(
        file, list(entries), member, lambda name: _content(file, name, entries[name], start)
    )


def _content(file: Mapped, name: str, entry: _Entry, start: int) -> Content:
    dtype = _TYPES.get(entry.dtype)
    if dtype is None:
        raise file.refusal(
            f"holds {entry.dtype}, which is no tensor type",
            f"Types are {', '.join(_TYPES)}; convert the tensor to one of them.",
        )
    stored = dtype.numpy.newbyteorder("<")
    return single(name, dtype, file.view(start + entry.lo, stored, entry.shape))


def _header(file: Mapped) -> tuple[dict[str, Any], int]:
    """The header and the offset of its end."""
    length = int.from_bytes(file.memory[:8], "little")
    if length > LONGEST or file.memory[8:9] != b"{":
        raise file.refusal("is no .safetensors file: its first bytes are wrong")
    if 8 + length > file.size:
        raise file.refusal("is truncated: its header is not complete")
    try:
        header = parsed(file.memory[8 : 8 + length].decode("utf-8"), strict=True)
    except Exception as error:  # the parser may raise any exception
        raise file.refusal(f"is damaged: its header is wrong: {error}") from error
    return header, 8 + length


def _entry(file: Mapped, name: str, description: object) -> _Entry:
    """Parses an entry of the header and checks its size."""
    match description:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [lo, hi], **rest}:
            sound = not rest and all(type(n) is int for n in (*shape, lo, hi))
        case _:
            sound = False
    if not sound:
        raise file.refusal(f"is damaged: its header describes no tensor '{name}'")
    file.check_shape(shape)
    if kind in _TYPES and hi - lo != prod(shape) * _TYPES[kind].numpy.itemsize:
        raise file.refusal(f"is damaged: '{name}' has not the size of its shape")
    return _Entry(kind, tuple(shape), lo, hi)


def _check_ranges(file: Mapped, entries: Mapping[str, _Entry], start: int) -> None:
    """Checks that the tensors' bytes are adjacent and fill the file, as the format requires."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].lo, item[1].hi)):
        if entry.lo != end or entry.hi < end:
            raise file.refusal(f"is damaged: '{name}' overlaps, or leaves a gap")
        end = entry.hi
    if start + end != file.size:
        what = "truncated" if start + end > file.size else "damaged"
        raise file.refusal(f"is {what}: it has {file.size} bytes, and should have {start + end}")


def begin(
    file: IO[bytes], arrays: Sequence[tuple[str, DType]], shape: tuple[int, ...]
) -> list[int]:
    """Writes the header of a file with tensors of one shape, and reserves space for the elements.

    Returns:
        The offsets of the elements.

    Raises:
        ProgrammingError: The format reserves the name.
    """
    if any(name == _METADATA for name, _ in arrays):
        raise ProgrammingError(
            f"A .safetensors file cannot name a tensor {_METADATA}",
            hint="(TENSOR 'name') sets another name.",
        )
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    # The widest types first, so that offsets are multiples of the elements' size.
    for name, dtype in sorted(arrays, key=lambda a: -a[1].numpy.itemsize):
        start, end = end, end + prod(shape) * dtype.numpy.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the elements to 8 bytes
    file.write(len(text).to_bytes(8, "little") + text)
    file.truncate(8 + len(text) + end)
    starts = [entries[name]["data_offsets"][0] for name, _ in arrays]
    return [8 + len(text) + start for start in starts]
