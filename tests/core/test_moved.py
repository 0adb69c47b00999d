"""Old import paths give the modules of the new ones, once each, and warn."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

import einsql
from einsql.core.moved import MOVED, MovedModules, OldPackage, new_module

MODULES = {old: now for old, now in MOVED.items() if ":" not in old}
ATTRIBUTES = {old: now for old, now in MOVED.items() if ":" in old}
DEEPER = [
    "einsql.integrations.duckdb",
    "einsql.integrations.duckdb.tiles",
    "einsql.integrations.sqlalchemy",
    "einsql.integrations.sqlalchemy.types",
    "einsql.integrations.harlequin",
    "einsql.console.words",
    "einsql.drawing.svg",
]
NEEDS = {"sqlalchemy": "sqlalchemy", "harlequin": "harlequin"}


def _forget_old_paths() -> None:
    for name in [n for n in list(sys.modules) if new_module(n) is not None]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _forget_old_paths()
    yield
    _forget_old_paths()


@pytest.mark.filterwarnings("ignore:.* has moved to:DeprecationWarning")
@pytest.mark.parametrize("old", [*MODULES, *DEEPER])
def test_an_old_path_gives_the_module_of_the_new_one(old: str) -> None:
    for part, package in NEEDS.items():
        if part in old:
            pytest.importorskip(package)
    now = new_module(old)
    assert now is not None
    module = import_module(old)
    new = import_module(now)
    if isinstance(module, OldPackage):  # which has nothing but its modules
        assert not hasattr(new, "__all__")
        return
    assert module is new
    assert sys.modules[old] is new
    assert new.__name__ == now
    assert new.__spec__ is not None
    assert new.__spec__.name == now


@pytest.mark.parametrize("old", MODULES)
def test_a_warning_names_the_new_path_and_the_line_that_imports(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{old} has moved to {MODULES[old]};") as caught:
        exec(compile(f"import {old}", "user.py", "exec"), {})
    assert [w.filename for w in caught] == ["user.py"]


@pytest.mark.parametrize("old", ATTRIBUTES)
def test_an_attribute_that_moved_is_imported_from_its_old_module(old: str) -> None:
    module, _, name = old.partition(":")
    new, _, attribute = ATTRIBUTES[old].partition(":")
    package = import_module(module)
    vars(package).pop(name, None)
    space: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match=ATTRIBUTES[old].replace(":", ".")) as caught:
        exec(compile(f"from {module} import {name}", "user.py", "exec"), space)
    assert space[name] is getattr(import_module(new), attribute)
    assert [w.filename for w in caught] == ["user.py"]
    with pytest.raises(AttributeError, match="has no attribute 'nowhere'"):
        _ = package.nowhere


@pytest.mark.filterwarnings("ignore:.* has moved to:DeprecationWarning")
@pytest.mark.parametrize("package", ["frontends.duckdb", "frontends.sqlalchemy", "explain.drawing"])
def test_a_package_with_a_face_loads_all_its_modules(package: str) -> None:
    """Else Python would load one of them a second time, under its old path."""
    if "sqlalchemy" in package:
        pytest.importorskip("sqlalchemy")
    code = f"import sys, einsql.{package}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    path = import_module(f"einsql.{package}").__path__
    for module in pkgutil.walk_packages(path, f"einsql.{package}."):
        assert module.name in loaded


def test_what_never_was_there_is_missed_under_its_own_name() -> None:
    with (
        pytest.warns(DeprecationWarning, match=r"einsql\.integrations has moved"),
        pytest.raises(ModuleNotFoundError, match=r"No module named 'einsql\.integrations\.none'"),
    ):
        import_module("einsql.integrations.none")


def test_new_paths_do_not_warn_and_the_finder_is_no_more_than_asked_last() -> None:
    finders = [type(f) for f in sys.meta_path]
    assert finders.count(MovedModules) == 1
    assert finders.index(MovedModules) > 0
    assert MovedModules().find_spec("einsql.core.units") is None
    assert MovedModules().find_spec("numpy.machine") is None
    assert einsql.__spec__ is not None


def test_importing_einsql_loads_nothing_for_old_paths() -> None:
    code = (
        "import sys, einsql\n"
        "assert type(sys.meta_path[-1]).__name__ == 'MovedModules'\n"
        "print(*sys.modules)"
    )
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    heavy = {"importlib.abc", "einsql.frontends", "einsql.explain", "einsql.core.machine"}
    assert not loaded & heavy
