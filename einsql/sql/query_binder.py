"""Binds queries: WITH, views, macros and the SELECT blocks inside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from sqlglot import exp

from einsql.core.lazy_module import LazyModule, lazy_modules
from einsql.core.records import dataclass
from einsql.errors import Error, ForeignNameError, ProgrammingError, UnknownHere, suggest
from einsql.sql.binder.best_rows import RowLimits, limits_of_ctes
from einsql.sql.binder.context import Catalog, Joining
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.select import SelectBinder
from einsql.sql.binder.syntax import check_syntax, renamed
from einsql.sql.functions import tile_functions
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS, TABLE_MACROS
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.macros.macros import FREE, called_name, identity_of
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parameters.windows import Windows
from einsql.sql.parser.positions import position, positioned, unsupported
from einsql.sql.scope.relation import Relation, TileRelation, as_elements
from einsql.sql.tiles.recognise import TileQueries
from einsql.sql.typing.typed_expr import Typed

if TYPE_CHECKING:
    from einsql.ir.autodiff import Backward
    from einsql.sql.binder import einsum_call, gradient_call
    from einsql.sql.macros import mapped_tables
    from einsql.sql.macros import substitution as _substitution
    from einsql.sql.tiles import functions as functions_of_tiles
    from einsql.sql.tiles import select as select_over_tiles
else:  # loaded for statements with such calls, and over tiles
    einsum_call, gradient_call = lazy_modules("einsql.sql.binder", "einsum_call", "gradient_call")
    mapped_tables = LazyModule("einsql.sql.macros.mapped_tables")
    functions_of_tiles, select_over_tiles = lazy_modules("einsql.sql.tiles", "functions", "select")
    _substitution = LazyModule("einsql.sql.macros.substitution")

T = TypeVar("T")

REENTRIES = 8
"""Most nested expansions of one view or table macro; more are refused as recursive."""


@dataclass
class Argument:
    """A SELECT as the argument of a table macro; it is bound once, in the caller's scope.

    Attributes:
        ctes, active, foreign: The attributes of the binder at the call.
        relation: The bound SELECT; None before the macro's body reads it.
    """

    query: exp.Select
    ctes: list[dict[str, Relation | TileRelation]]
    active: list[str]
    foreign: frozenset[str]
    relation: Relation | TileRelation | None = None


@dataclass
class QueryBinder:
    """Binds the queries of one statement; equal names resolve to one shared node."""

    catalog: Catalog
    parameters: BoundParameters = field(default_factory=BoundParameters)
    notices: list[str] = field(default_factory=list)
    ctes: list[dict[str, Relation | TileRelation]] = field(default_factory=list)
    views: dict[str, Relation | TileRelation] = field(default_factory=dict)
    joining: list[Joining] = field(default_factory=list)
    """The SELECTs whose FROM is being bound, outermost first."""
    active: list[str] = field(default_factory=list)
    """Views and table macros that are being bound, outermost first."""
    foreign: frozenset[str] = frozenset()
    """Lower-case names of the surrounding WITH that only DuckDB can compute."""
    refused: Mapping[str, Error] = field(default_factory=dict)
    """The errors for which einsql cannot compute these names, by name."""
    backward: dict[tuple[int, str], Backward] = field(default_factory=dict)
    """The backward passes by the node and the field of the loss."""
    arguments: dict[int, Argument] = field(default_factory=dict)
    """The SELECTs that are arguments of table macros, by id."""
    calls: dict[tuple[object, ...], tuple[object, Relation | TileRelation]] = field(
        default_factory=dict
    )
    """The results of table macros, by their calls and the names in scope."""
    keeps_sums: bool = False
    """True if an EINSUM of the statement leaves its sum unreduced."""
    change: Callable[[exp.CTE], None] | None = None
    """Callback for parts of the statement's own WITH that change a tensor; None refuses them."""
    changing: set[str] = field(default_factory=set)
    """The lower-case names of these parts."""
    part: str = "SELECT"
    """The part of the statement's WITH that is being bound, or SELECT for the rest."""
    row_limits: RowLimits = field(init=False, default_factory=dict)
    """The rows of SELECTs that their reader selects."""
    macros: MacroExpander = field(init=False)
    """The expansion of the statement's macro calls."""
    windows: Windows = field(init=False)
    """The windows between parameters."""
    tile_queries: TileQueries = field(init=False)
    """The detection of queries over tiles."""

    def __post_init__(self) -> None:
        self.macros = MacroExpander(self.catalog.macro, self.catalog.check_macro)
        self.windows = Windows(self.parameters)
        self.tile_queries = TileQueries(self.catalog, self.macros)

    @property
    def origins(self) -> tuple[str, ...]:
        """The part of the statement that is being bound, as in `EinSum.origins`."""
        if not self.active:
            return (self.part,)
        kind, name = self.active[0].split(" ", 1)
        return (name if kind == "view" else f"{name} in {self.part}",)

    def bind(self, query: exp.Expr) -> Relation:
        """Binds a query to a relation of elements.

        Raises:
            Error: The query is wrong, over tiles, or outside the tensor fragment.
        """
        return as_elements(self.bind_any(query), "A SELECT over tiles", query)

    def bind_any(self, query: exp.Expr) -> Relation | TileRelation:
        """Binds a query over elements or over tiles, depending on its FROM.

        Raises:
            Error: The query is wrong, or outside the tensor fragment.
        """
        if isinstance(query, exp.Subquery):
            check_syntax(query)
            inner = query.this
            return self.with_ctes(query, lambda: self.bind_any(inner))
        if isinstance(query, exp.Select):
            select, known = query, self.arguments.get(id(query))
            if known is not None:
                return self._argument(known)
            return self.with_ctes(query, lambda: self._select(select))
        raise unsupported(query.key.upper(), query)

    def _argument(self, argument: Argument) -> Relation | TileRelation:
        """The relation of a SELECT that is the argument of a macro."""
        if argument.relation is None:
            before = self.ctes, self.active, self.foreign, self.joining
            self.ctes, self.active = argument.ctes, argument.active
            self.foreign, self.joining = argument.foreign, []
            try:
                query = argument.query
                argument.relation = self.with_ctes(query, lambda: self._select(query))
            finally:
                self.ctes, self.active, self.foreign, self.joining = before
        return argument.relation

    def _select(self, select: exp.Select) -> Relation | TileRelation:
        if not self.tile_queries.over_tiles(select, self.ctes):
            return SelectBinder(self).bind(select)
        self.catalog.require_numbers()
        return select_over_tiles.TileSelect(self).bind(select)

    def with_ctes(self, query: exp.Expr, run: Callable[[], T]) -> T:
        """Binds the parts of a WITH clause that are read; calls `run` with their names in scope.

        A part that nothing reads is not bound, so an unknown column in it is no error, as in
        DuckDB.
        """
        clause = query.args.get("with_")
        if clause is None:
            return run()
        check_syntax(clause)
        if clause.args.get("recursive"):
            raise unsupported("WITH RECURSIVE", clause)
        self.ctes.append({})
        if isinstance(query, exp.Select):
            self.row_limits.update(limits_of_ctes(query, clause))
        read, names = _names_read(query, clause), set[str]()
        try:
            for cte in clause.expressions:
                check_syntax(cte)
                name = cte.alias
                if name.lower() in names or name.lower() in self.changing:
                    raise ProgrammingError(f'WITH names "{name}" twice', position=position(cte))
                if isinstance(cte.this, _CHANGES):
                    self._changed(cte)
                    continue
                names.add(name.lower())
                if name.lower() not in read:
                    continue
                relation = self._bind_part(name, cte.this)
                if isinstance(relation, Relation):
                    self.ctes[-1][name.lower()] = renamed(relation, cte)
                else:
                    self.ctes[-1][name.lower()] = renamed(relation, cte)
            return run()
        finally:
            self.ctes.pop()

    def _bind_part(self, name: str, query: exp.Expr) -> Relation | TileRelation:
        """Binds a part of WITH; parts of the statement's own WITH are named in EXPLAIN."""
        if self.active or len(self.ctes) > 1:
            return self.bind_any(query)
        before, self.part = self.part, name
        try:
            return self.bind_any(query)
        finally:
            self.part = before

    def _changed(self, cte: exp.CTE) -> None:
        if self.change is None or len(self.ctes) > 1:
            raise ProgrammingError(
                f"The part {cte.alias} of WITH changes data inside of a query",
                hint="Write such a part in the WITH that begins a statement.",
                position=position(cte),
            )
        self.change(cte)
        self.changing.add(cte.alias.lower())

    def find(self, name: str) -> Relation | TileRelation | None:
        """Resolves a relation by name: WITH, then view, then tensor or array."""
        for level in reversed(self.ctes):
            if name.lower() in level:
                return level[name.lower()]
        if self.ctes and name.lower() in self.changing:  # a view cannot read names of WITH
            raise ProgrammingError(
                f'"{name}" changes a tensor and returns no rows',
                hint="Read the tensor by its own name: every part of a statement reads the data "
                "before the statement. For the new data, both parts can read a SELECT of WITH.",
            )
        if name.lower() in self.foreign:
            error = ForeignNameError(f'"{name}" is outside the tensor fragment')
            error.name, error.why = name, self.refused.get(name.lower())
            raise error
        return self._in_catalog(name)

    def _in_catalog(self, name: str) -> Relation | TileRelation | None:
        return self.view(name) or self.catalog.relation(name)

    def named(self, name: str, at: exp.Expr) -> Relation | TileRelation:
        """Resolves a relation by name.

        Raises:
            ProgrammingError: No relation has the name.
            Error: An array or table of that name is not a tensor.
        """
        with positioned(at):
            is_free = at.meta.get(FREE, False)
            relation = self._in_catalog(name) if is_free else self.find(name)
        if relation is None:
            known = [n for level in self.ctes for n in level] + self.catalog.names()
            error = UnknownHere(
                f'There is no tensor "{name}"',
                hint=suggest(name, known, "tensors"),
                position=position(at),
            )
            error.relation, error.known = name, tuple(known)
            raise error
        return relation

    def table_function(self, call: exp.Func) -> Relation | TileRelation:
        """Binds a table function or a table macro.

        Raises:
            Error: The function does not exist, or its arguments are wrong.
        """
        macro = self.catalog.macro(call.name) if isinstance(call, exp.Anonymous) else None
        is_scalar = macro is not None and not macro.is_table and macro.law is None
        if is_scalar or (macro is None and mapped_tables.is_function_of_numbers(called_name(call))):
            return self._mapped(call)
        if not isinstance(call, exp.Anonymous):
            hint = "Write SELECT …, CAST(column AS …) FROM …." if isinstance(call, exp.Cast) else ""
            raise unsupported(f"The table function {call.sql_name()}", call, hint)
        name = call.name
        match name.lower():
            case "einsum":
                return einsum_call.bind_einsum(self, call)
            case "gradient":
                return gradient_call.bind_gradient(self, call, self.backward)
            case "read_tensor":
                return self._read_tensor(call)
            case low if low in tile_functions.TABLE_FUNCTIONS:
                self.catalog.require_numbers()
                return functions_of_tiles.bind_function(self, call)
        relation = self.macro(name, call)
        if relation is None:
            raise UnknownHere(
                f"There is no table function {name}",
                hint=suggest(name, [*TABLE_FUNCTIONS, *TABLE_MACROS], "table functions"),
                position=position(call),
            )
        return relation

    def _mapped(self, call: exp.Func) -> Relation | TileRelation:
        """Binds a function of numbers over the values of a table."""
        table = mapped_tables.table_in(call)
        query, relation = table.this, self.bind(table)
        if isinstance(query, exp.Select) and id(query) not in self.arguments:
            known = Argument(query, list(self.ctes), list(self.active), self.foreign, relation)
            self.arguments[id(query)] = known
        values = [c.name for c in relation.columns if c.key is None]
        return self.bind_any(mapped_tables.mapped(call, table, values))

    def _read_tensor(self, call: exp.Anonymous) -> Relation:
        """Binds read_tensor(file), for a file with one array, and read_tensor(file, name)."""
        texts = [a.name for a in call.expressions if isinstance(a, exp.Literal) and a.is_string]
        if len(texts) != len(call.expressions) or len(texts) not in (1, 2):
            raise ProgrammingError(
                "read_tensor() takes a file name and the name of an array in it, both as text",
                position=position(call),
            )
        with positioned(call):
            return self.catalog.file(*texts)

    def view(self, name: str) -> Relation | TileRelation | None:
        """Binds a view once per statement."""
        low = name.lower()
        if f"view {low}" in self.active:
            raise ProgrammingError(f"The view {name} refers to itself")
        query = self.catalog.view(name)
        if query is None:
            return None
        if low not in self.views:
            with_names, self.ctes = self.ctes, []
            foreign, self.foreign = self.foreign, frozenset()
            try:
                self.views[low] = self.nested(f"view {low}", lambda: self.bind_any(query))
            except Error as error:
                error.position = None  # the position refers to the view's text
                error.hint = f"{error.hint} This is in the view {name}.".strip()
                raise
            finally:
                self.ctes, self.foreign = with_names, foreign
        return self.views[low]

    def macro(self, name: str, at: exp.Expr) -> Relation | TileRelation | None:
        """Expands and binds a table macro."""
        macro = self.catalog.macro(name)
        if macro is None:
            return None
        with positioned(at):
            if not macro.is_table:
                raise ProgrammingError(f"{name} is an aggregate; FROM needs a table macro")
            assert isinstance(at, exp.Anonymous)
            key = self._call_key(at)
            if key not in self.calls:
                self.macros.admit(macro, at)
                body = self.macros.body(macro, at)
                # A SELECT that a macro passes on is bound in the scope of the first call.
                for query in _substitution.selects(at):
                    argument = Argument(query, list(self.ctes), list(self.active), self.foreign)
                    self.arguments.setdefault(id(query), argument)
                relation = self.nested(f"macro {macro.name}", lambda: self.bind_any(body))
                self.calls[key] = (at, list(self.ctes)), relation  # keeps the ids unique
            return self.calls[key][1]

    def _call_key(self, call: exp.Anonymous) -> tuple[object, ...]:
        """The inputs of a table macro's result: equal calls share one node."""
        queries = tuple(id(query) for query in _substitution.selects(call))
        levels = tuple((id(level), len(level)) for level in self.ctes)
        return (identity_of(call), queries, levels, self.foreign)

    def scalar(self, node: exp.Expr) -> Typed:
        """Binds an expression without columns, such as a DEFAULT."""
        return ScalarBinder(SelectBinder(self)).bind(node)

    @contextmanager
    def around(self, select: Joining) -> Iterator[None]:
        """Binds what may read the columns of a SELECT, which DuckDB runs if it does."""
        self.joining.append(select)
        try:
            yield
        finally:
            self.joining.pop()

    def nested(self, name: str, run: Callable[[], T]) -> T:
        """Calls `run` to bind a view or table macro, and refuses recursion."""
        # A macro may read its own result: al((SELECT * FROM al(x))) is not recursive.
        if self.active.count(name) >= REENTRIES:
            raise ProgrammingError(f"The {name} refers to itself")
        self.active.append(name)
        joining, self.joining = self.joining, []
        try:
            return run()
        finally:
            self.active.pop()
            self.joining = joining


_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
"""Statements in WITH that run even if nothing reads them."""


def _names_read(query: exp.Expr, clause: exp.With) -> set[str]:
    """Lower-case identifiers of a query and of the parts of its WITH that it reads."""
    words = {n.name.lower() for n in query.walk(prune=lambda n: n is clause) if _is_word(n)}
    for cte in reversed(clause.expressions):
        if cte.alias.lower() in words or isinstance(cte.this, _CHANGES):
            words |= {n.name.lower() for n in cte.this.walk() if _is_word(n)}
    return words


def _is_word(node: exp.Expr) -> bool:
    return isinstance(node, exp.Identifier | exp.Anonymous | exp.Var)
