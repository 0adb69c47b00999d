"""EinDecomp: chooses the cut of every operation of a graph by cost (EinDecomp §6-8)."""

from einsql.optimizer.decomposition.decompose import Cut, Decomposition, decompose
from einsql.optimizer.decomposition.objective import Floats, Objective
from einsql.optimizer.decomposition.pinned import Pinned
from einsql.optimizer.decomposition.seconds import Seconds
from einsql.optimizer.decomposition.sent_bytes import SentBytes
from einsql.optimizer.decomposition.strategies import STRATEGIES, Strategy, strategy_of

__all__ = [
    "STRATEGIES",
    "Cut",
    "Decomposition",
    "Floats",
    "Objective",
    "Pinned",
    "Seconds",
    "SentBytes",
    "Strategy",
    "decompose",
    "strategy_of",
]
