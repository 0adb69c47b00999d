"""Programs of block plans: on one site, on virtual sites, and at the sites of an MPI rank.

A rank numbers blocks like tiles. It loads the inputs of scans like the stored tensors of a placed
program, and stores the results under numbers, from which the driver fetches them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from einsql.engine.exchange import Held
from einsql.engine.spmd_executor import Loading
from einsql.engine.step import Arrays, Executor, Measure, Tick
from einsql.engine.tra.block_kernels import kernel_runner
from einsql.engine.tra.site_executor import gathered, run_sites
from einsql.engine.tra.site_ops import counting, reading
from einsql.engine.transport import LocalTransport, Transport
from einsql.ir.einsum.graph import Input
from einsql.ir.ia.plan import Node, Scan, walk
from einsql.ir.ia.typing import PhysicalSchema
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Load
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import KeyTuple
from einsql.ir.tra.kernels import VALUE
from einsql.storage.block_relation import run_blocks

BlockExecutor = Executor[Mapping[KeyTuple, np.ndarray]]
"""An executor of a block plan, whose result is one array for each key."""


class LocalBlockProgram(BlockExecutor):
    """A tensor-relational plan on one site."""

    def __init__(self, root: ra.Node, jit: str) -> None:
        self._root = root
        self._jit = jit

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Mapping[KeyTuple, np.ndarray], Measure]:
        """Runs the plan; see `Executor.measured`."""
        arrays = ra.generated(self._root)
        stored = (n.tensor for n in ra.walk(self._root) if isinstance(n, ra.Scan))
        arrays |= _arrays((t for t in stored if t.name not in arrays), inputs)
        flops = [0]
        start = time.perf_counter()
        run = counting(kernel_runner(self._jit, tick), flops, 0)
        blocks = run_blocks(self._root, arrays, run)
        seconds = [time.perf_counter() - start]
        return blocks, Measure(seconds=seconds, flops=flops, sent=[0], received=[0])


class BlockProgram(BlockExecutor):
    """A plan of the implementation algebra; `run` uses virtual sites in this process.

    Attributes:
        sites: The number of sites.
        loads: The inputs of the plan's scans, in the order of the plan.
    """

    def __init__(
        self, root: Node, jit: str, generated: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Prepares a plan.

        Args:
            root: The root relation of the plan.
            jit: The compilation mode of the kernels.
            generated: Arrays of scanned tensors that are generated, for `run` and `measured`.
        """
        self.sites = root.schema.sites
        self.loads = loads_of(root)
        self._root = root
        self._scans = {id(scan): n for n, scan in enumerate(scans_of(root))}
        self._numbers = {at: n for n, at in enumerate(numbered(root.schema))}
        self._jit = jit
        self._generated = {name: {VALUE: array} for name, array in (generated or {}).items()}

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Mapping[KeyTuple, np.ndarray], Measure]:
        """Runs the plan on virtual sites and gathers the result; see `Executor.measured`."""
        scans = (scan.tensor for scan in scans_of(self._root))
        read = reading(_arrays(scans, {**inputs, **self._generated}))
        run = kernel_runner(self._jit, tick)
        by_site, measure = run_sites(self._root, read, run, LocalTransport(self.sites))
        return gathered(self._root, by_site, run), measure

    def execute(
        self, transport: Transport, load: Loading, tick: Tick
    ) -> tuple[list[Held], Measure]:
        """Runs the plan at the transport's owned sites.

        Args:
            transport: Moves arrays between sites.
            load: Returns the blocks of scans.
            tick: Callback; raises to cancel.

        Returns:
            The blocks of the only root at these sites by number, and the measures of the run.

        Raises:
            DataError: An element overflows, divides by zero or cannot be cast.
        """
        known: list[dict[KeyTuple, np.ndarray]] = []
        for n, (scan, step) in enumerate(zip(scans_of(self._root), self.loads, strict=True)):
            owned = np.flatnonzero(np.isin(step.tiles.sites, transport.owned)).tolist()
            keys = list(scan.schema.held)
            (field,) = scan.tensor.schema.fields
            tiles = load(n, step, owned)
            known.append({keys[t % step.tiles.once]: tiles[t][field.name] for t in owned})

        def read(scan: Scan, key: KeyTuple) -> np.ndarray:
            return known[self._scans[id(scan)]][key]

        run = kernel_runner(self._jit, tick)
        by_site, measure = run_sites(self._root, read, run, transport)
        at_tiles: Held = {
            self._numbers[key, n, site]: {VALUE: array}
            for site, own in by_site.items()
            for (key, n), array in own.items()
        }
        return [at_tiles], measure


def _arrays(tensors: Iterable[Input], inputs: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
    """Returns the array of each scanned tensor by its name."""
    arrays: dict[str, np.ndarray] = {}
    for tensor in tensors:
        (field,) = tensor.schema.fields
        if tensor.name not in arrays:
            arrays[tensor.name] = inputs[tensor.name][field.name]
    return arrays


def scans_of(root: Node) -> list[Scan]:
    """Returns the scans of a plan in its order."""
    return [n for n in walk(root) if isinstance(n, Scan)]


def loads_of(root: Node) -> tuple[Load, ...]:
    """Returns the inputs of a plan's scans as tiles of stored tensors."""
    return tuple(Load(s.tensor, tiles_of(s.schema, s.cuts)) for s in scans_of(root))


def numbered(schema: PhysicalSchema) -> list[tuple[KeyTuple, int, int]]:
    """Lists every copy of every array with its key, part and site, a complete copy first."""
    most = max((len(copies) for copies in chain.from_iterable(schema.held.values())), default=0)
    return [
        (key, n, copies[copy])
        for copy in range(most)
        for key, parts in schema.held.items()
        for n, copies in enumerate(parts)
        if copy < len(copies)
    ]


def tiles_of(schema: PhysicalSchema, cuts: Sequence[Sequence[int]]) -> Tiles:
    """Returns the blocks of a relation as tiles of a tensor, in the order of `numbered`.

    Args:
        schema: A relation with equally many copies of each array, without partial blocks; its key
            i cuts axis i.
        cuts: The start positions of the blocks along each axis.
    """
    at = numbered(schema)
    boxes = [[(c[k], c[k + 1]) for k, c in zip(key, cuts, strict=True)] for key, _, _ in at]
    return Tiles(
        np.array([site for _, _, site in at], np.int64),
        np.array(boxes, np.int64).reshape(len(at), len(cuts), 2),
        len(at) // max(1, len(schema.held)),
    )
