"""The optimizer: rewrites of EinSum graphs, their cuts, and the placement of the tiles.

`rewrite` has the rules of EinSum graphs, which are verified and traced.
`decomposition` chooses the cuts of a graph, `placement` the sites of its tiles. `tra` lowers
graphs to plans over blocks and rewrites their placement. `simulation` predicts run times.
"""

from einsql.optimizer.graph_optimizer import check_rules, optimize
from einsql.optimizer.rewrite.pipeline import GROUP_NODES, RULES, STAGES, Stage
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
