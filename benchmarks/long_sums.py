"""Matrix products with many terms and few elements: `python -m benchmarks.long_sums`.

It compares the methods between which the constants of `kernels/matmul` choose: pieces of the
result, pieces of the sum, and tiles without packing. Every method has operands of its own, which
the other methods' turns evict from the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

import einsql
from benchmarks.matrices import Array, check, fetched, random
from benchmarks.measure import QUIET, measure
from benchmarks.report import duration
from einsql.kernels.matmul import multiply, unpacked_tiles

PRODUCT = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
SHAPES = ((16, 64), (64, 64), (128, 128), (512, 64), (64, 256), (128, 256), (32, 512), (200, 300))
TERMS = (4096, 9000, 18673, 65536)
METHODS: dict[str, dict[str, object]] = {
    "result": {"LONG_SUMS": inf, "LONG": inf},
    "sum": {"LONG_SUMS": 0, "SHORT_SIDE": 0, "LONG": inf},
    "tiles": {"LONG": 0, "SQUARES": (0, inf), "BLOCK": inf},
    "chosen": {},
}
"""The constants that force each method."""


def connected(a: Array, b: Array, constants: dict[str, object]) -> einsql.Connection:
    """A connection that has planned the product with other constants."""
    defaults = {
        name: (module, getattr(module, name))
        for module in (multiply, unpacked_tiles)
        for name in constants
        if hasattr(module, name)
    }
    try:
        for name, (module, _) in defaults.items():
            setattr(module, name, constants[name])
        con = einsql.connect(config={"jit": "wait"})
        con.register("a", a.copy(), ("i", "j"))
        con.register("b", b.copy(), ("j", "k"))
        check(fetched(con, PRODUCT), a @ b)
    finally:
        for name, (module, value) in defaults.items():
            setattr(module, name, value)
    return con


def line(rows: int, columns: int, terms: int) -> str:
    """The median time of each method and of NumPy."""
    a, b = random(rows, terms), random(terms, columns, seed=1)
    runs: dict[str, Callable[[], Array]] = {
        name: partial(fetched, connected(a, b, constants), PRODUCT)
        for name, constants in METHODS.items()
    }
    runs["NumPy"] = lambda: a @ b
    times = measure(runs, rounds=15, seconds=0.0, pause=QUIET)
    each = "  ".join(f"{name} {duration(times.median(name)):>8}" for name in runs)
    return f"{rows} × {terms} × {columns}:  {each}"


def main() -> None:
    for terms in TERMS:
        for rows, columns in SHAPES:
            print(line(rows, columns, terms), flush=True)


if __name__ == "__main__":
    main()
