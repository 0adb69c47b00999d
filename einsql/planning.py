"""From a bound query to a program: the catalog the binder sees, plans and their reuse."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from einsql import kernels
from einsql.einsum import EinSum, Input, Node, walk
from einsql.engine import files
from einsql.engine.executor import Compile, Program, Tick
from einsql.engine.relation import MAX_AXES, Fields, copied, from_array, frozen
from einsql.engine.relation import Relation as Stored
from einsql.engine.result import Result, ResultColumn
from einsql.engine.store import Definition, Store, Tensor, owner
from einsql.errors import DataError, InterfaceError, NotSupportedError, OperationalError
from einsql.optimizer import Optimized, optimize
from einsql.schema import DType, Schema
from einsql.settings import Settings
from einsql.sql.macros import Macro
from einsql.sql.scope import Column, Relation

if TYPE_CHECKING:
    from einsql.engine.sites import SiteProgram
    from einsql.optimizer.decomposition import Decomposition
    from einsql.supersteps import Program as Placed

T = TypeVar("T")

WIDEST = 2**31
"""A range of values wider than this is no tensor key."""
SPARSE = 2**27
"""From this range on a key needs enough points, for an array holds all of its values."""
MOST_POINTS = 2**62
"""A domain larger than this is a mistake; no machine visits it."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """An input a plan was made for; the plan holds while its schema and columns stay."""

    name: str
    kind: str
    schema: Schema
    columns: tuple[str, ...]


@dataclass
class Plan:
    """A query that is ready to run.

    Attributes:
        relation: The bound relation before rewriting.
        optimized: The rewritten graph with its trace.
        cut: How each operation is cut over several sites.
        placed: What each of these sites does.
        volatile: True if a bound was found in the data, so the plan is for once.
    """

    relation: Relation
    optimized: Optimized
    program: Program | SiteProgram
    dependencies: tuple[Dependency, ...]
    notices: tuple[str, ...]
    version: int
    volatile: bool
    files: tuple[str, ...] = ()
    cut: Decomposition | None = None
    placed: Placed | None = None
    columns: tuple[ResultColumn, ...] = ()
    description: tuple[tuple[Any, ...], ...] = ()

    def result(self, inputs: Mapping[str, Fields], tick: Tick) -> Result:
        """Runs the plan."""
        return self.wrap(self.program.run(inputs, tick), inputs)

    def wrap(self, fields: Fields, inputs: Mapping[str, Fields]) -> Result:
        """Dresses the root's fields as a result.

        Storage shared with a tensor becomes read-only. What a file holds is copied, for a
        memory-mapped file that is cut short kills who reads it.
        """
        shared = {id(owner(a)) for given in inputs.values() for a in given.values()}
        mapped = {id(owner(a)) for path in self.files for a in inputs[path].values()}
        safe = {}
        for name, a in fields.items():
            held = id(owner(a))
            safe[name] = copied(a) if held in mapped else frozen(a) if held in shared else a
        return Result(self.relation.node.schema, safe, self.columns, self.relation.hidden)


@dataclass
class BinderCatalog:
    """The catalog of one statement's binder: the store, arrays in scope, and files."""

    store: Store
    settings: Settings
    in_scope: Callable[[str], object | None]
    tick: Tick
    inputs: dict[str, Input] = field(default_factory=dict)
    fields: dict[str, Fields] = field(default_factory=dict)
    dependencies: list[Dependency] = field(default_factory=list)
    volatile: bool = False

    @property
    def float_stays(self) -> bool:
        """True if FLOAT arithmetic stays FLOAT."""
        return self.settings.float_math == "float"

    @property
    def sites(self) -> int:
        """Over how many sites the statement is to be cut."""
        return self.settings.sites

    def relation(self, name: str) -> Relation | None:
        """A stored tensor, a registered array or an array in the caller's scope."""
        stored = self.store.get(name)
        if isinstance(stored, Tensor):
            return self._relation(stored.name, "tensor", stored.relation, stored.columns)
        if stored is not None:
            return None
        array = self.in_scope(name)
        if array is None:
            return None
        held = array_relation(array)
        return self._relation(name, "scope", held, _columns(held))

    def file(self, path: str) -> Relation:
        """A tensor file."""
        if not self.settings.enable_external_access:
            raise OperationalError(
                f"'{path}' is not opened: enable_external_access is off",
                hint="SET enable_external_access = true allows files.",
            )
        held = array_relation(files.read(path))
        return self._relation(path, "file", held, _columns(held))

    def _relation(self, name: str, kind: str, held: Stored, columns: tuple[str, ...]) -> Relation:
        low = name if kind == "file" else name.lower()
        if low not in self.inputs:
            self.inputs[low] = Input(low, held.schema)
            self.fields[low] = held.fields
            self.dependencies.append(Dependency(name, kind, held.schema, columns))
        node = self.inputs[low]
        keys = {k.name for k in node.schema.keys}
        shown = tuple(
            Column(c, node.schema.dtype(c), field=c) if c not in keys else key_column(c)
            for c in columns
        )
        return Relation(node, shown)

    def view(self, name: str) -> Any:
        """A view's query."""
        found = self.store.get(name)
        is_view = isinstance(found, Definition) and found.kind == "view"
        return found.body if is_view and isinstance(found, Definition) else None

    def macro(self, name: str) -> Macro | None:
        """A macro; it lives under `name()` beside tensors of the same name."""
        found = self.store.get(f"{name}()")
        return found.body if isinstance(found, Definition) else None

    def names(self) -> list[str]:
        """Names of tensors and views."""
        return [o.name for o in self.store.objects.values() if not o.name.endswith("()")]

    def probe(self, node: EinSum) -> tuple[int, int]:
        """Bounds of an expression found in the data; a plan that needed it is for once."""
        self.volatile = True
        root = optimize(node, disabled=self.settings.disabled_rules).root
        found = compiled(root, self.settings).run(self.fields, self.tick)
        if not bool(found["some"]):
            return 0, 0
        lo, hi = int(found["lo"]), int(found["hi"])
        if hi - lo >= WIDEST or (hi - lo >= SPARSE and hi - lo > 64 * node.points):
            raise NotSupportedError(
                f"A grouping key ranges from {lo} to {hi}, too far for a tensor key",
                hint="Group by an expression with a small range, such as v % 1024.",
            )
        return lo, hi + 1


