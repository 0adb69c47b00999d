"""Old import paths, which remain valid for one release and emit a warning.

A finder at the end of `sys.meta_path` imports the new module for an old path. A class or
function that left a package is served by the package's `__getattr__`, through `moved_attribute`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

MOVED = {
    "einsql.bfloat16": "einsql.core.bfloat16",
    "einsql.console": "einsql.frontends.console",
    "einsql.drawing": "einsql.explain.drawing",
    "einsql.integrations": "einsql.frontends",
    "einsql.machine": "einsql.core.machine",
    "einsql.units": "einsql.core.units",
    "einsql.explain:Explanation": "einsql.explain.explanation:Explanation",
    "einsql.optimizer.simulation:simulate": "einsql.optimizer.simulation.simulation:simulate",
}
"""Old paths and new ones; "module:name" is one attribute, every other path is a module.

The submodules of a package have moved with it.
"""


def new_module(old: str) -> str | None:
    """The new path of a module, or None if it has not moved."""
    package, submodules = old, ""
    while package and package not in MOVED:
        package, _, last = package.rpartition(".")
        submodules = f".{last}{submodules}"
    return MOVED[package] + submodules if package else None


def moved_attribute(module: str, name: str) -> object:
    """The body of `__getattr__` in a module from which attributes have moved.

    Raises:
        AttributeError: No attribute of that name has moved.
    """
    old = f"{module}:{name}"
    if old not in MOVED:
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    now = MOVED[old]
    _warn(old, now, 4)
    new, _, attribute = now.partition(":")
    # Kept in the module, as `from … import` asks for an attribute twice.
    moved = sys.modules[module].__dict__[name] = getattr(import_module(new), attribute)
    return moved


def _warn(old: str, now: str, stacklevel: int) -> None:
    old, now = old.replace(":", "."), now.replace(":", ".")
    text = f"{old} has moved to {now}; the old path will be gone in the next release"
    warnings.warn(text, DeprecationWarning, stacklevel)


class OldPackage(ModuleType):
    """The old path of a package that only contains modules.

    It has an empty `__path__`: Python would otherwise load the package's modules a second
    time, under their old paths. Its attributes are those of the package.
    """

    def __init__(self, old: str, package: ModuleType) -> None:
        super().__init__(old, package.__doc__)
        self.__path__: list[str] = []
        self._package = package

    def __getattr__(self, name: str) -> object:
        return getattr(self._package, name)


class _Loader:
    """Loads the module of a new path for the import of an old path."""

    def __init__(self, now: str) -> None:
        self._now = now
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._now)
        _warn(spec.name, self._now, 3)
        if hasattr(module, "__path__"):
            if not hasattr(module, "__all__"):
                return OldPackage(spec.name, module)
            for name in [n for n in list(sys.modules) if n.startswith(f"{self._now}.")]:
                sys.modules[spec.name + name.removeprefix(self._now)] = sys.modules[name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._spec is not None:  # the import has replaced it by the old path's spec
            module.__spec__ = self._spec


class MovedModules:
    """Finds modules by their old paths."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec that loads the new module, or None if no module of that name has moved."""
        now = new_module(name) if name.startswith("einsql.") else None
        if now is None:
            return None
        from importlib.util import find_spec, spec_from_loader  # not loaded by `import einsql`

        if find_spec(now) is None:
            return None
        loader = _Loader(now)
        return spec_from_loader(name, loader)  # type: ignore[arg-type]  # Python needs no load_module
