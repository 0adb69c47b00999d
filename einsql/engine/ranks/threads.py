"""The number of threads of a rank's kernels: the ranks of a machine share its cores."""

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
    """Sets the variables of all thread pools: to OMP_NUM_THREADS, else to a share of the cores.

    Variables that the user has set stay unchanged.

    Args:
        environment: The environment, changed in place.
        share: The cores of one rank.
    """
    threads = environment.get("OMP_NUM_THREADS") or str(max(1, share))
    for name in THREADS:
        environment.setdefault(name, threads)


def share_cores(comm: MPI.Intracomm) -> None:
    """Distributes the cores of each machine over its ranks, unless the user has set the threads.

    For ranks of an MPI job: BLAS may already be loaded, so its pool is limited as well.

    Args:
        comm: A communicator of all ranks; the call is collective.
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
        return  # BLAS keeps its threads: only slower
    threadpool_limits(max(1, share))
