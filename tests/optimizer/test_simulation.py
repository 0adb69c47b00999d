"""Simulated runs of placed plans: bytes as a run counts them, and laws of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.core.machine import Machine, Topology, topology_like
from einsql.engine.spmd_executor import SiteProgram
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.spmd.program import Complete, Exchange, Local, Program, state_bytes
from einsql.optimizer.simulation import fair_shares
from einsql.optimizer.simulation.fair_shares import durations
from einsql.optimizer.simulation.messages import Messages, merging
from einsql.optimizer.simulation.prediction import StepCosts, predict
from einsql.optimizer.simulation.rounds import TREES_AND_RINGS, mirrored, ring, tree
from einsql.optimizer.simulation.simulation import Simulation, simulate
from einsql.planner.plan import Plan
from einsql.planner.sites import sited
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from einsql.storage.fields import Fields
from tests.engine.test_sites import QUERIES, connection, explained
from tests.support.networks import FFNN, connected, ffnn, transformer
from tests.support.plans import planned
from tests.support.samples import combinations, sample, spread

NETWORKS = {
    "ffnn": (ffnn(24, 16, 12, 8), FFNN),
    "transformer": transformer(2, s=16),
}
FREE = 1e30
"""Bytes per second that cost nothing; with no latency there is no network."""


def plan_and_inputs(con: einsql.Connection, sql: str) -> tuple[Plan, Mapping[str, Fields]]:
    statement = parse(sql)[0]
    assert isinstance(statement, Query)
    return planned(con, statement.tree)


def plan_of(con: einsql.Connection, sql: str) -> Plan:
    return plan_and_inputs(con, sql)[0]


@cache
def programs() -> dict[str, Program]:
    """Plans of several kinds: with copies, merges of both kinds, uneven tiles, halos."""
    made = {}
    for sql, sites in combinations(QUERIES, (1, 2, 3, 4, 8)):
        con = connection(sites)
        made[f"{QUERIES.index(sql)} at {sites}"] = _placed(plan_of(con, sql), con)
    cuts = ((4, "eindecomp"), (8, "megatron"), (6, "equal"), (8, "model"))
    for name, (sites, strategy) in combinations(NETWORKS, cuts):
        tensors, sql = NETWORKS[name]
        con = connected(tensors)
        con.execute(f"SET sites = {sites}; SET strategy = '{strategy}'")
        made[f"{name} at {sites}, {strategy}"] = _placed(plan_of(con, sql), con)
    return made


def _placed(plan: Plan, con: einsql.Connection) -> Program:
    return plan.placed or sited(plan.optimized.roots, con.settings).program


def random_cluster(pick: Random) -> Topology:
    rates = [10 ** pick.uniform(5, 10) for _ in range(2)]
    latencies = [pick.choice((0.0, 1e-6, 1e-4)) for _ in range(2)]
    return Topology(
        pick.randint(1, 5), pick.randint(1, 3), rates[0], latencies[0], rates[1], latencies[1]
    )


# ---- bytes


@pytest.mark.parametrize("sites", sample([4], [2, 3, 4, 8]))
def test_sites_send_in_a_simulation_what_they_send_in_a_run(sites: int) -> None:
    small = spread(combinations(QUERIES, ("eindecomp", "paper", "equal")), 5)
    cases = [(connection(sites, strategy), sql) for sql, strategy in small]
    strategies = ("eindecomp", "megatron", "sequence", "attention", "model", "equal")
    for (tensors, sql), strategy in spread(combinations(list(NETWORKS.values()), strategies), 4):
        con = connected(tensors)
        con.execute(f"SET jit = 'never'; SET sites = {sites}; SET strategy = '{strategy}'")
        cases.append((con, sql))
    for con, sql in cases:
        plan, read = plan_and_inputs(con, sql)
        assert plan.placed is not None
        assert isinstance(plan.program, SiteProgram)
        measure = plan.program.measured(plan.complete(read, lambda _: None), lambda _: None)
        for cluster in (Topology(), Topology(node_sites=3)):
            played = simulate(plan.placed, Machine(), cluster)
            assert played.sent.tolist() == measure[1].sent
            assert played.received.tolist() == measure[1].received
        predicted = predict(plan.placed, Machine())
        assert played.sent.tolist() == predicted.sent.tolist()
        assert played.received.tolist() == predicted.received.tolist()
        assert (played.memory == predicted.memory).all()


def test_equal_tiles_of_wider_elements_are_other_messages() -> None:
    con = einsql.connect()
    con.register("a", np.ones((8, 8), np.float32), dims=("i", "j"))
    con.execute("SET sites = 4")
    sums = (
        f"{name} AS (SELECT /*+ PARTITION(i=4) */ j, SUM({value}) AS v FROM a GROUP BY j)"
        for name, value in (("p", "val"), ("q", "CAST(val AS DOUBLE)"))
    )
    sql = f"WITH {', '.join(sums)} SELECT p.j, p.v + q.v AS v FROM p JOIN q USING (j)"
    program = plan_of(con, sql).placed
    assert program is not None
    assert len({s.nbytes for s in program.steps if isinstance(s, Complete)}) == 2
    played = simulate(program, Machine(), Topology())
    assert played.sent.tolist() == predict(program, Machine()).sent.tolist()


def test_trees_and_rings_bring_the_same_to_every_site() -> None:
    for name, program in programs().items():
        direct = simulate(program, Machine(), Topology())
        other = simulate(program, Machine(), Topology(), TREES_AND_RINGS)
        assert other.sent.sum() == direct.sent.sum(), name
        if all(len(_names(s)) != 1 or "reduce" not in _names(s)[0] for s in program.steps):
            assert (other.received == direct.received).all(), name


def _names(step: object) -> list[str]:
    moving = step.collectives if isinstance(step, Exchange | Complete) else ()
    return [c.name for c in moving if c.nbytes]


# ---- laws of time


def _locals(program: Program) -> list[tuple[int, Local]]:
    return [(n, s) for n, s in enumerate(program.steps) if isinstance(s, Local)]


def test_a_single_site_takes_the_sum_of_its_local_steps() -> None:
    for name, program in programs().items():
        if program.sites == 1:
            costs = StepCosts(program, Machine())
            took = [float(costs.local(n, s)[0]) for n, s in _locals(program)]
            assert simulate(program, Machine(), Topology()).seconds == sum(took), name


def test_no_run_is_shorter_than_its_busiest_site_or_link() -> None:
    pick = Random(1)
    for name, program in programs().items():
        cluster = random_cluster(pick)
        costs = StepCosts(program, Machine())
        played = simulate(program, Machine(), cluster)
        local = sum(costs.local(n, s) for n, s in _locals(program))
        assert (played.computing >= local - 1e-12).all(), name
        for nbytes, rate in (
            (played.total(played.out), cluster.links * cluster.network),
            (played.total(played.into), cluster.links * cluster.network),
            (played.sent - played.out, cluster.node_network),
            (played.received - played.into, cluster.node_network),
        ):
            assert played.seconds >= nbytes.max() / rate * (1 - 1e-9), name
        parts = played.computing + played.communicating + played.waiting
        np.testing.assert_allclose(parts, played.seconds, rtol=1e-9)
        assert min(played.waiting.min(), played.communicating.min()) >= 0, name
        assert (played.begins <= played.ends).all(), name
        assert played.ends.max() == played.seconds, name
        for spans, whole in (
            (played.computes, played.computing),
            (played.communicates, played.communicating),
        ):
            course = played.course(spans, 50).sum(axis=1) * played.seconds / 50
            np.testing.assert_allclose(course, played.mean(whole), atol=played.seconds * 1e-9)


def test_more_bandwidth_or_less_latency_never_takes_longer() -> None:
    pick = Random(2)
    for name, program in programs().items():
        cluster = random_cluster(pick)
        before = simulate(program, Machine(), cluster).seconds
        for better in (
            replace(cluster, network=cluster.network * pick.uniform(1, 9)),
            replace(cluster, node_network=cluster.node_network * pick.uniform(1, 9)),
            replace(cluster, latency=cluster.latency * pick.random()),
            replace(cluster, node_latency=cluster.node_latency * pick.random()),
        ):
            assert simulate(program, Machine(), better).seconds <= before, (name, better)


def test_a_network_that_costs_nothing_leaves_what_is_computed() -> None:
    free = Topology(2, 1, FREE, 0.0, FREE, 0.0)
    for name, program in programs().items():
        played = simulate(program, Machine(), free)
        assert played.communicating.max() < 1e-20, name
        assert played.computing.max() <= played.seconds * (1 + 1e-12), name
        most = sum(predict(program, Machine(network=FREE, latency=0.0)).seconds)
        for step in program.steps:
            if isinstance(step, Complete):  # what sites merge before the last round
                partial = program.steps[step.source].tiles
                found = merging(partial, step, program.sites)
                own = found.before.max() + sum(after.max() for _, after in found.rounds[:-1])
                most += own * state_bytes(step.node) / Machine().memory_bandwidth
        assert played.seconds <= most * (1 + 1e-12), name


def test_sites_that_do_the_same_never_wait() -> None:
    tensors, sql = transformer(2, b=4, s=16)
    con = connected(tensors)
    con.execute("SET sites = 4; SET strategy = 'megatron'")
    program = plan_of(con, sql).placed
    assert program is not None
    assert program.bytes_sent > 0
    for cluster in (Topology(), Topology(node_sites=4), Topology(node_sites=2)):
        played = simulate(program, Machine(), cluster)
        assert not played.waiting.any()
        assert len(set(played.communicating.tolist())) == 1


def test_a_merge_is_worked_out_by_hand() -> None:
    con = einsql.connect()
    for name, dims in (("a", ("i", "j")), ("b", ("j", "k"))):
        con.register(name, np.ones((8, 8), np.float32), dims=dims)
    con.execute("SET sites = 8")
    hint = "/*+ PARTITION(i=2, j=2, k=2) */"  # without it both sites of a pair would merge
    sql = f"SELECT {hint} i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
    program = plan_of(con, sql).placed  # sites that differ by 2 merge their parts at one of them
    assert program is not None
    machine = Machine(call_overhead=1.0, flops_float=128.0, memory_bandwidth=192.0)
    # A product: arithmetic, memory, overhead.
    product, merge, map_ = 3.0, 3 * 64 / 192, 1.0
    for node_sites, links, moving in (
        (2, 1, 3 * 7.0 + 2 * 64 / 16),  # two messages share a link; doublings: 2 across, 1 inside
        (2, 2, 3 * 7.0 + 64 / 16),
        (4, 1, 7.0 + 3 * 0.5 + 64 / 32),  # all of it inside nodes
        (1, 1, 4 * 7.0 + 64 / 16),
    ):
        inside = {2: 0.5, 4: 0.0, 1: 0.0}[node_sites]  # the doubling inside a node
        cluster = Topology(node_sites, links, 16.0, 7.0, 32.0, 0.5)
        played = simulate(program, machine, cluster)
        wanted = product + moving + inside + merge + map_
        assert played.seconds == pytest.approx(wanted), (node_sites, links)
        merging = [0, 1, 4, 5]
        others = [2, 3, 6, 7]
        assert played.waiting[merging] == pytest.approx(0)
        assert played.waiting[others] == pytest.approx(merge + map_)
        assert played.begins[-1] == pytest.approx(product + moving + inside)


# ---- fair shares


def filled(out: np.ndarray, into: np.ndarray, size: np.ndarray, capacity: float) -> np.ndarray:
    """When messages end, by raising all rates together until a port is full, one by one."""
    left, ends, now = size.copy(), np.zeros(len(size)), 0.0
    alive = np.ones(len(size), bool)
    while alive.any():
        rate, rising = np.zeros(len(size)), alive.copy()
        while rising.any():
            room = [1 - rate[rising].max()]
            for port in (out, into):
                rooms = capacity - np.bincount(port, rate)
                load = np.bincount(port[rising], minlength=len(rooms))
                room.append((rooms[load > 0] / load[load > 0]).min())
            rate[rising] += min(room)
            rising &= rate < 1 - 1e-9
            for port in (out, into):
                rising &= (np.bincount(port, rate) < capacity - 1e-9)[port]
        step = (left[alive] / rate[alive]).min()
        now += step
        left -= step * rate
        ends[alive & (left < 1e-9)] = now
        alive &= left >= 1e-9
    return ends


def messages(seed: int, ports: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    n = int(chance.integers(1, 40))
    out, into = chance.integers(0, chance.integers(1, ports), (2, n))
    return out, into, chance.integers(1, 5, n).astype(float)


@pytest.mark.parametrize("capacity", [1.0, 2.0, 4.0])
def test_links_are_shared_max_min_fairly(capacity: float) -> None:
    for seed in range(60):
        out, into, size = messages(seed)
        ends = durations(out, into, size, capacity)
        np.testing.assert_allclose(ends, filled(out, into, size, capacity), rtol=1e-6)


def test_endings_that_are_not_told_apart_are_late_not_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(5)
    out, into = chance.integers(0, 60, (2, 2000))
    size = chance.integers(1, 10**6, 2000).astype(float)
    exact = durations(out, into, size, 2.0)
    monkeypatch.setattr(fair_shares, "MOST_CLASSES", 64 * len(size))
    coarse = durations(out, into, size, 2.0)
    busiest = max(np.bincount(out, size).max(), np.bincount(into, size).max()) / 2.0
    assert exact.max() >= busiest
    assert coarse.max() >= busiest
    assert coarse.mean() >= exact.mean()
    # No rounding error: so coarse is the approximation, which tells 64 endings apart.
    assert coarse.max() == pytest.approx(exact.max(), rel=0.1)


# ---- rounds


def star(members: list[int], size: float, sites: int = 8) -> Messages:
    """One site's message to all others."""
    return Messages(
        sites, np.full(len(members) - 1, members[0]), np.array(members[1:]),
        np.full(len(members) - 1, size), np.ones(len(members) - 1, np.int64),
    )  # fmt: skip


