"""The communication solver: the cheapest collectives between placements, to the byte."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einsql
from einsql.ir.layout import (
    Entry,
    Mesh,
    Partial,
    Placement,
    Replicate,
    Shard,
    Single,
    placement,
    region,
)
from einsql.optimizer.placement.communication import Move, fused, lacking, solve

R, P, ONE = Replicate(), Partial(), Single()
ROWS, COLUMNS = Shard(0), Shard(1)
LINE, GRID = Mesh((("r", 4),)), Mesh((("a", 2), ("b", 3)))


def named(moves: tuple[Move, ...]) -> list[tuple[str, str, int]]:
    return [(m.collective, "".join(m.along), m.nbytes) for m in moves]


@pytest.mark.parametrize(
    ("source", "target", "collective", "elements"),
    [
        (ROWS, ROWS, None, 0),
        (R, ROWS, "slice", 0),
        (ROWS, R, "all-gather", 3 * 48),
        (ROWS, COLUMNS, "all-to-all", 48 * 3 // 4),
        (P, R, "all-reduce", 2 * 3 * 48),
        (P, ROWS, "reduce-scatter", 3 * 48),
        (P, ONE, "reduce", 3 * 48),
        (ONE, R, "broadcast", 3 * 48),
        (ONE, ROWS, "scatter", 36),
        (ROWS, ONE, "gather", 36),
        (R, ONE, "slice", 0),
    ],
)
def test_one_collective_along_one_mesh_axis(
    source: Entry, target: Entry, collective: str | None, elements: int
) -> None:
    expected = [] if collective is None else [(collective, "r", elements * 4)]
    assert named(solve(LINE, (source,), (target,), (8, 6), 4)) == expected


@pytest.mark.parametrize(
    ("source", "target", "moves"),
    [
        ((ROWS, COLUMNS), (R, R), [("all-gather", "a", 140), ("all-gather", "b", 560)]),
        ((P, P), (R, R), [("all-reduce", "ab", 2 * 5 * 35 * 4)]),
        ((P, ROWS), (COLUMNS, ROWS), [("reduce-scatter", "a", 140)]),
        # FSDP x TP: one tensor axis on both mesh axes is gathered from the inner one out
        ((ROWS, ROWS), (ROWS, R), [("all-gather", "b", 280)]),
        ((ROWS, ROWS), (R, R), [("all-gather", "b", 280), ("all-gather", "a", 420)]),
        # a cut inside that of a later mesh axis is gathered like any inner one
        ((Shard(0, 1), ROWS), (R, ROWS), [("all-gather", "a", 140)]),
        # swapping two cuts is no collective along one axis
        ((ROWS, COLUMNS), (COLUMNS, ROWS), [("all-to-all", "ab", 100)]),
        ((R, R), (ROWS, COLUMNS), [("slice", "a", 0), ("slice", "b", 0)]),
        ((P, ROWS), (P, R), [("all-gather", "b", 560)]),
    ],
)
def test_collectives_along_two_mesh_axes(
    source: Placement, target: Placement, moves: list[tuple[str, str, int]]
) -> None:
    assert sorted(named(solve(GRID, source, target, (7, 5), 4))) == sorted(moves)


def test_pieces_are_uneven_and_empty_beyond_a_short_axis() -> None:
    # 7 rows over 4 sites: 2, 2, 2 and 1; 3 rows: 1, 1, 1 and none.
    assert region(LINE, (ROWS,), (7, 5)).volumes.tolist() == [10, 10, 10, 5]
    assert region(LINE, (ROWS,), (3, 5)).volumes.tolist() == [5, 5, 5, 0]
    assert named(solve(LINE, (ROWS,), (R,), (3, 5), 1)) == [("all-gather", "r", 3 * 15)]
    assert named(solve(LINE, (ROWS,), (COLUMNS,), (3, 5), 1)) == [
        ("all-to-all", "r", 15 - 2 - 1 - 1)
    ]


def test_the_partition_by_work_thesis_maps_points_to_processes() -> None:
    # iteration space 4 x 8 x 16 on the grid (2, 2, 1)
    mesh = Mesh((("r0", 2), ("r1", 2), ("r2", 1)))
    held = region(mesh, (Shard(0), Shard(1), Shard(2)), (4, 8, 16))
    point = np.array([3, 2, 12])
    inside = (held.boxes[:, :, 0] <= point) & (point < held.boxes[:, :, 1])
    (site,) = np.flatnonzero(inside.all(axis=1))
    assert [int(n) for n in np.unravel_index(site, mesh.shape)] == [1, 0, 0]
    assert (point - held.boxes[site, :, 0]).tolist() == [1, 2, 12]
    # its reduction: a process reads columns 2·r1 up to 2·(r1 + 1)
    mesh = Mesh((("r0", 2), ("r1", 2)))
    read = region(mesh, (Shard(0), Shard(1)), (4, 4)).boxes[:, 1]
    assert read.tolist() == [[2 * r1, 2 * (r1 + 1)] for _, r1 in product(range(2), range(2))]


@pytest.mark.parametrize(
    ("through", "one"),
    [
        ((P, ROWS, R), "all-reduce"),
        ((P, ONE, R), "all-reduce"),
        ((ROWS, COLUMNS, Shard(2)), "all-to-all"),
        ((ROWS, ONE, COLUMNS), "all-to-all"),
        ((ONE, ROWS, R), "broadcast"),
        ((R, ROWS, R), None),
    ],
)
def test_neighbouring_redistributions_are_one(through: tuple[Entry, ...], one: str | None) -> None:
    shape = (8, 8, 4)
    steps = tuple(m for a, b in pairwise(through) for m in solve(LINE, (a,), (b,), shape, 4))
    merged = fused(steps, LINE, shape, 4)
    assert [m.collective for m in merged] == ([] if one is None else [one])
    assert sum(m.nbytes for m in merged) <= sum(m.nbytes for m in steps)


@pytest.mark.parametrize(
    ("axes", "partial", "reason"),
    [
        ([["a"], ["a"]], {}, "cannot carry two indices"),
        ([["a", "b"], []], {"b": "sum"}, "cannot carry two indices"),
        ([["c"]], {}, 'no axis "c"'),
    ],
)
def test_wrong_placements_are_refused(
    axes: list[list[str]], partial: dict[str, str], reason: str
) -> None:
    with pytest.raises(einsql.InterfaceError, match=reason):
        placement(GRID, axes, partial)


def test_notation_names_the_mesh_axes_of_each_index() -> None:
    assert placement(GRID, [["a", "b"], []]) == (ROWS, ROWS)
    assert placement(GRID, [["b", "a"], []]) == (Shard(0, depth=1), Shard(0))
    assert placement(GRID, [[], ["b"]], {"a": "max"}) == (Partial("max"), COLUMNS)


def test_nothing_makes_a_complete_value_partial() -> None:
    with pytest.raises(einsql.InterfaceError, match="not partial"):
        solve(LINE, (R,), (P,), (8,), 4)


ENTRIES = st.sampled_from([R, P, ONE, ROWS, COLUMNS, Shard(0, 1)])


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    source=st.tuples(ENTRIES, ENTRIES, ENTRIES),
    target=st.tuples(ENTRIES, ENTRIES, ENTRIES),
    shape=st.tuples(st.integers(0, 9), st.integers(1, 9)),
)
def test_moves_lead_from_source_to_target_and_send_no_more_than_needed(
    sizes: list[int], source: Placement, target: Placement, shape: tuple[int, int]
) -> None:
    mesh = Mesh(tuple((f"m{n}", size) for n, size in enumerate(sizes)))
    source, target = source[: len(sizes)], target[: len(sizes)]
    if any(b == P and a != P for a, b in zip(source, target, strict=True)):
        return
    moves = solve(mesh, source, target, shape, 1)
    placed = source
    for m in moves:
        assert m.before == placed
        placed = m.after
    assert placed == target
    sent = sum(m.nbytes for m in moves)
    merged = [n for n, (a, b) in enumerate(zip(source, target, strict=True)) if a != b and a == P]
    if not merged:
        assert sent == lacking(region(mesh, source, shape), region(mesh, target, shape))
    else:
        # never worse than to complete everywhere first
        complete = tuple(R if n in merged else e for n, e in enumerate(source))
        group = prod(sizes[n] for n in merged)
        volumes = int(region(mesh, source, shape).volumes.sum())
        first = 2 * volumes // group * (group - 1)
        rest = solve(mesh, complete, target, shape, 1)
        assert sent <= first + sum(m.nbytes for m in rest)
