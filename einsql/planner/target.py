"""The hardware for queries over elements: one CPU, a device, or several sites."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einsql.core.settings import Settings
    from einsql.engine.ranks.driver import Cluster


class ExecutionTarget(Enum):
    """The hardware that a plan is made for."""

    CPU = "cpu"
    DEVICE = "device"
    SITES = "sites"


def target_of(settings: Settings, cluster: Cluster | None) -> ExecutionTarget:
    """Returns the target under a session's settings; sites take precedence over a device.

    Args:
        settings: The number of sites, and the device.
        cluster: The MPI ranks, or None for virtual sites.
    """
    if settings.sites > 1 or cluster is not None:
        return ExecutionTarget.SITES
    return ExecutionTarget.CPU if settings.device == "cpu" else ExecutionTarget.DEVICE
