"""CALIBRATE: measures the rates of a site, with the kernels and exchanges that plans use.

Virtual sites run one after another in this process, so a site's rate is the rate of the process.
Ranks are measured while all of them work, as they do in plans, because they may share cores,
memory and the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.machine import Machine
from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.settings import RATES, Settings
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Tick
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    EinSum,
    Expr,
    Input,
    Node,
    Operand,
    Output,
    Value,
)
from einsql.ir.spmd.program import Exchange, Load, Program
from einsql.optimizer.decomposition import Cut, Decomposition
from einsql.optimizer.lowering.graph_program import site_program
from einsql.planner.compile import at_sites, compiler
from einsql.storage.fields import LocalFields

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster
    from einsql.engine.step import Arrays, GraphExecutor
    from einsql.storage.fields import Fields

BUDGET = 0.08
"""Seconds of each measurement, in which it is repeated; the fastest repetition counts."""

MATRIX = 768
"""The extent of each label of the measured contraction."""

TERMS = 8
"""Terms of the measured map's continued fraction: enough that arithmetic dominates reading."""

LARGE = 4096
"""The extents of the arrays that measure maps and memory bandwidth, which fit no cache."""

VIRTUAL = 4
"""The number of sites for measuring exchanges in one process."""

PIECES = 512
"""Rows and columns that a process exchanges. They are so few that readers do not stream them;
the time of a streamed exchange would be part of the reader's time."""


def calibrated(settings: Settings, tick: Tick, cluster: Cluster | None = None) -> Machine:
    """Measures this process or the ranks as a machine, in one to three seconds.

    Rates are rounded to three significant digits.

    Args:
        settings: The settings that select kernels.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        cluster: The ranks of the session.
    """
    measures = _Measures(settings, tick, cluster)
    rates = {
        "memory_bandwidth": measures.bandwidth(),
        "flops_float": measures.contraction(DType.FLOAT),
        "flops_double": measures.contraction(DType.DOUBLE),
        "map_float": measures.map(DType.FLOAT),
        "map_double": measures.map(DType.DOUBLE),
        "exp_float": measures.exp(DType.FLOAT),
        "exp_double": measures.exp(DType.DOUBLE),
    }
    sites, processes = measures.sites, measures.processes
    overhead, latency, _ = measures.exchange(sites)
    _, large, nbytes = measures.exchange(PIECES)
    # The sites of one process run one after another.
    rates["call_overhead"] = overhead / (sites / processes)
    rates["latency"] = latency / (sites * (sites - 1) / processes)
    rates["network"] = nbytes / processes / max(1e-9, large - latency)
    return Machine(**{name: float(f"{rate:.3g}") for name, rate in rates.items()})


def calibration_rows(machine: Machine) -> list[tuple[str, float, str]]:
    """Returns the machine's rates as rows of name, value and unit."""
    return [(name, getattr(machine, name), RATES[name].unit) for name in RATES]


