"""Runs SQLAlchemy's suite on a database file of its own; arguments are pytest's."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

import einsql

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Runs the suite and gives pytest's exit status."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "suite.db"
        with einsql.connect(str(path)) as con:
            con.execute("CREATE SCHEMA test_schema")
        config = HERE / "setup.cfg"
        plugins = [x for n in ("plugin", "skipping") for x in ("-p", f"{__package__}.{n}")]
        given = [
            *plugins,
            "-c",
            str(config),
            "--rootdir",
            str(HERE),
            "--dburi",
            f"einsql:///{path}",
            *arguments,
        ]
        return int(pytest.main([*given, str(HERE / "suite.py")]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
