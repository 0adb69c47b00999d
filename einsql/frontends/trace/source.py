"""Inspects the user's frames: the line for an error message, and names of variables."""

from __future__ import annotations

import dis
import linecache
import os
import sys
from contextvars import ContextVar
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType

from einsql.errors import NotSupportedError

_LIBRARIES = ("einsql", "numpy", "scipy", "torch", "opt_einsum")
_SHOWN = 100
"""Characters of a line that are shown."""
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


def users_frame() -> FrameType | None:
    """The innermost frame that is no library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _library(frame):
        frame = frame.f_back
    return frame


def _library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] in _LIBRARIES


MODULE: ContextVar[bool] = ContextVar("module", default=False)
"""Whether a module's graph is interpreted; its operators know their own lines."""


def place() -> str:
    """The user's line, as a sentence's end; nothing where there is none."""
    frame = users_frame()
    if frame is None or MODULE.get():
        return ""
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    where = f" (line {line} of {os.path.basename(code.co_filename)}, in {code.co_name}"
    return f"{where}: {text})" if text else f"{where})"


def untraceable(what: str, hint: str) -> NotSupportedError:
    """The error for an operation that cannot be traced, at the user's line."""
    return NotSupportedError(f"{what} cannot be traced{place()}", hint=hint)


def assigned() -> tuple[str, ...]:
    """The variables to which the user's line assigns the current result.

    The caller assigns the value that a function returns directly.
    """
    frame = users_frame()
    names: tuple[str, ...] = (_RETURNED,)
    while frame is not None and names == (_RETURNED,):
        names = () if _library(frame) else _names_after(frame.f_code).get(frame.f_lasti, ())
        frame = frame.f_back
    return names


@lru_cache(maxsize=256)
def _names_after(code: CodeType) -> dict[int, tuple[str, ...]]:
    """The variables that get the result of each instruction, by its offset."""
    targets_at: dict[int, tuple[str, ...]] = {}
    every = list(dis.get_instructions(code))
    instructions = [i for i in every if i.opname not in _PASSED]
    for at, i in enumerate(instructions[:-1]):
        after = instructions[at + 1]
        if after.opname in _STORES:
            targets_at[i.offset] = (str(after.argval),)
        elif after.opname == "RETURN_VALUE":
            targets_at[i.offset] = (_RETURNED,)
        elif after.opname == "UNPACK_SEQUENCE":
            targets = instructions[at + 2 : at + 2 + int(after.argval)]
            if all(t.opname in _STORES for t in targets):
                targets_at[i.offset] = tuple(str(t.argval) for t in targets)
    for i, after in pairwise(every):
        if i.opname == "PRECALL" and after.offset in targets_at:  # Python 3.11 calls there at times
            targets_at[i.offset] = targets_at[after.offset]
    return targets_at


_RETURNED = ""
_PASSED = ("CACHE", "EXTENDED_ARG", "PRECALL")
