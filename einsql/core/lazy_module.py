"""Modules that are imported when they are first used.

A module that few statements need is named twice, so that type checkers and the import contracts
see it and a process that does not use it does not load it:

    if TYPE_CHECKING:
        from einsql.kernels import convolutions
    else:
        convolutions = LazyModule("einsql.kernels.convolutions")

Garbage is not collected during such an import, which creates thousands of objects that stay: the
collector would visit each several times, an eighth of the time to the first answer.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


class LazyModule:
    """A module that is imported when one of its attributes is first read."""

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> object:
        if self._module is None:
            with _uncollected():
                self._module = import_module(self._name)
        return getattr(self._module, attribute)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pauses the garbage collector; then all objects are in its oldest generation."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # objects that the program has frozen stay frozen
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def lazy_modules(package: str, *names: str) -> tuple[LazyModule, ...]:
    """Modules of a package in the order of their names."""
    return tuple(LazyModule(f"{package}.{name}") for name in names)
