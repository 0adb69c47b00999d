"""Environments of einsql's peers, which `python -m benchmarks.evaluation.peers` installs.

Each file NAME.txt here pins the packages of one environment, which is build/peers/NAME.
ScaLAPACK and PostgreSQL are Debian's. What cannot be had is an empty column with its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "peers"
PINS = Path(__file__).parent
THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
"""Variables of the number of threads, of all libraries of the contestants."""
INSTALL = "make evaluation-peers"
EINSQL = "einsql"
DEBIAN = {
    "scalapack": ("gcc", "libopenmpi-dev", "openmpi-bin", "libscalapack-openmpi-dev",
                  "libopenblas0-serial"),
    "postgresql": ("postgresql",),
}  # fmt: skip
"""Debian's packages by the peer that needs them."""


def python(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return Path(sys.executable) if peer == EINSQL else FOLDER / peer / "bin" / "python"


def missing(peer: str) -> str:
    """Why a peer is not there; nothing if it is."""
    if peer in DEBIAN and (lacking := missing_of_debian(peer)):
        return reason(peer) or lacking
    if peer == EINSQL or not (PINS / f"{peer}.txt").exists():
        return ""
    if (FOLDER / f"{peer}.installed").exists():
        return ""
    return reason(peer) or f"it is not installed: {INSTALL}"


def missing_of_debian(peer: str) -> str:
    """What a peer lacks of Debian's packages; nothing if all is there."""
    if peer == "postgresql":
        return "" if postgres() else f"PostgreSQL is not installed: {INSTALL}"
    from benchmarks.ranks.peers import no_scalapack

    return no_scalapack()


def debian_versions() -> dict[str, str]:
    """The versions of Debian's packages of peers, as far as they are installed."""
    names = [name for packages in DEBIAN.values() for name in packages]
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *names]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in ran.stdout.splitlines())
    return {name: version for name, _, version in pairs if version}


def reason(peer: str) -> str:
    """What the last attempt to install a peer said; nothing if there was none."""
    note = FOLDER / f"{peer}.reason"
    return note.read_text().strip() if note.exists() else ""


def postgres() -> Path | None:
    """The directory of PostgreSQL's programs."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (f for f in folders if (f / "initdb").exists()), (found and Path(found).parent) or None
    )


def environment(threads: int | None = None) -> dict[str, str]:
    """Variables of a contestant: the checkout's modules, and the number of threads if given.

    The caller's variables of threads are removed. einsql waits for its kernels, because a
    compiler in the background would be stopped between turns.
    """
    own = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "EINSQL_JIT": "wait"}
    removed = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_")
    own = {
        name: value
        for name, value in own.items()
        if name not in (*THREADS, "PYTHONHOME") and not name.startswith(removed)
    }
    return own if threads is None else own | dict.fromkeys(THREADS, str(threads))


def usable_cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
