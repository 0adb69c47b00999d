"""Starts the tests of the simulated device, where Numba is imported with the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_in_the_simulator() -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    # NumPy warns in the simulator's threads of what a GPU computes silently.
    options += ["-W", "ignore::RuntimeWarning", "-o", "python_files=simulated.py"]
    path = Path(__file__).with_name("simulated.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(path)],
        env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3],
        timeout=60 * max(15, int(environment.get("EINSQL_EXAMPLES", "0"))),
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
