"""Builds wheel and sdist, and installs the wheel with every extra in environments of its own.

Usage: `python -m tests.packaging.wheels [EXTRA …]`, or `make wheels`. An environment has nothing
of the checkout: the command runs in an empty directory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKS = {
    "": "import einsql; assert einsql.connect().execute('SELECT 6 * 7').fetchone() == (42,)",
    "bench": "import distributed, matplotlib, numba, onnx, onnxruntime, torch, dask.array",
    "console": "import prompt_toolkit; from einsql.frontends.console import prompt",
    "cuda": "import cupy, numba.cuda; numba.cuda.is_available()",
    "demo": "import einsql, pandas; einsql.connect().execute('SELECT 1 AS a').fetch_df()",
    "docs": "import furo, gguf, markdown_it, matplotlib, myst_parser, pygments, sphinx",
    "formats": "import gguf, zarr",
    "harlequin": "from einsql.frontends.harlequin import EinsqlAdapter",
    "mkl": "from einsql.kernels.runtime import mkl; assert mkl.load()",
    "mpi": "import einsql; con = einsql.connect(config={'mpi': 2}); con.close()",
    "plot": "import matplotlib; from einsql.frontends.console import picture",
    "sqlalchemy": "import sqlalchemy; sqlalchemy.create_engine('einsql://').connect().close()",
}
"""What each extra must be able to do."""


def built(folder: Path) -> tuple[Path, Path]:
    """Builds the sdist, and the wheel from it."""
    environment(folder / "build", ["build"])
    run(folder / "build", "-m", "build", "--outdir", str(folder / "dist"), str(ROOT))
    (wheel,), (sdist,) = (list((folder / "dist").glob(f"*{end}")) for end in (".whl", ".tar.gz"))
    return wheel, sdist


def environment(folder: Path, requirements: list[str]) -> None:
    """Creates an environment with packages."""
    venv.create(folder, with_pip=True)
    run(folder, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)


def run(folder: Path, *arguments: str) -> str:
    """Runs the Python of an environment in an empty directory, and returns its output."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [folder / "bin" / "python", *arguments], cwd=empty, capture_output=True, text=True
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(extras: list[str]) -> None:
    """Prints what each installation says of itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = built(folder)
        for file in (wheel, sdist):
            print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB")
        for extra in extras or CHECKS:
            start = time.perf_counter()
            where = folder / (extra or "alone")
            environment(where, [f"einsql[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)])
            seconds = time.perf_counter() - start
            run(where, "-c", CHECKS[extra])
            verdict = run(where, "-m", "einsql", "doctor").splitlines()[-1]
            print(f"einsql[{extra}]: installed in {seconds:.0f} s; doctor: {verdict}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
