"""Modules that are imported when they are first used.

A module that few statements need is named twice, so that type checkers and the import contracts
see it and a process that does not use it does not load it:

    if TYPE_CHECKING:
        from einsql.kernels import convolutions
    else:
        convolutions = LazyModule("einsql.kernels.convolutions")
"""

from __future__ import annotations

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
            self._module = import_module(self._name)
        return getattr(self._module, attribute)


def lazy_modules(package: str, *names: str) -> tuple[LazyModule, ...]:
    """Modules of a package in the order of their names."""
    return tuple(LazyModule(f"{package}.{name}") for name in names)
