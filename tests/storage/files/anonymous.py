"""A chain of matrix products under a memory limit, in a process of its own.

    python -m tests.storage.files.anonymous SIDE LIMIT DTYPE DIRECTORY

Four matrices of small integers lie in files. Prints what their product and its sum take of
anonymous memory above an idle session's, and whether every element is what exact integers
give; the exit status is 1 if it is not.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import numpy as np

import einsql

CHAIN = """
    SELECT a.i, d.j, SUM(a.val * b.val * c.val * d.val) AS val
    FROM {0} a JOIN {1} b ON a.j = b.i JOIN {2} c ON b.j = c.i JOIN {3} d ON c.j = d.i
    GROUP BY a.i, d.j"""
NAMES = "pqrs"
ENTRIES = 3
"""Elements of a row that are not 0, so that sums are exact in FLOAT."""


def anonymous() -> int:
    """Bytes of this process's anonymous memory."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


class Peak:
    """The most anonymous memory while it is entered."""

    def __enter__(self) -> Peak:
        self.most, self._over = 0, False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over = True
        self._thread.join()

    def _watch(self) -> None:
        while not self._over:
            self.most = max(self.most, anonymous())
            time.sleep(0.002)


def written(path: Path, side: int, dtype: str, seed: int) -> np.ndarray:
    """A matrix in a file of which each row has few elements, mapped."""
    random = np.random.default_rng(seed)
    made = np.lib.format.open_memmap(path, "w+", dtype, (side, side))
    for row in range(side):
        made[row, random.integers(0, side, ENTRIES)] = random.integers(-2, 3, ENTRIES)
    made.flush()
    found: np.ndarray = np.load(path, mmap_mode="r")
    return found


def product(matrices: list[np.ndarray], rows: slice) -> np.ndarray:
    """Rows of the chain's product, in DOUBLE."""
    made = matrices[0][rows].astype(np.float64)
    for m in matrices[1:]:
        made = made @ m
    return made


def main() -> int:
    """Runs the chain and prints what it took."""
    side, limit, dtype, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    matrices = [written(directory / f"{x}.npy", side, dtype, n) for n, x in enumerate(NAMES)]
    temporary = directory / "temporary"
    con = einsql.connect(config={"memory_limit": limit, "temp_directory": str(temporary)})
    con.register("small", np.ones((64, 64), dtype), dims=("i", "j"))
    con.execute(CHAIN.format(*["small"] * 4)).fetch_numpy()
    for name, matrix in zip(NAMES, matrices, strict=True):
        con.register(name, matrix, dims=("i", "j"))
    allowed = con.memory.limit
    assert allowed is not None
    idle = anonymous()
    start = time.perf_counter()
    with Peak() as peak:
        found = con.execute(CHAIN.format(*NAMES)).fetch_numpy()
    seconds = time.perf_counter() - start
    taken, working = peak.most - idle, 7 * matrices[0].nbytes
    equal = all(
        np.array_equal(found[at : at + 256], product(matrices, slice(at, at + 256)))
        for at in range(0, side, max(256, side // 8))
    )
    del found
    con.close()
    left = temporary.exists()
    print(
        f"limit {allowed:,}, working set {working:,}, anonymous {taken:,} bytes, "
        f"{seconds:.1f} s, {'equal' if equal else 'different'}, "
        f"{'something' if left else 'nothing'} left"
    )
    return 0 if equal and taken <= allowed <= working / 4 and not left else 1


if __name__ == "__main__":
    sys.exit(main())
