"""EXPLAIN's options: the settings to plan for, and the cluster to simulate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from einsql.core.machine import Topology, topology_like
from einsql.core.quoting import literal
from einsql.core.settings import Settings, changed_settings
from einsql.errors import InterfaceError
from einsql.sql.parser.syntax import Explain


def assumed(settings: Settings, asked: Explain) -> tuple[Settings, Topology | None]:
    """Returns the settings to plan under, and the cluster to simulate, if any.

    A link rate that the options omit is the rate of the settings, inside a node and between
    nodes. The search for cuts assigns each site an equal share of its node's links.
    """
    machine = settings.machine
    if asked.flops is not None:
        machine = machine.with_flops(asked.flops)
    cluster = None
    if asked.network is not None:
        machine = replace(machine, network=asked.network)
    if asked.simulate or asked.cluster:
        cluster = replace(topology_like(settings.machine), **dict(asked.cluster))
        if asked.network is not None:
            cluster = replace(cluster, network=asked.network)
        machine = replace(machine, network=cluster.site_network, latency=cluster.latency)
    plan_settings = replace(settings, machine=machine)
    if asked.sites is not None:
        plan_settings = changed_settings(plan_settings, "sites", str(asked.sites))
    return plan_settings, cluster


def options_text(options: Mapping[str, int | str | None]) -> str:
    """Formats EXPLAIN's options as SQL, except options that are False or None.

    Raises:
        InterfaceError: The format is among the options; only SQL has this option.
    """
    if "format" in map(str.lower, options):
        raise InterfaceError(
            "explain gives a plan, which has every format, so it takes none",
            hint="explain(sql).svg() is the drawing, .html() the page, .to_json() the JSON, "
            "and str(explain(sql)) the text.",
        )
    clauses = [
        name if value is True else f"{name} {_value(value)}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    return f"({', '.join(clauses)}) " if clauses else ""


def _value(value: int | str) -> str:
    return literal(value) if isinstance(value, str) else str(value)
