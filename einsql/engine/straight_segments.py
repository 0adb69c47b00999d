"""Steps of a placed program between two transfers, as one generated function for a site's process.

A repeated program on small tiles takes most of its time between the kernels. As on one site, the
steps become one Python function (`program_writer`). Steps that send tiles or merge parts, and
steps with large results, are executed one by one between these functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.records import dataclass
from einsql.engine.exchange import Held, Index, Moving
from einsql.engine.executor import StepProgress
from einsql.engine.program_writer import write_program
from einsql.engine.step import Arrays, Run, Runner, Step, Tick
from einsql.engine.transport import Transport
from einsql.ir.einsum.graph import EinSum
from einsql.ir.spmd.program import Exchange, Load, Local, Program, View, reads

LIGHT = 2**20
"""Greatest size in bytes of the tiles of one step within a function: it keeps its operands longer
than single steps do."""

Place = tuple[int, int]
"""A step, and the number of one of its tiles."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work on one tile of a local step.

    Attributes:
        run: Computes the results from the operands.
        runner: The runner of a single node; `run` calls it. None for fused steps.
        sources: The tiles that it reads.
        targets: The tiles that it produces.
    """

    run: Callable[[Sequence[Arrays], Tick], Sequence[Arrays]]
    runner: Runner | None
    sources: tuple[Place, ...]
    targets: tuple[Place, ...]


WorkOf = Callable[[int, Local], Sequence[Work] | None]
"""Returns the work of a local step on its owned tiles, given its number; None for a step that is
executed on its own."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps as one function.

    Attributes:
        steps: The numbers of the steps.
        loads: The numbers of the steps among them that load tiles, which happens first.
        shown: The numbers of the other steps whose tiles are read elsewhere.
        run: Runs the other steps on the tiles by name; None if no tile is read elsewhere.
        sources: By name the tiles that `run` reads.
        results: The tiles that are read elsewhere, in the order of the results of `run`.
    """

    steps: Sequence[int]
    loads: Sequence[int]
    shown: Sequence[int]
    run: Run | None
    sources: Mapping[str, Place]
    results: Sequence[Place]

    def execute(self, tiles_of: dict[int, Held], tick: Tick) -> None:
        """Runs the steps but the loads.

        Args:
            tiles_of: The tiles of earlier steps and of the loads, by step; those of these steps
                are added.
            tick: Callback with the completed fraction of these steps, 0 to 1; raises to cancel.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        for number in self.shown:
            tiles_of[number] = {}
        if self.run is None:
            return
        inputs = {name: tiles_of[step][tile] for name, (step, tile) in self.sources.items()}
        for (step, tile), fields in zip(self.results, self.run(inputs, tick), strict=True):
            tiles_of[step][tile] = dict(fields)


