"""A placed program that runs on ranks and leaves its result there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, cast
from weakref import ReferenceType, ref

import numpy as np

from einsql.core.boxes import common
from einsql.core.lazy_module import LazyModule
from einsql.core.records import cached_property
from einsql.core.schema import Key, Schema
from einsql.core.sparse.matrix import sparse_of
from einsql.engine.exchange import Held, paste, slices
from einsql.engine.ranks import storage
from einsql.engine.ranks.call import Tick
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import (
    Change,
    Command,
    Kept,
    Run,
    Sent,
    Ship,
    Slice,
    Source,
    Tiled,
)
from einsql.engine.ranks.shipping import (
    MOVED,
    Distributions,
    PreparedRun,
    Then,
    call_all,
    detached,
    forget,
    is_joint,
    is_light,
    moving_program,
    nodes_of,
    sliced,
    working,
)
from einsql.engine.ranks.storage import count, fetch, reads, renamed_terms
from einsql.engine.ranks.versions import VersionedFields, collected, kept_sources, with_files
from einsql.engine.ranks.windows import CacheableFields, Windows, cacheable_tiles, tiles_of_whole
from einsql.engine.step import Arrays, GraphExecutor, Measure, combined_measure
from einsql.errors import RanksLost
from einsql.ir.einsum.graph import Input
from einsql.ir.layout import Tiles, ranks_of
from einsql.ir.spmd.program import Load, Program
from einsql.kernels.scalars import opaque_functions
from einsql.storage.fields import Fields, LocalFields, Term, WindowFields, as_fields, count_keys
from einsql.storage.files import FileFields

if TYPE_CHECKING:
    from einsql.ir.functions import shipping as functions_of_ranks
else:  # loaded for Python functions; it also registers how pickle sends them
    functions_of_ranks = LazyModule("einsql.ir.functions.shipping")

Keep = Callable[[str, Arrays, "RankFields"], None]
"""Callback for an input that ranks cache: its name, its fields, and its fields on the ranks."""

MOST_MOVERS = 64
"""Greatest number of programs that move tiles which a session keeps for the next step of a loop."""


class RankFields(VersionedFields):
    """Fields of a relation whose tiles are on ranks; reading a field fetches it."""

    def __init__(
        self,
        cluster: Cluster,
        lease: Lease,
        schema: Schema,
        tiles: Tiles,
        sites: int,
        names: Mapping[str, str] | None = None,
        origin: Arrays | None = None,
        title: str = "",
    ) -> None:
        """Describes tiles on ranks.

        Args:
            cluster: The ranks.
            lease: The lease that keeps the tiles on the ranks.
            schema: The keys and fields.
            tiles: The sites and boxes of the tiles.
            sites: The number of sites.
            names: The names of the fields on the ranks, if they have been renamed.
            origin: The same arrays in this process, or None.
            title: The tensor's name, for messages.
        """
        super().__init__(cluster, lease, schema, tiles, sites, names)
        self.origin = origin
        self.title = title
        self.small: Mapping[str, np.ndarray] = {}
        self._known: dict[str, ReferenceType[np.ndarray]] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if self.origin is not None:
            return self.origin[self.names[name]]
        known = self._known.get(name)
        array = None if known is None else known()
        if array is None:
            array = self.part([name], self._whole - self._lows)[name]
            self._known[name] = ref(array)
        return array

    def learn(self, tiles: Held) -> None:
        """Records that the tiles exist, and caches small ones that came with the answer.

        Args:
            tiles: One copy, by the names of the fields in this process; empty for large tiles.
        """
        self.known()
        if not tiles:
            return
        bounds = self._whole
        arrays: dict[str, np.ndarray] = {}
        for n, part in tiles.items():
            paste(arrays, self.tiles.boxes[n], part, bounds)
        self.small = arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def renamed(self, schema: Schema, names: Mapping[str, str], title: str) -> RankFields:
        """Returns the same tiles as fields of a stored tensor.

        Args:
            schema: The keys and fields of that tensor.
            names: The old name of each field by its new name.
            title: The tensor's name, for messages.
        """
        renamed = {new: self.names[old] for new, old in names.items()}
        return RankFields(
            self.cluster, self.lease, schema, self.tiles, self.sites, renamed, self.origin, title
        )

    def moved(self, tiles: Tiles, tick: Tick) -> RankFields:
        """Returns the same fields in other tiles over as many sites, sent from rank to rank.

        Args:
            tiles: The new placement.
            tick: Raises to cancel.

        Raises:
            Error: See `Cluster.call`.
        """
        if self.tiles.same_places(tiles):
            return self
        places = ((t.sites.tobytes(), t.boxes.tobytes(), t.copies) for t in (self.tiles, tiles))
        key = self.schema, self.sites, *places
        mover = self.cluster.movers.get(key)
        if not isinstance(mover, RankProgram):
            program = moving_program(self.schema, self.tiles, tiles, self.sites)
            mover = RankProgram(self.cluster, program, "never", lambda *_: None)
            if len(self.cluster.movers) >= MOST_MOVERS:
                self.cluster.movers.clear()
            self.cluster.movers[key] = mover
        (fields,) = mover.run({MOVED: self}, tick)
        return cast("RankFields", fields)  # the tiles are not sparse

    def rekeyed(self, schema: Schema) -> RankFields:
        """See `Fields.rekeyed`."""
        moved = [new.lo - old.lo for new, old in zip(schema.keys, self.schema.keys, strict=True)]
        if not any(moved):
            return self
        boxes = self.tiles.boxes + np.array(moved, np.int64).reshape(-1, 1)
        tiles = Tiles(self.tiles.sites, boxes, self.tiles.copies)
        fields = self._like(self.lease, schema, tiles, self.names)
        fields.small = self.small
        return fields

    def crop(self, box: np.ndarray) -> RankFields:
        """See `Fields.crop`."""
        box = box + self._lows
        if (box == self._whole).all():
            return self
        boxes = common(self.tiles.boxes, box)
        boxes[..., 1] = boxes.max(axis=-1)
        moved = self.moved(Tiles(self.tiles.sites, boxes, self.tiles.copies), lambda _: None)
        ends = zip(self.schema.keys, box.tolist(), strict=True)
        schema = Schema(tuple(Key(k.name, lo, hi) for k, (lo, hi) in ends), self.schema.fields)
        return self._like(moved.lease, schema, moved.tiles, moved.names)

    def changed(
        self, box: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> tuple[RankFields, Mapping[int, Change]] | None:
        """Returns a version of the tiles with new values in a box of keys.

        Args:
            box: int64 (keys, 2), within the bounds of the keys.
            values: By field, in the shape of the box.

        Returns:
            The new version, and the change of each rank that has tiles, which has to be made before
            the version is read. None if some tiles are not on the ranks.
        """
        cluster = self.cluster
        if not cluster.knows(self.lease):
            return None
        lease = cluster.tiles()
        new = self._like(lease, self.schema, self.tiles, self.names)
        ranks = ranks_of(self.tiles.sites, self.sites, cluster.ranks)
        renamed = {self.names[k]: a for k, a in values.items()}
        pieces = storage.pieces(self.tiles.boxes, ranks, cluster.ranks, box, renamed)
        holding = np.unique(ranks).tolist()
        return new, {r: Change(self.lease.number, lease.number, pieces[r]) for r in holding}

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> WindowFields:
        """Returns a part of the relation without moving data; see `Fields.window`."""
        return WindowFields(self, at, axes)

    def count(self, *terms: Term) -> int:
        """Counts the keys that satisfy all terms, on the ranks."""
        self.settle()
        if self.small:
            return count_keys(self.small, terms)
        while True:
            holders = self.holders()
            with suppress(RanksLost):  # other ranks may have copies
                return count(self.cluster, holders, renamed_terms(terms, holders.names))

    def part(self, names: Sequence[str], box: np.ndarray) -> LocalFields:
        """Fetches fields over a box of positions from the ranks; see `Fields.part`.

        Raises:
            Error: See `Cluster.call`.
        """
        self.settle()
        if self.small:
            at = slices(box, [0] * len(box))
            return LocalFields({name: self.small[name][at].copy() for name in names})
        box = box + self._lows
        while names:
            holders = self.holders()
            dtypes = {holders.names[name]: self.schema.dtype(name).numpy for name in names}
            with suppress(RanksLost):  # other ranks may have copies
                arrays = fetch(self.cluster, holders, dtypes, box)
                return LocalFields({name: arrays[holders.names[name]] for name in names})
        return LocalFields()

    def _like(
        self, lease: Lease, schema: Schema, tiles: Tiles, names: Mapping[str, str]
    ) -> RankFields:
        """Returns fields on the same ranks, of a tensor of the same name."""
        return RankFields(self.cluster, lease, schema, tiles, self.sites, names, None, self.title)

    @property
    def _lows(self) -> np.ndarray:
        """Returns the least value of each key, int64 (keys, 1)."""
        return self._whole[:, :1]

    @cached_property
    def _whole(self) -> np.ndarray:
        """The box of all keys, int64 (keys, 2)."""
        return np.array([(k.lo, k.hi) for k in self.schema.keys], np.int64).reshape(-1, 2)


class RankProgram(GraphExecutor):
    """A program and the ranks that run it; its results stay on the ranks, except sparse ones."""

    def __init__(self, cluster: Cluster, program: Program, jit: str, keep: Keep) -> None:
        """Prepares the program; the first run ships it to the ranks.

        Args:
            cluster: The ranks.
            program: The program.
            jit: The compilation mode of the kernels; with "auto" the ranks run on NumPy until
                they have all kernels.
            keep: Callback for each input whose tiles the ranks cache.
        """
        self.program = program
        relations = [program.relation(root) for root in program.roots]
        self.schemas = [relation.schema for relation in relations]
        self._sparse = [relation.sparse for relation in relations]
        self._cluster = cluster
        self._jit = jit
        self._keep = keep
        self._plan: Lease | None = None
        self._compiled = False
        """Whether the ranks have run the program on kernels."""
        self._together = is_joint(program)
        self._working = range if self._together else cache(partial(working, program))
        self._loads = {n: s for n, s in enumerate(program.steps) if isinstance(s, Load)}
        self._distributions = Distributions(self._loads.values(), program.sites)
        self._windows = Windows()

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Fields]:
        """Runs every step; the results stay on the ranks, except sparse ones.

        Raises:
            Error: See `Cluster.call`.
        """
        run, measure = self._completed(inputs, tick, measured=False)
        if measure is not None:
            return self._results(run.results, measure)
        results = [self._placed_result(n, lease) for n, lease in enumerate(run.results)]

        def hear(measures: Sequence[Measure]) -> None:
            call_all(run.then.done)
            for fields, tiles in zip(results, combined_measure(measures).tiles, strict=True):
                fields.learn(tiles)

        for fields in results:
            fields.pending = True
        nbytes = sum(s.size * sum(f.dtype.numpy.itemsize for f in s.fields) for s in self.schemas)
        self._cluster.start(run.commands, tick, hear, nbytes)
        call_all(run.then.sent)
        return results

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Fields], Measure]:
        """Runs every step like `run`, and measures every step and site."""
        run, measure = self._completed(inputs, tick, measured=True)
        assert measure is not None  # a measured run does not start ahead
        return self._results(run.results, measure), measure

    def run_on_ranks(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[list[Lease], Measure]:
        """Runs the program; returns the handle of each root's tiles and the measures.

        Raises:
            Error: See `Cluster.call`.
        """
        run, measure = self._completed(inputs, tick, measured=True)
        return run.results, cast("Measure", measure)

    def _results(self, leases: Sequence[Lease], measure: Measure) -> list[Fields]:
        """Returns the results of a run that has succeeded."""
        results: list[Fields] = []
        for n, (lease, small) in enumerate(zip(leases, measure.tiles, strict=True)):
            fields = self._placed_result(n, lease)
            fields.learn(small)
            results.append(collected(fields) if self._sparse[n] else fields)
        return results

    def _placed_result(self, number: int, lease: Lease) -> RankFields:
        placed, schema = self.program, self.schemas[number]
        tiles = placed.steps[placed.roots[number]].tiles
        return RankFields(self._cluster, lease, schema, tiles, placed.sites)

    def _prepared(self, inputs: Mapping[str, Arrays], tick: Tick, *, measured: bool) -> PreparedRun:
        """Returns the commands of a run.

        Args:
            inputs: The inputs by name.
            tick: Raises to cancel.
            measured: Whether measures are needed; if not, they come with small results only.

        Raises:
            Error: See `Cluster.call`.
        """
        cluster, repeated = self._cluster, True
        if self._plan is None or not cluster.knows(self._plan):
            plan = cluster.plan()
            functions = opaque_functions(*nodes_of(self.program))
            if functions:
                functions_of_ranks.check(functions)
            cluster.all(Ship(plan.number, detached(self.program), self._jit), tick)
            self._plan, repeated, self._compiled = plan, False, False
        loads: dict[int, dict[int, Source]] = {r: {} for r in range(cluster.ranks)}
        then = Then()
        for n, step in self._loads.items():
            fields = inputs[step.source.name]
            for rank, source in enumerate(self._sources(step, fields, then, tick)):
                loads[rank][n] = source
        results = [cluster.tiles() for _ in self.program.roots]
        numbers = tuple(lease.number for lease in results)
        tiers = self._jit == "auto" and not self._compiled
        ahead = repeated and not measured and not tiers and not any(self._sparse)
        ahead = ahead and cluster.starts_ahead and is_light(loads)
        # A run that starts ahead fails on all ranks or on none, and all ranks change their tier.
        together = self._together or ahead or tiers
        runs: dict[int, Command] = {
            r: Run(self._plan.number, loads[r], numbers, measured, together, tiers)
            for r in (range if measured or ahead or tiers else self._working)(cluster.ranks)
        }
        return PreparedRun(results, runs, then, ahead)

    def _completed(
        self, inputs: Mapping[str, Arrays], tick: Tick, *, measured: bool
    ) -> tuple[PreparedRun, Measure | None]:
        """Runs the program; returns no measure of a run that is to start ahead."""

        def attempt() -> tuple[PreparedRun, Measure | None]:
            run = self._prepared(inputs, tick, measured=measured)
            return run, None if run.ahead else self._ran(run, tick)

        return with_files(self._cluster, attempt)

    def _ran(self, run: PreparedRun, tick: Tick) -> Measure:
        """Runs the program and returns the measures.

        Raises:
            Error: See `Cluster.call`.
        """
        measures = self._cluster.call(run.commands, tick)
        call_all(run.then.sent)
        call_all(run.then.done)
        measure = combined_measure(measures)
        self._compiled = self._compiled or measure.tier == "compiled"
        return measure

    def _sources(self, step: Load, fields: Arrays, then: Then, tick: Tick) -> Sequence[Source]:
        """Returns the source of each rank's tiles of an input."""
        part = fields if isinstance(fields, WindowFields) else None
        whole = fields if part is None else part.whole
        if part is not None and isinstance(whole, RankFields):
            return self._part(step, part, whole, then, tick)
        if isinstance(whole, FileFields):
            tiles = step.tiles if part is None else tiles_of_whole(part, None, step.tiles)
            file = whole.file.description
            return reads(self._cluster, file, whole.name, tiles, self.program.sites)
        if isinstance(whole, CacheableFields):
            if part is None:
                return self._placed(step, whole.stored, then, tick)
            cut = cacheable_tiles(part, whole.schema, step.tiles, lambda _: False)
            if cut is not None:
                load = Load(Input(whole.name, whole.schema), cut.tiles)
                return [Slice(s, cut.at) for s in self._placed(load, whole.stored, then, tick)]
        return self._placed(step, fields, then, tick)

    def _placed(self, step: Load, fields: Arrays, then: Then, tick: Tick) -> Sequence[Tiled]:
        """Returns the source of each rank's tiles of an input on ranks or in this process."""
        cluster, tiles = self._cluster, step.tiles
        if sparse_of(fields) is not None or as_fields(fields).directory is not None:
            numbers = self._distributions.of(step, self._cluster.ranks).numbers
            return kept_sources(cluster, step, fields, numbers, self.program.sites, then)
        on_ranks = fields if isinstance(fields, RankFields) and fields.cluster is cluster else None
        if on_ranks is not None:
            there = on_ranks.version(tiles, self.program.sites)
            if there is not None:
                return [there] * cluster.ranks
            alive = on_ranks.origin is None and cluster.knows(on_ranks.lease)
            if alive and on_ranks.sites == self.program.sites:
                moved = on_ranks.moved(tiles, tick)
                moved.when_known(partial(on_ranks.add, tiles, on_ranks.sites, moved.lease))
                then.sent.append(on_ranks.trim)
                return [Kept(moved.lease.number, moved.names)] * cluster.ranks
        lease = cluster.tiles()
        if on_ranks is not None:
            then.done.append(partial(on_ranks.add, tiles, self.program.sites, lease))
        elif self._distributions.of(step, self._cluster.ranks).covers:
            placement = RankFields(
                cluster, lease, step.source.schema, tiles, self.program.sites, origin=fields
            )
            then.done.append(partial(self._keep, step.source.name, fields, placement))
        return [
            Sent(sliced(step, fields, n), lease.number)
            for n in self._distributions.of(step, self._cluster.ranks).numbers
        ]

    def _part(
        self,
        step: Load,
        part: WindowFields,
        tensor: RankFields,
        then: Then,
        tick: Tick,
    ) -> Sequence[Source]:
        """Returns the source of each rank's tiles of a part of an input on ranks."""
        cluster, sites = self._cluster, tensor.sites
        there = tensor.cluster is cluster and sites == self.program.sites
        known = self._windows.sources(part, tensor, step.tiles, self.program.sites)
        if known is not None:
            return known

        def is_kept(tiles: Tiles) -> bool:
            return tensor.version(tiles, sites) is not None

        cut = self._windows.of(part, tensor.schema, step.tiles, is_kept) if there else None
        if cut is not None:
            load = Load(Input(step.source.name, tensor.schema), cut.tiles)
            sources = self._placed(load, tensor, then, tick)
            slices = [Slice(s, cut.at) for s in sources]
            if isinstance(sources[0], Kept):
                self._windows.keep(part, tensor, step.tiles, cut.tiles, slices)
            return slices
        if there and tensor.origin is None and cluster.knows(tensor.lease):
            moved = tensor.moved(tiles_of_whole(part, tensor.schema, step.tiles), tick)
            then.sent.append(partial(forget, moved.lease))
            return [Kept(moved.lease.number, moved.names)] * cluster.ranks
        arrays = {name: part[name] for name in part}
        return [
            Sent(sliced(step, arrays, n), None)
            for n in self._distributions.of(step, self._cluster.ranks).numbers
        ]
