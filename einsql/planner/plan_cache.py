"""The plan cache: prepared statements by text and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from einsql.errors import Error
from einsql.sql.parameters.bound_parameters import kind
from einsql.sql.parameters.runtime_inputs import ParameterUse
from einsql.sql.parser.syntax import Query, Statement

T = TypeVar("T")

CACHED_PLANS = 512
"""Greatest number of texts with cached prepared statements; the oldest is evicted first."""
BY_PARAMETERS = 512
"""Greatest number of cached plans of a statement for each use of its parameters."""
TREES = 64
"""Greatest number of cached syntax trees; the oldest is evicted first."""
VARIANTS = 4
"""Greatest number of a statement's variants for inputs of other bounds, and of its templates."""


class Cacheable(Protocol):
    """The interface of a prepared statement for the cache."""

    @property
    def is_volatile(self) -> bool:
        """Whether it must not run a second time."""

    @property
    def version(self) -> int:
        """The version of the session's names at its preparation."""

    @property
    def use(self) -> ParameterUse | None:
        """Its use of parameters; None if it is valid for the present values only."""

    @property
    def template(self) -> Template | None:
        """The template for inputs of other bounds, or None."""

    def fits(self, ctx: Any, /) -> bool | None:
        """Whether its inputs have the schemas for which it was prepared; None if unknown.

        Reads no data: files and DuckDB's tables are unknown.
        """

    def run(self, ctx: Any, /) -> Any:
        """See `planner.prepared.PreparedStatement`, which the cache does not import."""


class Template(Protocol):
    """A template that prepares a statement for inputs of other bounds; see `planner.templates`."""

    def prepare(self, ctx: Any, /) -> Cacheable | None:
        """Returns the statement prepared for the present inputs; None if a condition fails."""


class Variant:
    """The plans of a statement for inputs of the same schemas, by the values of parameters.

    The use of a parameter may differ with its value: a range beyond the bounds of a key is planned
    for these bounds.
    """

    __slots__ = ("_by_use", "_newest", "_use")

    def __init__(
        self, prepared: Cacheable, use: ParameterUse | None, values: Sequence[object]
    ) -> None:
        self._by_use: dict[ParameterUse, dict[object, Cacheable]] = {}
        self.keep(prepared, use, values)

    def find(self, values: Sequence[object]) -> Cacheable | None:
        """Returns the plan for some values, or None."""
        if not values or self._use is None:
            return self._newest
        for use, plans in self._by_use.items():
            key = use.key(values)
            if key is not None and (prepared := plans.get(key)) is not None:
                return prepared
        return None

    def keep(self, prepared: Cacheable, use: ParameterUse | None, values: Sequence[object]) -> None:
        """Caches the plan for some values."""
        self._newest, self._use = prepared, use
        if values and use is not None:
            _insert(self._by_use.setdefault(use, {}), use.key(values), prepared, BY_PARAMETERS)

    @property
    def version(self) -> int:
        """The version of the session's names."""
        return self._newest.version

    def fits(self, ctx: Any) -> bool | None:
        """See `Cacheable.fits`."""
        return self._newest.fits(ctx)


class Variants:
    """The variants of a statement, each for inputs of other schemas, the last used one first.

    A variant is made by a template, if the present bounds meet the conditions of one. Otherwise the
    statement is planned, which gives another template.
    """

    __slots__ = ("_recent", "_templates")

    def __init__(self) -> None:
        self._recent: list[Variant] = []
        self._templates: list[Template] = []

    def __len__(self) -> int:
        return len(self._recent)

    def find(self, values: Sequence[object]) -> Cacheable | None:
        """Returns the plan of the last used variant for some values, or None."""
        return self._recent[0].find(values)

    def run(self, ctx: Any, values: Sequence[object]) -> Any:
        """Runs the plan for some values and the present inputs; returns None without one.

        Raises:
            Error: The statement fails.
        """
        recent = self._recent
        prepared = recent[0].find(values)
        outcome = None if prepared is None else prepared.run(ctx)
        if outcome is not None:
            return outcome
        for variant in recent[1:]:
            if variant.fits(ctx):
                _move_first(recent, variant)
                prepared = variant.find(values)
                return None if prepared is None else prepared.run(ctx)
        if recent[0].fits(ctx):
            return None  # values have changed, of parameters or of inputs
        for template in self._templates:
            prepared = template.prepare(ctx)
            if prepared is not None:
                _move_first(self._templates, template)
                _insert_first(recent, Variant(prepared, prepared.use, values))
                ctx.plans.variants += 1
                return prepared.run(ctx)
        return None

    def keep(
        self,
        ctx: Any,
        prepared: Cacheable,
        use: ParameterUse | None,
        values: Sequence[object],
    ) -> bool:
        """Caches a plan in the variant for the present inputs, or in a new one.

        Drops the variants for another version of the names.

        Returns:
            Whether the variant is new, beside others.
        """
        recent = self._recent
        if recent:
            version = prepared.version
            if recent[0].version != version:
                self._templates.clear()
            recent[:] = [v for v in recent if v.version == version]
        if prepared.template is not None:
            _insert_first(self._templates, prepared.template)
        for variant in recent:
            if variant.fits(ctx) is not False:
                variant.keep(prepared, use, values)
                _move_first(recent, variant)
                return False
        _insert_first(recent, Variant(prepared, use, values))
        return len(recent) > 1


