"""Databases in files of their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from tests.storage.database import scenario
from tests.storage.database.faults import Nursery, build, nursery

EVERYTHING = os.environ.get("EINSQL_FAULTS") == "all"
"""Whether every state and every fault is tried, and not a fixed sample."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database can be made."""
    return str(tmp_path / "model.db")


@pytest.fixture(scope="session")
def shimmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Runs scenarios in processes whose calls to the file system are logged and may fail."""
    library, reason = build(tmp_path_factory.mktemp("shim"))
    if library is None:
        pytest.skip(reason)
    with nursery(library) as found:
        yield found


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], None]:
    """Makes the directory in which a scenario begins."""
    made = tmp_path_factory.mktemp("template")
    scenario.prepare(str(made))

    def copy(name: str, folder: Path) -> None:
        if name == "creation":
            folder.mkdir()
        else:
            shutil.copytree(made, folder)
        if name == "attached":
            with duckdb.connect(str(folder / "b.db")) as con:
                con.execute("CREATE TABLE t (k INTEGER)")

    return copy
