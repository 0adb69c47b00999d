"""`einsql doctor`: the versions, libraries and directories that einsql uses, and short checks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TextIO

import numpy as np

import einsql
from einsql.core import machine
from einsql.core.units import data_size, duration, plural
from einsql.errors import Error
from einsql.kernels.runtime import blas, compile_cache

Check = Callable[[], Iterator[tuple[str, str]]]
"""Yields names and values; raises an Error, or another exception of a library, on a fault."""


def doctor(out: TextIO) -> int:
    """Prints the libraries that einsql uses on this machine, and whether they work.

    Returns:
        The exit status: 0, or 1 if a required part does not work.
    """
    faults = 0
    for title, check in _CHECKS.items():
        print(title, file=out)
        try:
            for name, text in check():
                print(f"  {name:<16}{text}", file=out)
        except Exception as error:  # a damaged installation can raise anything at import
            faults += 1
            reason = str(error).splitlines() or [type(error).__name__]
            print(f"  FAULT: {reason[0]}", file=out)
            if isinstance(error, Error) and error.hint:
                print(f"         {error.hint}", file=out)
    print(f"{plural(faults, 'fault')}" if faults else "No fault", file=out)
    return int(faults > 0)


def _system() -> Iterator[tuple[str, str]]:
    yield "einsql", f"{einsql.__version__}, {Path(einsql.__file__).parent}"
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{cores} usable of {os.cpu_count()}"
    yield "memory", data_size(machine.memory())


def _required() -> Iterator[tuple[str, str]]:
    for name in _packages(None):
        yield name, metadata.version(name)


def _extras() -> Iterator[tuple[str, str]]:
    for extra in ("console", "plot", "formats", "mpi", "mkl", "cuda", "sqlalchemy", "harlequin"):
        missing = [name for name in _packages(extra) if _version(name) is None]
        present = [f"{n} {_version(n)}" for n in _packages(extra) if _version(n) is not None]
        if missing:
            yield extra, f"not installed: pip install 'einsql[{extra}]'"
        else:
            yield extra, ", ".join(present)
    for name in ("pandas", "polars", "torch"):
        yield name, _version(name) or "not installed"


def _packages(extra: str | None) -> Sequence[str]:
    """The packages that einsql, or an extra of it, needs on this system."""
    names = []
    for line in metadata.requires("einsql") or []:
        requirement, _, marker = line.partition(";")
        name = requirement.split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip()
        belongs = f"extra == '{extra}'" in marker.replace('"', "'")
        if belongs if extra else "extra ==" not in marker:
            names.append(name)
    return names


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tables() -> Iterator[tuple[str, str]]:
    with einsql.connect() as con:
        start = time.perf_counter()
        con.execute("CREATE TABLE t AS SELECT k FROM range(1000) r(k)")
        (total,) = con.execute("SELECT SUM(k) FROM t").fetchone() or (None,)
    if total != 499_500:
        raise einsql.InternalError(f"DuckDB's sum of 0 to 999 is {total}")
    yield "tables", f"right, {duration(time.perf_counter() - start)}"


def _products() -> Iterator[tuple[str, str]]:
    library = blas.library()
    threads = None if library is None or library.get_threads is None else library.get_threads()
    used = "NumPy's own calls" if library is None else library.name
    yield "BLAS", used if threads is None else f"{used}, {plural(threads, 'thread')}"
    a = np.random.default_rng(1).standard_normal((256, 256))
    start = time.perf_counter()
    if not np.allclose(einsql.einsum("ij,jk->ik", a, a), a @ a):
        raise einsql.InternalError("A product of two matrices is wrong")
    yield "product", f"right, {duration(time.perf_counter() - start)}"


def _kernels() -> Iterator[tuple[str, str]]:
    folder = compile_cache.directory()
    if folder is None:
        yield "cache", f"none: {compile_cache.named()} is not private to this user"
    else:
        sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file()]
        yield "cache", f"{folder}, {plural(len(sizes), 'file')}, {data_size(sum(sizes))}"
    with einsql.connect(config={"jit": "wait"}) as con:
        con.register("a", np.arange(12.0).reshape(3, 4), dims=("i", "j"))
        start, compiled = time.perf_counter(), con.compilations
        rows = con.execute("SELECT i, MAX(val - j * j / 7) AS m FROM a GROUP BY i").fetch_numpy()
        seconds = time.perf_counter() - start
        how = "compiled" if con.compilations > compiled else "loaded"
    ramp = np.arange(12.0).reshape(3, 4) - np.arange(4.0) ** 2 / 7
    if not np.allclose(rows, ramp.max(axis=1)):
        raise einsql.InternalError("The result of a compiled kernel is wrong")
    yield "kernel", f"{how}, right, {duration(seconds)}"


def _ranks() -> Iterator[tuple[str, str]]:
    if _version("mpi4py") is None:
        yield "MPI", "not installed: pip install 'einsql[mpi]'"
        return
    launcher = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    yield "MPI", f"mpi4py {_version('mpi4py')}, launcher {launcher or 'not found'}"
    with einsql.connect(config={"mpi": 2}) as con:
        con.register("a", np.ones((8, 8)), dims=("i", "j"))
        start = time.perf_counter()
        (total,) = con.execute("SELECT SUM(val) FROM a").fetchone() or (None,)
    if total != 64:
        raise einsql.InternalError(f"A sum at two ranks is {total} instead of 64")
    yield "two ranks", f"right, {duration(time.perf_counter() - start)}"


def _gpu() -> Iterator[tuple[str, str]]:
    if _version("cupy-cuda13x") is None:
        yield "GPU", "not installed: pip install 'einsql[cuda]'"
        return
    with einsql.connect() as con:
        try:
            con.execute("SET device = 'cuda'")
        except Error as error:
            yield "GPU", error.reason
            return
        yield "GPU", "in use with SET device = 'cuda'"


_CHECKS: dict[str, Check] = {
    "System": _system,
    "Required packages": _required,
    "Tables": _tables,
    "Products": _products,
    "Kernels": _kernels,
    "Ranks": _ranks,
    "GPU": _gpu,
    "Extras": _extras,
}
