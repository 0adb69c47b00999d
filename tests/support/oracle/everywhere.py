"""Random queries on every number of sites under every strategy: one answer, planned traffic.

`eindecomp` also minimises seconds, on machines where much is cut and where much stays whole.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np

import einsql
from einsql.core.machine import Machine
from einsql.core.settings import Settings
from einsql.engine.executor import REPEATED
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays
from einsql.ir.einsum.graph import EinSum, Node, walk
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.spmd.program import Exchange
from einsql.optimizer.decomposition import STRATEGIES
from einsql.optimizer.site_optimizer import SitePlan
from einsql.optimizer.tra.lower import lower
from einsql.planner.compile import compiler, joining
from einsql.planner.plan import Plan
from einsql.planner.sites import sited
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query as Asked
from einsql.storage.fields import Fields
from tests.support.levels import by_definition, by_sites, parts_of, same_fields
from tests.support.oracle.campaign import QUERIES_PER_DATABASE
from tests.support.oracle.choices import Choices
from tests.support.oracle.compare import difference
from tests.support.oracle.data import random_database
from tests.support.oracle.generate import Generator, Query
from tests.support.oracle.oracle import Pair
from tests.support.plans import planned

SITES = (1, 2, 3, 4, 5, 8)

SAMPLED_SITES = (1, 2, 3, 5)
"""The numbers of sites of a sample: one, a power of two, and two that divide few extents."""

MACHINES = tuple(Machine(flops, flops, flops, flops, latency=1e-6) for flops in (1e5, 3e6))
"""On the first one whatever has more than a few points is cut; on the other some things are."""

WIDEST = 8
"""Bytes of the widest field: what EinDecomp's floats are at most."""


@dataclass
class Everywhere:
    """What became of the queries.

    Attributes:
        queries: How many gave an answer on one site that agrees with DuckDB's.
        sites: The numbers of sites of the runs.
        runs: How often these were run, by the strategy that cut them; for most queries the
            strategies for networks leave that to `eindecomp`.
        unproven: Runs that `exact` refused, for want of a proof in time.
        moved: Runs in which anything crossed sites.
        findings: What differed, with the query.
    """

    queries: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    sites: set[int] = field(default_factory=set)
    unproven: int = 0
    moved: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Everywhere) -> None:
        """Takes in another process's outcome."""
        self.queries += other.queries
        self.runs += other.runs
        self.sites |= other.sites
        self.unproven += other.unproven
        self.moved += other.moved
        self.findings += other.findings

    def text(self) -> str:
        """The outcome for people."""
        runs = ", ".join(f"{name} {count:,}" for name, count in self.runs.items())
        sites = ", ".join(map(str, sorted(self.sites)))
        return "\n".join(
            [
                *self.findings[:20],
                f"{self.queries:,} queries, {self.runs.total():,} runs on {sites} sites "
                f"({runs}); {self.moved:,} moved data; "
                f"{self.unproven} not proven; {len(self.findings)} differences",
            ]
        )


def everywhere(queries: int, seed: int, *, sample: bool = False) -> Everywhere:
    """Runs random queries everywhere.

    Args:
        queries: How many that agree on one site.
        seed: The same seed gives the same queries.
        sample: Whether a query runs on 1, 2, 3 and 5 sites, on each under `eindecomp` in floats
            and in one other way. The other ways take turns from query to query.
    """
    found = Everywhere()
    number = 0
    while found.queries < queries:
        number += 1
        case = seed * 1_000_000 + number
        pair = Pair(random_database(Choices(random.Random(case))))
        for n in range(QUERIES_PER_DATABASE):
            query = Generator(Choices(random.Random(case * 100 + n)), pair.db).query()
            theirs = pair.theirs(query)
            if isinstance(theirs, str) or not theirs or found.queries == queries:
                continue
            outcome = pair.judge(query, theirs)
            if outcome.verdict == "agree" and query.in_fragment and not outcome.outside:
                found.queries += 1
                _on_all_sites(pair, query, theirs, found, sample)
        pair.close()
    return found


def _on_all_sites(
    pair: Pair, query: Query, theirs: list[Any], found: Everywhere, sample: bool
) -> None:
    """Plans a query once and places it in every way, or in a sample of them."""
    asked = parse(query.sql)[0]
    assert isinstance(asked, Asked)
    plan, inputs = planned(pair.con, asked.tree)
    inexact = [n for n, c in enumerate(query.columns) if c.error]
    for turn, sites in enumerate(SAMPLED_SITES if sample else SITES):
        ways = _ways(plan, replace(pair.con.settings, sites=sites))
        if sample:
            first, *others = ways
            other = others[(found.queries + turn) % len(others)]
            ways = {way: ways[way] for way in (first, other)}
        for way, settings in ways.items():
            try:
                why, moved, used = _run(plan, inputs, settings, theirs, inexact)
            except einsql.OperationalError:  # not proven in time
                found.unproven += 1
                continue
            found.runs[used] += 1
            found.sites.add(sites)
            found.moved += moved > 0
            if why:
                found.findings.append(f"{sites} sites, {way}: {why}\n{query.sql}\n")


