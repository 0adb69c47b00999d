"""The optimizer: rewrites of EinSum graphs, how they are cut, and where the tiles go.

`rewrite` has the rules of EinSum graphs, each a law that is verified and traced.
`decomposition` chooses how a graph is cut, `placement` the sites of its tiles. `tra` lowers
graphs to plans over blocks and rewrites these on sites. `simulation` predicts run times.
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
