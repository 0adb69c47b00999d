"""A session's memory: what statements may take of it, and where the rest goes."""

from einsql.engine.spill.memory import Memory
from einsql.engine.spill.space import sweep

__all__ = ["Memory", "sweep"]
