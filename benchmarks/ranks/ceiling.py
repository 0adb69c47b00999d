"""The bound: every process multiplies its share, with all operands at hand and nothing sent.

Not a system to compare with, but what a system would take whose communication were free.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from benchmarks.ranks.protocol import part, serve, task


def main() -> None:
    asked, comm = task(), MPI.COMM_WORLD
    shapes = asked.workload.shapes
    rows = part(shapes["a"][0], comm.size, comm.rank)
    a, b = asked.load("a", rows), asked.load("b")
    result = np.empty((len(a), b.shape[1]), np.float32)
    if "c" in shapes:
        c = asked.load("c", rows)
        share = part(shapes["d"][1], comm.size, comm.rank)
        # The share of D·E that takes the same operations: its inner products' share.
        d, e = asked.load("d", columns=share), asked.load("e", rows=share)
        de = np.empty((len(d), e.shape[1]), np.float32)

    def run() -> None:
        np.matmul(a, b, out=result)
        if "c" in shapes:
            np.matmul(d, e, out=de)
            np.add(result, c @ de, out=result)

    serve(
        run,
        lambda: float("nan"),
        share=comm.bcast,
        barrier=comm.Barrier,
        first=comm.rank == 0,
    )


if __name__ == "__main__":
    main()