def segments(
    program: Program,
    moving: Moving,
    transport: Transport,
    work_of: WorkOf,
    skipped: Mapping[int, int],
) -> list[Segment | int]:
    """Divides a program into functions and single steps, in their order.

    Args:
        program: The program.
        moving: Its transfers.
        transport: The transport, whose owned sites these functions are for.
        work_of: Returns the work of local steps.
        skipped: The steps that run in the place of others, with the steps in whose place they run.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for n, step in enumerate(program.steps):
        for source in reads(step):
            readers[source].append(skipped.get(n, n))
    parts: list[Segment | int] = []
    builder = _Builder(program, moving, transport, work_of)
    posts = program.posts_before
    for n in range(len(program.steps)):
        if n in posts:
            parts += builder.finished(readers)
            builder = _Builder(program, moving, transport, work_of)
        if n in skipped:
            builder.skip(n)
        elif not builder.add(n):
            parts += builder.finished(readers)
            parts.append(n)
            builder = _Builder(program, moving, transport, work_of)
    return parts + builder.finished(readers)


class _Builder:
    """A segment to which steps are added."""

    def __init__(
        self, program: Program, moving: Moving, transport: Transport, work_of: WorkOf
    ) -> None:
        self._program = program
        self._moving = moving
        self._transport = transport
        self._work_of = work_of
        self._numbers: list[int] = []
        self._loads: list[int] = []
        self._steps: list[Step] = []
        self._slots: dict[Place, int] = {}
        self._inputs: dict[Place, int] = {}
        self._count = 0

    def skip(self, number: int) -> None:
        """Adds a step without work of its own."""
        self._numbers.append(number)

    def add(self, number: int) -> bool:
        """Adds a step; returns False if it must be executed on its own."""
        step = self._program.steps[number]
        if isinstance(step, Load):
            self._loads.append(number)
        elif self._program.relation(number).sparse:
            return False
        elif isinstance(step, Local):
            work = self._work_of(number, step)
            if work is None:
                return False
            for each in work:
                nodes = ((number, step.node),) if each.runner is not None else ()
                self._append(each.run, each.sources, each.targets, each.runner, nodes)
        elif isinstance(step, View):
            self._view(number, step)
        elif not (isinstance(step, Exchange) and self._exchange(number, step)):
            return False
        self._numbers.append(number)
        return True

    def finished(self, readers: Mapping[int, Sequence[int]]) -> list[Segment | int]:
        """Returns the segment, or its steps if one function would not be shorter.

        Args:
            readers: The steps that read the tiles of each step.
        """
        own = set(self._numbers)
        if not own:
            return []
        computed = [place for place in self._slots if place not in self._inputs]
        outside = {
            n
            for n in (*own.difference(self._loads), *(n for n, _ in computed))
            if n in self._program.roots or not own.issuperset(readers[n])
        }
        results = [place for place in computed if place[0] in outside]
        names = {place: f"{place[0]}.{place[1]}" for place in self._inputs}
        run: Run | None = None
        if results:
            inputs = [(slot, names[place]) for place, slot in self._inputs.items()]
            slots = [self._slots[place] for place in results]
            run = write_program(inputs, self._freed(slots), slots, StepProgress)
            if run is None:
                return list(self._numbers)
        sources = {name: place for place, name in names.items()}
        return [Segment(self._numbers, self._loads, sorted(outside), run, sources, results)]

    def _freed(self, kept: Sequence[int]) -> list[Step]:
        """Returns the steps, each with the slots that no later one reads."""
        last = dict.fromkeys(kept, -1)
        steps: list[Step] = []
        for step in reversed(self._steps):
            free = [s for s in dict.fromkeys((*step.sources, *step.targets)) if s not in last]
            last.update(dict.fromkeys(free, 0))
            steps.append(replace(step, free=tuple(free)))
        return steps[::-1]

    # ---- steps

    def _exchange(self, number: int, step: Exchange) -> bool:
        """Adds an exchange in which nothing moves; returns False for another one."""
        if len(self._moving.gathering(number, step).routes):
            return False
        cuts = [
            self._moving.local_cut(step, n)
            for n in self._moving.owned(number, step.tiles, self._transport)
        ]
        if any(cut is None for cut in cuts):
            return False
        for cut in (c for c in cuts if c is not None):
            source, target = (cut.step, cut.number), (number, cut.tile)
            if cut.at is None:
                self._slots[target] = self._slot(source)
            else:
                self._append(_slicing(cut.at), (source,), (target,))
        return True

    def _view(self, number: int, step: View) -> None:
        """Adds a view of tiles under other numbers and names."""
        names: list[tuple[str, str]] = []
        if step.relation is not None:
            old = self._program.relation(step.source).schema.fields
            new = step.relation.schema.fields
            names = [(to.name, of.name) for to, of in zip(new, old, strict=True)]
        for n in self._moving.owned(number, step.tiles, self._transport):
            source = step.source, int(step.picks[n])
            if all(to == of for to, of in names):
                self._slots[number, n] = self._slot(source)
            else:
                self._append(_renaming(names), (source,), ((number, n),))

    def _append(
        self,
        run: Callable[[Sequence[Arrays], Tick], Sequence[Arrays]],
        sources: Sequence[Place],
        targets: Sequence[Place],
        runner: Runner | None = None,
        nodes: tuple[tuple[int, EinSum], ...] = (),
    ) -> None:
        slots = tuple(map(self._slot, sources))
        for place in targets:
            self._slots[place] = self._new()
        results = tuple(self._slots[place] for place in targets)
        self._steps.append(Step(nodes, "", run, slots, results, (), 0, runner=runner))

    def _slot(self, place: Place) -> int:
        """Returns the slot of a tile, which is an input if no step here produces it."""
        if place not in self._slots:
            self._slots[place] = self._inputs[place] = self._new()
        return self._slots[place]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1


def _slicing(at: Index) -> Callable[[Sequence[Arrays], Tick], Sequence[Arrays]]:
    """Returns the work that cuts a tile from another."""

    def run(operands: Sequence[Arrays], _: Tick) -> Sequence[Arrays]:
        return ({name: np.asarray(array)[at] for name, array in operands[0].items()},)

    return run


def _renaming(
    names: Sequence[tuple[str, str]],
) -> Callable[[Sequence[Arrays], Tick], Sequence[Arrays]]:
    """Returns the work that renames fields, given the new and the old name of each."""

    def run(operands: Sequence[Arrays], _: Tick) -> Sequence[Arrays]:
        return ({to: np.asarray(operands[0][of]) for to, of in names},)

    return run
