"""Binds queries: WITH, views, macros and the SELECT blocks inside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from sqlglot import exp

from einsql.core.schema import Schema
from einsql.errors import Error, ProgrammingError
from einsql.ir.einsum.graph import EinSum, Input
from einsql.sql.binder.from_clause import (
    FromBinder,
    Joining,
    alias_columns,
    bind_from,
    check_syntax,
    named_relation,
)
from einsql.sql.binder.scalar import ScalarBinder, locate, position, unsupported
from einsql.sql.binder.scope import Relation, TileRelation, as_elements, deduplicated
from einsql.sql.binder.select import SelectBinder
from einsql.sql.binder.typed_expr import Typed
from einsql.sql.macros.expansion import Block, count_expansion, expand_calls, expanded
from einsql.sql.macros.macros import Macro
from einsql.sql.macros.substitution import expand, selects
from einsql.sql.parameters.parameter_use import Given
from einsql.sql.tiles.recognise import over_tiles

if TYPE_CHECKING:
    from einsql.ir.autodiff import Backward

T = TypeVar("T")
Named = TypeVar("Named", Relation, TileRelation)

REENTRIES = 8
"""How often a view or table macro may stand inside itself before it counts as recursive."""


class Catalog(Protocol):
    """What the binder asks about the world outside the statement."""

    @property
    def float_stays(self) -> bool:
        """True if FLOAT arithmetic stays FLOAT."""

    @property
    def sites(self) -> int:
        """Over how many sites the statement is to be cut."""

    def relation(self, name: str) -> Relation | None:
        """A stored tensor or an array in scope."""

    def view(self, name: str) -> exp.Query | None:
        """The query of a view."""

    def macro(self, name: str) -> Macro | None:
        """A macro."""

    @property
    def has_table(self) -> Callable[[str], bool]:
        """Whether DuckDB has a table of a name."""

    def is_table_file(self, path: str) -> bool:
        """True if a path means a table, which is not the binder's to read."""

    def file(self, path: str, member: str | None = None) -> Relation:
        """A tensor file named in FROM, or one of the arrays in it."""

    def probe(self, node: EinSum) -> tuple[int, int]:
        """Runs a node with outputs lo, hi and some; returns `[lo, hi)`, (0, 0) if empty."""

    def names(self) -> list[str]:
        """Names of tensors, views and arrays, for hints."""

    @property
    def made(self) -> Mapping[str, Relation | TileRelation]:
        """What parts of the statement in one algebra compute for the other, by input."""

    def part(self, made: Relation | TileRelation, schema: Schema) -> Input:
        """An input of one algebra that a part of the statement in the other one computes."""


@dataclass
class Argument:
    """A SELECT given to a table macro, which is bound once and where the call stands.

    Attributes:
        ctes, active, foreign: As the binder has them there.
        made: What it is, once it is read.
    """

    query: exp.Select
    ctes: list[dict[str, Relation | TileRelation]]
    active: list[str]
    foreign: frozenset[str]
    made: Relation | TileRelation | None = None


