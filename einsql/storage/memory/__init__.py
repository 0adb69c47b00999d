"""The memory of a session: its budget, and temporary files for arrays beyond it."""

from einsql.storage.memory.budget import Memory
from einsql.storage.memory.spill_files import sweep

__all__ = ["Memory", "sweep"]