def _ways(plan: Plan, settings: Settings) -> dict[str, Settings]:
    """Every way to cut a plan: first `eindecomp` in floats, bytes and seconds, then the others."""
    ways: dict[str, Settings] = {}
    for name in STRATEGIES:
        strategy = f"{name}:{_label(plan)}" if name in ("data", "model") else name
        ways[strategy] = replace(settings, strategy=strategy, cost="floats")
        if name == "eindecomp":
            ways[f"{name}, bytes"] = replace(ways[name], cost="bytes")
            ways |= {
                f"{name}, {m.flops_float:g} FLOP/s": _in_seconds(ways[name], m) for m in MACHINES
            }
    return ways


def _in_seconds(settings: Settings, machine: Machine) -> Settings:
    return replace(settings, cost="seconds", machine=machine)


def _run(
    plan: Plan,
    inputs: Mapping[str, Fields],
    settings: Settings,
    theirs: list[Any],
    inexact: list[int],
) -> tuple[str, int, str]:
    """Runs a plan in one way: what is wrong, the bytes it sent, and the strategy that cut."""
    root = plan.optimized.root
    site_plan = sited((root,), settings)
    cut, placed = site_plan.cut, site_plan.program
    program = SiteProgram(placed, compiler(settings), joining(settings))
    (fields,), measure = program.measured(inputs, lambda done: None)
    sent = sum(measure.sent)
    why = difference(list(plan.wrap(fields, inputs).rows()), theirs, inexact)
    twice = settings.sites in SAMPLED_SITES and settings.cost == "floats"
    for _ in range(REPEATED if twice else 0):  # the last run uses generated functions
        (again,) = program.run(inputs, lambda done: None)
        if not why and not _same(root, again, fields):
            why = "a repeated run has another result"
    exact = not placed.is_expected
    if not why and exact and sent > placed.bytes_sent:
        why = f"{sent} bytes sent, {placed.bytes_sent} planned"
    most = WIDEST * ceil(cut.floats)  # expected elements are fractions, and whole ones are sent
    if not why and settings.cost == "floats" and placed.bytes_sent > most:
        why = f"{placed.bytes_sent} bytes planned, EinDecomp counts {cut.floats} floats"
    selects = any(isinstance(s, Exchange) and s.selection is not None for s in placed.steps)
    if not why and not selects and site_plan.plan.bytes_sent != placed.bytes_sent:
        why = f"{placed.bytes_sent} bytes planned, {site_plan.plan.bytes_sent} in IA"
    if not why and settings.cost == "floats":
        why = _interpreted(plan, inputs, site_plan, theirs, inexact)
    return why, sent, cut.strategy.partition(":")[0]


def _interpreted(
    plan: Plan,
    inputs: Mapping[str, Fields],
    site_plan: SitePlan,
    theirs: list[Any],
    inexact: list[int],
) -> str:
    """Interprets a query at every level: where the levels differ."""
    root = plan.optimized.root
    arrays = {name: dict(fields) for name, fields in inputs.items()}
    try:
        wanted = evaluate(root, arrays)
    except einsql.DataError:  # an element that no row of the result reads
        return ""
    (lowered,) = lower([root], parts_of(root, site_plan.cut.cuts))
    levels = {
        "TRA": by_definition(lowered, root, arrays),
        "IA": by_sites(site_plan.plan.roots[0], root, arrays),
    }
    for level, fields in levels.items():
        try:
            same_fields(root, fields, wanted, 1e-9)
        except AssertionError as differs:
            # The variance of equal values is rounding alone, so the oracle's bounds decide.
            why = difference(list(plan.wrap(fields, inputs).rows()), theirs, inexact)
            if why:
                return f"{level} differs from EinSum: {differs}\n{why}"
    return ""


def _same(root: Node, ours: Arrays, expected: Arrays) -> bool:
    """Whether two results are the same, bit by bit but for the kinds of NaN."""
    names = [f.name for f in root.schema.fields]
    return all(np.array_equal(ours[n], expected[n], equal_nan=True) for n in names)


def _label(plan: Plan) -> str:
    """The label that the first operation has first."""
    root = plan.optimized.root
    labels = [a.label for n in walk(root) if isinstance(n, EinSum) for a in n.axes if not a.define]
    return labels[0] if labels else "nothing"
