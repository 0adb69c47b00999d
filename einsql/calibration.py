"""CALIBRATE: measures the rates of a site, with the kernels and exchanges that plans use.

Virtual sites share this process, so what one of them reaches while it runs alone is what
a site is taken to reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from einsql.einsum import TRUE, Axis, Call, EinSum, Expr, Input, Node, Operand, Output, Value
from einsql.engine.executor import Tick
from einsql.machine import Machine
from einsql.planning import compiler
from einsql.schema import DType, Field, Key, Schema
from einsql.settings import RATES, Settings

BUDGET = 0.08
"""Seconds for each measurement, which is repeated as long; the fastest counts."""

MATRIX = 768
"""Extents of the measured contraction."""

DEGREE = 8
"""Of the polynomial whose evaluation is the measured map."""

VIRTUAL = 4
"""Sites between which exchanges are measured."""


def calibrated(settings: Settings, tick: Tick) -> Machine:
    """Measures this process as a machine, in about a second; three digits of a rate mean anything.

    Args:
        settings: Which kernels plans use.
        tick: Called with the fraction done; what it raises ends the measurement.
    """
    measures = _Measures(settings, tick)
    rates = {
        "flops_float": measures.contraction(DType.FLOAT),
        "flops_double": measures.contraction(DType.DOUBLE),
        "map_float": measures.map(DType.FLOAT),
        "map_double": measures.map(DType.DOUBLE),
    }
    rates["memory_bandwidth"] = measures.bandwidth()
    overhead, latency, _ = measures.sites(VIRTUAL)
    _, large, nbytes = measures.sites(1024)
    rates["call_overhead"] = overhead / VIRTUAL
    rates["latency"] = latency / (VIRTUAL * (VIRTUAL - 1))
    rates["network"] = nbytes / max(1e-9, large - latency)
    return Machine(**{name: float(f"{rate:.3g}") for name, rate in rates.items()})


def calibration_rows(machine: Machine) -> list[tuple[str, float, str]]:
    """The machine as rows of name, value and unit."""
    return [(name, getattr(machine, name), RATES[name].unit) for name in RATES]


class _Measures:
    """Single measurements, with progress over all of them."""

    def __init__(self, settings: Settings, tick: Tick) -> None:
        self._compile = compiler(settings)
        self._tick = tick
        self._done = 0

    def contraction(self, dtype: DType) -> float:
        """Scalar operations per second of a matrix product."""
        a, b = _tensor("a", "ij", MATRIX, dtype), _tensor("b", "jk", MATRIX, dtype)
        product = Call("mul", (_value(0, dtype), _value(1, dtype)), dtype)
        node = _einsum("ijk", "ik", [(a, "ij"), (b, "jk")], product, "sum", MATRIX, dtype)
        return 2 * MATRIX**3 / self._kernel(node)

    def map(self, dtype: DType) -> float:
        """Scalar operations per second of a polynomial at every element."""
        x = _tensor("a", "ij", 256, dtype)
        value: Expr = _value(0, dtype)
        for _ in range(DEGREE):
            product = Call("mul", (value, _value(0, dtype)), dtype)
            value = Call("add", (product, _value(0, dtype)), dtype)
        node = _einsum("ij", "ij", [(x, "ij")], value, None, 256, dtype)
        return 2 * DEGREE * 256**2 / self._kernel(node)

    def bandwidth(self) -> float:
        """Bytes per second of a sum that reads two large arrays and writes one."""
        extent, dtype = 2048, DType.FLOAT
        x, y = _tensor("a", "ij", extent, dtype), _tensor("b", "ij", extent, dtype)
        total = Call("add", (_value(0, dtype), _value(1, dtype)), dtype)
        node = _einsum("ij", "ij", [(x, "ij"), (y, "ij")], total, None, extent, dtype)
        return 3 * 4 * extent**2 / self._kernel(node)

    def sites(self, extent: int) -> tuple[float, float, int]:
        """A map by rows and a map by columns over virtual sites, with an exchange between.

        Returns:
            Seconds of the second map, seconds of the exchange and its bytes.
        """
        from einsql.engine.sites import SiteProgram  # 20 ms, for several sites only
        from einsql.optimizer.decomposition import Cut, Decomposition
        from einsql.optimizer.placement import place
        from einsql.supersteps import Exchange

        x = _tensor("a", "ij", extent, DType.FLOAT)
        one = Call("neg", (_value(0, DType.FLOAT),), DType.FLOAT)
        rows = _einsum("ij", "ij", [(x, "ij")], one, None, extent, DType.FLOAT)
        columns = _einsum("ij", "ij", [(rows, "ij")], one, None, extent, DType.FLOAT)
        parts = ({"i": VIRTUAL, "j": 1}, {"i": 1, "j": VIRTUAL})
        cuts = tuple(Cut(f"r{n}", p, 1, 0.0, 0.0, 0.0) for n, p in enumerate(parts))
        placed = place(columns, Decomposition("calibration", VIRTUAL, cuts, 0.0))
        program = SiteProgram(placed, columns.schema, self._compile)
        inputs = {"a": {"val": np.ones((extent, extent), np.float32)}}
        at = next(n for n, s in enumerate(placed.steps) if isinstance(s, Exchange))
        took: list[list[float]] = []

        def run() -> None:
            measure = program.measured(inputs, lambda _: None)[1]
            took.append([s.seconds for s in measure.steps])

        self._fastest(run)
        best = np.min(took, axis=0)
        return float(best[-1]), float(best[at]), placed.bytes_sent

    def _kernel(self, node: EinSum) -> float:
        """Seconds of the kernel that a node is compiled to."""
        _, runner = self._compile(node)
        fields = [
            {"val": np.ones(o.source.schema.shape, o.source.schema.values[0].dtype.numpy)}
            for o in node.operands
        ]
        return self._fastest(lambda: runner(fields, lambda _: None))

    def _fastest(self, run: Callable[[], object]) -> float:
        run()  # kernels are compiled and threads started here
        best, end = np.inf, time.perf_counter() + BUDGET
        while best == np.inf or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
            self._tick(self._done / MEASUREMENTS)
        self._done += 1
        self._tick(self._done / MEASUREMENTS)
        return best


MEASUREMENTS = 7


def _tensor(name: str, keys: str, extent: int, dtype: DType) -> Input:
    schema = Schema(tuple(Key(k, 0, extent) for k in keys), (Field("val", dtype),))
    return Input(name, schema)


def _value(operand: int, dtype: DType) -> Expr:
    return Value(operand, "val", dtype)


def _einsum(
    labels: str,
    keys: str,
    operands: Sequence[tuple[Node, str]],
    value: Expr,
    reduction: str | None,
    extent: int,
    dtype: DType,
) -> EinSum:
    """A node whose labels all have one extent."""
    return EinSum(
        tuple(Axis(x, 0, extent) for x in labels),
        tuple(Operand(source, tuple(terms)) for source, terms in operands),
        TRUE,
        tuple(keys),
        (Output("val", (value,), dtype, reduction),),
    )
