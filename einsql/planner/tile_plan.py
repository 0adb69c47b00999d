"""Statements that mix both algebras: parts that run first, and queries over tiles.

A part is the operand of `TILES` or `ELEMENTS` if that must be computed. Its result is an input of
the following parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema, is_flag
from einsql.engine.block_program import BlockExecutor, BlockProgram
from einsql.errors import DataError, IntegrityError
from einsql.ir.einsum.graph import Input
from einsql.ir.ia.printer import format_implementation
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import KeyTuple, sizes
from einsql.ir.tra.kernels import VALUE
from einsql.ir.tra.printer import format_plan
from einsql.ir.tra.typing import assembled
from einsql.optimizer.lowering.program import lowered
from einsql.optimizer.lowering.translate import translate
from einsql.planner.dependencies import Dependency
from einsql.planner.target import ExecutionTarget, target_of
from einsql.sql.parameters.runtime_inputs import NOTHING, ParameterUse
from einsql.sql.scope.relation import TileRelation
from einsql.storage.array_ownership import owner, show
from einsql.storage.block_relation import PlacedBlocks
from einsql.storage.fields import Fields, LocalFields, Term
from einsql.storage.relation import copied
from einsql.storage.results.result import Result
from einsql.storage.results.tile_result import TileResult, tensor_fields, type_text

if TYPE_CHECKING:
    from einsql.core.settings import Settings
    from einsql.engine.ranks import block_program as rank_program
    from einsql.engine.ranks.driver import Cluster
    from einsql.engine.ranks.program import Keep
    from einsql.optimizer import tra
    from einsql.optimizer.tra import Implemented
    from einsql.sql.tiles import free_tiling
else:  # loaded for queries over tiles and for plans on ranks
    tra = LazyModule("einsql.optimizer.tra")
    free_tiling = LazyModule("einsql.sql.tiles.free_tiling")
    rank_program = LazyModule("einsql.engine.ranks.block_program")

Tick = Callable[[float], None]
Inputs = Mapping[str, Fields]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a statement, which computes an input of the following parts."""

    name: str
    text: str
    run: Callable[[Inputs, Tick], Fields]


def computed(parts: Sequence[Part], inputs: Inputs, tick: Tick) -> Inputs:
    """Returns the inputs together with the results of the parts.

    Raises:
        Error: A part fails.
    """
    known = dict(inputs)
    for part in parts:
        known[part.name] = part.run(known, tick)
    return known


