"""The state of one run of a placed program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

from einsql.core.records import dataclass
from einsql.core.sparse.arrays import arrays_in
from einsql.engine.exchange import Exchanged, Held, Merging
from einsql.engine.step import Measure, Tick
from einsql.engine.streaming_exchange import Stream
from einsql.engine.transport import Transport
from einsql.ir.spmd.program import Load, Program, tuple_bytes

Loading = Callable[[int, Load, Sequence[int]], Held]
"""Returns tiles of a stored tensor, given the number of the step and the numbers of the tiles."""


class Resident:
    """The bytes of tiles that each site stores during a run, and their peak.

    Tiles of several steps that share memory count once.

    Args:
        program: The program of the run.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._steps: dict[int, list[tuple[int, int, int]]] = {}
        self._expected: dict[int, list[tuple[int, int]]] = {}
        self._shared: Counter[tuple[int, int, int]] = Counter()
        self._bytes = [0] * program.sites
        self.peak = [0] * program.sites

    def expect(self, number: int, owned: Sequence[int]) -> None:
        """Adds the tiles of an exchange that has started, until they are stored."""
        tiles = self._program.steps[number].tiles
        width = tuple_bytes(self._program.relation(number))
        here = set(owned)
        self._expected[number] = [
            (site, size * width)
            for site, size in zip(tiles.sites.tolist(), tiles.volumes.tolist(), strict=True)
            if site in here
        ]
        for site, nbytes in self._expected[number]:
            self._bytes[site] += nbytes
        self.peak = list(map(max, self.peak, self._bytes))

    def store(self, tiles_of: Mapping[int, Held]) -> None:
        """Adds the tiles of steps that are new among those with tiles."""
        for n in tiles_of.keys() - self._steps.keys():
            for site, nbytes in self._expected.pop(n, ()):
                self._bytes[site] -= nbytes
            sites = self._program.steps[n].tiles.sites
            # Equal memory of one site: the address of the first element, and the size.
            stored = [
                (int(sites[tile]), array.__array_interface__["data"][0], array.nbytes)
                for tile, fields in tiles_of[n].items()
                for array in arrays_in(fields)
            ]
            self._steps[n] = stored
            for key in stored:
                self._shared[key] += 1
                if self._shared[key] == 1:
                    self._bytes[key[0]] += key[2]
        self.peak = list(map(max, self.peak, self._bytes))

    def pass_through(self, nbytes: Sequence[int]) -> None:
        """Counts memory of a step besides tiles, by site, which the step itself frees."""
        self.peak = [max(p, b + n) for p, b, n in zip(self.peak, self._bytes, nbytes, strict=True)]

    def release(self, steps: Iterable[int]) -> None:
        """Removes the tiles of steps."""
        for n in steps:
            for key in self._steps.pop(n, ()):
                self._shared[key] -= 1
                if not self._shared[key]:
                    self._bytes[key[0]] -= key[2]


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """The state of one run.

    Attributes:
        transport: Moves arrays between sites.
        load: Returns the tiles of stored tensors.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        measure: The measures so far.
        tiles_of: The tiles of each step that a later step reads.
        streams: By reader the exchanges that bring its operand piece by piece.
        merges: By completion the merge of partial tiles so far.
        resident: The memory of the sites; None for runs that do not measure it.
        posted: By its number each exchange that has started and is not complete.
    """

    transport: Transport
    load: Loading
    tick: Tick
    measure: Measure
    tiles_of: dict[int, Held] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    merges: dict[int, Merging] = field(default_factory=dict)
    resident: Resident | None = None
    posted: dict[int, Exchanged] = field(default_factory=dict)

    def progress(self, fraction: float) -> None:
        """Reports the completed fraction, and lets posted exchanges move data."""
        self.tick(fraction)
        for exchanged in self.posted.values():
            if exchanged.flight is not None:
                exchanged.flight.poll()

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Completes posted exchanges after a failure, because other ranks take part in them."""
        try:
            yield
        finally:
            while self.posted:
                _, exchanged = self.posted.popitem()
                if exchanged.flight is not None:
                    exchanged.flight.end()
