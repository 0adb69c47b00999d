"""What every system computes, the files it reads, and how its answer is checked.

The matrices are .npy files, of which each process maps what it holds. An answer R is checked
by left · R · right for two vectors of random signs, summed in double precision: each process
adds up what it holds, nothing has to be gathered, and NumPy finds the same number from the
inputs with products of matrices and vectors alone. A block that is missing or at the wrong
place changes the number by as much as the block is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Array = np.ndarray

Times = Callable[[str, Array], Array]
"""An input, by its name, times a vector."""

N = 4096
S = 4000
THIN, WIDE = S // 10, 10 * S

TOLERANCE = 1e-4
"""Of the result's Frobenius norm; float32 sums over 40,000 products stay below 1e-5."""


@dataclass(frozen=True)
class Workload:
    """A computation.

    Attributes:
        formula: What is computed, for people.
        shapes: Rows and columns of every input, by its name.
        flops: Operations of the products.
        apply: The result times a vector, from products of inputs and vectors.
    """

    formula: str
    shapes: dict[str, tuple[int, int]]
    flops: int
    apply: Callable[[Times, Array], Array]

    @property
    def result(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        return self.shapes["a"][0], self.shapes["b"][1]


def _product(times: Times, x: Array) -> Array:
    return times("a", times("b", x))


def _chain(times: Times, x: Array) -> Array:
    return times("a", times("b", x)) + times("c", times("d", times("e", x)))


def chain_of(s: int, thin: int, wide: int) -> Workload:
    """A and C have s × thin elements, B thin × s, D thin × wide, E wide × s."""
    shapes = {"a": (s, thin), "b": (thin, s), "c": (s, thin), "d": (thin, wide), "e": (wide, s)}
    flops = 2 * (s * thin * s + thin * wide * s + s * thin * s)
    return Workload("(A·B) + (C·(D·E))", shapes, flops, _chain)


WORKLOADS = {
    "square": chain_of(S, S, S),
    "skewed": chain_of(S, THIN, WIDE),
    "square-2000": chain_of(S // 2, S // 2, S // 2),
    "skewed-2000": chain_of(S // 2, THIN // 2, WIDE // 2),
    "matmul": Workload("A·B", {"a": (N, N), "b": (N, N)}, 2 * N**3, _product),
}


def write(workload: Workload, folder: Path) -> float:
    """Writes the inputs and the two vectors as .npy files, unless they are there.

    Returns:
        The checksum that a right answer has.
    """
    marker = folder / "checksum"
    if marker.exists():
        return float(marker.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    for name, shape in workload.shapes.items():
        rng = np.random.default_rng((ord(name), *shape))
        np.save(folder / f"{name}.npy", rng.standard_normal(shape, dtype=np.float32))
    rng = np.random.default_rng(0)
    left, right = (rng.choice([-1.0, 1.0], n) for n in workload.result)
    np.save(folder / "left.npy", left)
    np.save(folder / "right.npy", right)
    checksum = float(
        left @ workload.apply(lambda name, x: _times(folder / f"{name}.npy", x), right)
    )
    marker.write_text(repr(checksum))
    return checksum


def _times(file: Path, x: Array) -> Array:
    """The matrix in a file times a vector in double precision, some rows at a time."""
    matrix = np.load(file, mmap_mode="r")
    rows = range(0, len(matrix), 512)
    return np.concatenate([matrix[r : r + 512].astype(np.float64) @ x for r in rows])


def norm(workload: Workload) -> float:
    """About the Frobenius norm of the result, whose inputs are standard normal."""
    rows, columns = workload.result
    variance = float(workload.shapes["a"][1])
    if "c" in workload.shapes:
        variance += float(workload.shapes["c"][1]) * workload.shapes["d"][1]
    return float(np.sqrt(variance * rows * columns))


def right(workload: Workload, found: float, expected: float) -> bool:
    """Whether a checksum is the one expected, up to rounding."""
    return abs(found - expected) <= TOLERANCE * norm(workload)
