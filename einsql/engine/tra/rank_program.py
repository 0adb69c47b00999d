"""A plan of the implementation algebra at the sites of one process, tile by tile.

Blocks are numbered as tiles are. The inputs of scans are loaded as the stored tensors of a placed
program are, and the results are kept under numbers and can be fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from einsql.engine.exchange import Held
from einsql.engine.spmd_executor import Loading, SiteMeasure
from einsql.engine.step import Compile, Runner, Tick
from einsql.engine.tra.site_executor import run_sites
from einsql.engine.transport import Transport
from einsql.ir.einsum.graph import EinSum
from einsql.ir.ia.plan import Node, Scan, walk
from einsql.ir.ia.typing import PhysicalSchema
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Load
from einsql.ir.tra.block_schema import KeyTuple
from einsql.ir.tra.kernels import VALUE, instantiate


class BlockProgram:
    """A plan over blocks that is ready to run at the transport's sites.

    Attributes:
        sites: How many sites there are.
        loads: The inputs of the plan's scans, in the order of the plan.
    """

    def __init__(self, root: Node, compile_node: Compile) -> None:
        self.sites = root.schema.sites
        self.loads = loads_of(root)
        self._root = root
        self._scans = {id(scan): n for n, scan in enumerate(scans_of(root))}
        self._numbers = {at: n for n, at in enumerate(numbered(root.schema))}
        self._compile = compile_node
        self._runners: dict[object, Runner] = {}

    def execute(self, transport: Transport, load: Loading, tick: Tick) -> tuple[Held, SiteMeasure]:
        """Runs the plan at the transport's own sites.

        Args:
            transport: Moves arrays between sites.
            load: Gives the blocks of scans.
            tick: Told that it goes on; raises to cancel.

        Returns:
            The blocks of the result at these sites by number, and the measures of the run.

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

        def run(template: EinSum, arrays: Sequence[np.ndarray]) -> np.ndarray:
            runner = self._runner(template, tuple(a.shape for a in arrays))
            return np.asarray(runner([{VALUE: a} for a in arrays], lambda _: tick(0.0))[VALUE])

        by_site, measure = run_sites(self._root, read, run, transport)
        at_tiles: Held = {
            self._numbers[key, n, site]: {VALUE: array}
            for site, own in by_site.items()
            for (key, n), array in own.items()
        }
        return at_tiles, measure

    def _runner(self, template: EinSum, shapes: tuple[tuple[int, ...], ...]) -> Runner:
        if (template, shapes) not in self._runners:
            self._runners[template, shapes] = self._compile(instantiate(template, shapes))[1]
        return self._runners[template, shapes]


def scans_of(root: Node) -> list[Scan]:
    """The scans of a plan, in its order."""
    return [n for n in walk(root) if isinstance(n, Scan)]


def loads_of(root: Node) -> tuple[Load, ...]:
    """The inputs of a plan's scans, as the tiles of stored tensors."""
    return tuple(Load(s.tensor, tiles_of(s.schema, s.cuts)) for s in scans_of(root))


def numbered(schema: PhysicalSchema) -> list[tuple[KeyTuple, int, int]]:
    """Every copy of every array: its key, part and site; first one copy of all of them."""
    most = max((len(copies) for copies in chain.from_iterable(schema.held.values())), default=0)
    return [
        (key, n, copies[copy])
        for copy in range(most)
        for key, parts in schema.held.items()
        for n, copies in enumerate(parts)
        if copy < len(copies)
    ]


def tiles_of(schema: PhysicalSchema, cuts: Sequence[Sequence[int]]) -> Tiles:
    """The blocks of a relation as tiles of a tensor, in the order of `numbered`.

    Args:
        schema: A relation of which every array is there as often as any other, without
            parts that are yet to be merged; its key i cuts axis i.
        cuts: Where the blocks begin along each axis.
    """
    at = numbered(schema)
    boxes = [[(c[k], c[k + 1]) for k, c in zip(key, cuts, strict=True)] for key, _, _ in at]
    return Tiles(
        np.array([site for _, _, site in at], np.int64),
        np.array(boxes, np.int64).reshape(len(at), len(cuts), 2),
        len(at) // max(1, len(schema.held)),
    )
