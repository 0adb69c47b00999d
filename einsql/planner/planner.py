"""Planning: the catalog of the binder, and the plan of a bound graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.big_stack import require_room
from einsql.core.lazy_module import LazyModule, lazy_modules
from einsql.core.records import dataclass
from einsql.core.schema import DType, Schema
from einsql.core.settings import Settings
from einsql.core.unknowns import Recorder
from einsql.engine.step import GraphExecutor, Tick
from einsql.errors import NotSupportedError, OperationalError
from einsql.ir.einsum.graph import EinSum, Input, Node, PartInput, Roots, TableInput
from einsql.optimizer import Optimized, optimize
from einsql.planner.compile import check_domains, compiled
from einsql.planner.dependencies import (
    Dependency,
    FileDependency,
    PartsDependency,
    ScopeDependency,
    SharedDependency,
    SharedQueries,
    TableDependency,
    TensorDependency,
)
from einsql.planner.plan import Plan, described, result_columns, unverified
from einsql.planner.stored_inputs import (
    boxes_read,
    dense_reads,
    idle_reason,
    inputs_of,
    parts_input,
    pattern_of,
    stored_input,
    sum_of_parts,
)
from einsql.planner.target import ExecutionTarget, target_of
from einsql.planner.templates import (
    NeedsNumbersError,
    QueryGraph,
    first_plan,
    is_reusable,
    plan_of,
)
from einsql.planner.value_ranges import ranges_of
from einsql.sql.macros.builtin_macros import built_in
from einsql.sql.macros.macros import CheckMacro, Macro
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.scope.relation import Column, Relation, TileRelation, known_bounds
from einsql.sql.typing.value_ranges import Ranges
from einsql.storage.fields import Fields, Summands, as_fields
from einsql.storage.host_arrays import array_relation, file_relation
from einsql.storage.memory import Memory
from einsql.storage.objects import (
    Body,
    Damaged,
    Definition,
    Tensor,
    bare_name,
    damage_error,
    macro_key,
)
from einsql.storage.relation import Relation as Stored
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster
    from einsql.ir.einsum import printer as _printer
    from einsql.ir.tra.plan import Node as TileNode
    from einsql.optimizer.site_optimizer import SitePlan
    from einsql.planner import bounds_probe, device_program, sites, tile_plan
    from einsql.planner.plan import Condition
    from einsql.planner.sites import OnSites
    from einsql.planner.tile_plan import Part, TileProgram
    from einsql.storage.duckdb.operands import Tables
    from einsql.storage.files import tables as table_files
else:  # imported for computed keys, several sites, tiles, GPUs and files only
    bounds_probe, device_program, sites, tile_plan = lazy_modules(
        "einsql.planner", "bounds_probe", "device_program", "sites", "tile_plan"
    )
    table_files = LazyModule("einsql.storage.files.tables")
    _printer = LazyModule("einsql.ir.einsum.printer")


@dataclass
class BinderCatalog:
    """The catalog of one statement's binder: the store, arrays in scope, and files."""

    store: Store
    settings: Settings
    in_scope: Callable[[str], object | None]
    tick: Tick
    given: BoundParameters
    cluster: Cluster | None = None
    memory: Memory | None = None
    has_table: Callable[[str], bool] = lambda name: False
    """Returns whether DuckDB has a table of a name."""
    check_macro: CheckMacro = lambda macro, find: None
    """Raises an error if a macro may not be called."""
    inputs: dict[str, Input] = field(default_factory=dict)
    fields: dict[str, Fields] = field(default_factory=dict)
    dependencies: list[Dependency] = field(default_factory=list)
    volatile: bool = False
    probes: list[Condition] = field(default_factory=list)
    """The facts about the data on which the plan relies."""
    computed: dict[str, tuple[PartInput, Relation | TileRelation]] = field(default_factory=dict)
    """The relations that parts of the statement compute, by the names of their inputs."""
    tables: Tables | None = None
    """The reader of DuckDB tables that may be operands."""
    depths: dict[str, int] = field(default_factory=dict)
    """The nesting depth of each view and macro that has been read, by name."""
    shared: SharedQueries = field(default_factory=SharedQueries)
    """Subqueries that were computed once for several queries of the statement."""
    notices: list[str] = field(default_factory=list)
    """Remarks on the objects that the statement reads."""
    recorder: Recorder | None = None
    """The recorder of the conditions on the inputs' extents, if these are unknowns."""
    _sums: dict[str, EinSum] = field(default_factory=dict)
    """The sums of tensors that are kept unreduced, by name; references share one node."""
    _sources: dict[str, object] = field(default_factory=dict)
    """The object that each input reads, by the name of the input."""

    float_stays: bool = field(init=False)
    """Whether FLOAT arithmetic stays FLOAT."""
    sites: int = field(init=False)
    """The number of sites of the statement."""
    mesh: tuple[tuple[str, int], ...] = field(init=False)
    """The axes of the mesh of these sites; empty without one."""
    ranges: Ranges = field(init=False)
    """The ranges of the inputs' values."""

    def __post_init__(self) -> None:
        self.float_stays = self.settings.float_math == "float"
        self.sites = self.settings.sites
        self.mesh = self.settings.mesh_in_force
        self.ranges = ranges_of(self.dependencies, self.fields, self.probes, self.store)

    def relation(self, name: str) -> Relation | None:
        """Returns a stored tensor, a registered array or an array in the caller's scope."""
        low = name.lower()
        if low in self.shared.relations:
            self.require_numbers()
            self.fields[low] = self.shared.fields[low]
            relation = self.shared.relations[low]
            self.dependencies.append(SharedDependency(low, relation.node.schema, self.shared))
            return relation
        stored = self.store.get(name)
        if isinstance(stored, Damaged):
            raise damage_error(stored)
        if isinstance(stored, Tensor):
            parts = stored.relation.fields.summands
            if parts is not None and parts.mesh == self.mesh:
                return self._sum_of(stored, parts)
            node = stored_input(low, stored, self.settings, self.sites)
            self._note(idle_reason(stored, self.settings))
            dependency = TensorDependency.of(stored, node, self.sites)
            return self._relation(node, dependency, self.store.lent(stored), stored.columns)
        if stored is not None:
            return None
        array = self.in_scope(name)
        if array is not None:
            known = array_relation(array)
            return self._read_array(known, ScopeDependency(low, known.schema, name))
        table = None if self.tables is None else self.tables.relation(name)
        if table is None:
            return None
        assert self.tables is not None
        rows = TableInput.of(name, table.schema)
        by_table = TableDependency(rows.name, table.schema, name, self.tables)
        columns = tuple(f.name for f in table.schema.values)
        return self._relation(rows, by_table, table.fields, columns)

    def _sum_of(self, stored: Tensor, parts: Summands) -> Relation:
        """Returns the sum over the parts of a tensor that is kept unreduced."""
        low, schema = stored.name.lower(), parts.schema
        node = parts_input(f"{low} (parts)", stored, self.settings)
        dependency = PartsDependency(node.name, schema, low)
        read = self._relation(node, dependency, parts.fields, ()).node
        if low not in self._sums:
            self._sums[low] = sum_of_parts(read, stored, self.settings)
        keys = {k.name for k in schema.keys}
        shown = (
            key_column(c) if c in keys else Column(c, schema.dtype(c), field=c)
            for c in stored.columns
        )
        return Relation(self._sums[low], tuple(shown))

    def _note(self, text: str) -> None:
        if text and text not in self.notices:
            self.notices.append(text)

    def is_table_file(self, path: str) -> bool:
        """Whether FROM reads a file as a table, as `tables.is_table`, or a table has this name.

        Without external access only DuckDB may read a file, if its settings allow the path.
        """
        if self.has_table(path):
            return True
        if not self.settings.enable_external_access:
            return table_files.may_be_table(path)
        return table_files.is_table(path)

    def file(self, path: str, member: str | None = None) -> Relation:
        """Returns a tensor file, or one of the arrays in it."""
        if not self.settings.enable_external_access:
            raise OperationalError(
                f"'{path}' is not opened: enable_external_access is off",
                hint="It stays off in this session; a new one may open files.",
            )
        known = file_relation(path, member, self.tick, self.memory)
        name = path if member is None else f"{path} (TENSOR '{member}')"
        return self._read_array(known, FileDependency(name, known.schema, path, member))

    def _read_array(self, known: Stored, dependency: FileDependency | ScopeDependency) -> Relation:
        """Returns the relation of a file or of an array in the caller's scope."""
        sites, sparse = known.fields.tiles_over(self.sites), known.fields.is_sparse
        pattern = pattern_of(known.fields, self.sites)
        node = Input(dependency.name, known.schema, lies=sites, sparse=sparse, pattern=pattern)
        schema = known.schema
        columns = (*(k.name for k in schema.keys), *(f.name for f in schema.values))
        return self._relation(node, dependency, known.fields, columns)

    def _relation(
        self, node: Input, dependency: Dependency, fields: Fields, columns: tuple[str, ...]
    ) -> Relation:
        """Returns the relation of an input; references to the same object share one node.

        The name of a tensor may equal that of a file, of a table's input or of a parameter. It is
        quoted until it is unique. Names of parameters contain a question mark.
        """
        source = dependency.source
        name = f'"{node.name}"' if "?" in node.name else node.name
        while self._sources.setdefault(name, source) != source:
            name = f'"{name}"'
        if name != node.name:
            node, dependency = replace(node, name=name), replace(dependency, name=name)
        if name not in self.inputs:
            if self.recorder is not None:
                if not is_reusable(dependency):
                    raise NeedsNumbersError(name)
                keys = (replace(k, hi=self.recorder.extent(k.hi)) for k in node.schema.keys)
                node = replace(node, schema=replace(node.schema, keys=tuple(keys)))
            self.inputs[name] = node
            self.fields[name] = fields
            self.dependencies.append(dependency)
        node = self.inputs[name]
        names = {k.name for k in node.schema.keys}
        shown = tuple(
            Column(c, node.schema.dtype(c), field=c) if c not in names else key_column(c)
            for c in columns
        )
        return Relation(node, shown)

    def view(self, name: str) -> Any:
        """Returns a view's query."""
        view = None if name.lower() in self.shared.relations else self.store.get(name)
        if not isinstance(view, Definition) or view.kind != "view":
            return None
        return self._read(view).tree

    def macro(self, name: str) -> Macro | None:
        """Returns a macro, stored as `name()` beside tensors of the same name."""
        definition = self.store.get(macro_key(name))
        if isinstance(definition, Damaged):
            raise damage_error(definition)
        if definition is None:
            return built_in(name)
        assert isinstance(definition, Definition)
        macro = self._read(definition).tree
        assert isinstance(macro, Macro)
        return macro

    def _read(self, definition: Definition) -> Body:
        """Returns the parsed body of a definition.

        Raises:
            NeedsRoom: The definitions that the statement reads nest too deeply.
            OperationalError: The definition is damaged.
        """
        body = definition.body
        self.depths[definition.name] = 1 + body.depth
        require_room(sum(self.depths.values()))
        return body

    @property
    def files(self) -> tuple[str, ...]:
        """The inputs that are files."""
        return tuple(d.name for d in self.dependencies if isinstance(d, FileDependency))

    @property
    def operand_tables(self) -> str:
        """The DuckDB tables that are operands, as messages list them."""
        tables = {d.table.lower() for d in self.dependencies if isinstance(d, TableDependency)}
        return ", ".join(sorted(tables))

    def names(self) -> list[str]:
        """Returns the names of tensors and views."""
        return [o.name for o in self.store.objects.values() if o.name == bare_name(o)]

    def part(self, relation: Relation | TileRelation, schema: Schema) -> PartInput:
        """Returns an input of one algebra that a part of the other algebra computes."""
        self.require_numbers()
        if isinstance(relation, Relation):
            relation = known_bounds(relation)
        for part, known in self.computed.values():
            if known == relation:  # a WITH name that is read twice is computed once
                return part
        part = PartInput(f"Q{len(self.computed)}", schema)  # tensor names are lower-case
        self.computed[part.name] = part, relation
        return part

    def require_numbers(self) -> None:
        """Refuses unknowns, for parts of a statement that use extents as plain numbers.

        Raises:
            NeedsNumbersError: The extents of the inputs are unknowns.
        """
        if self.recorder is not None:
            raise NeedsNumbersError

    def parts(self, roots: Iterable[Input]) -> tuple[Part, ...]:
        """Returns the parts that compute the given inputs, in the order of computation."""
        parts: dict[str, Part] = {}
        for root in roots:
            if root.name in self.computed and root.name not in parts:
                for part in self._part(root.name):
                    parts.setdefault(part.name, part)
        return tuple(parts.values())

    def _part(self, name: str) -> tuple[Part, ...]:
        _, relation = self.computed[name]
        if isinstance(relation, TileRelation):
            program = self.tile_program(relation.node)
            return (
                *self.parts(tile_plan.scanned(relation.node)),
                tile_plan.tile_part(name, program),
            )
        plan = make_plan(relation, self, [])
        text = _printer.format_graph(plan.optimized.root)
        own = tile_plan.Part(
            name, text, lambda inputs, tick: tile_plan.tensor_of(plan.finish(inputs, tick))
        )
        return (*plan.parts, own)

    def tile_program(self, node: TileNode) -> TileProgram:
        """Compiles a block plan; see `tile_plan.tile_program`."""
        placed = self.store.placed
        return tile_plan.tile_program(node, self.settings, self.cluster, placed, self.tick)

    def compiled(self, root: Node, *more: Node) -> GraphExecutor:
        """Compiles a graph for one site, on the device of the settings; a GPU has one root.

        Raises:
            OperationalError: The device does not exist.
            Error: See `check_domains`.
        """
        if self.settings.device == "cpu":
            return compiled(root, self.settings, self.memory, more, self.tiled)
        check_domains(root, by_elements=False)
        return device_program.DeviceProgram(root, self.settings, self.store.lasts)

    @property
    def tiled(self) -> frozenset[str]:
        """The inputs that are in files, in several tiles."""
        layouts = ((name, as_fields(f).layout) for name, f in self.fields.items())
        return frozenset(name for name, layout in layouts if layout is not None and layout.is_tiled)

    def on_sites(self, optimized: Optimized) -> OnSites:
        """Cuts a graph over the sites of the settings, and compiles it.

        Raises:
            Error: See `check_domains`.
        """
        return sites.on_sites(optimized, self.settings, self.cluster, self.store.placed)

    def probe(self, node: EinSum) -> tuple[int, int]:
        """Computes the bounds of an expression from the data."""
        recorder, settings = self.recorder, self.settings
        query = optimize(node, disabled=settings.disabled_rules).root, node.points
        root, points = query if recorder is None else recorder.build(query)[0]
        fields: Mapping[str, Fields] = self.fields
        parts = self.parts(inputs_of(root))
        if parts:
            fields = tile_plan.computed(parts, fields, self.tick)
        on_ranks = self.cluster is not None
        program = self.on_sites(Optimized((root,), ())).program if on_ranks else self.compiled(root)
        (extremes,) = program.run(fields, self.tick)
        bounds = bounds_probe.bounds_in(extremes, points)
        if parts or on_ranks:
            self.volatile = True
        else:
            again = partial(compiled, settings=settings, memory=self.memory)
            compile_later = again if recorder else lambda _: program
            self.probes.append(bounds_probe.Probe(*query, bounds, compile_later))
        return bounds