def test_a_tree_takes_logarithmically_many_rounds() -> None:
    made = tree(star([3, 0, 1, 5, 7], 8.0))
    assert [len(m.size) for m in made] == [1, 2, 1]
    assert sorted(np.concatenate([m.target for m in made])) == [0, 1, 5, 7]
    holders = {3}
    for m in made:
        assert set(m.source.tolist()) <= holders
        holders |= set(m.target.tolist())
    back = mirrored(tree)(
        Messages(8, *(np.array(x) for x in ([1, 2, 4], [0, 0, 0], [5.0] * 3, [1] * 3)))
    )
    assert [len(m.size) for m in back] == [1, 2][::-1]


def test_a_ring_passes_every_piece_on() -> None:
    pieces = {1: 10.0, 4: 20.0, 6: 30.0}
    pairs = [(a, b) for a in pieces for b in pieces if a != b]
    source, target = (np.array(x) for x in zip(*pairs, strict=True))
    direct = Messages(8, source, target, np.array([pieces[a] for a, _ in pairs]), np.ones(6))
    made = ring(direct)
    assert len(made) == 2
    assert all(m.received().tolist() != direct.received().tolist() for m in made)
    received = np.sum([m.received() for m in made], axis=0)
    assert received.tolist() == direct.received().tolist()
    for m in made:
        assert set(zip(m.source.tolist(), m.target.tolist(), strict=True)) == {
            (1, 4),
            (4, 6),
            (6, 1),
        }
    halo = Messages(8, np.array([0, 1, 1]), np.array([1, 0, 2]), np.ones(3), np.ones(3))
    assert ring(halo) == [halo]


