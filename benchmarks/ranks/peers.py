"""The systems that are compared: what each needs, how it is started, which ways it may take.

Every system is given ways to lay out its matrices and to go about the work, as somebody who
knows it would write them. The harness tries them all and measures the fastest, so that no
system is judged by a layout that another machine or another shape calls for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from benchmarks.evaluation import peers as environments

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = Path("/usr/bin")
LIBRARIES = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"


@dataclass(frozen=True)
class Peer:
    """A system.

    Attributes:
        name: As it stands in the tables.
        missing: What to install before it can run; nothing if all is there.
        command: What starts it on so many ranks with an option, before its arguments.
        options: The ways it may take for a workload and a number of ranks.
        environment: Variables that it is started with.
    """

    name: str
    missing: Callable[[], str]
    command: Callable[[int, str], list[str]]
    options: Callable[[str, int], tuple[str, ...]]
    environment: Callable[[], dict[str, str]] = field(
        default=lambda: environments.environment(threads=1)
    )


def _needs(environment: str) -> Callable[[], str]:
    return lambda: environments.missing(environment)


def _under_mpi(module: str) -> Callable[[int, str], list[str]]:
    """A Python program on its environment's own MPI, which ends if a process fails."""
    python = environments.python("mpi")
    run = [str(python), "-m", "mpi4py", "-m", f"benchmarks.ranks.{module}"]
    return lambda ranks, option: [str(python.parent / "mpiexec"), "-n", str(ranks), *run]


def _alone(environment: str, module: str) -> Callable[[int, str], list[str]]:
    python = str(environments.python(environment))
    return lambda ranks, option: [python, "-m", f"benchmarks.ranks.{module}"]


def _torchrun(ranks: int, option: str) -> list[str]:
    run = [str(environments.python("torch")), "-m", "torch.distributed.run", "--standalone"]
    return [*run, "--nproc-per-node", str(ranks), "-m", "benchmarks.ranks.dtensor"]


def grids(ranks: int) -> list[tuple[int, int]]:
    """All grids of so many processes, rows × columns."""
    return [(n, ranks // n) for n in range(1, ranks + 1) if ranks % n == 0]


def _cuts(workload: str, ranks: int) -> tuple[str, ...]:
    """Layouts of A, B, C, D and E, one copy of each, for systems that plan for themselves."""
    p = ranks
    rows, columns, whole_grid = f"{p}x1", f"1x{p}", "x".join(map(str, grids(p)[len(grids(p)) // 2]))
    layouts: list[tuple[str, ...]]
    if workload == "matmul":
        layouts = [(rows, rows), (columns, columns), (rows, columns), (columns, rows)]
        layouts.append((whole_grid, whole_grid))
    else:
        layouts = [
            (rows, rows, rows, rows, rows),
            (columns, columns, columns, columns, columns),
            (rows, rows, rows, columns, rows),
            (columns, columns, columns, columns, rows),
            (columns, rows, columns, rows, rows),
            (columns, rows, columns, rows, columns),
            (rows, columns, rows, rows, columns),
            (whole_grid,) * 5,
        ]
    return tuple(dict.fromkeys("_".join(layout) for layout in layouts))


def _summa(workload: str, ranks: int) -> tuple[str, ...]:
    hows = ("1,plain", "4,pipelined")
    inner = ("", ",inner") if workload.startswith("skewed") else ("",)
    return tuple(f"{r}x{c},{h}{i}" for (r, c), h, i in product(grids(ranks), hows, inner))


def _dtensor(workload: str, ranks: int) -> tuple[str, ...]:
    ways = ["rows", "columns", "sums"]
    if workload.startswith("skewed"):
        ways += ["inner-rows", "inner-columns"]
    return (*ways, "grid") if ranks > 3 else tuple(ways)


_MPIS = ("openmpi", "mpich")


def _scalapack(workload: str, ranks: int) -> tuple[str, ...]:
    blocks = ("512,512", "1024,1024") if workload == "matmul" else ("500,500", "1000,1000")
    choices = product(installed(), grids(ranks), blocks)
    return tuple(f"{mpi},{r}x{c},{b}" for mpi, (r, c), b in choices)


def installed() -> list[str]:
    """Debian's MPIs that ScaLAPACK can be built with here."""
    needed = {m: (DEBIAN / f"mpicc.{m}", LIBRARIES / f"libscalapack-{m}.so") for m in _MPIS}
    return [m for m, files in needed.items() if all(f.exists() for f in files)]


def _openblas() -> Path | None:
    """The folder of an OpenBLAS that stands in for the reference BLAS."""
    folders = (LIBRARIES / f"openblas-{kind}" for kind in ("serial", "pthread"))
    return next((f for f in folders if (f / "libblas.so.3").exists()), None)


def no_scalapack() -> str:
    """What to install before ScaLAPACK can run; nothing if all is there."""
    if not installed():
        return "ScaLAPACK: apt-get install gcc libopenmpi-dev libscalapack-openmpi-dev"
    if _openblas() is None:
        return "an OpenBLAS for ScaLAPACK: apt-get install libopenblas0-serial"
    return "gcc: apt-get install gcc" if shutil.which("gcc", path=str(DEBIAN)) is None else ""


@cache
def _built(mpi: str) -> Path:
    """The driver, compiled with one of Debian's MPIs."""
    program = ROOT / "build" / f"scalapack-{mpi}"
    program.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name("scalapack.c")
    # The PBLAS take their panels' width from a function of the driver's: -rdynamic shows it.
    compiler = [str(DEBIAN / f"mpicc.{mpi}"), "-O3", "-rdynamic"]
    command = [*compiler, str(source), "-o", str(program)]
    subprocess.run([*command, f"-lscalapack-{mpi}"], check=True, env=_debian(), timeout=120)
    return program


def _launch_scalapack(ranks: int, option: str) -> list[str]:
    mpi = option.partition(",")[0]
    launcher = [str(DEBIAN / f"mpiexec.{mpi}"), "-n", str(ranks)]
    if mpi == "openmpi":
        launcher += ["--allow-run-as-root", "--oversubscribe"]
    return [*launcher, str(_built(mpi))]


def _debian() -> dict[str, str]:
    """Nothing of this environment: its MPI must not be taken for Debian's."""
    clean = {n: os.environ[n] for n in ("HOME", "TMPDIR", "LANG") if n in os.environ}
    threads = {n: v for n, v in environments.environment(threads=1).items() if "THREADS" in n}
    return {**clean, **threads, "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(_openblas())}


BOUND = "bound"
"""The multiplications alone: what nobody can undercut with the same BLAS."""

EINSQL, SUMMA = "einsql", "SUMMA by hand"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(EINSQL, _needs("einsql"), _alone("einsql", "einsql_sites"), _cuts),
        Peer(SUMMA, _needs("mpi"), _under_mpi("summa"), _summa),
        Peer("ScaLAPACK", _needs("scalapack"), _launch_scalapack, _scalapack, _debian),
        Peer("DTensor", _needs("torch"), _torchrun, _dtensor),
        Peer("Dask", _needs("dask"), _alone("dask", "dask_arrays"), _cuts),
        Peer(BOUND, _needs("mpi"), _under_mpi("ceiling"), lambda workload, ranks: ("",)),
    )
}