class Trees:
    """Syntax trees of queries by text; a tree depends on nothing else, and no binder changes it."""

    __slots__ = ("_by_text",)

    def __init__(self) -> None:
        self._by_text: dict[object, Query] = {}

    def parsed(
        self, text: str, parse: Callable[[str], tuple[Statement, Error | None]]
    ) -> tuple[Statement, Error | None]:
        """Returns the statement of a text, and the error of DuckDB's grammar or None.

        Raises:
            Error: As `parse`.
        """
        query = self._by_text.get(text)
        if query is not None:
            return query, None
        statement, doubt = parse(text)
        if doubt is None and isinstance(statement, Query):
            _insert(self._by_text, text, statement, TREES)
        return statement, doubt


class PlanCache:
    """Prepared statements that may run again.

    A statement whose plan depends on some parameter values only is cached for the types of its
    parameters, with one plan for each of these values. Others are cached for all values.

    Attributes:
        trees: The syntax trees of queries by text, for plans that are made anew.
        planned: The number of planned queries.
        variants: The number of plans that were made beside others of the same statement, because
            the bounds of its inputs had changed.
    """

    __slots__ = ("_by_types", "_by_values", "_others", "planned", "trees", "variants")

    def __init__(self) -> None:
        self._by_types: dict[object, Variants] = {}
        self._by_values: dict[object, Variants] = {}
        self._others: dict[object, object] = {}
        self.trees = Trees()
        self.planned = 0
        self.variants = 0

    def find(self, text: str, parameters: Sequence[object]) -> Variants | None:
        """Returns the cached variants for a text and parameters, or None."""
        cached = self._by_types.get(_by_types(text, parameters) if parameters else text)
        if self._by_values and (cached is None or cached.find(parameters) is None):
            return self._by_values.get(_by_values(text, parameters), cached)
        return cached

    def keep(self, ctx: Any, text: str, prepared: Cacheable) -> None:
        """Caches a statement that was prepared for a text and the parameters of a context.

        Args:
            ctx: The services.
            text: The statement's text.
            prepared: The prepared statement.
        """
        parameters, use = ctx.parameters, prepared.use
        if use is None:
            cache, key = self._by_values, _by_values(text, parameters)
        else:
            cache, key = self._by_types, _by_types(text, parameters) if parameters else text
        variants = cache.get(key)
        if variants is None:
            variants = Variants()
            _insert(cache, key, variants)
        self.variants += variants.keep(ctx, prepared, use, parameters)

    def get(self, key: object) -> object:
        """Returns the plan that `put` cached under a key other than a text, or None."""
        return self._others.get(key)

    def put(self, key: object, plan: object) -> None:
        """Caches a plan under a key other than a text, for example of `Connection.einsum`."""
        _insert(self._others, key, plan)

    def clear(self) -> None:
        """Drops all plans, after a change of names or settings."""
        self._by_types.clear()
        self._by_values.clear()
        self._others.clear()


def _insert_first(recent: list[T], entry: T) -> None:
    """Puts an entry before the others of a list, and drops the last one if there are too many."""
    recent.insert(0, entry)
    del recent[VARIANTS:]


def _move_first(recent: list[T], entry: T) -> None:
    recent.remove(entry)
    recent.insert(0, entry)


def _by_types(text: str, parameters: Sequence[object]) -> object:
    return text, tuple(map(kind, parameters))


def _by_values(text: str, parameters: Sequence[object]) -> object:
    """Returns a key with the spelling of values: 0.0 equals -0.0 and NaN differs from itself."""
    return (text, tuple((type(p), repr(p)) for p in parameters)) if parameters else text


def _insert(cache: dict[object, T], key: object, entry: T, most: int = CACHED_PLANS) -> None:
    if len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = entry