# ---- in SQL


PRODUCT = QUERIES[0]


def test_explain_plays_the_plan_on_the_cluster_it_describes() -> None:
    con = connection()
    options = "SITES 10, NODE_SITES 4, LINKS 2, LATENCY '2us', NODE_LATENCY '200ns', "
    more = "NETWORK '100Gbps', NODE_NETWORK '50GB/s', NODE_MEMORY '100B', FLOPS '19.5T', "
    report = explained(con, PRODUCT, options + more)
    played: dict[str, Any] = report["simulation"]
    assert played["cluster"] == {
        "node_sites": 4, "links": 2, "network": 12.5e9, "latency": 2e-6,
        "node_network": 5e10, "node_latency": pytest.approx(2e-7), "node_memory": 100,
    }  # fmt: skip
    assert [n["sites"] for n in played["per_node"]] == [4, 4, 2]
    for rows in (played["per_node"], played["per_site"]):
        for r in rows:
            total = r["computing"] + r["communicating"] + r["waiting"]
            assert total == pytest.approx(played["seconds"])
    for key in ("bytes_sent", "bytes_received", "memory"):
        assert [s[key] for s in played["per_site"]] == [s[key] for s in report["per_site"]]
    assert sum(n["memory"] for n in played["per_node"]) == sum(
        s["memory"] for s in report["per_site"]
    )
    assert max(n["simulated"]["ends"] for n in report["nodes"]) == played["seconds"]
    assert "3 of 3 nodes hold more" in played["notice"]
    assert con.settings == connection().settings
    assert "simulation" not in explained(con, PRODUCT, "SITES 10, ")


