"""Plans over blocks on sites: translation and search in the implementation algebra.

`composition` (R1), `repartition` (R2) and `products`
(BMM, CPMM, RMM, 3D) are the rules of TRA §4.2, with `laws` of kernels. `cost` is the cost
model of TRA §4.3. `beam` searches with these rules.
"""

from einsql.optimizer.lowering.translate import Stored, translate
from einsql.optimizer.tra.beam import RULES, ImplementationStep, Implemented, implement, search
from einsql.optimizer.tra.cost import Cost, Costs, Weights
from einsql.optimizer.tra.rules import ImplementationRule

__all__ = [
    "RULES",
    "Cost",
    "Costs",
    "ImplementationRule",
    "ImplementationStep",
    "Implemented",
    "Stored",
    "Weights",
    "implement",
    "search",
    "translate",
]
