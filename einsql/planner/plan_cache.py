"""The plan cache: prepared statements by text and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from einsql.sql.parameters.bound_parameters import kind
from einsql.sql.parameters.runtime_inputs import ParameterUse

T = TypeVar("T")

CACHED_PLANS = 512
"""Greatest number of texts with cached prepared statements; the oldest is evicted first."""
VARIANTS = 512
"""Greatest number of cached variants of a statement for each use of its parameters."""


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

    def run(self, ctx: Any, /) -> Any:
        """See `planner.prepared.PreparedStatement`, which the cache does not import."""


class Variants:
    """The variants of a statement for parameters of the same types.

    The use of a parameter may differ with its value: a range beyond the bounds of a key is planned
    for these bounds.
    """

    def __init__(self) -> None:
        self._by_use: dict[ParameterUse, dict[object, Cacheable]] = {}

    def find(self, values: Sequence[object]) -> Cacheable | None:
        """Returns the variant for some values, or None."""
        for use, variants in self._by_use.items():
            key = use.key(values)
            if key is not None and (prepared := variants.get(key)) is not None:
                return prepared
        return None

    def keep(self, prepared: Cacheable, use: ParameterUse, values: Sequence[object]) -> None:
        """Caches the variant for some values, and drops those for another version of the names."""
        versions = {p.version for variants in self._by_use.values() for p in variants.values()}
        if versions - {prepared.version}:
            self._by_use.clear()
        variants = self._by_use.setdefault(use, {})
        _insert(variants, use.key(values), prepared, VARIANTS)


class PlanCache:
    """Prepared statements that may run again.

    A statement whose plan depends on some parameter values only is cached for the types of its
    parameters, with one variant for each of these values. Others are cached for all values.

    Attributes:
        planned: The number of planned queries.
    """

    __slots__ = ("_by_types", "_by_values", "_others", "planned")

    def __init__(self) -> None:
        self._by_types: dict[object, Cacheable | Variants] = {}
        self._by_values: dict[object, Cacheable] = {}
        self._others: dict[object, object] = {}
        self.planned = 0

    def find(self, text: str, parameters: Sequence[object]) -> Cacheable | None:
        """Returns the cached statement for a text and parameters, or None."""
        cached = self._by_types.get(_by_types(text, parameters) if parameters else text)
        if isinstance(cached, Variants):
            cached = cached.find(parameters)
        if cached is None and self._by_values:
            cached = self._by_values.get(_by_values(text, parameters))
        return cached

    def keep(self, text: str, prepared: Cacheable, parameters: Sequence[object]) -> None:
        """Caches a statement that was prepared for a text and parameters."""
        if prepared.use is None:
            _insert(self._by_values, _by_values(text, parameters), prepared)
        elif not parameters:
            _insert(self._by_types, text, prepared)
        else:
            key = _by_types(text, parameters)
            variants = self._by_types.get(key)
            if not isinstance(variants, Variants):
                variants = Variants()
                _insert(self._by_types, key, variants)
            variants.keep(prepared, prepared.use, parameters)

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


def _by_types(text: str, parameters: Sequence[object]) -> object:
    return text, tuple(map(kind, parameters))


def _by_values(text: str, parameters: Sequence[object]) -> object:
    """Returns a key with the spelling of values: 0.0 equals -0.0 and NaN differs from itself."""
    return (text, tuple((type(p), repr(p)) for p in parameters)) if parameters else text


def _insert(cache: dict[object, T], key: object, entry: T, most: int = CACHED_PLANS) -> None:
    if len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = entry
