"""The wheel has the package with its data, and runs without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_runs_without_the_checkout(tmp_path: Path) -> None:
    wheels = pytest.importorskip("hatchling.builders.wheel")
    (wheel,) = wheels.WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    inside = {str(p.relative_to(ROOT)) for p in (ROOT / "einsql").rglob("*") if p.is_file()}
    packed = {str(p.relative_to(installed)) for p in installed.rglob("*") if p.is_file()}
    assert {n for n in inside if "__pycache__" not in n} == {
        n for n in packed if n.startswith("einsql/")
    }
    done = subprocess.run(
        [sys.executable, "-m", "einsql", "-csv", "-c", "SELECT 6 * 7 AS n; SELECT version() AS v"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed), "HOME": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("n\n42\n")
