"""pytest's plugin: skips the tests that do not apply and that no requirement stands for."""

from __future__ import annotations

import pytest

from tests.frontends.sqlalchemy.suite.requirements import SKIPPED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips them."""
    for name, reason in SKIPPED.items():
        if item.name.startswith(name):
            pytest.skip(reason)