def tensor_of(result: Result) -> Fields:
    """Returns a result over elements as the tensor for TILES, axes in SELECT's order of keys.

    Raises:
        IntegrityError: Keys are absent.
        DataError: A value is NULL.
    """
    schema = result.schema
    what = "TILES" if schema.keys else "An expression over tiles"
    for flag in filter(is_flag, result.fields):
        lacking = schema.size - result.fields.count(Term(flag))
        if lacking and flag == PRESENT:
            raise IntegrityError(
                f"{what} needs every key, but {lacking} of {schema.size} are absent",
                hint="CREATE TENSOR … DEFAULT 0 and INSERT OR REPLACE fill them.",
            )
        if lacking:
            raise DataError(
                f"{what} needs values, but {lacking} of {schema.size} are NULL",
                hint="COALESCE puts a number in their place.",
            )
    order = [n for c in result.columns for n, k in enumerate(schema.keys) if k.name == c.key]
    (field,) = (c.field for c in result.columns if c.field is not None)
    if order == list(range(len(order))):
        value = Field(VALUE, schema.dtype(field))
        return result.fields.renamed(Schema(schema.keys, (value,)), {VALUE: field}, "")
    return LocalFields({VALUE: result.fields[field].transpose(order)})


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A plan over blocks with its executor.

    Attributes:
        node: The plan.
        executor: The executor of the plan, on one site or for `sited`.
        sited: The plan of the implementation algebra; None on one site.
    """

    node: ra.Node
    executor: BlockExecutor
    sited: Implemented | None = None

    def lines(self) -> list[str]:
        """Returns the lines that describe the running plan."""
        if self.sited is None:
            return format_plan(self.node).split("\n")
        return format_implementation(self.sited.root).split("\n")

    def priced(self) -> list[str]:
        """Returns the lines that describe the running plan, on several sites with its cost."""
        if self.sited is None:
            return self.lines()
        return [*self.lines(), f"-- {self.sited.cost.sites} sites: {self.sited.cost}"]


def tile_program(
    node: ra.Node, settings: Settings, cluster: Cluster | None, placed: Keep, tick: Tick
) -> TileProgram:
    """Compiles a block plan for one site, or in the implementation algebra for several.

    Args:
        node: The block plan.
        settings: The settings.
        cluster: The MPI ranks, or None for virtual sites.
        placed: Callback for tensors that ranks cache; `Store.placed`.
        tick: Callback of the search.

    Raises:
        InterfaceError: A name among the disabled rules is no rule.
    """
    free_tiling.require_numbers(node, "tiles or their keys reach the result")
    sited = None
    if target_of(settings, cluster) is ExecutionTarget.SITES:
        disabled = settings.disabled_rules & {r.name for r in tra.RULES}
        weights = None
        if settings.cost != "floats":
            weights = (
                tra.Weights.in_seconds(settings.machine)
                if settings.cost == "seconds"
                else tra.Weights.of_bytes()
            )
        sited = tra.implement(node, settings.sites, weights=weights, disabled=disabled, tick=tick)
    executor = block_executor(node, sited, settings.jit, cluster, placed)
    return TileProgram(node, executor, sited)


def block_executor(
    node: ra.Node,
    sited: Implemented | None = None,
    jit: str = "auto",
    cluster: Cluster | None = None,
    keep: Keep = lambda *_: None,
) -> BlockExecutor:
    """Returns the executor of a block plan.

    Args:
        node: The block plan.
        sited: The plan of the implementation algebra; None on one site.
        jit: The compilation mode of the kernels.
        cluster: The MPI ranks, or None for virtual sites.
        keep: Callback for tensors that ranks cache; `Store.placed`.
    """
    plan = lowered(translate(node, 1) if sited is None else sited.root)
    if sited is None or cluster is None:
        return BlockProgram(plan, jit)
    return rank_program.RankBlockProgram(cluster, plan, jit, keep)


def description_of(relation: TileRelation) -> tuple[tuple[Any, ...], ...]:
    """Returns PEP 249's description of a query over tiles."""
    tile = type_text(relation.node.schema)
    types = (tile if c.key is None else DType.BIGINT.value for c in relation.columns)
    pairs = zip(relation.columns, types, strict=True)
    return tuple((c.name, kind, None, None, None, None, None) for c, kind in pairs)


def scanned(root: ra.Node) -> list[Input]:
    """Returns the tensors that a plan reads."""
    tensors = {n.tensor.name: n.tensor for n in ra.walk(root) if isinstance(n, ra.Scan)}
    return list(tensors.values())


def tile_part(name: str, program: TileProgram) -> Part:
    """Returns the part that computes the operand of ELEMENTS."""

    def run(inputs: Inputs, tick: Tick) -> Fields:
        cuts = assembled(program.node.schema, "ELEMENTS")
        keys = (Key(f"k{n}", 0, sum(sizes(c))) for n, c in enumerate(cuts))
        schema = Schema(tuple(keys), (Field(VALUE, program.node.schema.dtype),))
        return tensor_fields(program.node, program.executor.run(inputs, tick), schema)

    return Part(name, "\n".join(program.priced()), run)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A query over tiles that is ready to run, with the interface of `Plan` for a session."""

    program: TileProgram
    columns: tuple[tuple[str, int | None], ...]
    description: tuple[tuple[Any, ...], ...]
    parts: tuple[Part, ...]
    dependencies: tuple[Dependency, ...]
    notices: tuple[str, ...]
    version: int
    volatile: bool
    files: tuple[str, ...]
    probes: tuple[Any, ...]
    use: ParameterUse = NOTHING

    @property
    def node(self) -> ra.Node:
        """The block plan."""
        return self.program.node

    def result(self, inputs: Inputs, tick: Tick) -> TileResult:
        """Runs the plan."""
        known = self.complete(inputs, tick)
        return self.wrap(self.program.executor.run(known, tick), known)

    def complete(self, inputs: Inputs, tick: Tick) -> Inputs:
        """Returns the inputs together with the results of the parts."""
        return computed(self.parts, inputs, tick) if self.parts else inputs

    def wrap(self, blocks: Mapping[KeyTuple, np.ndarray], inputs: Inputs) -> TileResult:
        """Wraps the blocks as a result."""
        mapped = {id(owner(a)) for path in self.files for a in inputs[path].values()}
        if mapped and not isinstance(
            blocks, PlacedBlocks
        ):  # truncating a mapped file kills its readers
            blocks = {k: copied(a) if id(owner(a)) in mapped else a for k, a in blocks.items()}
        if not isinstance(blocks, PlacedBlocks):
            show(blocks.values())
        return TileResult(self.node, blocks, self.columns)
