"""Strategies by name: what they recognise, what they cut, and that the default is never worse."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from einsql.errors import InterfaceError
from einsql.ir.einsum.graph import EinSum, Node, walk
from einsql.optimizer.decomposition import STRATEGIES, Cut, decompose
from einsql.optimizer.decomposition.decompose import cut_problem
from einsql.optimizer.decomposition.problem import Problem, problem_of
from einsql.optimizer.decomposition.schedules import Schedule, floats_moved
from einsql.optimizer.decomposition.structure import structure_of
from tests.optimizer.problems import Builder, chain, random_problem
from tests.optimizer.problems import transformer as notated
from tests.support.networks import FFNN, connected, ffnn, graph, transformer
from tests.support.samples import combinations

NAMED = ("megatron", "sequence", "attention", "model")
LAYER = graph(*transformer(1))


def cuts(root: Node, sites: int, strategy: str) -> list[tuple[EinSum, Cut]]:
    nodes = [n for n in walk(root) if isinstance(n, EinSum)]
    return list(zip(nodes, decompose(root, sites=sites, strategy=strategy).cuts, strict=True))


def test_roles_are_read_off_the_algebra() -> None:
    problem = problem_of(LAYER, sites=4)
    s = structure_of(problem)

    def names(classes: frozenset[int] | tuple[int, ...]) -> set[str]:
        return {
            label
            for v, own in zip(problem.vertices, s.classes, strict=True)
            for label, c in zip(v.labels, own, strict=True)
            if c in classes
        }

    assert names(s.batch) == {"b"}
    assert names(s.sequence) == {"s", "s_1"}
    assert names(s.heads) == {"h"}
    assert names(s.hidden) == {"h", "f"}
    attended = [v.labels[k] for v, m in zip(problem.vertices, s.memory, strict=True) for k in m]
    assert set(attended) == {"s_1"}


@pytest.mark.parametrize(
    ("names", "strategy"), combinations(["bsathdf", "fdhtasb", "iuvwxyz"], [*NAMED, "eindecomp"])
)
def test_no_name_of_a_label_matters(names: str, strategy: str) -> None:
    # The letters are in no order that numbering by name could keep.
    other = graph(*transformer(1, names=names))
    expected = [(list(c.parts.values()), c.copies) for _, c in cuts(LAYER, 8, strategy)]
    assert [(list(c.parts.values()), c.copies) for _, c in cuts(other, 8, strategy)] == expected


@pytest.mark.parametrize(
    ("sites", "wide", "batch", "positions"), [(2, 2, 1, 1), (4, 4, 1, 1), (16, 4, 4, 1),
                                              (64, 4, 4, 4)]
)  # fmt: skip
def test_megatron_cuts_heads_and_columns_and_repeats_the_rest(
    sites: int, wide: int, batch: int, positions: int
) -> None:
    for node, cut in cuts(LAYER, sites, "megatron"):
        inside = [x for x in ("h", "f") if x in cut.parts]
        assert [cut.parts[x] for x in inside] == [wide] * len(inside)
        assert cut.parts["b"] == batch
        assert cut.parts["s"] == positions
        assert cut.parts.get("s_1", 1) == cut.parts.get("a", 1) == cut.parts.get("d", 1) == 1
        assert cut.copies == (1 if inside else wide), node.keys


@pytest.mark.parametrize("sites", [2, 8, 64, 128])
def test_sequence_and_attention_use_all_sites_everywhere(sites: int) -> None:
    for _, cut in cuts(LAYER, sites, "sequence"):
        assert cut.parts["s"] == min(sites, 64)
        assert cut.parts["b"] == max(1, sites // 64)
    for _, cut in cuts(LAYER, sites, "attention"):
        assert cut.calls == sites
        assert cut.copies == 1
        assert cut.parts.get("f", 1) == 1
        if "h" in cut.parts:
            assert cut.parts["h"] == min(sites, 4)


@pytest.mark.parametrize("strategy", NAMED)
def test_strategies_compute_what_one_site_does(strategy: str) -> None:
    tensors, sql = transformer(1, b=2, s=8, a=8, h=4, d=2, f=12)
    con = connected({})
    chance = np.random.default_rng(2)
    for name, keys in tensors.items():
        array = chance.standard_normal(tuple(keys.values())).astype(np.float32)
        con.register(name, array, dims=tuple(keys))
    expected = con.execute(sql).fetch_numpy()
    con.execute(f"SET sites = 8; SET strategy = '{strategy}'")
    assert np.allclose(con.execute(sql).fetch_numpy(), expected, rtol=1e-4, atol=1e-4)


GRAPHS = {
    "layer": problem_of(LAYER, sites=8),
    "two layers": problem_of(graph(*transformer(2)), sites=8),
    "long sequence": problem_of(graph(*transformer(1, b=1, s=4096)), sites=8),
    "step": problem_of(graph(ffnn(1000, 64, 256, 10), FFNN), sites=8),
    "declared step": problem_of(
        graph(ffnn(1000, 64, 256, 10), FFNN, {"w1": (1, 8), "w2": (1, 8)}), sites=8
    ),
    "notated": notated(1, {"b": 8, "s": 64, "t": 64, "a": 32, "h": 8, "d": 16, "f": 96}),
    "chain": chain(dict.fromkeys("ijklm", 640)),
    "random 3": random_problem(3, 12),
    "random 5": random_problem(5, 20),
}


@pytest.mark.parametrize(("name", "sites"), combinations(GRAPHS, [2, 5, 8, 64]))
def test_the_default_is_never_worse_than_a_strategy_that_keeps_all_sites_busy(
    name: str, sites: int
) -> None:
    problem = GRAPHS[name]
    default = cut_problem(problem, sites)
    contractions = [v.contraction for v in problem.vertices if v.computes]
    full = [c.calls for c, is_one in zip(default.cuts, contractions, strict=True) if is_one]
    labels = sorted({x for v in problem.vertices if v.computes for x in v.labels})
    compared = 0
    for strategy in [*NAMED, "equal", "paper", *(f"data:{x}" for x in labels)]:
        try:
            other = cut_problem(problem, sites, strategy)
        except InterfaceError:
            continue  # there is nothing it is about
        busy = [
            c.calls * c.copies
            for c, is_one in zip(other.cuts, contractions, strict=True)
            if is_one
        ]  # fmt: skip
        within = max(c.calls * c.copies for c in other.cuts) <= sites
        if within and all(b >= f for b, f in zip(busy, full, strict=True)):
            assert default.floats <= other.floats * (1 + 1e-9), strategy
            compared += 1
    assert compared or name.startswith("random")


def test_a_declared_tensor_is_brought_into_a_reader_s_cut() -> None:
    tensors = {"u": {"i": 64, "j": 64}, "v": {"j": 64, "k": 64}}
    sql = "SELECT i, k, SUM(u.val * v.val) AS val FROM u JOIN v USING (j) GROUP BY i, k"

    def moved(parts: dict[str, tuple[int, ...]], strategy: str) -> float:
        return decompose(graph(tensors, sql, parts), sites=4, strategy=strategy).cuts[0].repartition

    assert moved({}, "data:i") == moved({"u": (1, 1), "v": (1, 1)}, "data:i") == 0
    assert moved({"u": (4, 1)}, "data:i") == 0
    assert moved({"v": (4, 1)}, "data:i") > 0
    # The planner goes where the data lies.
    best = decompose(graph(tensors, sql, {"u": (4, 1)}), sites=4).cuts[0]
    assert best.parts["i"] == 4
    assert best.repartition == 0


def test_a_declared_tensor_with_several_readers_is_brought_there_once() -> None:
    root = graph(
        {"u": {"i": 64, "j": 64}, "v": {"j": 64, "k": 64}, "w": {"j": 64, "k": 64}},
        "WITH p AS (SELECT i, k, SUM(u.val * v.val) AS val FROM u JOIN v USING (j) GROUP BY i, k), "
        "q AS (SELECT i, k, SUM(u.val * w.val) AS val FROM u JOIN w USING (j) GROUP BY i, k) "
        "SELECT i, k, p.val + q.val AS val FROM p JOIN q USING (i, k)",
        {"u": (1, 4)},
    )
    first, second, *_ = decompose(root, sites=4, strategy="data:i").cuts
    assert sorted([first.repartition > 0, second.repartition > 0]) == [False, True]


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("megatron", "finds no weight"),
        ("sequence", "finds no attention"),
        ("attention", "finds no attention"),
        ("model", "finds no weight"),
        ("model:zz,y", "finds no label zz or y"),
        ("data:kk", "finds no label kk .did you mean"),
    ],
)
def test_where_a_strategy_has_nothing_to_go_by_eindecomp_cuts(strategy: str, reason: str) -> None:
    b = Builder(dict.fromkeys("ijk", 64))
    b.op("ij,jk->ik", None, None)  # which of the two is the weight?
    found = cut_problem(b.problem, 4, strategy)
    assert re.search(reason, found.notice, re.IGNORECASE), found.notice
    assert (found.strategy, found.cuts) == ("eindecomp", cut_problem(b.problem, 4).cuts)
    assert not cut_problem(b.problem, 4, "model:zz,k").notice


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("model:", "incomplete"),
        ("data", "incomplete"),
        ("megatron:h", "takes no label"),
        ("megatrom", "no strategy"),
    ],
)
def test_names_of_no_strategy_are_refused(strategy: str, reason: str) -> None:
    with pytest.raises(InterfaceError, match=reason) as caught:
        cut_problem(Builder({}).problem, 4, strategy)
    assert caught.value.hint


def test_labels_can_be_named_where_nothing_is_recognised() -> None:
    problem = chain(dict.fromkeys("ijklm", 64))
    for cut in cut_problem(problem, 4, "model:m,i").cuts:
        (label,) = [x for x, parts in cut.parts.items() if parts == 4]
        assert label == ("m" if "m" in cut.parts else "i")


def test_every_strategy_has_a_law() -> None:
    assert set(NAMED) <= set(STRATEGIES)
    assert all(s.law and "\n" not in s.law for s in STRATEGIES.values())


@pytest.mark.parametrize("sites", [8, 96, 1024])
def test_hints_hold_in_graphs_too_large_to_be_solved_exactly(sites: int) -> None:
    extents = {"b": 4, "s": 4096, "t": 4096, "a": 4096, "h": 32, "d": 128, "f": 11008}
    problem = notated(3, extents)
    told = {5: {"t": 8}, 9: {"b": 1, "s": 2}}
    vertices = tuple(
        replace(v, fixed=tuple(told[n].get(x) for x in v.labels)) if n in told else v
        for n, v in enumerate(problem.vertices)
    )
    for strategy in ("eindecomp", "paper", "megatron"):
        found = cut_problem(Problem(vertices), sites, strategy).cuts
        for n, parts in told.items():
            assert {x: found[n].parts[x] for x in parts} == parts
            assert found[n].calls <= 1 << (sites - 1).bit_length()


def test_every_copy_moves_its_floats_and_what_lies_everywhere_is_free_to_read() -> None:
    b = Builder({"i": 60, "j": 40})
    b.op("ij->ij", b.op("ij->ij", None))
    ones, rows = np.array([1, 1]), np.array([4, 1])

    def moved(first: Schedule, second: Schedule) -> list[float]:
        return [f.total for f in floats_moved(b.problem, [first, second], 4)]

    assert moved(Schedule(rows), Schedule(rows)) == [2400, 2400]
    assert moved(Schedule(ones), Schedule(rows)) == [2400, 2400 + 4 * 2400]
    assert moved(Schedule(ones, 4), Schedule(rows)) == [4 * 2400, 2400]
    # Two groups read two copies of what lies in four parts.
    alone = moved(Schedule(rows), Schedule(ones))[1]
    assert moved(Schedule(rows), Schedule(ones, 2))[1] == 2 * alone
