"""Predictions of placed plans against what a run does; the machine, its settings, CALIBRATE."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsql
from einsql.core.boxes import split
from einsql.core.machine import Machine
from einsql.core.settings import RATES, Settings, changed_settings, setting_text
from einsql.ir.einsum.flops import effort_at_point
from einsql.ir.einsum.graph import EinSum
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Local, tuple_bytes
from einsql.optimizer.decomposition.objective import cell_bytes
from einsql.optimizer.decomposition.problem import problem_of
from einsql.optimizer.placement import traffic
from einsql.optimizer.placement.traffic import exchanged
from einsql.optimizer.simulation.prediction import predict
from einsql.session.statements import calibrate
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from tests.engine.test_sites import CHAIN, QUERIES, chain, connection, explained
from tests.support.plans import planned
from tests.support.samples import spread


def tiles_on_grid(extents: tuple[int, ...], parts: tuple[int, ...], sites: np.ndarray) -> Tiles:
    grid = np.stack(np.unravel_index(np.arange(np.prod(parts)), parts), axis=1)
    cuts = [split(0, n, p) for n, p in zip(extents, parts, strict=True)]
    boxes = np.stack([c[grid[:, a]] for a, c in enumerate(cuts)], axis=1)
    copies = len(sites) // len(boxes)
    return Tiles(sites, np.tile(boxes, (copies, 1, 1)))


@pytest.mark.parametrize("grid", [2**22, 0], ids=["grid", "pairs"])
@pytest.mark.parametrize(
    ("made", "used", "copies"), [((4, 2), (2, 4), 1), ((1, 8), (3, 1), 2), ((5, 1), (2, 2), 2)]
)
def test_traffic_is_that_of_all_pairs_of_tiles(
    made: tuple[int, int], used: tuple[int, int], copies: int, grid: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(traffic, "LARGEST_GRID", grid)
    chance, sites = np.random.default_rng(1), 8
    have = tiles_on_grid((13, 9), made, chance.permutation(sites)[: np.prod(made)])
    need = tiles_on_grid((13, 9), used, chance.integers(0, sites, copies * int(np.prod(used))))
    sent, received, out, into = (np.zeros(sites) for _ in range(4))
    for a, holder in zip(have.boxes, have.sites, strict=True):
        for b, reader in zip(need.boxes, need.sites, strict=True):
            lo, hi = np.maximum(a[:, 0], b[:, 0]), np.minimum(a[:, 1], b[:, 1])
            common = np.maximum(0, hi - lo).prod()
            if holder != reader and common:
                sent[holder] += common
                received[reader] += common
                out[holder] += 1
                into[reader] += 1
    found = exchanged(have, need, sites)
    assert (found.sent == sent).all()
    assert (found.received == received).all()
    assert (found.messages == np.maximum(out, into)).all()


@pytest.mark.parametrize("sql", spread(QUERIES, 8), ids=spread(range(len(QUERIES)), 8))
def test_sites_send_what_is_predicted_and_seconds_add_up(sql: str) -> None:
    report = explained(connection(6), sql, "ANALYZE, ")
    planned = explained(connection(6), sql)
    for site, expected in zip(report["per_site"], planned["per_site"], strict=True):
        assert expected.items() <= site.items()  # who sends and receives how much
    assert report["total"]["seconds"] == pytest.approx(sum(n["seconds"] for n in report["nodes"]))
    assert report["total"]["memory"] == max(s["memory"] for s in report["per_site"])
    for n in report["nodes"]:
        assert n["seconds"] >= 0
        assert "seconds" in n["measured"]


def test_analyze_says_what_each_site_did() -> None:
    con = connection(3)
    sites = explained(con, QUERIES[0], "ANALYZE, ")["per_site"]
    text = str(con.explain(QUERIES[0], analyze=True)).split("\n-- time")[0]
    *_, header, first, second, third = text.split("\n")
    assert header.split() == ["site", "flops", "sent", "received", "in", "kernels"]
    for n, (line, site) in enumerate(zip((first, second, third), sites, strict=True)):
        told = [str(n), f"{site['flops']:,}", f"{site['bytes_sent']:,}", "B"]
        assert line.split()[:4] == told
    assert sum(s["flops"] for s in sites) == 2 * 13 * 11 * 9


def test_a_slower_network_costs_more_where_bytes_move() -> None:
    con, _ = chain(skewed=False)

    def seconds(options: str) -> float:
        return float(explained(con, CHAIN, f"SITES 8, {options}")["total"]["seconds"])

    assert seconds("NETWORK '1Gbps', ") > seconds("") > seconds("NETWORK '10Tbps', ")
    assert seconds("FLOPS '1P', ") < seconds("") < seconds("FLOPS '1M', ")
    by_bits, by_bytes = seconds("NETWORK '8Gbps', "), seconds("NETWORK '1GB/s', ")
    assert by_bits == pytest.approx(by_bytes)
    assert setting_text(con.settings, "network") == setting_text(Settings(), "network")


def test_an_exp_takes_longer_than_a_product() -> None:
    con = einsql.connect()
    con.register("m", np.ones((2000, 1000), np.float32), dims=("i", "j"))

    def report(what: str) -> Any:
        return explained(con, f"SELECT i, j, {what} AS v FROM m")["total"]

    product, exp = report("val * val"), report("EXP(val)")
    assert exp["flops"] == product["flops"]
    m = con.settings.machine
    memory = 2 * 4 * 2e6 / m.memory_bandwidth + m.call_overhead
    assert product["seconds"] == pytest.approx(2e6 / m.map_float + memory)
    assert exp["seconds"] == pytest.approx(2e6 / m.exp_float + memory)
    assert product["seconds"] < exp["seconds"] / 5
    both = report("val * EXP(val + val)")
    assert both["seconds"] == pytest.approx(2e6 * (2 / m.map_float + 1 / m.exp_float) + memory)


def test_a_gather_reads_no_more_of_its_table_than_it_has_points() -> None:
    con = einsql.connect()
    con.execute("SET cost = 'seconds'")
    con.register("words", np.ones((100_000, 16), np.float32), dims=("v", "i"))
    con.register("word", np.array([7, 3]), dims=("t",))
    sql = "SELECT w.t, e.i, e.val FROM word AS w JOIN words AS e ON e.v = w.val"
    m = con.settings.machine
    for sites in (1, 2):
        total = explained(con, sql, f"SITES {sites}, ")["total"]
        assert total["seconds"] < 2 * (m.call_overhead + m.latency)
        assert total["memory"] >= 100_000 * 16 * 4 // sites


def test_seconds_move_less_on_a_slow_network_and_answers_stay() -> None:
    con = connection(4)
    expected = con.execute(QUERIES[1]).fetchall()
    con.execute("SET cost = 'seconds'")
    con.execute("SET network = '1Kbps'")
    report = explained(con, QUERIES[1])
    assert report["cost"] == "seconds"
    assert (
        report["total"]["bytes_sent"] <= explained(connection(4), QUERIES[1])["total"]["bytes_sent"]
    )
    assert con.execute(QUERIES[1]).fetchall() == expected


def test_seconds_are_the_default_and_cut_a_large_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EINSQL_COST", raising=False)
    con = einsql.connect(config={"jit": "never"})
    assert con.settings.cost == "seconds"
    darts = "SELECT SUM(SIN(i) * SIN(i)) AS val FROM RANGE(40000000) AS r(i)"
    assert explained(con, darts, "SITES 8, ")["nodes"][0]["partition"] == {"i": 8}
    con.execute("SET cost = 'floats'")  # no float moves at one site
    assert explained(con, darts, "SITES 8, ")["nodes"][0]["partition"] == {"i": 1}
    monkeypatch.setenv("EINSQL_COST", "bytes")
    assert einsql.connect().settings.cost == "bytes"
    monkeypatch.setenv("EINSQL_COST", "hours")
    with pytest.raises(einsql.ProgrammingError, match="EINSQL_COST cannot be hours"):
        einsql.connect()


def test_site_memory_is_obeyed_or_said_to_be_too_little() -> None:
    con, _ = chain(skewed=False)
    free = max(n["memory"] for n in explained(con, CHAIN, "SITES 8, ")["nodes"])
    con.execute(f"SET site_memory = '{free}B'")
    assert max(n["memory"] for n in explained(con, CHAIN, "SITES 8, ")["nodes"]) <= free
    con.execute("SET site_memory = '1MB'")
    with pytest.raises(einsql.OperationalError, match=r"over .* fits no site") as caught:
        con.execute(f"EXPLAIN (SITES 8, FORMAT json) {CHAIN}")
    assert "More sites" in str(caught.value)
    con.execute("SET site_memory = 'none'")
    assert explained(con, CHAIN, "SITES 8, ")


def test_settings_are_shown_as_set_takes_them() -> None:
    settings = Settings()
    for name, value in (("network", "12.5GB/s"), ("latency", "1.5us"), ("flops_float", "19.5T")):
        settings = changed_settings(settings, name, value)
        assert setting_text(settings, name) == value
    settings = changed_settings(settings, "network", "100Gbps")
    assert settings.machine.network == 12.5e9
    for text, size in (("512MB", 512 * 10**6), ("2GiB", 2 * 2**30), ("1.5kb", 1500), ("7B", 7)):
        settings = changed_settings(settings, "site_memory", text)
        assert settings.site_memory == size
        assert changed_settings(settings, "site_memory", setting_text(settings, "site_memory")) == (
            settings
        )


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SET site_memory = 'lots'", "no size"),
        ("SET site_memory = '0MB'", "no size"),
        ("SET network = '5 parsecs'", "no bandwidth"),
        ("SET latency = '-1us'", "no duration"),
        ("SET flops_float = 'T'", "no rate"),
        ("EXPLAIN (NETWORK 100) SELECT 1", "bandwidth in quotes"),
        ("EXPLAIN (NETWORK '100') SELECT 1", "no bandwidth"),
        ("EXPLAIN (FLOPS 'fast') SELECT 1", "no rate"),
        ("CALIBRATE twice", "should end"),
    ],
)
def test_wrong_quantities_are_refused_with_their_position(sql: str, reason: str) -> None:
    with pytest.raises(einsql.Error, match=reason) as caught:
        connection().execute(sql)
    assert caught.value.position is not None
    assert caught.value.hint or "quotes" in str(caught.value) or "end" in str(caught.value)


def test_calibrate_measures_every_rate_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einsql.session.statements.calibrate.BUDGET", 0.0)
    con = connection(4)
    seen: list[float] = []
    con.progress = seen.append
    cursor = con.execute("CALIBRATE")
    assert [d[0] for d in cursor.description or ()] == ["name", "value", "unit"]
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    assert [name for name, _, _ in rows] == list(RATES)
    assert all(value > 0 for _, value, _ in rows)
    assert con.settings.machine == Machine(**{name: value for name, value, _ in rows})
    assert seen == sorted(seen)
    assert seen[-1] == 1
    shown = dict(con.execute("SHOW SETTINGS").fetchall())
    assert shown["network"] == RATES["network"].text(con.settings.machine.network)


def test_what_calibrate_gives_can_be_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, less in (("BUDGET", 0.0), ("LARGE", 512), ("MATRIX", 128)):
        monkeypatch.setattr(calibrate, name, less)
    con, other = connection(), connection()
    cursor = con.execute("CALIBRATE")
    assert [d[1] for d in cursor.description or ()] == ["VARCHAR", "DOUBLE", "VARCHAR"]
    assert cursor.fetch_numpy()["value"].dtype == np.float64
    for name, value, unit in cursor.fetchall():
        other.execute(f"SET {name} = '{value}{unit}'")
        if unit != "FLOP/s":  # where a number alone could mean bits or bytes, or any time
            with pytest.raises(einsql.ProgrammingError) as caught:
                other.execute(f"SET {name} = {value}")
            assert f"'{value}{unit}'" in caught.value.hint
    assert other.settings.machine == con.settings.machine


def test_calibrate_can_be_interrupted() -> None:
    con = connection()
    con.progress = lambda done: con.interrupt()
    before = con.settings
    with pytest.raises(einsql.InterruptedError):
        con.execute("CALIBRATE")
    assert con.settings is before


def test_a_repeated_statement_makes_no_planner_call() -> None:
    con = connection(4)
    first = con.execute(QUERIES[0]).fetchall()
    assert con.planner_calls == 1
    assert con.execute(QUERIES[0]).fetchall() == first
    assert con.planner_calls == 1
    con.execute("SET cost = 'seconds'")  # other cuts, so a new plan
    con.execute(QUERIES[0])
    assert con.planner_calls == 2


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_cells_take_no_more_memory_than_their_cut_was_thought_to(sql: str) -> None:
    con = connection(6)
    query = parse(sql)[0]
    assert isinstance(query, Query)
    plan, _ = planned(con, query.tree)
    assert plan.cut is not None
    assert plan.placed is not None
    found = predict(plan.placed, Machine())
    taken = [b for b, s in zip(found.cells, plan.placed.steps, strict=True) if isinstance(s, Local)]
    vertices = problem_of(plan.optimized.root).vertices
    for nbytes, cut, v in zip(taken, plan.cut.cuts, vertices, strict=True):
        assert nbytes <= cell_bytes(v, np.array([list(cut.parts.values())], np.int64))[0]


def test_calibrated_rates_leave_out_what_memory_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates predict the very seconds that they were measured with."""
    true = Machine(3e10, 2e10, 5e9, 4e9, 3e8, 2e8, 1e10)

    def seconds(self: object, node: EinSum) -> float:
        double = node.outputs[0].dtype.numpy.itemsize > 4
        point = true.arithmetic(
            effort_at_point(node), contraction=bool(node.reduced), double=double
        )
        tensors = [*(o.source for o in node.operands), node]
        nbytes = sum(n.schema.size * tuple_bytes(n) for n in tensors)
        if len(node.operands) > 1 and not node.reduced:
            return nbytes / true.memory_bandwidth  # its arithmetic is to be nothing
        return node.points * point + nbytes / true.memory_bandwidth

    monkeypatch.setattr(calibrate._Measures, "_kernel", seconds)
    monkeypatch.setattr(calibrate, "BUDGET", 0.0)
    found = calibrate.calibrated(Settings(), lambda _: None)
    for name in list(RATES)[:7]:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-9)
