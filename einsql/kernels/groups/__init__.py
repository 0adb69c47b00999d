"""Several nodes run together, block by block over keys that all of them have."""

from einsql.kernels.groups.find import find_groups
from einsql.kernels.groups.group import Group

__all__ = ["Group", "find_groups"]
