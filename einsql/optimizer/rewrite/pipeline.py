"""The pipeline: stages of rules in order, a verifier after each rule, and a trace."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Roots
from einsql.optimizer.rewrite.canonical_order import CANONICAL_ORDER
from einsql.optimizer.rewrite.computed_keys import SOLVE_KEYS
from einsql.optimizer.rewrite.contraction_order import FACTOR_ORDER, Choose, factor_order
from einsql.optimizer.rewrite.cse import SHARE
from einsql.optimizer.rewrite.domain_bounds import NARROW_AXES, PUSH_BOUNDS, UNIFY_LABELS
from einsql.optimizer.rewrite.filters import PULL_FILTER, PUSH_FILTER
from einsql.optimizer.rewrite.fold_expressions import FOLD_CONSTANTS
from einsql.optimizer.rewrite.fold_reductions import FOLD_REDUCTIONS
from einsql.optimizer.rewrite.hoist_invariants import HOIST_FACTORS, HOIST_INVARIANTS
from einsql.optimizer.rewrite.inline_producers import FUSE_MAPS, INLINE_VIEWS
from einsql.optimizer.rewrite.key_order import ORDER_KEYS
from einsql.optimizer.rewrite.mixed_radix_factors import SHOW_DIGITS
from einsql.optimizer.rewrite.narrow_keys import NARROW_KEYS
from einsql.optimizer.rewrite.narrow_states import NARROW_STATES
from einsql.optimizer.rewrite.parts.ordered_parts import ORDERED_PARTS
from einsql.optimizer.rewrite.parts.ring_keys import RING_KEYS
from einsql.optimizer.rewrite.parts.route_rows import ROUTE_ROWS
from einsql.optimizer.rewrite.parts.split_keys import SPLIT_KEYS
from einsql.optimizer.rewrite.prune import PRUNE_OUTPUTS
from einsql.optimizer.rewrite.rules import Optimized, Rule, Settled, Step
from einsql.optimizer.rewrite.shift_keys import SHIFT_KEYS
from einsql.optimizer.rewrite.split_labels import SPLIT_LABELS
from einsql.optimizer.rewrite.split_quotients import SPLIT_QUOTIENTS
from einsql.optimizer.rewrite.verify import verify


@dataclass(frozen=True, slots=True)
class Stage:
    """Rules that run in turn until no rule fires, at most `rounds` times.

    Attributes:
        sited: True if it runs only for several sites.
        alone: True if it runs only for the CPU of one site.
    """

    name: str
    rules: tuple[Rule, ...]
    rounds: int
    sited: bool = False
    alone: bool = False


_SIMPLIFY = (
    FOLD_CONSTANTS,
    UNIFY_LABELS,
    HOIST_FACTORS,
    NARROW_KEYS,
    NARROW_AXES,
    SPLIT_QUOTIENTS,
    SOLVE_KEYS,
    FOLD_REDUCTIONS,
    INLINE_VIEWS,
)

STAGES: tuple[Stage, ...] = (
    # Folds and inlines first; the domain of a producer follows from its readers' domains.
    Stage("simplify", (*_SIMPLIFY, PUSH_BOUNDS, PRUNE_OUTPUTS), 8),
    # Before rules that decide ties by order. Several sites keep the order of the statement, in
    # which users read how its operands are cut.
    Stage("arrange", (CANONICAL_ORDER,), 1, alone=True),
    # Before fusing, so that equal producers become one with several readers.
    Stage("share", (SHARE,), 1),
    Stage("fuse", (FUSE_MAPS, *_SIMPLIFY, NARROW_STATES, PUSH_BOUNDS, PRUNE_OUTPUTS), 8),
    Stage("arrange", (CANONICAL_ORDER,), 1, alone=True),  # fusing leaves any order
    # After fusing, because only the remaining nodes need filters and contraction orders.
    Stage("order", (PUSH_FILTER, PULL_FILTER, FACTOR_ORDER), 4),
    Stage(
        "settle",
        (FOLD_CONSTANTS, NARROW_AXES, FOLD_REDUCTIONS, PUSH_BOUNDS, PRUNE_OUTPUTS, SHARE),
        4,
    ),
    # One wide product is faster than its parts, but cannot be cut by its readers' labels.
    Stage(
        "split",
        (SPLIT_QUOTIENTS, UNIFY_LABELS, NARROW_AXES, FOLD_REDUCTIONS, PRUNE_OUTPUTS, SPLIT_LABELS),
        4,
        sited=True,
    ),
    # After the rules that would inline the shifts again.
    Stage("shift", (SHIFT_KEYS, SHARE), 2),
    # Last, because other rules would undo the views by parts, or split what these view.
    Stage("parts", (RING_KEYS, SPLIT_KEYS, ORDERED_PARTS), 1, sited=True),
    Stage("route", (ROUTE_ROWS,), 1, sited=True),
    # Without cuts, kernels run faster on views of computed results.
    Stage(
        "show", (SHOW_DIGITS, ORDER_KEYS, HOIST_INVARIANTS, SHARE, CANONICAL_ORDER), 1, alone=True
    ),
)

GROUP_NODES = Rule(
    "group-nodes",
    "f(g(X)) = f(g(X₁)), f(g(X₂)), … for a partition of X by keys that f and g keep",
)
"""The name of a kernel optimization that runs nodes together; it rewrites no graph."""

RULES: tuple[Rule, ...] = tuple(dict.fromkeys(r for s in STAGES for r in s.rules))
"""Every rule once, in the order of its first run."""


def reordered(
    optimized: Optimized,
    choose: Choose,
    *,
    disabled: frozenset[str] = frozenset(),
    sited: bool = False,
) -> Optimized:
    """Runs the stages from the first contraction order on again, with other orders.

    Args:
        optimized: A graph and its trace, in which FACTOR_ORDER fired.
        choose: Returns the order of each node that is split.
        disabled: As in `run_stages`.
        sited: As in `run_stages`.

    Raises:
        InternalError: A rule left a malformed graph behind.
    """
    first = next(n for n, s in enumerate(optimized.trace) if s.rule is FACTOR_ORDER)
    names = [stage.name for stage in STAGES]
    run = _Run(disabled, None)
    roots = optimized.trace[first].old
    for stage in STAGES[names.index("order") :]:
        if (sited or not stage.sited) and not stage.alone:
            rules = tuple(_ordering(choose) if r is FACTOR_ORDER else r for r in stage.rules)
            roots = run.stage(replace(stage, rules=rules), roots)
    return Optimized(roots, (*optimized.trace[:first], *run.trace))


def _ordering(choose: Choose) -> Rule:
    """FACTOR_ORDER with other orders."""
    return replace(FACTOR_ORDER, node=lambda node: factor_order(node, choose))


def run_stages(
    roots: Roots,
    *,
    disabled: frozenset[str] = frozenset(),
    until: str | None = None,
    sited: bool = False,
    alone: bool = False,
) -> Optimized:
    """Runs the stages in order; `einsql.optimizer.optimize` describes the arguments.

    Raises:
        InternalError: A rule left a malformed graph behind.
    """
    run = _Run(disabled, until)
    for stage in STAGES:
        if (sited or not stage.sited) and (alone or not stage.alone):
            roots = run.stage(stage, roots)
    return Optimized(roots, tuple(run.trace))


class _Run:
    """One optimization: cached facts about nodes, and the trace."""

    def __init__(self, disabled: frozenset[str], until: str | None) -> None:
        self.trace: list[Step] = []
        self._disabled = disabled
        self._until = until
        self._stopped = False
        self._settled: dict[str, Settled] = {}
        self._verified: dict[int, EinSum] = {}

    def stage(self, stage: Stage, roots: Roots) -> Roots:
        """Runs a stage's rules until no rule changes the graph."""
        unchanged = 0
        for _ in range(stage.rounds):
            for rule in stage.rules:
                if self._stopped or unchanged == len(stage.rules):
                    return roots
                new = roots if rule.name in self._disabled else self._apply(rule, roots)
                unchanged = unchanged + 1 if new is roots else 0
                roots = new
                self._stopped = rule.name == self._until
        return roots

    def _apply(self, rule: Rule, roots: Roots) -> Roots:
        start = perf_counter()
        new, fired = rule.apply(roots, self._settled.setdefault(rule.name, {}))
        if new is roots:
            return roots
        for rewritten, root in zip(new, roots, strict=True):
            verify(rewritten, root.schema, self._verified, drops_flags=rule.drops_flags)
        self.trace.append(Step(rule, fired, perf_counter() - start, roots, new))
        return new
