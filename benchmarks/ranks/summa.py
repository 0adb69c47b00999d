"""SUMMA written by hand over mpi4py, NumPy's arrays and SciPy's BLAS, on a grid of processes.

Processes form a grid of rows × columns, and every matrix is cut into as many blocks. A product
goes through panels of the summed dimension: the column of processes that has a panel of the
left operand broadcasts it along the grid's rows, the row that has the panel of the right one
broadcasts it along the grid's columns, and everyone multiplies onto its block of the result.
BLAS adds to what is there (`beta = 1`), so a sum of two products costs no pass of its own.

The option is `GRID,PANELS,HOW[,inner]`: `1x2,4,plain` is a grid of one row and two columns and
four panels for each block. With `pipelined` the next panels are under way while these are
multiplied. With `inner` D·E is computed the other way round: D is cut by columns and E by rows
over all processes, each multiplies what it has, and the sum is scattered to blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from mpi4py import MPI
from scipy.linalg.blas import sgemm

from benchmarks.ranks.protocol import part, serve, task

Array = np.ndarray


class Grid:
    """Processes as a grid, and products on it."""

    def __init__(self, rows: int, columns: int, panels: int, pipelined: bool) -> None:
        self.rows, self.columns, self.panels, self.pipelined = rows, columns, panels, pipelined
        self.all = MPI.COMM_WORLD
        self.row, self.column = divmod(self.all.rank, columns)
        self.along_row = self.all.Split(self.row, self.column)
        self.along_column = self.all.Split(self.column, self.row)

    def block(self, shape: tuple[int, int]) -> tuple[slice, slice]:
        """Rows and columns of a matrix that this process has."""
        return part(shape[0], self.rows, self.row), part(shape[1], self.columns, self.column)

    def multiply(self, left: Array, right: Array, onto: Array, length: int) -> None:
        """Adds a product of distributed matrices to another; `length` is summed over."""
        previous = None
        for low, high in self._panels(length):
            a, first = self._share(self.along_row, left, 1, length, low, high)
            b, second = self._share(self.along_column, right, 0, length, low, high)
            if previous is not None:
                _multiply(*previous, onto)
            previous = a, b, first, second
            if not self.pipelined:
                _multiply(*previous, onto)
                previous = None
        if previous is not None:
            _multiply(*previous, onto)

    def _panels(self, length: int) -> Iterator[tuple[int, int]]:
        """Intervals each of which lies in one block of the left and of the right operand."""
        cuts = {length * n // p for p in (self.rows, self.columns) for n in range(p + 1)}
        for low, high in pairwise(sorted(cuts)):
            for n in range(self.panels):
                piece = part(high - low, self.panels, n)
                yield low + piece.start, low + piece.stop

    def _share(
        self, comm: MPI.Comm, block: Array, axis: int, length: int, low: int, high: int
    ) -> tuple[Array, MPI.Request]:
        """A panel, which its owner along `comm` broadcasts, and what to wait for."""
        owner = next(n for n in range(comm.size) if low < length * (n + 1) // comm.size)
        if comm.rank == owner:
            start = length * owner // comm.size
            own = slice(low - start, high - start)
            panel = np.ascontiguousarray(block[:, own] if axis else block[own])
        else:
            width = high - low
            shape = (len(block), width) if axis else (width, block.shape[1])
            panel = np.empty(shape, np.float32)
        if comm.size == 1:
            return panel, MPI.REQUEST_NULL
        if self.pipelined:
            return panel, comm.Ibcast(panel, owner)
        comm.Bcast(panel, owner)
        return panel, MPI.REQUEST_NULL

    def multiply_inner(
        self, left: Array, right: Array, onto: Array, shape: tuple[int, int]
    ) -> None:
        """Replaces a matrix by a product of a matrix cut by columns and one cut by rows."""
        whole = left @ right
        blocks = [
            whole[part(shape[0], self.rows, n), part(shape[1], self.columns, m)].ravel()
            for n in range(self.rows)
            for m in range(self.columns)
        ]
        packed = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        self.all.Reduce_scatter(packed, onto, [b.size for b in blocks])


def _multiply(a: Array, b: Array, first: MPI.Request, second: MPI.Request, onto: Array) -> None:
    MPI.Request.Waitall([first, second])
    # BLAS reads columns first, and so sees every matrix transposed.
    sgemm(1.0, b.T, a.T, 1.0, onto.T, overwrite_c=True)


def main() -> None:
    asked = task()
    grid_option, panels, how, *inner = asked.option.split(",")
    rows, columns = (int(n) for n in grid_option.split("x"))
    grid = Grid(rows, columns, int(panels), how == "pipelined")
    shapes = asked.workload.shapes
    own = {
        n: asked.load(n, *grid.block(s)) for n, s in shapes.items() if not inner or n not in "de"
    }
    if inner:
        share = part(shapes["d"][1], asked.ranks, grid.all.rank)
        own["d"], own["e"] = asked.load("d", columns=share), asked.load("e", rows=share)
    place = grid.block(asked.workload.result)
    result = np.empty((place[0].stop - place[0].start, place[1].stop - place[1].start), np.float32)
    if "c" in shapes:
        middle = (shapes["d"][0], shapes["e"][1])
        low, high = grid.block(middle)
        de = np.empty((low.stop - low.start, high.stop - high.start), np.float32)

    def run() -> None:
        result.fill(0.0)
        grid.multiply(own["a"], own["b"], result, shapes["a"][1])
        if "c" not in shapes:
            return
        if inner:
            grid.multiply_inner(own["d"], own["e"], de, middle)
        else:
            de.fill(0.0)
            grid.multiply(own["d"], own["e"], de, shapes["d"][1])
        grid.multiply(own["c"], de, result, shapes["c"][1])

    serve(
        run,
        lambda: float(grid.all.allreduce(asked.checksum(result, place[0].start, place[1].start))),
        share=grid.all.bcast,
        barrier=grid.all.Barrier,
        first=grid.all.rank == 0,
    )


if __name__ == "__main__":
    main()