@dataclass
class QueryBinder:
    """Binds one statement's queries; equal names resolve to one shared node."""

    catalog: Catalog
    parameters: Given = field(default_factory=Given)
    notices: list[str] = field(default_factory=list)
    ctes: list[dict[str, Relation | TileRelation]] = field(default_factory=list)
    views: dict[str, Relation | TileRelation] = field(default_factory=dict)
    joining: list[Joining] = field(default_factory=list)
    """The SELECTs whose FROM is being bound, outermost first."""
    active: list[str] = field(default_factory=list)
    """Views and table macros that are being bound, outermost first."""
    foreign: frozenset[str] = frozenset()
    """Names of WITH around the query, in small letters, that are no tensor work."""
    refused: Mapping[str, Error] = field(default_factory=dict)
    """Why these are none, where that is known."""
    backward: dict[tuple[int, str], Backward] = field(default_factory=dict)
    """Backward passes by the node and the field of their losses."""
    expanded_nodes: int = 0
    """How many syntax nodes macros have added."""
    expansions: dict[int, tuple[exp.Anonymous, exp.Expr]] = field(default_factory=dict)
    """Calls of table macros by id, and what they stand for."""
    arguments: dict[int, Argument] = field(default_factory=dict)
    """By id the SELECTs that are arguments of these calls."""
    recognised: dict[int, tuple[exp.Expr, bool]] = field(default_factory=dict)
    """Queries by id, and whether they are over tiles."""
    change: Callable[[exp.CTE], None] | None = None
    """Takes the names of the statement's own WITH that change tensors, where it may have such."""
    changing: set[str] = field(default_factory=set)
    """These names, in small letters."""

    def bind(self, query: exp.Expr) -> Relation:
        """Binds a query to a relation of elements.

        Raises:
            Error: It is wrong, over tiles, or outside the tensor fragment.
        """
        return as_elements(self.bind_any(query), "A SELECT over tiles", query)

    def bind_any(self, query: exp.Expr) -> Relation | TileRelation:
        """Binds a query over elements or over tiles; its FROM says which it is.

        Raises:
            Error: It is wrong, or outside the tensor fragment.
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

    def _argument(self, given: Argument) -> Relation | TileRelation:
        """What a SELECT given to a macro is, wherever the macro reads it."""
        if given.made is None:
            before = self.ctes, self.active, self.foreign, self.joining
            self.ctes, self.active, self.foreign = given.ctes, given.active, given.foreign
            self.joining = []
            try:
                query = given.query
                given.made = self.with_ctes(query, lambda: self._select(query))
            finally:
                self.ctes, self.active, self.foreign, self.joining = before
        return given.made

    def _select(self, select: exp.Select) -> Relation | TileRelation:
        if not over_tiles(self, select):
            return SelectBinder(self).bind(select)
        from einsql.sql.tiles.select import TileSelect  # 10 ms, and few statements need it

        return TileSelect(self).bind(select)

    def with_ctes(self, query: exp.Expr, run: Callable[[], T]) -> T:
        """Binds what is read of the WITH clause, then runs with its names in reach.

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
                made = self.bind_any(cte.this)
                if isinstance(made, Relation):
                    self.ctes[-1][name.lower()] = self.renamed(made, cte)
                else:
                    self.ctes[-1][name.lower()] = self.renamed(made, cte)
            return run()
        finally:
            self.ctes.pop()

    def _changed(self, cte: exp.CTE) -> None:
        if self.change is None or len(self.ctes) > 1:
            raise ProgrammingError(
                f"The part {cte.alias} of WITH changes data inside of a query",
                hint="Such a part stands in the WITH that begins a statement.",
                position=position(cte),
            )
        self.change(cte)
        self.changing.add(cte.alias.lower())

    def renamed(self, relation: Named, item: exp.Expr) -> Named:
        """Names columns by an item's alias, such as x(i, j), and makes the names distinct.

        A shorter list names the first columns.

        Raises:
            ProgrammingError: The list is longer than the columns.
        """
        names = alias_columns(item)
        if len(names) > len(relation.columns):
            raise ProgrammingError(
                f"{len(names)} column names for {len(relation.columns)} columns",
                hint="Columns are " + ", ".join(c.name for c in relation.columns) + ".",
                position=position(item),
            )
        names += [c.name for c in relation.columns[len(names) :]]
        columns = zip(deduplicated(names), relation.columns, strict=True)
        return replace(relation, columns=tuple(replace(c, name=name) for name, c in columns))

    def named(self, name: str, at: exp.Expr) -> Relation | TileRelation:
        """Resolves a relation by name: WITH, then view, then tensor or array.

        Raises:
            ProgrammingError: There is none.
        """
        return named_relation(self, name, at)

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
                error.position = None  # the position is in the view's text, not in this one
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
        try:
            if not macro.is_table:
                raise ProgrammingError(f"{name} is a scalar macro; FROM needs a table macro")
            assert isinstance(at, exp.Anonymous)
            count_expansion(self, macro, at)
            body = self.expansion(macro, at)
            for query in selects(at):  # one that is passed on is bound where it was first given
                given = Argument(query, list(self.ctes), list(self.active), self.foreign)
                self.arguments.setdefault(id(query), given)
            return self.nested(f"macro {macro.name}", lambda: self.bind_any(body))
        except Error as error:
            raise locate(error, at) from None

    def expansion(self, macro: Macro, call: exp.Anonymous) -> exp.Expr:
        """What a call of a table macro stands for, made once.

        Raises:
            ProgrammingError: The arguments do not fit.
        """
        if id(call) not in self.expansions:  # kept with the call, so that its id stays its own
            self.expansions[id(call)] = call, expand(macro, call, lambda value: value)
        return self.expansions[id(call)][1]

    def scalar_macro(self, name: str, args: list[exp.Expr], binder: Block) -> exp.Expr | None:
        """Expands a scalar macro, or gives None if there is none of that name."""
        if self.catalog.macro(name) is None:
            return None
        written = args[0].parent if args else None  # it knows where it stands
        call = exp.Anonymous(this=name) if written is None else written.copy()
        return expand_calls(binder, call)

    def expanded(self, binder: Block, select: exp.Select) -> exp.Select:
        """A SELECT without calls of scalar macros, once its FROM is bound."""
        return expanded(binder, select)

    def scalar(self, node: exp.Expr) -> Typed:
        """Binds an expression without columns, such as a DEFAULT."""
        return ScalarBinder(SelectBinder(self)).bind(node)

    def nested(self, name: str, run: Callable[[], T]) -> T:
        """Binds the view or table macro of a name, which must not be inside itself."""
        # A macro may read its own result: al((SELECT * FROM al(x))) is no recursion.
        if self.active.count(name) >= REENTRIES:
            raise ProgrammingError(f"The {name} refers to itself")
        self.active.append(name)
        joining, self.joining = self.joining, []
        try:
            return run()
        finally:
            self.active.pop()
            self.joining = joining

    def bind_from(
        self, select: Joining, node: exp.Select, binder: type[FromBinder] = FromBinder
    ) -> None:
        """Adds the FROM items of a SELECT to its domain and scope."""
        self.joining.append(select)
        try:
            bind_from(binder(self, select), node)
        except Error as error:
            raise locate(error, node) from None
        finally:
            self.joining.pop()


_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
"""Parts of WITH that run whether or not something reads them."""


def _names_read(query: exp.Expr, clause: exp.With) -> set[str]:
    """Identifiers, in small letters, of a query and of the parts of its WITH that it reads."""
    words = {n.name.lower() for n in query.walk(prune=lambda n: n is clause) if _is_word(n)}
    for cte in reversed(clause.expressions):
        if cte.alias.lower() in words or isinstance(cte.this, _CHANGES):
            words |= {n.name.lower() for n in cte.this.walk() if _is_word(n)}
    return words


def _is_word(node: exp.Expr) -> bool:
    return isinstance(node, exp.Identifier | exp.Anonymous | exp.Var)
