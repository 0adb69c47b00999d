"""Execution of a group of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_int64
from math import ceil

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import cached_property
from einsql.core.schema import PRESENT
from einsql.ir.einsum.graph import EinSum, Node
from einsql.kernels.groups.inputs import Inputs
from einsql.kernels.groups.places import Driver
from einsql.kernels.groups.plan import Plan, make_plan, work
from einsql.kernels.kernel import Arrays, Compile, Tick, share
from einsql.kernels.loops.expressions import FAR, first_error
from einsql.kernels.runtime import compile_cache, thread_pool, thread_team
from einsql.kernels.runtime.machine_code import Kernel, address
from einsql.kernels.tiers import Tier, Tiered, tier_of

NOTHING = -1
"""Batch number in a new scratch buffer, which contains no packed right sides."""
PIECE = 2**25
"""Work of one piece in cheap operations, a few milliseconds."""
OPERATION = 1e-10
"""Approximate seconds of a cheap operation, to estimate the time of a piece."""
PIECES = 4
"""Least number of pieces per thread, so that all threads end at about the same time."""


class Group:
    """Nodes that run together.

    Attributes:
        nodes: The nodes, producers first.
        sources: The distinct operands from outside the group.
        results: The nodes whose fields are results of the group.
    """

    def __init__(self, plan: Plan, compile_node: Compile, plain: Compile | None = None) -> None:
        self.plan = plan
        self._run: Tier[list[dict[str, np.ndarray]]] = self._run_compiled
        if plain is not None:
            self._run = Tiered(self._run_compiled, lambda: self._singly(plain))
        self.nodes: tuple[EinSum, ...] = tuple(n for n in plan.origins if n is not None)
        pairs = zip(plan.origins, plan.members, strict=True)
        self.results = tuple(n for n, m in pairs if n is not None and m.visible)
        inside = {id(n) for n in self.nodes}
        outside = {id(o.source): o.source for n in self.nodes for o in n.operands}
        self.sources: tuple[Node, ...] = tuple(s for k, s in outside.items() if k not in inside)
        self._compile = compile_node
        self._shown = [
            (at, [o.name for o in node.outputs], _turn(m.node, node))
            for at, (node, m) in enumerate(zip(plan.nodes, plan.members, strict=True))
            if m.visible
        ]
        self._work = work(plan)

    @property
    def tier(self) -> str | None:
        """The tier that ran last; None for a group of one tier."""
        return tier_of(self._run)

    @property
    def detail(self) -> str:
        """The rows of a block and the size of the parts of a row, for EXPLAIN."""
        m, parts = self.plan.members[-1], self.plan.parts
        label = next(k for k in m.node.keys if m.own[k] == self.plan.block)
        blocks = f"blocks of {label}:{self.plan.rows}"
        if parts is None:
            return blocks
        own = self.plan.members[parts.weights.made].own
        along = next(k for k, c in own.items() if c == parts.weights.along)
        return f"{blocks}, parts of {along}:{parts.size}"

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs(self.plan, self.sources)

    @cached_property
    def _apart(self) -> Tier[list[dict[str, np.ndarray]]]:
        return self._singly(self._compile)

    def run(self, operands: Sequence[Arrays], tick: Tick) -> list[dict[str, np.ndarray]]:
        """Runs the nodes.

        Args:
            operands: The fields of each source.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.

        Returns:
            The fields of each result.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        return self._run(operands, tick)

    def _run_compiled(self, operands: Sequence[Arrays], tick: Tick) -> list[dict[str, np.ndarray]]:
        driver, numbers, results, _arrays = self._inputs.bind(operands)
        bad = self._call(driver, numbers, tick)
        if bad.any():
            if bad[-1]:  # a skipped point was NaN or infinity, for which 0 · x is not 0
                return self._apart(operands, tick)
            for failed, reasons in zip(bad, driver.reasons, strict=False):
                if failed and FAR in reasons and failed & 1 << reasons.index(FAR):
                    return self._apart(operands, tick)
                if failed:
                    raise first_error(reasons, int(failed))
        return [
            {
                name: _turned(self._presence(at) if name == PRESENT else results[at, name], turn)
                for name in names
            }
            for at, names, turn in self._shown
        ]

    def _singly(self, compile_node: Compile) -> Tier[list[dict[str, np.ndarray]]]:
        """Returns a function that runs the nodes one by one."""
        runners = [compile_node(n).run for n in self.nodes]
        shown = {id(n) for n in self.results}

        def run(operands: Sequence[Arrays], tick: Tick) -> list[dict[str, np.ndarray]]:
            fields_of: dict[int, Arrays] = {
                id(s): f for s, f in zip(self.sources, operands, strict=True)
            }
            results: list[dict[str, np.ndarray]] = []
            for at, (node, runner) in enumerate(zip(self.nodes, runners, strict=True)):
                sources = [fields_of[id(o.source)] for o in node.operands]
                fields = fields_of[id(node)] = runner(sources, share(tick, at, len(runners)))
                if id(node) in shown:
                    results.append(dict(fields))
            return results

        return run

    def _presence(self, at: int) -> np.ndarray:
        """The presence of a result's points: they are within the limits of the result's labels."""
        m, bounds = self.plan.members[at], self.plan.classes.bounds
        keys = m.node.keys
        shape = m.node.schema.shape
        exists = np.ones((1,) * len(shape), bool)

        def values(c: int) -> np.ndarray:
            lo, hi = bounds[c]
            place = next((n for n, k in enumerate(keys) if m.own[k] == c), None)
            if place is None:  # the class has one value
                return np.asarray(lo)
            return np.arange(lo, hi).reshape([-1 if n == place else 1 for n in range(len(keys))])

        for x in m.limits:
            if any(m.own[k] == x.inner for k in keys):
                inner = values(x.inner)
                line = sum((f * values(c) for c, f in x.factors), np.asarray(x.constant))
                exists = exists & ((inner if x.rises else -inner) + line >= 0)
        return np.broadcast_to(exists, shape)

    def _call(self, driver: Driver, numbers: np.ndarray, tick: Tick) -> np.ndarray:
        """Calls the kernel on every block.

        Returns:
            The bits of the failures of each node; the last element is set if the nodes have to
            run one by one.
        """
        kernel = driver.kernel
        if kernel is None:
            kernel = driver.kernel = compile_cache.load(driver.source, tick)
        nodes, seconds = len(self.plan.nodes), self._work * OPERATION
        threads = thread_team.at_hand(seconds)
        if threads == 1 and seconds < thread_team.WAKE:
            place = _Place(driver.scratch, nodes)
            kernel(0, driver.blocks, numbers, place.bad, place.address)
            tick(1.0)
            return place.bad
        pieces = self._pieces(driver)
        if threads > 1:
            return _by_team(kernel, driver, numbers, nodes, pieces, threads, tick)
        return _by_pool(kernel, driver, numbers, nodes, pieces, tick)

    def _pieces(self, driver: Driver) -> list[tuple[int, int]]:
        """The range of blocks of each piece."""
        least = PIECES * thread_pool.threads()
        blocks, batch = driver.blocks, driver.batch
        wanted = min(blocks, max(least, ceil(self._work / PIECE)))
        batches = blocks // batch
        unit = batch if batches >= wanted else 1  # a batch shares its packed right sides
        if unit == 1 and batches >= least:
            wanted = min(blocks, ceil(wanted / batches) * batches)
        count = blocks // unit
        return [
            (count * n // wanted * unit, count * (n + 1) // wanted * unit) for n in range(wanted)
        ]


def make_group(
    nodes: Sequence[EinSum], visible: Sequence[bool], compile_node: Compile
) -> Group | None:
    """Creates a group; see `einsql.kernels.groups.join`."""
    plan = make_plan(nodes, visible)
    return None if isinstance(plan, str) else Group(plan, compile_node)


def _by_team(
    kernel: Kernel,
    driver: Driver,
    numbers: np.ndarray,
    nodes: int,
    pieces: Sequence[tuple[int, int]],
    threads: int,
    tick: Tick,
) -> np.ndarray:
    """Calls a kernel on every piece, on threads that spin; returns the bits of the failures."""
    places = [_Place(driver.scratch, nodes) for _ in range(threads)]
    own = np.array([[*thread_team.array_words(p.bad), p.address] for p in places], np.int64)
    rows = np.zeros((len(pieces), 9 + own.shape[1]), np.int64)
    rows[:, :2] = pieces
    rows[:, 2:9] = thread_team.array_words(numbers)
    thread_team.run(kernel.address, rows, threads, own, first=9)
    tick(1.0)
    united: np.ndarray = np.bitwise_or.reduce([p.bad for p in places])
    return united


def _by_pool(
    kernel: Kernel,
    driver: Driver,
    numbers: np.ndarray,
    nodes: int,
    pieces: Sequence[tuple[int, int]],
    tick: Tick,
) -> np.ndarray:
    """Calls a kernel on every piece, on threads of the pool; returns the bits of the failures."""
    opened: list[_Place] = []
    free: list[_Place] = []

    def piece(blocks: tuple[int, int]) -> None:
        # Pieces may be short, and the GIL makes Python code of one piece delay the other threads.
        try:
            place = free.pop()
        except IndexError:
            place = _Place(driver.scratch, nodes)
            opened.append(place)
        kernel(*blocks, numbers, place.bad, place.address)
        if place.bad.any():
            raise _FailedError
        free.append(place)

    with suppress(_FailedError):
        thread_pool.run(piece, pieces, len(pieces), tick)
    bad: np.ndarray = np.bitwise_or.reduce([p.bad for p in opened])
    return bad


class _FailedError(Exception):
    """Cancels the pieces that have not started."""


class _Place:
    """The working memory of a thread that runs pieces.

    Attributes:
        bad: The bits of the failures.
        address: The address of the uninitialised buffers between nodes, aligned to a cache line.
            The first word is the number of the batch whose packed right sides it contains.
    """

    def __init__(self, nbytes: int, nodes: int) -> None:
        self.bad = np.zeros(nodes + 1, np.int64)
        self._scratch = _scratch(nbytes + 64)
        start = address(self._scratch)
        self.address = start + -start % 64
        c_int64.from_address(self.address).value = NOTHING


def _turn(arranged: EinSum, node: EinSum) -> list[int] | None:
    """The transposition of a member's result to the keys of the node; None if they are equal."""
    turn = [arranged.keys.index(k) for k in node.keys]
    return None if turn == sorted(turn) else turn


def _turned(result: np.ndarray, turn: Sequence[int] | None) -> np.ndarray:
    return result if turn is None else result.transpose(turn)


def _scratch(nbytes: int) -> np.ndarray:
    """Uninitialised memory for the buffers between nodes."""
    return empty((nbytes,), np.dtype(np.uint8))
