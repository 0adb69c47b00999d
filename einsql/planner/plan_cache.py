"""The plan cache: prepared statements by text and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from einsql.sql.parameters.bound_parameters import kind
from einsql.sql.parameters.runtime_inputs import ParameterUse

T = TypeVar("T")

CACHED_PLANS = 512
"""Texts whose prepared statements are cached; the oldest is evicted first."""
VARIANTS = 512
"""Variants of a statement that are cached for each way in which it uses parameters."""


class Cacheable(Protocol):
    """What the cache asks of a prepared statement."""

    @property
    def is_volatile(self) -> bool:
        """True if it must not run a second time."""

    @property
    def version(self) -> int:
        """The version of the session's names that it was prepared for."""

    @property
    def use(self) -> ParameterUse | None:
        """How it uses parameters; None if it holds for their values alone."""

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
        """The variant for some values, if there is one."""
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
    parameters, with one variant for each of these values; another one for all their values.

    Attributes:
        planned: How many queries have been planned.
    """

    __slots__ = ("_by_types", "_by_values", "_others", "planned")

    def __init__(self) -> None:
        self._by_types: dict[object, Cacheable | Variants] = {}
        self._by_values: dict[object, Cacheable] = {}
        self._others: dict[object, object] = {}
        self.planned = 0

    def find(self, text: str, parameters: Sequence[object]) -> Cacheable | None:
        """The statement that is cached for a text and parameters."""
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
        """What `put` cached under a key that is no text, or None."""
        return self._others.get(key)

    def put(self, key: object, plan: object) -> None:
        """Caches a plan that no text names, as that of `Connection.einsum`."""
        _insert(self._others, key, plan)

    def clear(self) -> None:
        """Forgets everything, because names or settings changed."""
        self._by_types.clear()
        self._by_values.clear()
        self._others.clear()


def _by_types(text: str, parameters: Sequence[object]) -> object:
    return text, tuple(map(kind, parameters))


def _by_values(text: str, parameters: Sequence[object]) -> object:
    """A key by the spelling of values, because 0.0 equals -0.0 and NaN differs from itself."""
    return (text, tuple((type(p), repr(p)) for p in parameters)) if parameters else text


def _insert(cache: dict[object, T], key: object, entry: T, most: int = CACHED_PLANS) -> None:
    if len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = entry
