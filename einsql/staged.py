"""Statements that mix both algebras: parts that run first, and queries over tiles.

A part is what `TILES` cuts or `ELEMENTS` reads where that has to be computed; its result
is an input of what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from einsql import kernels
from einsql import relational as ra
from einsql.einsum import EinSum, Input
from einsql.engine.blocks import Blocks, assemble, run_blocks
from einsql.engine.relation import Fields, copied, count_true
from einsql.engine.result import Result
from einsql.engine.store import owner
from einsql.engine.tile_result import TileResult
from einsql.errors import DataError, IntegrityError
from einsql.kernels import Runner
from einsql.plan_printer import format_plan
from einsql.schema import PRESENT, is_flag
from einsql.tiles import VALUE, instantiate

Tick = Callable[[float], None]
Inputs = Mapping[str, Fields]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a statement that gives an input of what comes after it."""

    name: str
    text: str
    run: Callable[[Inputs, Tick], np.ndarray]


def computed(parts: Sequence[Part], inputs: Inputs, tick: Tick) -> Inputs:
    """The inputs with what the parts give.

    Raises:
        Error: A part fails.
    """
    known = dict(inputs)
    for part in parts:
        known[part.name] = {VALUE: part.run(known, tick)}
    return known


def tensor_of(result: Result) -> np.ndarray:
    """A result over elements as the array that TILES cuts, axes in SELECT's order of keys.

    Raises:
        IntegrityError: Keys are absent.
        DataError: A value is NULL.
    """
    schema = result.schema
    what = "TILES" if schema.keys else "An expression over tiles"
    for flag, array in result.fields.items():
        if not is_flag(flag):
            continue
        lacking = array.size - count_true(array)
        if lacking and flag == PRESENT:
            raise IntegrityError(
                f"{what} needs every key, but {lacking} of {array.size} are absent",
                hint="CREATE TENSOR … DEFAULT 0 and INSERT OR REPLACE fill them.",
            )
        if lacking:
            raise DataError(
                f"{what} needs values, but {lacking} of {array.size} are NULL",
                hint="COALESCE puts a number in their place.",
            )
    order = [n for c in result.columns for n, k in enumerate(schema.keys) if k.name == c.key]
    (field,) = (c.field for c in result.columns if c.field is not None)
    return result.fields[field].transpose(order)


def run_tiles(root: ra.Node, inputs: Inputs, jit: str, tick: Tick) -> Blocks:
    """Runs a plan over blocks.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    arrays = {}
    for node in ra.walk(root):
        if isinstance(node, ra.Scan):
            (field,) = node.tensor.schema.fields
            arrays[node.tensor.name] = inputs[node.tensor.name][field.name]

    def run(template: EinSum, given: Sequence[np.ndarray]) -> np.ndarray:
        runner = compiled_kernel(template, tuple(a.shape for a in given), jit)
        return np.asarray(runner([{VALUE: a} for a in given], lambda done: tick(0.0))[VALUE])

    return run_blocks(root, arrays, run)


@lru_cache(maxsize=4096)
def compiled_kernel(
    template: EinSum, shapes: tuple[tuple[int, ...], ...], jit: str = "auto"
) -> Runner:
    """A kernel for arrays of given shapes."""
    return kernels.compile_node(instantiate(template, shapes), jit)[1]


def scanned(root: ra.Node) -> list[Input]:
    """The tensors a plan reads."""
    found = {n.tensor.name: n.tensor for n in ra.walk(root) if isinstance(n, ra.Scan)}
    return list(found.values())


def tile_part(name: str, node: ra.Node, jit: str) -> Part:
    """The part that computes what ELEMENTS reads."""

    def run(inputs: Inputs, tick: Tick) -> np.ndarray:
        return assemble(node, run_tiles(node, inputs, jit, tick))

    return Part(name, format_plan(node), run)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A query over tiles that is ready to run; it has what a Plan has for a session."""

    node: ra.Node
    columns: tuple[tuple[str, int | None], ...]
    description: tuple[tuple[Any, ...], ...]
    parts: tuple[Part, ...]
    jit: str
    dependencies: tuple[Any, ...]
    notices: tuple[str, ...]
    version: int
    volatile: bool
    files: tuple[str, ...]

    def result(self, inputs: Inputs, tick: Tick) -> TileResult:
        """Runs the plan."""
        known = computed(self.parts, inputs, tick) if self.parts else inputs
        blocks = run_tiles(self.node, known, self.jit, tick)
        mapped = {id(owner(a)) for path in self.files for a in inputs[path].values()}
        if mapped:  # who cuts a mapped file short kills who reads it
            blocks = {k: copied(a) if id(owner(a)) in mapped else a for k, a in blocks.items()}
        return TileResult(self.node, blocks, self.columns)

    def explained(self) -> list[str]:
        """The parts that run first, then the plan over blocks."""
        lines: list[str] = []
        for part in self.parts:
            lines += [f"-- {part.name}", *part.text.split("\n")]
        if self.parts:
            lines.append("-- tiles")
        return lines + format_plan(self.node).split("\n")
