"""Kernels of block plans, compiled once for each combination of block shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from einsql.engine.step import Runner, Tick
from einsql.ir.einsum.graph import EinSum
from einsql.ir.tra.kernels import VALUE, instantiate
from einsql.kernels.kernel import no_progress
from einsql.kernels.registry import compile_node
from einsql.storage.block_relation import RunKernel


@lru_cache(maxsize=4096)
def compiled_kernel(
    template: EinSum, shapes: tuple[tuple[int, ...], ...], jit: str = "auto"
) -> Runner:
    """Returns a kernel for arrays of given shapes."""
    return compile_node(instantiate(template, shapes), jit).run


def kernel_runner(jit: str = "auto", tick: Tick = no_progress) -> RunKernel:
    """Returns a function that runs a template on arrays of any shapes.

    Args:
        jit: See `compile_node`.
        tick: Callback; raises to cancel. Its argument is 0, because a plan does not know its number
            of kernels.
    """

    def run(template: EinSum, arrays: Sequence[np.ndarray]) -> np.ndarray:
        runner = compiled_kernel(template, tuple(a.shape for a in arrays), jit)
        return np.asarray(runner([{VALUE: a} for a in arrays], lambda _: tick(0.0))[VALUE])

    return run