def test_what_is_not_described_is_as_the_settings_have_it() -> None:
    con = connection(4)
    con.execute("SET network = '3GB/s'; SET latency = '7us'")
    like = topology_like(con.settings.machine)
    described = Topology(**explained(con, PRODUCT, "SIMULATE, ")["simulation"]["cluster"])
    assert described == like
    options = "NETWORK '1GB/s', LINKS 3, "
    described = Topology(**explained(con, PRODUCT, options)["simulation"]["cluster"])
    assert described == replace(like, network=1e9, links=3)
    assert described.site_network == 1e9  # a message takes one link
    assert replace(described, node_sites=12).site_network == 0.25e9


def test_the_text_has_a_row_for_each_node_or_for_what_is_typical() -> None:
    con = connection()
    few = con.explain(PRODUCT, sites=6, node_sites=2, network="1Gbps").lines()
    head = next(n for n, line in enumerate(few) if line.startswith("simulated"))
    assert " on 3 nodes of 2 sites and 1 link; " in few[head]
    assert [line.split()[0] for line in few[head + 1 :]] == ["node", "0", "1", "2"]
    many = con.explain(PRODUCT, sites=12, simulate=True).lines()
    assert [line.split()[0] for line in many[-4:]] == ["least", "median", "most", "busiest:"]
    alone = con.explain(PRODUCT, simulate=True).lines()
    assert alone[-1].split()[:2] == ["0", alone[-3].split()[1]]


