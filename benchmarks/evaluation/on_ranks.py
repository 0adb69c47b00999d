"""einsql on MPI ranks, for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.experiment import Task


def connected(task: Task, keys: Mapping[str, tuple[str, ...]], **config: Any) -> Any:
    """A connection, on ranks where the case has them, with the inputs as stored tensors.

    Args:
        task: The task.
        keys: The keys of the inputs by name.
        config: Further settings.
    """
    import einsql

    ranks = {"mpi": task.case.ranks} if task.case.ranks else {}
    con = einsql.connect(config={**ranks, **config})
    cuts = dict(cut.split("=") for cut in task.way.split()) if "=" in task.way else {}
    for name, axes in keys.items():
        partition = f"PARTITION BY ({cuts[name].replace(':', ' ')}) " if name in cuts else ""
        source = f"'{task.folder / name}.npy' AS source({', '.join(axes)})"
        con.execute(
            f"CREATE TENSOR {name} {partition}AS SELECT {', '.join(axes)}, val FROM {source}"
        )
    return con


def sent_bytes(con: Any, sql: str) -> int:
    """Bytes that the ranks send while they run a statement."""
    return _sent(con.explain(sql, analyze=True).to_dict())


def _sent(plan: Any) -> int:
    if isinstance(plan, list):
        return sum(map(_sent, plan))
    if not isinstance(plan, dict):
        return 0
    own: int = sum(site["bytes_sent"] for site in plan.get("per_site", []))
    return own + sum(_sent(v) for k, v in plan.items() if k != "per_site" and k != "nodes")
