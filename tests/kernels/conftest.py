"""In every test here, whatever memory a kernel is lent holds garbage.

Results must not depend on what lay in a buffer before, so no kernel's file poisons its own:
NumPy's uninitialised arrays, and so `einsql.core.buffer_pool`, are full of garbage for all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from einsql import kernels
from einsql.core import buffer_pool
from einsql.kernels.runtime import compile_cache

GARBAGE = (0xFF, 0x7F, 0x80)
"""Bytes that make NaN and -1, huge numbers, and the least integers; in turns."""

_COMPILED = {f"einsql.kernels.{name.replace('/', '.')}" for name in compile_cache.COMPILED}
"""Modules whose functions Numba compiles; their arrays are not this process's NumPy's."""

_bytes = cycle(GARBAGE)


def garbage(shape: Any, dtype: Any = float) -> np.ndarray:
    """As `numpy.empty`, at its worst."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = next(_bytes)
    return array


class Poisonous(ModuleType):
    """NumPy, but for its uninitialised arrays."""

    empty = staticmethod(garbage)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _modules() -> Iterator[ModuleType]:
    """Every module of the kernels that allocates by NumPy, and what lends them memory."""
    for found in pkgutil.walk_packages(kernels.__path__, "einsql.kernels."):
        with suppress(ImportError):  # of an optional package
            importlib.import_module(found.name)
    yield buffer_pool
    for name, module in sorted(sys.modules.items()):
        inside = name.startswith("einsql.kernels.") and name not in _COMPILED
        if inside and getattr(module, "np", None) is np:
            yield module


MODULES = list(_modules())


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "LARGE", sys.maxsize)  # every block comes from NumPy
    for module in MODULES:
        monkeypatch.setattr(module, "np", Poisonous("numpy"))
