"""Plans of declared tensors, which hold nothing: what strategies move, and the simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from benchmarks.evaluation.experiment import Cell, Table
from einsql.core.machine import Machine, Topology
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import Node, Roots
from einsql.optimizer import optimize
from einsql.optimizer.decomposition import Floats, Objective, Seconds, SentBytes
from einsql.optimizer.simulation.simulation import simulate
from einsql.optimizer.site_optimizer import SitePlan, plan_sites
from einsql.planner.queries import query_binder
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from tests.support.networks import connected

CHOSEN = "eindecomp"
NO_RULES: frozenset[str] = frozenset()
MEASURES = {
    "floats": ("Floats moved by", ""),
    "bytes": ("Bytes sent by", "B"),
    "seconds": ("Simulated time of", "s"),
}
"""The title and the unit of each measure."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that plans are simulated on; the paper's, by the rates of its data sheets.

    Attributes:
        words: What the page says of it.
        machine: A site.
        topology: Its nodes and their network.
    """

    words: str
    machine: Machine
    topology: Topology

    def site(self, sites: int) -> Machine:
        """A site as the search of cuts sees it, with its share of the slowest network in use."""
        at = self.topology
        if sites <= at.node_sites:
            return replace(self.machine, network=at.node_network, latency=at.node_latency)
        return replace(self.machine, network=at.site_network, latency=at.latency)


CPUS = Cluster(
    "nodes of 32 cores as one site each: 2.5 Tflop/s, 200 GB/s of memory, a link of 100 Gbit/s "
    "with 20 µs",
    Machine(memory_bandwidth=2e11).with_flops(2.5e12),
    Topology(network=12.5e9, latency=2e-5, node_network=12.5e9, node_latency=2e-5),
)
GPUS = Cluster(
    "nodes of eight GPUs as a site each: 15.7 Tflop/s, 900 GB/s of memory, 150 GB/s inside a node, "
    "a link of 100 Gbit/s for each GPU between nodes",
    Machine(memory_bandwidth=9e11, call_overhead=5e-6).with_flops(15.7e12),
    Topology(8, 8, network=12.5e9, latency=2e-6, node_network=1.5e11, node_latency=5e-7),
)


@dataclass(frozen=True)
class Planned:
    """What a plan costs.

    Attributes:
        floats: Floats moved, as EinDecomp counts them.
        nbytes: Bytes sent between sites.
        seconds: The simulated time.
        memory: The largest predicted peak of a site, in bytes.
    """

    floats: float
    nbytes: int
    seconds: float
    memory: int

    def of(self, measure: str) -> float:
        """One of the measures."""
        return {"floats": self.floats, "bytes": self.nbytes, "seconds": self.seconds}[measure]


def graph(
    tensors: Mapping[str, Mapping[str, int]],
    sql: str,
    parts: Mapping[str, tuple[int, ...]] | None = None,
) -> Roots:
    """The optimized graph of a query for several sites.

    Args:
        tensors: The extents of keys, by tensor.
        sql: The query.
        parts: Into how many parts the keys of tensors are cut.
    """
    con = connected({name: keys for name, keys in tensors.items() if name not in (parts or {})})
    for name, numbers in (parts or {}).items():
        columns = ", ".join(f"{k} DIM({n})" for k, n in tensors[name].items())
        cut = ", ".join(f"{k} {n}" for k, n in zip(tensors[name], numbers, strict=True))
        con.execute(f"SET sites = {prod(numbers)}")
        con.execute(f"CREATE TENSOR {name} ({columns}, val FLOAT) PARTITION BY ({cut}) DEFAULT 0")
    statement, _ = parse(sql)
    assert isinstance(statement, Query)
    roots: Roots = optimize(query_binder(con.context).bind(statement.tree).node, sited=True).roots
    return roots


def objective(measure: str, cluster: Cluster, sites: int) -> Objective:
    """What a plan minimises: "floats", "bytes" or "seconds" on a cluster."""
    if measure == "seconds":
        return Seconds(cluster.site(sites), sites)
    return SentBytes() if measure == "bytes" else Floats()


def site_plan(
    roots: Sequence[Node], sites: int, strategy: str, minimised: Objective
) -> SitePlan | None:
    """A plan; none if the strategy cuts nothing of the statement, or proves nothing in time."""
    try:
        plan = plan_sites(tuple(roots), sites, strategy, minimised, NO_RULES)
    except OperationalError:
        return None
    return None if plan.cut.notice else plan


def costs(plan: SitePlan, cluster: Cluster) -> Planned:
    """What a plan costs on a cluster."""
    played = simulate(plan.program, cluster.machine, cluster.topology)
    return Planned(
        plan.cut.floats, plan.program.bytes_sent, played.seconds, int(played.memory.max())
    )


Subject = Callable[[int], Roots]
"""The graph of a statement for a number of sites."""


@dataclass(frozen=True)
class Comparison:
    """Strategies side by side on some statements and numbers of sites.

    Attributes:
        cluster: What plans are simulated on.
        strategies: The strategies besides `eindecomp`.
        exact_sites: The most sites for which `exact` is asked; 0 for never.
    """

    cluster: Cluster
    strategies: tuple[str, ...]
    exact_sites: int = 0

    def tables(
        self, what: str, subjects: Mapping[str, tuple[Subject, Sequence[int]]], note: str = "",
        measures: Sequence[str] = tuple(MEASURES),
    ) -> list[Table]:  # fmt: skip
        """A table for each measure, which every strategy minimises within its cuts.

        The seconds of a single subject are plotted over the sites.

        Args:
            what: What the tables are called, behind the measure.
            subjects: Graphs and numbers of sites by name.
            note: What a reader needs to know of all of them.
            measures: Keys of MEASURES.
        """
        rows: dict[str, list[list[Cell]]] = {m: [] for m in measures}
        for name, (graph_on, numbers) in subjects.items():
            for sites in numbers:
                for measure, cells in self._cells(graph_on(sites), sites, measures).items():
                    rows[measure].append([name, sites, *cells])
        compete = [CHOSEN, *self.strategies]
        columns = [*compete, *["exact"] * (self.exact_sites > 0)]
        on = f"Simulated on {self.cluster.words}. The rates are of data sheets."
        return [
            Table(
                f"{title} {what}", ("", "sites", *columns), rows[measure],
                dict.fromkeys(columns, unit), compete, CHOSEN,
                "sites" if measure == "seconds" and len(subjects) == 1 else "",
                note=" ".join(filter(None, (note, on if measure == "seconds" else ""))),
            )
            for measure, (title, unit) in MEASURES.items() if measure in measures
        ]  # fmt: skip

    def _cells(
        self, roots: Roots, sites: int, measures: Sequence[str]
    ) -> dict[str, list[float | None]]:
        """The columns of a row, by measure."""

        def cost(strategy: str, measure: str) -> Planned | None:
            plan = site_plan(roots, sites, strategy, objective(measure, self.cluster, sites))
            return None if plan is None else costs(plan, self.cluster)

        found = {}
        for measure in measures:
            planned = [cost(s, measure) for s in (CHOSEN, *self.strategies)]
            if self.exact_sites:
                planned.append(cost("exact", measure) if sites <= self.exact_sites else None)
            found[measure] = [None if p is None else p.of(measure) for p in planned]
        return found
