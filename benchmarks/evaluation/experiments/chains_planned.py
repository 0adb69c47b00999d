"""E1 planned: the chains of matrix products on up to 128 sites."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isqrt

from benchmarks.evaluation.experiment import Experiment, Table
from benchmarks.evaluation.experiments.chains import PAIRWISE
from benchmarks.evaluation.plans import CPUS, Comparison, Subject, graph
from einsql.ir.einsum.graph import Roots

S = 20_000
SITES, MORE_SITES = (2, 4, 8, 16, 32, 64, 128), (2, 3, 4, 6, 8, 12, 16, 24, 27, 32, 48, 64, 96, 128)
STRATEGIES = ("equal", "paper", "data:i")


def chain(thin: int, wide: int, blocks: tuple[int, int] | None = None) -> Roots:
    """The graph, with the inner extents of the matrices, and the blocks in which these are."""
    keys = {"a": (S, thin), "b": (thin, S), "c": (S, thin), "d": (thin, wide), "e": (wide, S)}
    extents = {name: dict(zip("ij", n, strict=True)) for name, n in keys.items()}
    return graph(extents, PAIRWISE, dict.fromkeys(extents, blocks) if blocks else {})


def grid(sites: int) -> tuple[int, int]:
    """The rows and columns of sites that are closest to a square."""
    columns = max(n for n in range(1, isqrt(sites) + 1) if sites % n == 0)
    return sites // columns, columns


def placed(thin: int, wide: int, stored: bool, sites: int) -> Roots:
    """The graph for some sites, whose inputs are stored in a block at each of them or nowhere."""
    return chain(thin, wide, grid(sites) if stored else None)


def computed(full: bool) -> list[Table]:
    """Square and skewed chains: floats as the paper counts them, and moves of stored blocks."""
    numbers = MORE_SITES if full else SITES
    shapes = {"square": (S, S), "skewed": (S // 10, 10 * S)}
    compared = Comparison(CPUS, STRATEGIES, max(numbers))
    anywhere: dict[str, tuple[Subject, Sequence[int]]] = {
        name: (partial(placed, *shape, False), numbers) for name, shape in shapes.items()
    }
    tables = compared.tables("chains", anywhere, "Inputs are in no place yet.", ("floats",))
    for name, shape in shapes.items():
        tables += compared.tables(
            f"the {name} chain of stored blocks", {name: (partial(placed, *shape, True), numbers)},
            "Each input is in one block at each site, of the grid of sites that is closest to a "
            "square.", ("bytes", "seconds"),
        )  # fmt: skip
    return tables


EXPERIMENT = Experiment(
    title="E1: chains of matrix products, planned",
    source="EinDecomp §9, experiment 1",
    about=f"(A·B) + (C·(D·E)) with s = {S:,}, as above. "
    "`equal` is the equal split of the 3D algorithm: every label into ⌈∛sites⌉ parts, so its calls "
    "outnumber the sites unless these are a cube. `paper` is EinDecomp as published, which takes a "
    "power of two of calls. `data:i` cuts the rows of the products alone. `paper` "
    "minimises floats, every other strategy the measure of its table within the cuts that it "
    "allows. `exact` is optimal by the search's estimate.",
    computed=computed,
)
