"""Databases in files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database can be made."""
    return str(tmp_path / "model.db")
