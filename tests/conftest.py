"""How tests run: property tests draw fixed examples, and collections of garbage are rare."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

_ANY_MACHINE = settings(  # no test depends on the speed of the machine
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("fixed", _ANY_MACHINE, derandomize=True)
settings.register_profile("new", _ANY_MACHINE, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("EINSQL_EXAMPLES_DRAWN", "fixed"))

FIRST = ("test_tour.py", "test_oracle.py", "test_simulation.py", "test_failures.py", "test_fork.py")
"""Files of tests that take long: begun at the end, one would be run by one worker alone."""
GARBAGE = 100_000  # some ten megabytes
"""Objects after which cycles are looked for: compilers make many, and few are garbage."""


os.environ.setdefault("EINSQL_JIT", "wait")
"""Statements wait for kernels, so that each test runs one tier; tests of tiers set their own."""
os.environ.setdefault("EINSQL_COST", "floats")
"""Contractions use all sites, so that tests of sites run small statements at several of them. Few
seconds would be predicted for these at one site. The documents are tested with the default."""


def pytest_configure() -> None:
    """Thousands of tests are objects that stay: while they are collected, none is garbage."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the order, but for files that take long."""
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """What was collected stays to the end, so no later collection looks at it again."""
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


def pytest_unconfigure() -> None:
    """Lets the interpreter collect modules at exit; DuckDB reports types that stay as leaks."""
    gc.unfreeze()