class _Measures:
    """The individual measurements, with their common progress.

    Attributes:
        sites: The number of sites that exchange.
        processes: The number of processes of the sites.
    """

    def __init__(self, settings: Settings, tick: Tick, cluster: Cluster | None) -> None:
        self._settings = settings
        self._tick = tick
        self._done = 0
        self._bandwidth = np.inf
        self._cluster = cluster
        self.processes = 1 if cluster is None else cluster.ranks
        self.sites = VIRTUAL if self.processes == 1 else self.processes

    def contraction(self, dtype: DType) -> float:
        """Scalar operations per second of a matrix product."""
        rows, shared = _tensors("ab", ("ij", "jk"), self._extents(MATRIX), dtype)
        product = Call("mul", (_value(0, dtype), _value(1, dtype)), dtype)
        operands = [(rows, "ij"), (shared, "jk")]
        node = _einsum("ijk", "ik", operands, product, "sum", self._extents(MATRIX), dtype)
        return 2 * MATRIX**3 / self._arithmetic(node)

    def map(self, dtype: DType) -> float:
        """Scalar operations per second of a map with as many divisions as products and sums."""
        x: Expr = _value(0, dtype)
        value = x
        for _ in range(TERMS):
            total = Call("add", (Call("mul", (value, x), dtype), x), dtype)
            value = Call("div", (x, total), dtype)
        return 3 * TERMS * self._elementwise(value, dtype)

    def exp(self, dtype: DType) -> float:
        """Calls per second of EXP at every element."""
        return self._elementwise(Call("exp", (_value(0, dtype),), dtype), dtype)

    def _elementwise(self, value: Expr, dtype: DType) -> float:
        """Elements per second of an expression over a tensor, its arithmetic alone."""
        extents = self._extents(LARGE)
        (x,) = _tensors("a", ("ij",), extents, dtype)
        node = _einsum("ij", "ij", [(x, "ij")], value, None, extents, dtype)
        return LARGE**2 / self._arithmetic(node)

    def bandwidth(self) -> float:
        """Bytes per second of a sum that reads two large arrays and writes one."""
        extents, dtype = self._extents(LARGE), DType.FLOAT
        x, y = _tensors("ab", ("ij", "ij"), extents, dtype)
        total = Call("add", (_value(0, dtype), _value(1, dtype)), dtype)
        node = _einsum("ij", "ij", [(x, "ij"), (y, "ij")], total, None, extents, dtype)
        self._bandwidth = 3 * 4 * LARGE**2 / self._kernel(node)
        return self._bandwidth

    def exchange(self, extent: int) -> tuple[float, float, int]:
        """Measures a map by rows and a map by columns over sites, with an exchange in between.

        Returns:
            The seconds of the second map, the seconds of the exchange and its bytes.
        """
        extents = {"i": extent, "j": extent}
        (x,) = _tensors("a", ("ij",), extents, DType.FLOAT)
        one = Call("neg", (_value(0, DType.FLOAT),), DType.FLOAT)
        rows = _einsum("ij", "ij", [(x, "ij")], one, None, extents, DType.FLOAT)
        columns = _einsum("ij", "ij", [(rows, "ij")], one, None, extents, DType.FLOAT)
        cuts = {"i": self.sites, "j": 1}, {"i": 1, "j": self.sites}
        placed = self._placed(columns, self.sites, *cuts)
        best = self._program(placed, columns)
        at = next(n for n, s in enumerate(placed.steps) if isinstance(s, Exchange))
        return float(best[-1]), float(best[at]), placed.bytes_sent

    def _extents(self, extent: int) -> dict[str, int]:
        """Returns the extent of every label, with equally many rows for each process."""
        return {"i": extent * self.processes, "j": extent, "k": extent}

    def _arithmetic(self, node: EinSum) -> float:
        """Returns a kernel's seconds minus the memory time of the cost model.

        The minimum is a quarter of the seconds, because the difference is inaccurate if memory
        dominates, and then matters little.
        """
        seconds = self._kernel(node)
        tensors = [*(o.source for o in node.operands), node]
        values = sum(n.schema.size * n.schema.values[0].dtype.numpy.itemsize for n in tensors)
        return max(seconds - values / self.processes / self._bandwidth, seconds / 4)

    def _kernel(self, node: EinSum) -> float:
        """Returns the seconds of a node's kernel, run in every process at the same time."""
        if self._cluster is not None:
            cut = {a.label: self.processes if a.label == "i" else 1 for a in node.axes}
            return float(self._program(self._placed(node, self.processes, cut), node)[-1])
        runner = compiler(self._settings)(node).run
        fields = [
            {"val": np.ones(o.source.schema.shape, o.source.schema.values[0].dtype.numpy)}
            for o in node.operands
        ]
        return self._fastest(lambda: runner(fields, lambda _: None))

    def _placed(self, root: EinSum, sites: int, *parts: Mapping[str, int]) -> Program:
        """Places a graph with the cut of each node in `parts`."""
        cuts = tuple(Cut(f"r{n}", dict(p), 1, 0.0, 0.0, 0.0) for n, p in enumerate(parts))
        return site_program(root, cut=Decomposition("calibration", sites, cuts, 0.0))

    def _program(self, placed: Program, root: EinSum) -> np.ndarray:
        """Returns the seconds of each step of a program."""
        inputs: dict[str, Fields] = {}
        for step in placed.steps:
            if isinstance(step, Load):
                schema = step.source.schema
                # A stride-0 view saves memory; ranks get full tiles.
                ones = np.broadcast_to(schema.values[0].dtype.numpy.type(1), schema.shape)
                inputs[step.source.name] = LocalFields({schema.values[0].name: ones})
        jit = at_sites(self._settings)  # a measurement waits for its kernels
        program: GraphExecutor
        if self._cluster is None:
            program = SiteProgram(placed, compiler(replace(self._settings, jit=jit)))
        else:
            from einsql.engine.ranks.program import (
                RankProgram,
            )  # imports the transport to the ranks

            def keep(name: str, _: Arrays, loaded: Fields) -> None:
                inputs[name] = loaded

            program = RankProgram(self._cluster, placed, jit, keep)
        took: list[list[float]] = []

        def run() -> None:
            measure = program.measured(inputs, lambda _: None)[1]
            took.append([s.seconds for s in measure.steps])

        self._fastest(run)
        return np.asarray(np.min(took, axis=0))

    def _fastest(self, run: Callable[[], object]) -> float:
        run()  # warm-up: compiles kernels and starts threads
        best, end = np.inf, time.perf_counter() + BUDGET
        while best == np.inf or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
            self._tick(self._done / MEASUREMENTS)
        self._done += 1
        self._tick(self._done / MEASUREMENTS)
        return best


MEASUREMENTS = 9
"""The number of measurements of a calibration, for the completed fraction."""


def _tensors(
    names: Iterable[str], keys: Iterable[str], extents: Mapping[str, int], dtype: DType
) -> list[Input]:
    return [
        Input(n, Schema(tuple(Key(x, 0, extents[x]) for x in own), (Field("val", dtype),)))
        for n, own in zip(names, keys, strict=True)
    ]


def _value(operand: int, dtype: DType) -> Expr:
    return Value(operand, "val", dtype)


def _einsum(
    labels: str,
    keys: str,
    operands: Sequence[tuple[Node, str]],
    value: Expr,
    reduction: str | None,
    extents: Mapping[str, int],
    dtype: DType,
) -> EinSum:
    return EinSum(
        tuple(Axis(x, 0, extents[x]) for x in labels),
        tuple(Operand(source, tuple(terms)) for source, terms in operands),
        TRUE,
        tuple(keys),
        (Output("val", (value,), dtype, reduction),),
    )
