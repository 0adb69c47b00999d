"""Loads the ELF object files of kernels on Linux (x86-64), without LLVM and its import of 30 ms.

The compiler uses the large code model, so every relocation is an address of 64 bits. Code and
constants are copied to pages of their own, addresses are written, and then the pages become
read-only. An object file with anything else is left to LLVM's loader.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_ADDRESS = struct.Struct("<Q")
_IDENTITY = b"\x7fELF\x02\x01"
"""The first bytes of a file of 64 bits, little-endian."""
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS = 2, 4
"""Types of sections."""
_WRITE, _ALLOC, _EXECUTE, _THREAD_LOCAL = 0x1, 0x2, 0x4, 0x400
"""Flags of sections."""
_ABSOLUTE = 1
"""The relocation R_X86_64_64."""
_pages: list[mmap.mmap] = []
"""The memory of all loaded files: callers keep addresses."""


class _Section(NamedTuple):
    """A section's header, in the order of the file."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def load(code: bytes, entry: str) -> int | None:
    """Loads an object file.

    Args:
        code: The file's content.
        entry: The name of a function.

    Returns:
        The function's address; None if the file needs LLVM's loader, or the system refuses
        executable memory.
    """
    if not sys.platform.startswith("linux") or code[:6] != _IDENTITY:
        return None
    header = _HEADER.unpack_from(code)
    if (header[1], header[2]) != (_RELOCATABLE, _X86_64):
        return None
    start, count = header[6], header[12]
    sections = [_Section(*_SECTION.unpack_from(code, start + 64 * n)) for n in range(count)]
    placed = [n for n, s in enumerate(sections) if s.flags & _ALLOC and s.size]
    if any(sections[n].flags & (_WRITE | _THREAD_LOCAL) for n in placed):
        return None

    places, executable, size = _layout(sections, placed)
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for n in placed:
        offset, length = sections[n].offset, sections[n].size
        pages[places[n] : places[n] + length] = code[offset : offset + length]

    symbols = next(s for s in sections if s.type == _SYMBOLS)
    names = sections[symbols.link].offset
    addresses: list[int | None] = []
    entry_address = None
    for at in range(symbols.offset, symbols.offset + symbols.size, _SYMBOL.size):
        name_offset, _, _, section, value, _ = _SYMBOL.unpack_from(code, at)
        name = code[names + name_offset : code.index(b"\0", names + name_offset)].decode()
        if section in places:
            addresses.append(base + places[section] + value)
        else:
            addresses.append(_of_process(name) if name and not section else None)
        if name == entry:
            entry_address = addresses[-1]

    for table in sections:
        if table.type != _RELOCATIONS or table.info not in places:
            continue
        for at in range(table.offset, table.offset + table.size, _RELOCATION.size):
            offset, kind, addend = _RELOCATION.unpack_from(code, at)
            address = addresses[kind >> 32]
            if kind & 0xFFFFFFFF != _ABSOLUTE or address is None:
                return None
            _ADDRESS.pack_into(pages, places[table.info] + offset, address + addend)

    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, executable, mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    if size > executable and protect(base + executable, size - executable, mmap.PROT_READ):
        return None
    _pages.append(pages)
    return entry_address


def _layout(sections: list[_Section], placed: list[int]) -> tuple[dict[int, int], int, int]:
    """Places code first and constants behind it, on other pages.

    Returns:
        The offset of each section, the bytes of the pages of code, and of all pages.
    """
    places: dict[int, int] = {}
    size = 0
    executable = mmap.PAGESIZE
    for code in (True, False):
        for n in placed:
            section = sections[n]
            if bool(section.flags & _EXECUTE) is code:
                size = _rounded(size, section.alignment or 1)
                places[n] = size
                size += section.size
        size = _rounded(size, mmap.PAGESIZE)
        if code:
            executable = size
    return places, executable, size


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


def _of_process(name: str) -> int | None:
    """The address of a function of the C library; None if the process does not export it."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None
