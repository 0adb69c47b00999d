"""The processor's limits: additions and minima from registers alone, and reading memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from einsql.kernels.compiler.cpu_features import machine
from einsql.kernels.runtime import thread_pool

CHAINS = 12
"""Running minima that do not wait for each other."""


def add_min(operations: float) -> Callable[[], None]:
    """A run of so many additions and minima of float32 on all threads, half of each."""
    run = _compiled()
    lanes = machine().width // 4
    steps = round(operations / (2 * CHAINS * lanes * thread_pool.threads()))

    def once() -> None:
        threads = [
            threading.Thread(target=run, args=(steps, np.float32(1)))
            for _ in range(thread_pool.threads())
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    return once


def reading(array: np.ndarray) -> Callable[[], None]:
    """A run that reads an array in C order, of whole words, on all threads."""
    words = array.reshape(-1).view(np.int64)
    pieces = np.array_split(words, 4 * thread_pool.threads())

    def every(values: Any) -> Any:
        found = np.int64(0)
        for n in range(values.size):
            found |= values[n]
        return found

    run = njit("int64(Array(int64, 1, 'C', readonly=True))", nogil=True)(every)
    for piece in pieces:
        piece.flags.writeable = False
    return lambda: thread_pool.run(run, pieces, len(pieces), lambda _: None)


def _compiled() -> Callable[..., Any]:
    """A loop of `x = min(x + y, x)` over vectors, one for each chain."""
    single, word = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(single, machine().width // 4)

    def typed(_: Any, steps: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            stop, y = args
            start = ir.Constant(vector, ir.Undefined)
            for n in range(vector.count):
                start = builder.insert_element(start, y, ir.Constant(ir.IntType(32), n))
            before = builder.block
            loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
            begin = [
                builder.fadd(start, ir.Constant(vector, [float(n)] * vector.count))
                for n in range(CHAINS)
            ]
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(word)
            step.add_incoming(ir.Constant(word, 0), before)
            running = [builder.phi(vector) for _ in begin]
            for phi, value in zip(running, begin, strict=True):
                phi.add_incoming(value, before)
                plus = builder.fadd(phi, start)
                less = builder.fcmp_ordered("<", plus, phi)
                phi.add_incoming(builder.select(less, plus, phi), loop)
            following = builder.add(step, ir.Constant(word, 1))
            step.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, stop), loop, end)
            builder.position_at_end(end)
            total = running[0]
            for phi in running[1:]:
                total = builder.fadd(total, phi)
            return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

        return types.float32(steps, y), generate

    chains = intrinsic(typed)

    def loop(steps: int, y: float) -> Any:
        return chains(steps, y)

    compiled: Callable[..., Any] = njit("float32(int64, float32)", nogil=True)(loop)
    return compiled
