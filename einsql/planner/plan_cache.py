"""The plan cache: prepared statements by text and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from einsql.planner.plan_variants import Variants, by_types, by_values, with_variant
from einsql.sql.parameters.runtime_inputs import ParameterUse

T = TypeVar("T")

CACHED_PLANS = 512
"""Texts whose prepared statements are cached; the oldest is evicted first."""


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


class PlanCache:
    """Prepared statements that may run again.

    A statement whose plan depends on some parameter values only is cached for the types of its
    parameters, with one variant for each of these values; another one for all their values.

    Attributes:
        planned: How many queries have been planned.
    """

    __slots__ = ("_by_types", "_by_values", "_others", "planned")

    def __init__(self) -> None:
        self._by_types: dict[object, Cacheable | Variants[Cacheable]] = {}
        self._by_values: dict[object, Cacheable] = {}
        self._others: dict[object, object] = {}
        self.planned = 0

    def find(self, text: str, parameters: Sequence[object]) -> Cacheable | None:
        """The statement that is cached for a text and parameters."""
        cached = self._by_types.get(by_types(text, parameters) if parameters else text)
        if isinstance(cached, Variants):
            cached = cached.find(parameters)
        if cached is None and self._by_values:
            cached = self._by_values.get(by_values(text, parameters))
        return cached

    def keep(self, text: str, prepared: Cacheable, parameters: Sequence[object]) -> None:
        """Caches a statement that was prepared for a text and parameters."""
        if prepared.use is None:
            _insert(self._by_values, by_values(text, parameters), prepared)
            return
        key = by_types(text, parameters) if parameters else text
        cached = self._by_types.get(key)
        new = with_variant(cached, prepared, parameters) if parameters else prepared
        if new is not cached:
            _insert(self._by_types, key, new)

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


def _insert(cache: dict[object, T], key: object, entry: T) -> None:
    if len(cache) >= CACHED_PLANS:
        cache.pop(next(iter(cache)))
    cache[key] = entry
