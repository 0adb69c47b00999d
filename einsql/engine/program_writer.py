"""A repeated program as one generated function with the operations of all steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from einsql.core.source_writer import FieldSource, Page, ShownField, TakenField, bare_of, write_of
from einsql.engine.step import Run, Step, Tick

LARGE = 2**16
"""Points of steps after which the program calls `tick`, which may cancel it."""
TIMES = 8
"""Least number of calls of `tick` during short steps, if there are as many steps."""


def write_program(
    inputs: Sequence[tuple[int, str]],
    steps: Sequence[Step],
    roots: Sequence[int],
    part: Callable[[Tick, int], Tick],
) -> Run | None:
    """Writes a function with the operations of all steps; returns None if it would not be shorter.

    The caller ignores floating-point conditions.

    Args:
        inputs: The names of the inputs by their slots.
        steps: The steps, in order.
        roots: The slots of the results.
        part: Creates the progress callback of a step, whose `number` is set later.
    """
    page = Page("part")
    writer = _Writer(page, len(steps))
    page.names["Part"] = part
    page.lines.append(f"part = Part(tick, {len(steps)})")
    for slot, name in inputs:
        writer.lay(slot, TakenField(page, page.line(f"inputs[{name!r}]")))
    for number, step in enumerate(steps):
        writer.step(number, step)
    if not writer.written:
        return None
    shown = ", ".join(writer.laid[slot].whole for slot in roots)
    function: Run = page.function("run(inputs, tick)", "tick(1.0)", f"return ({shown},)")
    return function


class _Writer:
    """Generates the code of steps.

    Attributes:
        page: The page of the code.
        laid: The fields in each slot.
        written: The number of steps whose runner provided lines.
    """

    def __init__(self, page: Page, count: int) -> None:
        self.page = page
        self.laid: dict[int, FieldSource] = {}
        self.written = 0
        self._count = count
        self._shown: Counter[str] = Counter()
        self._since, self._points = 0, 0

    def lay(self, slot: int, fields: FieldSource) -> None:
        """Assigns fields to a slot."""
        self.laid[slot] = fields
        self._shown.update(_variables(fields))

    def step(self, number: int, step: Step) -> None:
        """Writes a step, and deletes the variables that no later step reads."""
        page = self.page
        page.lines.append(f"part.number = {number}")
        start = len(page.made)
        before = {s: len(_variables(self.laid[s])) for s in step.sources}
        if not self._lines(step):
            self._call(step)
        for slot in before:  # variables of earlier fields live as long as the new ones
            self._shown.update(_variables(self.laid[slot])[before[slot] :])
        dead = [name for name in page.made[start:] if not self._shown[name]]
        for slot in step.free:
            names = _variables(self.laid.pop(slot))
            self._shown.subtract(names)
            dead += [name for name in dict.fromkeys(names) if not self._shown[name]]
        if dead:
            page.lines.append(f"del {', '.join(dead)}")
        self._tell(number, step)

    def _lines(self, step: Step) -> bool:
        """Writes the lines that a step's runner provides."""
        write = write_of(step.runner)
        if write is None:
            return False
        page, operands = self.page, [self.laid[s] for s in step.sources]
        mark = len(page.lines), len(page.made)
        read = [(o, dict(o.read)) for o in operands if isinstance(o, TakenField)]
        names = write(page, operands)
        if names is None:
            del page.lines[mark[0] :], page.made[mark[1] :]
            for taken, before in read:
                taken.read = before
            return False
        self.written += 1
        self.lay(step.targets[0], ShownField(names))
        return True

    def _call(self, step: Step) -> None:
        """Writes the call of a step's runner."""
        page = self.page
        arguments = "".join(f"{self.laid[s].whole}, " for s in step.sources)
        if step.runner is not None:
            run = page.held(bare_of(step.runner), "f")
            call = page.line(f"{run}(({arguments}), part)")
            self.lay(step.targets[0], TakenField(page, call, plain=True))
            return
        call = page.line(f"{page.held(step.run, 'f')}(({arguments}), part)")
        for n, slot in enumerate(step.targets):
            self.lay(slot, TakenField(page, page.line(f"{call}[{n}]"), plain=True))

    def _tell(self, number: int, step: Step) -> None:
        self._since, self._points = self._since + 1, self._points + step.points
        if self._points >= LARGE or self._since * TIMES >= self._count:
            self._since = self._points = 0
            if number + 1 < self._count:
                self.page.lines.append(f"tick({(number + 1) / self._count!r})")


def _variables(fields: FieldSource) -> list[str]:
    """Returns the variables of fields in the generated function, in the order of assignment."""
    if isinstance(fields, TakenField):
        return [fields.name, *fields.read.values()]
    assert isinstance(fields, ShownField)
    return list(fields.names.values())
