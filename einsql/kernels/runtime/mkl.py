"""Intel's MKL, installed by `pip install 'einsql[mkl]'`: detection and isolated loading.

MKL's libraries do not name their dependencies. A program that loads them separately has to make
their symbols global, as MKL's own loader `libmkl_rt` does. Libraries that are loaded later then
bind to these symbols: PyTorch, which contains another version of MKL, would call this MKL on one
thread. In this module they are dependencies of a library without code, so that their symbols are
visible only inside this group of libraries.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import site
import struct
import sys
from itertools import count
from pathlib import Path

_PARTS = "intel_ilp64", "sequential", "core"
"""The libraries for 64-bit integers, for execution without threads, and for computation."""
_CORE = re.compile(r"libmkl_core\.so\.(\d+)")

_NEEDED, _HASH, _NAMES, _SYMBOLS, _NAMES_SIZE, _SYMBOL_SIZE, _END = 1, 4, 5, 6, 10, 11, 0
"""The tags of a dynamic section."""
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
"""The types of segments; the last type declares that the stack is not executable."""
_READ_WRITE = 6
"""The flags of a segment: readable (4) and writable (2)."""
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
"""The bytes of a file's header, of a segment's entry and of a symbol."""

_loads = count(1)
"""The counter of loads, which makes the names of files distinct."""


def parts() -> list[Path]:
    """Returns the libraries of the newest installed MKL, in the order of symbol lookup.

    The search includes the user's site packages if Python imports them (not with -I, for example).
    """
    installed, users = [], [site.getuserbase()] if site.ENABLE_USER_SITE else []
    for home in dict.fromkeys((sys.prefix, *users)):
        place = Path(home, "lib")
        for name in os.listdir(place) if place.is_dir() else ():
            match = _CORE.fullmatch(name)
            if match:
                libraries = [place / f"libmkl_{part}.so.{match[1]}" for part in _PARTS]
                installed.append((int(match[1]), libraries))
    return max(installed, default=(0, []))[1]


def is_intel() -> bool:
    """Returns True on Intel processors; on others MKL is no faster than OpenBLAS."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return "GenuineIntel" in file.read(4096)
    except OSError:
        return False


def load() -> ctypes.CDLL:
    """Loads MKL for one thread, with 64-bit integers and without an effect on other libraries.

    Raises:
        OSError: MKL is not installed, or the system cannot load it.
    """
    needed = parts()
    if not needed:
        raise OSError("the package mkl is not installed")
    able = hasattr(os, "memfd_create") and hasattr(os, "RTLD_DEEPBIND")
    if not able or platform.machine() != "x86_64":
        raise OSError("MKL is loaded on Linux with glibc and x86-64 only")
    process = ctypes.CDLL(None)
    process.dlopen.restype, process.dlopen.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_int],
    )
    process.dlerror.restype = ctypes.c_char_p
    file = os.memfd_create("einsql-mkl")
    try:
        os.write(file, _needing([str(p) for p in needed]))
        # ctypes would bind every symbol immediately. With DEEPBIND the library's symbols precede
        # the global symbols of another MKL.
        mode = os.RTLD_LAZY | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        path = f"/proc/self/fd/{'./' * next(_loads)}{file}"  # a path without an earlier load
        handle = process.dlopen(path.encode(), mode)
    finally:
        os.close(file)
    if not handle:
        raise OSError((process.dlerror() or b"dlopen failed").decode(errors="replace"))
    return ctypes.CDLL("mkl", handle=handle)


def _needing(paths: list[str]) -> bytes:
    """Returns a shared library (ELF, x86-64) without code or symbols, with given dependencies."""
    names, places = bytearray(b"\0"), []
    for path in paths:
        places.append(len(names))
        names += os.fsencode(path) + b"\0"
    names += bytes(-len(names) % 8)
    names_at = _HEADER + 3 * _SEGMENT
    symbols_at = names_at + len(names)
    hash_at = symbols_at + _SYMBOL
    table = struct.pack("<6I", 1, 1, 0, 0, 0, 0)  # one bucket with the null symbol
    dynamic_at = hash_at + len(table)
    entries = [
        *((_NEEDED, at) for at in places), (_HASH, hash_at), (_NAMES, names_at),
        (_SYMBOLS, symbols_at), (_NAMES_SIZE, len(names)), (_SYMBOL_SIZE, _SYMBOL), (_END, 0),
    ]  # fmt: skip
    dynamic = b"".join(struct.pack("<2q", *e) for e in entries)
    size = dynamic_at + len(dynamic)

    def segment(kind: int, at: int, length: int, align: int) -> bytes:
        return struct.pack("<2I6Q", kind, _READ_WRITE, at, at, at, length, length, align)

    head = struct.pack(
        "<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 3,
        64, 0, 0,
    )  # fmt: skip
    segments = (
        segment(_LOAD, 0, size, 4096)
        + segment(_DYNAMIC, dynamic_at, len(dynamic), 8)
        + segment(_STACK, 0, 0, 16)
    )
    return head + segments + bytes(names) + bytes(_SYMBOL) + table + dynamic
