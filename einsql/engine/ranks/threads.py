"""How many threads a rank's kernels use: ranks of a machine share its cores."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def limited(environment: MutableMapping[str, str], share: int) -> None:
    """Says how many threads kernels use, where the user has not: OMP_NUM_THREADS, or a share.

    Args:
        environment: Changed in place.
        share: Cores that a rank has to itself.
    """
    threads = environment.get("OMP_NUM_THREADS") or str(max(1, share))
    for name in THREADS:
        environment.setdefault(name, threads)


def share_cores(comm: MPI.Intracomm) -> None:
    """Deals the cores of each machine to its ranks, unless the user has said how many threads.

    For ranks that were started without it: BLAS may be loaded, so its pool is limited as well.

    Args:
        comm: Of all ranks, which all call this.
    """
    from mpi4py import MPI

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores: set[int] = set().union(*neighbours.allgather(os.sched_getaffinity(0)))
    share = len(cores) // neighbours.size
    neighbours.Free()
    chosen = any(os.environ.get(name) for name in THREADS[:-1])
    limited(os.environ, share)
    if chosen:
        return
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return  # BLAS keeps its threads, which costs nothing but time
    threadpool_limits(max(1, share))
