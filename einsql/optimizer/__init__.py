"""Logical rewrites of the EinSum graph: every rule a law, verified and traced.

Files by theme: `fold` (expressions), `bounds` (domains and labels), `reduce`
(reductions), `prune`, `inline` (views and maps), `filters`, `order` (contraction order),
`share`, `quotients` and `split` (keys of several digits, over sites); `rules` says what a
rule is, `pipeline` runs them, `verify` watches. Behind them `decomposition` chooses how a
graph is cut, `lower` writes the plan over blocks, and `implementation` puts such plans on
sites.
"""

from einsql.optimizer.rewrite.pipeline import (
    GROUP_NODES,
    RULES,
    STAGES,
    Stage,
    check_rules,
    optimize,
)
from einsql.optimizer.rewrite.rules import Optimized, Rule, Step

__all__ = [
    "GROUP_NODES",
    "RULES",
    "STAGES",
    "Optimized",
    "Rule",
    "Stage",
    "Step",
    "check_rules",
    "optimize",
]
