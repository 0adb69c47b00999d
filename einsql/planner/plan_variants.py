"""The plans of one statement: which of them holds for the values of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from sqlglot import exp

from einsql.errors import Error
from einsql.sql.parameters.bound_parameters import kind
from einsql.sql.parameters.host_expr import NeedsValuesError
from einsql.sql.parameters.runtime_inputs import ParameterUse
from einsql.sql.query_binder import QueryBinder
from einsql.sql.scope.relation import Relation, TileRelation

MOST = 512
"""Plans that are kept for what a statement makes of its parameters in one way."""


def by_types(sql: str, given: Sequence[object]) -> object:
    """What a text and the types of its parameters are kept under."""
    return sql, tuple(map(kind, given))


def by_values(sql: str, given: Sequence[object]) -> object:
    """What a text is kept under that depends on the values of its parameters.

    They are spelled, for 0.0 and -0.0 are equal, and NaN is not equal to itself.
    """
    return (sql, tuple((type(p), repr(p)) for p in given)) if given else sql


class ForParameters(Protocol):
    """A plan that was made for parameters."""

    @property
    def version(self) -> int:
        """The version of the session's names that it was made for."""

    @property
    def use(self) -> ParameterUse | None:
        """How it uses the parameters."""


K = TypeVar("K", bound=ForParameters)
T = TypeVar("T")


class Variants(Generic[K]):
    """The plans of a statement for parameters of the same types.

    What a statement makes of its parameters may differ with their values: a range beyond the
    bounds of a key is planned as it stands.
    """

    def __init__(self) -> None:
        self._plans: dict[ParameterUse, dict[object, K]] = {}

    def find(self, values: Sequence[object]) -> K | None:
        """The plan for some values, if there is one."""
        for use, plans in self._plans.items():
            key = use.key(values)
            if key is not None and (plan := plans.get(key)) is not None:
                return plan
        return None

    def keep(self, plan: K, values: Sequence[object]) -> None:
        """Keeps the plan that was made for some values.

        Those for another state of the database go.
        """
        if any(p.version != plan.version for plans in self._plans.values() for p in plans.values()):
            self._plans.clear()
        use = plan.use
        assert use is not None, "a plan for all values of its parameters has no variants"
        plans = self._plans.setdefault(use, {})
        if len(plans) >= MOST:
            plans.pop(next(iter(plans)))
        plans[use.key(values)] = plan


def with_variant(cached: object, plan: K, values: Sequence[object]) -> Variants[K]:
    """The variants of a statement with one more plan."""
    variants = cached if isinstance(cached, Variants) else Variants()
    variants.keep(plan, values)
    return variants


Bound = tuple[Relation | TileRelation, QueryBinder]


def bind_late(
    make: Callable[[bool, AbstractSet[int]], QueryBinder], tree: exp.Expr, notices: list[str]
) -> Bound:
    """Binds a query, with parameters that are read at run time wherever that can be.

    Args:
        make: Makes a binder, told whether any parameter may be and which ones may not.
        tree: The query.
        notices: What the binders want to say.

    Raises:
        Error: The query is wrong, or outside the fragment.
    """

    def bind(binder: QueryBinder) -> Relation | TileRelation:
        relation = binder.bind_any(tree)
        if not isinstance(relation, Relation) and binder.parameters.read:
            raise NeedsValuesError(range(1, len(binder.parameters.values) + 1))
        return relation

    return bound_late(make, bind, notices)


def bound_late(
    make: Callable[[bool, AbstractSet[int]], QueryBinder],
    bind: Callable[[QueryBinder], T],
    notices: list[str],
) -> tuple[T, QueryBinder]:
    """What `bind` gives, by a binder that reads parameters at run time wherever that can be."""
    late, fixed, noticed = True, frozenset[int](), len(notices)
    while True:
        binder = make(late, fixed)
        del notices[noticed:]
        try:
            return bind(binder), binder
        except NeedsValuesError as needs:
            fixed |= needs.numbers
        except Error:
            if not binder.parameters.read:
                raise
            late = False  # what is wrong with the values, or wants them
