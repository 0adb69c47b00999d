"""The thesis: strong and weak scaling of a product of matrices."""

from __future__ import annotations

from benchmarks.evaluation.experiment import Case, Contestant, Experiment, Scaling
from benchmarks.evaluation.experiments.matmul import (
    PRODUCT,
    by_dtensor,
    by_einsql,
    by_jax,
    by_numpy,
    dtensor_ways,
    inputs,
    jax_ways,
    layouts,
    reference,
)


def sizes(full: bool) -> tuple[int, int]:
    """The matrix of one rank, and that of two ranks with twice the work."""
    return (4096, 5160) if full else (2048, 2580)


def cases(full: bool) -> list[Case]:
    """The same matrices on one and on two ranks, and twice the work on two ranks."""
    n, larger = sizes(full)
    return [
        Case("one rank", {"n": n}, 1),
        Case("two ranks", {"n": n}, 2),
        Case("two ranks, twice the work", {"n": larger}, 2),
    ]


EXPERIMENT = Experiment(
    title="Thesis: strong and weak scaling",
    source="the thesis, scaling of matmul",
    about="A product in FLOAT with one thread for each rank, 2048² (4096² in a full run). "
    "Twice the work is a product of 2580² (5160²). `bound` has all operands at each process and "
    "sends nothing. JAX is one process with a device for each rank. DTensor runs in eager mode.",
    sql={"The statement": PRODUCT.format(hint="")},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql(), ways=layouts),
        Contestant("DTensor", "torch", by_dtensor, dtensor_ways, "torchrun"),
        Contestant("JAX", "jax", by_jax, jax_ways),
        Contestant("bound", "mpi", by_numpy, launch="mpi", bound=True),
    ),
    inputs=inputs,
    reference=reference,
    scaling=(
        Scaling("two ranks, the same work (2× is ideal)", "one rank", "two ranks"),
        Scaling("two ranks, twice the work (1× is ideal)", "one rank",
                "two ranks, twice the work"),
    ),
)  # fmt: skip