def key_column(name: str) -> Column:
    """Returns the column of a key."""
    return Column(name, DType.BIGINT, key=name)


def make_plan(
    relation: Relation, catalog: BinderCatalog, notices: list[str], more: Sequence[Node] = ()
) -> Plan:
    """Optimises and compiles a bound relation.

    Args:
        relation: The bound relation.
        catalog: The catalog of its binder.
        notices: The notices of the statement; the plan appends to it.
        more: Further roots of the same graph, except on a GPU; see `einsum.apart`.
    """
    settings = catalog.settings
    target = target_of(settings, catalog.cluster)
    several = target is ExecutionTarget.SITES
    if several and settings.device != "cpu":
        raise NotSupportedError(
            "A GPU works for a single site",
            hint="SET device = 'cpu' for several sites, or SET sites = 1.",
        )
    optimized = optimize(
        relation.node, *more, disabled=settings.disabled_rules, sited=several,
        alone=target is ExecutionTarget.CPU,
    )  # fmt: skip
    notices.extend(text for text in dense_reads(optimized.roots) if text not in notices)
    keys = {k.name: n for n, k in enumerate(relation.node.schema.keys)}
    ends = tuple(e.end(catalog.given, keys[name]) for name, e in relation.edges)
    dependencies = tuple(catalog.dependencies)
    if catalog.recorder is not None:
        schema, conditions = relation.node.schema, tuple(catalog.probes)
        graph = QueryGraph(schema, optimized.roots, conditions, catalog.given.use)
        return first_plan(
            catalog.recorder,
            graph,
            dependencies,
            catalog.given.values,
            partial(_reads, catalog=catalog),
            partial(
                plan_of,
                hidden=relation.hidden,
                columns=result_columns(relation),
                trace=optimized.trace,
                notices=tuple(notices),
                version=catalog.store.names,
                ends=ends,
                settings=settings,
                memory=catalog.memory,
                tiled=catalog.tiled,
            ),
        )
    site_plan: SitePlan | None = None
    program: GraphExecutor
    if several:
        sited = catalog.on_sites(optimized)
        optimized, site_plan, program = sited.optimized, sited.plan, sited.program
        dependencies = tuple(d.loaded_by(site_plan.program) for d in dependencies)
        cut = site_plan.cut
        if cut.plan_notice:
            catalog.shared.notice_once(notices, cut.plan_notice)
        remarks = [*catalog.notices, *([cut.notice] if cut.notice else ())]
        notices.extend(text for text in remarks if text not in notices)
    else:
        program = catalog.compiled(*optimized.roots)
    columns = result_columns(relation)
    return Plan(
        relation.node.schema,
        relation.hidden,
        optimized,
        program,
        dependencies,
        tuple(notices),
        catalog.store.names,
        catalog.volatile,
        catalog.files,
        site_plan,
        columns,
        described(columns),
        catalog.parts(inputs_of(*optimized.roots)),
        tuple(catalog.probes),
        () if several else unverified(_reads(optimized.roots, catalog), program),
        catalog.memory,
        catalog.given.use,
        ends,
    )


def _reads(roots: Roots, catalog: BinderCatalog) -> tuple[tuple[str, np.ndarray], ...]:
    """Returns the boxes of tensors in payload files that a graph reads: int64 (keys, 2)."""
    stored = {n for n, f in catalog.fields.items() if as_fields(f).layout is not None}
    if not stored or catalog.settings.device != "cpu" or catalog.cluster is not None:
        return ()  # a device stores complete tensors, and ranks read files themselves
    return boxes_read(roots, stored)