def key_column(name: str) -> Column:
    """The column of a key."""
    return Column(name, DType.BIGINT, key=name)


def _columns(held: Stored) -> tuple[str, ...]:
    schema = held.schema
    return (*(k.name for k in schema.keys), *(f.name for f in schema.values))


def array_relation(array: object, dims: tuple[str, ...] | None = None) -> Stored:
    """A relation over an array-like, without a copy where its memory allows.

    Raises:
        InterfaceError: It is no array, or its dtype is no tensor type.
    """
    found = as_numpy(array)
    names = tuple(f"d{n}" for n in range(found.ndim)) if dims is None else dims
    return from_array(found, names)


def is_array(value: object) -> bool:
    """True for what may be named in FROM: NumPy, DLPack, SciPy sparse and Arrow tensors."""
    if isinstance(value, np.ndarray):
        return True
    module = type(value).__module__.partition(".")[0]
    return module in ("torch", "cupy", "scipy", "pyarrow") and (
        hasattr(value, "__dlpack__") or hasattr(value, "toarray") or hasattr(value, "to_numpy")
    )


def as_numpy(value: object) -> np.ndarray:
    """The NumPy view of an array-like.

    Raises:
        InterfaceError: It is none.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InterfaceError(
            f"The array has {np.ma.getmaskarray(value).sum()} masked elements",
            hint="Fill them, as with array.filled(0).",
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # a matrix or memory map would behave in its own way
    try:
        if hasattr(value, "toarray"):  # SciPy sparse: element rows are dense zeros in SQL
            return np.asarray(value.toarray())
        if hasattr(value, "to_numpy_ndarray"):
            return np.asarray(value.to_numpy_ndarray())
        if hasattr(value, "detach"):  # a torch tensor that may ask for gradients
            value = value.detach().cpu()
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if isinstance(value, list | tuple | int | float | np.generic):
            return np.asarray(value)
        if hasattr(value, "to_numpy"):
            return np.asarray(value.to_numpy())
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InterfaceError(f"This {type(value).__name__} is no dense tensor: {error}") from error
    raise InterfaceError(
        f"A {type(value).__name__} is no tensor",
        hint="Give a NumPy array, or anything with DLPack.",
    )


def compiler(settings: Settings) -> Compile:
    """What turns a node into a kernel's name and runner under the current settings."""
    return lambda node: kernels.compile_node(node, settings.jit)


def compiled(root: Node, settings: Settings) -> Program:
    """The program of a graph under the current settings.

    Raises:
        Error: As `check_domains`.
    """
    check_domains(root)
    return Program(root, compiler(settings))


