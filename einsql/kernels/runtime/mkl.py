"""Intel's MKL, installed by `pip install 'einsql[mkl]'`: detection, and loading only for einsql.

MKL's libraries do not name their dependencies. A program that loads them one by one has to make
their symbols global, as MKL's own loader `libmkl_rt` does. Libraries loaded later then call them:
PyTorch, which has an MKL of another version linked in, would run ours, on one thread. Here they
are loaded as dependencies of a library without code, so that only they and this library see
their symbols.
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
"""Integers of 64 bits, no threads of its own, and the computing library."""
_CORE = re.compile(r"libmkl_core\.so\.(\d+)")

_NEEDED, _HASH, _NAMES, _SYMBOLS, _NAMES_SIZE, _SYMBOL_SIZE, _END = 1, 4, 5, 6, 10, 11, 0
"""Tags of a dynamic section."""
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
"""Types of segments; the last one declares that the stack is not executable."""
_READ_WRITE = 6
"""Flags of a segment: readable (4) and writable (2)."""
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
"""Bytes of a file's header, of a segment's entry and of a symbol."""

_loads = count(1)
"""Counter of loads, which makes the names of files distinct."""


def parts() -> list[Path]:
    """The libraries of the newest installed MKL, in the order of symbol lookup.

    The user's own packages count where Python imports them: not under -I, for example.
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
    """True on a processor of Intel's; on others MKL is no faster than OpenBLAS."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return "GenuineIntel" in file.read(4096)
    except OSError:
        return False


def load() -> ctypes.CDLL:
    """MKL on one thread, its integers of 64 bits, without any effect on other libraries.

    Raises:
        OSError: MKL is not installed, or this system cannot load it.
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
        # By ctypes every symbol would be bound at once; and an MKL that all see stays aside.
        mode = os.RTLD_LAZY | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        path = f"/proc/self/fd/{'./' * next(_loads)}{file}"  # one by which nothing was loaded yet
        handle = process.dlopen(path.encode(), mode)
    finally:
        os.close(file)
    if not handle:
        raise OSError((process.dlerror() or b"dlopen failed").decode(errors="replace"))
    return ctypes.CDLL("mkl", handle=handle)


def _needing(paths: list[str]) -> bytes:
    """A shared library (ELF, x86-64) without code or symbols that needs others."""
    names, places = bytearray(b"\0"), []
    for path in paths:
        places.append(len(names))
        names += os.fsencode(path) + b"\0"
    names += bytes(-len(names) % 8)
    names_at = _HEADER + 3 * _SEGMENT
    symbols_at = names_at + len(names)
    hash_at = symbols_at + _SYMBOL
    table = struct.pack("<6I", 1, 1, 0, 0, 0, 0)  # one bucket with one symbol, which is none
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
