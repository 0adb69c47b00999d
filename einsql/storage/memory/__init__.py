"""The memory of a session: its budget, and the temporary files for the rest."""

from einsql.storage.memory.budget import Memory
from einsql.storage.memory.spill_files import sweep

__all__ = ["Memory", "sweep"]