def check_domains(root: Node) -> None:
    """Refuses graphs over keys that no array and no counter can hold.

    Raises:
        NotSupportedError: A node has more labels than an array can have axes.
        DataError: A key leaves BIGINT.
        OperationalError: A node has more points than can be counted.
    """
    least, most = DType.BIGINT.range
    for node in walk(root):
        if not isinstance(node, EinSum):
            continue
        if len(node.axes) > MAX_AXES:
            raise NotSupportedError(
                f"The statement ranges over {len(node.axes)} keys at once; {MAX_AXES} are the most",
                hint="Aggregate keys away in a subquery first.",
            )
        for a in node.axes:
            if a.lo < least or a.hi > most:  # an exclusive bound is a BIGINT itself
                raise DataError(f"Overflow: the key {a.label} ranges over [{a.lo}, {a.hi})")
        if node.points > MOST_POINTS:
            raise OperationalError(
                f"The statement ranges over {node.points:,} combinations of keys",
                hint="Narrow the keys with WHERE, or join them.",
            )


def sited(root: Node, settings: Settings) -> tuple[Decomposition, Placed]:
    """How a graph is cut over the sites, and what each of them does.

    Raises:
        Error: As `check_domains`.
    """
    from einsql.optimizer.decomposition import decompose  # 20 ms, for several sites only
    from einsql.optimizer.placement import place

    check_domains(root)
    cut = decompose(root, settings.sites, settings.strategy)
    return cut, place(root, cut)


def make_plan(relation: Relation, catalog: BinderCatalog, notices: Sequence[str]) -> Plan:
    """Optimises and compiles a bound relation."""
    settings = catalog.settings
    optimized = optimize(relation.node, disabled=settings.disabled_rules)
    cut, placed = None, None
    program: Program | SiteProgram
    if settings.sites > 1:
        from einsql.engine.sites import SiteProgram  # as in `sited`

        cut, placed = sited(optimized.root, settings)
        program = SiteProgram(placed, optimized.root, compiler(settings))
    else:
        program = compiled(optimized.root, settings)
    columns = tuple(ResultColumn(c.name, c.dtype, c.key, c.field) for c in relation.columns)
    return Plan(
        relation,
        optimized,
        program,
        tuple(catalog.dependencies),
        tuple(notices),
        catalog.store.version,
        catalog.volatile,
        tuple(d.name for d in catalog.dependencies if d.kind == "file"),
        cut,
        placed,
        columns,
        tuple((c.name, c.dtype.value, None, None, None, None, None) for c in columns),
    )


def current_inputs(
    plan: Plan, store: Store, in_scope: Callable[[str], object | None]
) -> dict[str, Fields] | None:
    """Fields of every input of a plan, or None if an input changed its form."""
    if plan.version != store.version:
        return None
    inputs: dict[str, Fields] = {}
    for d in plan.dependencies:
        if d.kind == "tensor":
            found = store.objects.get(d.name.lower())
            if not isinstance(found, Tensor):
                return None
            held = found.relation
            if held.schema is not d.schema and held.schema != d.schema:
                return None
            inputs[d.name.lower()] = held.fields
            continue
        if d.kind == "file":
            if not os.path.exists(d.name):
                return None
            held = array_relation(files.read(d.name))
        else:
            array = in_scope(d.name)
            if array is None:
                return None
            held = array_relation(array)
        if held.schema != d.schema:
            return None
        inputs[d.name if d.kind == "file" else d.name.lower()] = held.fields
    return inputs


def array_in_scope(frame: FrameType | None, name: str) -> object | None:
    """An array of that name among the locals and globals of the code that called einsql.

    Args:
        frame: Where the search starts; einsql's own frames are passed over.
        name: As written in FROM.
    """
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "einsql":
        frame = frame.f_back
    if frame is None:
        return None
    for names in (frame.f_locals, frame.f_globals):
        for candidate in (name, name.lower()):
            found: object = names.get(candidate)
            if is_array(found):
                return found
    return None


def with_deep_stack(run: Callable[[], T]) -> T:
    """Runs on a thread whose stack fits expressions nested a thousand deep."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(run())
        except BaseException as error:
            failure.append(error)

    old_size = threading.stack_size(512 * 2**20)
    old_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(old_limit, 200_000))
    try:
        thread = threading.Thread(target=target, name="einsql-deep")
        thread.start()
        thread.join()
    finally:
        threading.stack_size(old_size)
        sys.setrecursionlimit(old_limit)
    if failure:
        raise failure[0]
    return outcome[0]