def test_the_page_draws_the_course_of_the_run() -> None:
    plan = connection().explain(PRODUCT, sites=12, node_sites=2)
    course = plan.to_dict()["simulation"]["course"]
    assert course["nodes"] == list(range(6))
    for name in ("computing", "communicating"):
        assert np.array(course[name]).shape == (6, 200)
    page = plan.html()
    for n in course["nodes"]:
        assert f"<title>node {n}</title>" in page
    many = connection().explain(PRODUCT, sites=100, simulate=True).to_dict()["simulation"]
    nodes = many["course"]["nodes"]
    assert (len(many["per_node"]), len(nodes), nodes[0], nodes[-1]) == (100, 32, 0, 99)
    assert "course" not in connection().explain(PRODUCT, sites=12).html().split("</style>")[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("NODE_SITES 0", "at least 1"),
        ("NODE_SITES 65537", "65,537 sites of a node are too many"),
        ("LINKS 'two'", "number of links"),
        ("LATENCY '2 miles'", "no duration"),
        ("LATENCY 2", "duration in quotes"),
        ("NODE_MEMORY '0GB'", "no size"),
        ("LINKS 1, LINKS 2", "given twice"),
        ("NODE_LINKS 2", "no option"),
    ],
)
def test_wrong_clusters_are_refused_with_their_position(options: str, reason: str) -> None:
    with pytest.raises(einsql.ProgrammingError, match=reason) as caught:
        connection().execute(f"EXPLAIN ({options}) {PRODUCT}")
    assert caught.value.position is not None


def test_what_cannot_be_simulated_is_said() -> None:
    con = connection()
    with pytest.raises(einsql.NotSupportedError, match="too many to simulate"):
        con.explain("SELECT SUM(i) AS s FROM range(9999) r(i)", sites=5000, simulate=True)
    with pytest.raises(einsql.NotSupportedError, match="not seconds"):
        con.explain("SELECT * FROM TILES(x, 2, 2)", simulate=True)
    with pytest.raises(einsql.ProgrammingError, match="no bandwidth"):
        con.explain(PRODUCT, network="it's fast")


def test_llama_on_a_thousand_sites_is_played_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors, sql = transformer(4, b=4, s=256, a=256, h=32, d=8, f=512)
    con = connected(tensors)
    con.execute("SET sites = 256; SET strategy = 'megatron'")
    program = plan_of(con, sql).placed
    assert program is not None
    calls: list[int] = []
    ends = fair_shares._ends

    def counted(size: np.ndarray, *more: Any) -> np.ndarray:
        calls.append(len(size))
        return ends(size, *more)

    monkeypatch.setattr(fair_shares, "_ends", counted)
    played: Simulation = simulate(program, Machine(), Topology(node_sites=8, links=4))
    moving = [s for s in program.steps if isinstance(s, Exchange | Complete) and s.nbytes]
    assert len(calls) < len(moving)  # repeated layers are played once
    assert max(calls) <= 16  # classes of messages, of which there are tens of thousands
    assert played.sent.sum() == program.bytes_sent


def test_every_field_of_every_piece_is_a_message() -> None:
    con = einsql.connect()
    con.register("a", np.ones((8, 8), np.float32), dims=("i", "j"))
    con.execute("SET sites = 4")
    program = plan_of(
        con, "SELECT /*+ PARTITION(i=4) */ SUM(val) AS s, MAX(val) AS m FROM a"
    ).placed
    assert program is not None
    (merge,) = (s for s in program.steps if isinstance(s, Complete))
    fields = len(with_state(merge.node).outputs)
    assert fields >= 2
    played = simulate(program, Machine(), Topology(network=FREE, latency=1.0))
    # Two rounds of a tree, each after two doublings: 1 to 0 and 3 to 2, then 2 to 0.
    both, one = 2 * (2 + fields), 4 + fields
    assert played.communicating.tolist() == [both, one, both, one]
