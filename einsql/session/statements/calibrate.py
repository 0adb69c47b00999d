"""CALIBRATE: measures the rates of a site, with the kernels and exchanges that plans use.

Virtual sites run one after another in this process, so a site's rate is the rate of the process.
Ranks are measured while all of them work, as they do in plans, because they may share cores,
memory and the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
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

BUDGET = 0.04
"""Seconds of each measurement in a round, in which it is repeated; the fastest one counts."""

ROUNDS = 4, 10
"""The least and greatest number of rounds of all measurements."""

STEADY = 0.05
"""The greatest relative change of a rate by the last round (`python -m benchmarks.calibration`)."""

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
    """Measures this process or the ranks as a machine, in some seconds.

    All rates are measured in rounds until a round changes none of them, so that a process that
    runs beside some of the measurements does not slow their rates down. Rates are rounded to three
    significant digits.

    Args:
        settings: The settings that select kernels.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        cluster: The ranks of the session.
    """
    measures = _Measures(settings, tick, cluster)
    least, most = ROUNDS
    rates = measures.round()
    for number in range(1, most):
        before, rates = rates, measures.round()
        changes = (abs(rates[name] / before[name] - 1) for name in rates)
        if number + 1 >= least and max(changes) < STEADY:
            break
    tick(1)
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
        self._runs: dict[EinSum, Callable[[], np.ndarray]] = {}
        self._fastest: dict[EinSum, np.ndarray] = {}
        self._inputs: dict[tuple[str, Schema], Fields] = {}
        self.processes = 1 if cluster is None else cluster.ranks
        self.sites = VIRTUAL if self.processes == 1 else self.processes

    def round(self) -> dict[str, float]:
        """The rates by the fastest repetitions of this round and the earlier ones."""
        rates = {
            "memory_bandwidth": self.bandwidth(),
            "flops_float": self.contraction(DType.FLOAT),
            "flops_double": self.contraction(DType.DOUBLE),
            "map_float": self.map(DType.FLOAT),
            "map_double": self.map(DType.DOUBLE),
            "exp_float": self.exp(DType.FLOAT),
            "exp_double": self.exp(DType.DOUBLE),
        }
        overhead, latency, _ = self.exchange(self.sites)
        _, large, nbytes = self.exchange(PIECES)
        # The sites of one process run one after another.
        rates["call_overhead"] = overhead / (self.sites / self.processes)
        rates["latency"] = latency / (self.sites * (self.sites - 1) / self.processes)
        rates["network"] = nbytes / self.processes / max(1e-9, large - latency)
        return rates

    def contraction(self, dtype: DType) -> float:
        """Scalar operations per second of a matrix product."""
        node = _contraction(MATRIX * self.processes, MATRIX, dtype)
        return 2 * MATRIX**3 / self._arithmetic(node)

    def map(self, dtype: DType) -> float:
        """Scalar operations per second of a map with as many divisions as products and sums."""
        return 3 * TERMS * LARGE**2 / self._arithmetic(self._map("fraction", dtype))

    def exp(self, dtype: DType) -> float:
        """Calls per second of EXP at every element."""
        return LARGE**2 / self._arithmetic(self._map("exp", dtype))

    def _map(self, kind: str, dtype: DType) -> EinSum:
        return _map(LARGE * self.processes, LARGE, kind, dtype)

    def bandwidth(self) -> float:
        """Bytes per second of a sum that reads two large arrays and writes one."""
        node = _map(LARGE * self.processes, LARGE, "sum", DType.FLOAT)
        self._bandwidth = 3 * 4 * LARGE**2 / self._kernel(node)
        return self._bandwidth

    def exchange(self, extent: int) -> tuple[float, float, int]:
        """Measures a map by rows and a map by columns over sites, with an exchange in between.

        Returns:
            The seconds of the second map, the seconds of the exchange and its bytes.
        """
        columns = _two_maps(extent)
        cuts = {"i": self.sites, "j": 1}, {"i": 1, "j": self.sites}
        placed = self._placed(columns, self.sites, *cuts)
        seconds = self._seconds(columns, lambda: self._program(placed))
        at = next(n for n, s in enumerate(placed.steps) if isinstance(s, Exchange))
        return float(seconds[-1]), float(seconds[at]), placed.bytes_sent

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
        if self._cluster is None:
            return float(self._seconds(node, lambda: self._alone(node))[-1])
        cut = {a.label: self.processes if a.label == "i" else 1 for a in node.axes}
        placed = self._placed(node, self.processes, cut)
        return float(self._seconds(node, lambda: self._program(placed))[-1])

    def _alone(self, node: EinSum) -> Callable[[], np.ndarray]:
        """Compiles a node for this process; the function runs it and returns its seconds."""
        runner = compiler(self._settings)(node).run
        fields = [self._ones(o.source) for o in node.operands]

        def run() -> np.ndarray:
            start = time.perf_counter()
            runner(fields, lambda _: None)
            return np.array([time.perf_counter() - start])

        return run

    def _ones(self, source: Node) -> Arrays:
        assert isinstance(source, Input)
        schema, name = source.schema, source.schema.values[0].name
        fields = self._inputs.get((source.name, schema))
        if fields is None:
            fields = LocalFields({name: np.ones(schema.shape, schema.values[0].dtype.numpy)})
            self._inputs[source.name, schema] = fields
        return {name: fields[name]}

    def _placed(self, root: EinSum, sites: int, *parts: Mapping[str, int]) -> Program:
        """Places a graph with the cut of each node in `parts`."""
        cuts = tuple(Cut(f"r{n}", dict(p), 1, 0.0, 0.0, 0.0) for n, p in enumerate(parts))
        return site_program(root, cut=Decomposition("calibration", sites, cuts, 0.0))

    def _program(self, placed: Program) -> Callable[[], np.ndarray]:
        """Compiles a program; the function runs it and returns the seconds of each step."""
        inputs: dict[str, Fields] = {}
        schemas: dict[str, Schema] = {}
        for step in placed.steps:
            if isinstance(step, Load):
                name, schema = step.source.name, step.source.schema
                schemas[name] = schema
                # A stride-0 view saves memory; ranks get full tiles.
                ones = np.broadcast_to(schema.values[0].dtype.numpy.type(1), schema.shape)
                fields = LocalFields({schema.values[0].name: ones})
                inputs[name] = self._inputs.get((name, schema), fields)
        jit = at_sites(self._settings)  # a measurement waits for its kernels
        program: GraphExecutor
        if self._cluster is None:
            program = SiteProgram(placed, compiler(replace(self._settings, jit=jit)))
        else:
            from einsql.engine.ranks.program import (
                RankProgram,
            )  # imports the transport to the ranks

            kept = self._inputs

            def keep(name: str, _: Arrays, loaded: Fields) -> None:
                inputs[name] = kept[name, schemas[name]] = loaded

            program = RankProgram(self._cluster, placed, jit, keep)

        def run() -> np.ndarray:
            measure = program.measured(inputs, lambda _: None)[1]
            return np.array([s.seconds for s in measure.steps])

        return run

    def _seconds(
        self, node: EinSum, compiled: Callable[[], Callable[[], np.ndarray]]
    ) -> np.ndarray:
        """The least seconds of each step in all rounds; repeats the run for one round."""
        run = self._runs.get(node)
        if run is None:
            run = self._runs[node] = compiled()
            run()  # compiles kernels and starts threads
        best, end = self._fastest.get(node), time.perf_counter() + BUDGET
        is_first = True
        while best is None or is_first or time.perf_counter() < end:
            seconds = run()
            best = seconds if best is None else np.minimum(best, seconds)
            is_first = False
            self._tick(min(self._done / (MEASUREMENTS * ROUNDS[0]), 0.99))
        self._fastest[node] = best
        self._done += 1
        self._tick(min(self._done / (MEASUREMENTS * ROUNDS[0]), 0.99))
        return best


MEASUREMENTS = 9
"""The number of measurements of a round, for the completed fraction."""


@cache
def _contraction(rows: int, extent: int, dtype: DType) -> EinSum:
    """A matrix product."""
    extents = {"i": rows, "j": extent, "k": extent}
    left, right = _tensors("ab", ("ij", "jk"), extents, dtype)
    product = Call("mul", (_value(0, dtype), _value(1, dtype)), dtype)
    return _einsum("ijk", "ik", [(left, "ij"), (right, "jk")], product, "sum", extents, dtype)


@cache
def _map(rows: int, extent: int, kind: str, dtype: DType) -> EinSum:
    """A map at every element of one matrix: EXP, or a continued fraction; or the sum of two."""
    extents = {"i": rows, "j": extent}
    x, y = _tensors("ab", ("ij", "ij"), extents, dtype)
    one: Expr = _value(0, dtype)
    mapped = one
    if kind == "sum":
        total = Call("add", (one, _value(1, dtype)), dtype)
        return _einsum("ij", "ij", [(x, "ij"), (y, "ij")], total, None, extents, dtype)
    if kind == "exp":
        mapped = Call("exp", (one,), dtype)
    else:
        for _ in range(TERMS):
            denominator = Call("add", (Call("mul", (mapped, one), dtype), one), dtype)
            mapped = Call("div", (one, denominator), dtype)
    return _einsum("ij", "ij", [(x, "ij")], mapped, None, extents, dtype)


@cache
def _two_maps(extent: int) -> EinSum:
    """A map of a square matrix, and a map of its result."""
    extents = {"i": extent, "j": extent}
    (x,) = _tensors("c", ("ij",), extents, DType.FLOAT)
    negative = Call("neg", (_value(0, DType.FLOAT),), DType.FLOAT)
    rows = _einsum("ij", "ij", [(x, "ij")], negative, None, extents, DType.FLOAT)
    return _einsum("ij", "ij", [(rows, "ij")], negative, None, extents, DType.FLOAT)


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
