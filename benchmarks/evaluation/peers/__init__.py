"""Environments of einsql's peers, which `python -m benchmarks.evaluation.peers` installs.

Each file NAME.txt here pins the packages of one environment, which is build/peers/NAME.
ScaLAPACK and PostgreSQL are Debian's. What cannot be had is an empty column with its reason.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "peers"
PINS = Path(__file__).parent
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
    """Variables of a contestant: the checkout's modules, and threads where a number is given.

    einsql waits for its kernels, for a compiler in the background would be stopped between turns.
    """
    own = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "EINSQL_JIT": "wait"}
    own.pop("PYTHONHOME", None)
    if threads is None:
        return own
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return own | dict.fromkeys(names, str(threads))
