"""GGUF: metadata, names and offsets of tensors, then their elements, often in quantised blocks.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

The header is not trusted: counts are compared with the size of the file. The package `gguf`
decodes quantised blocks to floats; types that are tensor types are mapped without it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from einsql.core import boxes
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import OperationalError
from einsql.storage.files.mapped import Mapped
from einsql.storage.files.stacks import picked
from einsql.storage.files.tensor import AT_ONCE, Content, Pieces, single, slices, unmapped

MAGIC = b"GGUF"
MOST_VALUES = 2**21
"""Greatest number of strings in the metadata; vocabularies have a quarter of a million."""
MOST_TENSORS = 2**16
"""Greatest number of tensors, it limits the time for a damaged header."""
LONGEST = 2**16
"""Greatest size of a name in bytes."""
_SLOW = 32
"""Weight, in strings, of a value that is skipped by itself."""
_AXES = 4
"""Greatest number of axes of a tensor, as in ggml."""
_NESTED = 4
"""Greatest nesting of arrays in the metadata; it limits the recursion."""
_STRING, _ARRAY = 8, 9
"""The type numbers of strings and arrays in the metadata."""
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Size of a metadata value in bytes by its type."""
_TYPES = {
    0: DType.FLOAT, 1: DType.HALF, 24: DType.TINYINT, 26: DType.INTEGER, 27: DType.BIGINT,
    28: DType.DOUBLE, 30: DType.BFLOAT16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor: its shape in C order, ggml's number of its type, and its offset."""

    shape: tuple[int, ...]
    kind: int
    offset: int


_LENGTH = struct.Struct("<Q")


class _Header:
    """Reads a header sequentially, and refuses reads beyond the file's end."""

    def __init__(self, file: Mapped) -> None:
        self._file = file
        self._values = 0
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        self.past(size)
        return self._file.memory[self.at - size : self.at]

    def number(self, kind: str = "Q") -> int:
        """The next number, with a format character of `struct`."""
        (number,) = struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))
        return int(number)

    def text(self) -> str:
        """The next name."""
        size = self.number()
        if LONGEST < size <= self._file.size - self.at:
            raise self._file.refusal(f"is damaged: a name has {size} bytes")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._file.refusal(f"is damaged: a name is no UTF-8: {error}") from None

    def skip(self, kind: int, depth: int = 0) -> int | None:
        """Skips a metadata value, and returns it if it is a uint32."""
        if kind == _STRING:
            self.past(self.number())
        elif kind == _ARRAY and depth < _NESTED:
            inner, length = self.number("I"), self.number()
            if inner in _SIZES:
                self.past(length * _SIZES[inner])
            elif inner == _STRING:
                self.texts(length)
            else:
                self.count(length)
                for _ in range(length):
                    self.skip(inner, depth + 1)
        elif kind == 4:
            return self.number("I")
        elif kind in _SIZES:
            self.past(_SIZES[kind])
        else:
            raise self._file.refusal(f"is damaged: its metadata have values of type {kind}")
        return None

    def past(self, size: int) -> None:
        """Skips bytes."""
        if size > self._file.size - self.at:
            raise self._file.refusal("is truncated or damaged: its header is not complete")
        self.at += size

    def texts(self, count: int) -> None:
        """Skips strings quickly, as vocabularies have many."""
        self.count(count, 1)
        at, size, memory = self.at, self._file.size, self._file.memory
        for _ in range(count):
            if at + 8 > size:
                break
            at += 8 + _LENGTH.unpack_from(memory, at)[0]
        else:
            self.past(at - self.at)
            return
        raise self._file.refusal("is truncated or damaged: its header is not complete")

    def count(self, values: int, weight: int = _SLOW) -> None:
        """Counts values, and refuses more than any model has."""
        self._values += weight * values
        if self._values > MOST_VALUES:
            raise self._file.refusal("is damaged: it has more metadata values than any model")


