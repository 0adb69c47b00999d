"""Plans over blocks on sites: from the tensor-relational to the implementation algebra.

`translate` is Table 1 of the paper; `composition` (R1), `repartition` (R2) and `products`
(BMM, CPMM, RMM, 3D) are its rules, with `laws` of kernels behind them; `cost` its cost
model; `beam` searches with them.
"""

from einsql.optimizer.tra.beam import RULES, ImplementationStep, Implemented, implement, search
from einsql.optimizer.tra.cost import Cost, Costs, Weights
from einsql.optimizer.tra.rules import ImplementationRule
from einsql.optimizer.tra.translate import Stored, translate

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