def find(file: Mapped, member: str | None) -> Content:
    """Finds a tensor of a GGUF file by its name.

    Raises:
        OperationalError: The file is damaged, has no such member, or its type needs the
            package `gguf`, which is not installed.
    """
    entries, start = _entries(file)
    return picked(
        file, list(entries), member, lambda name: _content(file, name, entries[name], start)
    )


def _content(file: Mapped, name: str, entry: _Entry, start: int) -> Content:
    if entry.kind in _TYPES:
        dtype = _TYPES[entry.kind]
        stored = dtype.numpy.newbyteorder("<")
        return single(name, dtype, file.view(start + entry.offset, stored, entry.shape))
    return _quantised(file, name, entry, start)


def _entries(file: Mapped) -> tuple[dict[str, _Entry], int]:
    """The tensors by name, and the offset of the first element."""
    header = _Header(file)
    if file.memory[:4] != MAGIC:
        raise file.refusal("is no .gguf file: its first bytes are wrong")
    header.past(4)
    version, tensors, values = header.number("I"), header.number(), header.number()
    if version not in (2, 3):
        raise file.refusal(f"is of version {version} of GGUF, not 2 or 3")
    if tensors > MOST_TENSORS:
        raise file.refusal(f"is damaged: it declares {tensors} tensors")
    header.count(values)
    alignment = 32
    for _ in range(values):
        key = header.text()
        setting = header.skip(header.number("I"))
        if key == "general.alignment":
            alignment = setting or 0
    if not 0 < alignment <= 2**20:
        raise file.refusal(f"is damaged: its alignment is {alignment}")
    entries: dict[str, _Entry] = {}
    for _ in range(tensors):
        name, axes = header.text(), header.number("I")
        if axes > _AXES or name in entries:
            raise file.refusal(f"is damaged: '{name}' is duplicate, or has {axes} axes")
        shape = tuple(header.number() for _ in range(axes))[::-1]
        file.check_shape(shape)
        entries[name] = _Entry(shape, header.number("I"), header.number())
    return entries, -(-header.at // alignment) * alignment


def _quantised(file: Mapped, name: str, entry: _Entry, start: int) -> Content:
    """A tensor of quantised blocks along its last axis, decoded to FLOAT."""
    block, size, dequantised = _dequantiser(file, entry.kind)
    if not entry.shape or entry.shape[-1] % block:
        raise file.refusal(f"is damaged: rows of '{name}' are no multiple of {block} elements")
    *leading, last = entry.shape
    stored = file.view(start + entry.offset, np.dtype(np.uint8), (*leading, last // block * size))

    def parts(wanted: np.ndarray) -> Pieces:
        # Complete blocks are decoded, a few rows at a time.
        lo, hi = wanted[-1].tolist()
        some = wanted.copy()
        some[-1] = lo // block, -(-hi // block)
        for box in boxes.runs(some, max(1, AT_ONCE // 4 // block)):
            packed = box.copy()
            packed[-1] *= size
            values = dequantised(np.ascontiguousarray(stored[slices(packed)]))
            first, end = (box[-1] * block).tolist()
            piece = box.copy()
            piece[-1] = max(lo, first), min(hi, end)
            yield piece, values[..., piece[-1, 0] - first : piece[-1, 1] - first]

    return unmapped(name, DType.FLOAT, entry.shape, parts=parts)


def _dequantiser(file: Mapped, kind: int) -> tuple[int, int, Callable[[np.ndarray], Any]]:
    """Elements and bytes of a block, and the decoder of bytes (…, blocks × bytes) to floats."""
    try:
        from gguf import quants  # an extra, which few sessions need
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise OperationalError(
            f"'{file.path}' holds quantised blocks, and the package gguf is not installed",
            hint="pip install 'einsql[formats]' installs it.",
        ) from error
    try:
        known = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        raise file.no_type(f"ggml's type {kind}") from None

    def dequantised(packed: np.ndarray) -> Any:
        try:
            with np.errstate(all="ignore"):
                return quants.dequantize(packed, known)
        except NotImplementedError:
            raise file.no_type(f"ggml's {known.name}") from None

    if block == 1:
        raise file.no_type(f"ggml's {known.name}")
    return block, size, dequantised
