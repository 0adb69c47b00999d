"""The tensor-relational algebra: worked examples, functions in Python, laws, its face."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql import tra
from einsql.core.schema import DType
from einsql.errors import IntegrityError, ProgrammingError
from einsql.ir.tra.block_schema import sizes
from einsql.ir.tra.kernels import Tile
from einsql.ir.tra.plan import Repartition, walk
from tests.support.relations import checked
from tests.support.samples import sample

U = np.array([[1, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]])
B = np.hstack([U[:2], U[2:]])
A = tra.scan(U, (2, 2), name="u")
RB = tra.scan(B, (1, 2)).rekey(lambda a, b: b)
TILED = RB.tile(1, 2)
CORNERS = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]], [[13, 14], [15, 16]]]
SQUARE = [(0, 0), (0, 1), (1, 0), (1, 1)]


def listed(relation: tra.Relation) -> dict[tuple[int, ...], object]:
    return {k: array.tolist() for k, array in checked(relation).items()}


EXAMPLES: dict[str, tuple[tra.Relation, dict[tuple[int, ...], object]]] = {
    "blocks": (A, dict(zip(SQUARE, CORNERS, strict=True))),
    "eight": (
        tra.scan(U, (2, 4)),
        {
            (0, 0): [[1], [3]], (0, 1): [[2], [4]], (0, 2): [[5], [7]], (0, 3): [[6], [8]],
            (1, 0): [[9], [11]], (1, 1): [[10], [12]], (1, 2): [[13], [15]], (1, 3): [[14], [16]],
        },
    ),
    "sum of columns": (
        A.aggregate((1,), tra.add),
        {(0,): [[10, 12], [14, 16]], (1,): [[18, 20], [22, 24]]},
    ),
    "sum of all": (A.aggregate((), "add"), {(): [[28, 32], [36, 40]]}),
    "stored": (RB, {(0,): B[:, :4].tolist(), (1,): B[:, 4:].tolist()}),
    "tiled": (TILED, dict(zip(SQUARE, CORNERS, strict=True))),
    "numbered": (
        TILED.rekey(lambda a, b: 2 * a + b),
        {(n,): c for n, c in enumerate(CORNERS)},
    ),
    "stacked": (TILED.stack(1, 1), {(0,): B[:, :4].tolist(), (1,): B[:, 4:].tolist()}),
    "diagonal": (
        A.filter(lambda a, b: a == b).rekey(lambda a, b: a).transform(tra.diag),
        {(0,): [1, 4], (1,): [13, 16]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name: str) -> None:
    relation, expected = EXAMPLES[name]
    assert listed(relation) == expected


def test_join_of_matching_blocks() -> None:
    joined = A.join(A, (1,), (0,), tra.matmul)
    assert joined.schema.bounds == (2, 2, 2)
    assert listed(joined)[0, 1, 0] == [[111, 122], [151, 166]]
    np.testing.assert_array_equal(joined.aggregate((0, 2), "add").numpy(), U @ U)


X = np.arange(35.0).reshape(7, 5) / 2
Y = np.arange(15.0).reshape(5, 3) / 4


@pytest.mark.parametrize(
    "parts", [(1, 1, 1), (3, 1, 3), (1, 2, 1), (3, 2, 2)], ids=["whole", "BMM", "CPMM", "RMM"]
)
def test_matrix_product_cut_every_way(parts: tuple[int, int, int]) -> None:
    i, j, k = parts
    joined = tra.scan(X, (i, j)).join(tra.scan(Y, (j, k)), (1,), (0,), tra.matmul)
    assert joined.schema.count == prod(parts)
    checked(joined)
    np.testing.assert_array_equal(joined.aggregate((0, 2), "add").numpy(), X @ Y)


def test_blocks_of_an_uneven_split_differ_by_one() -> None:
    x = tra.scan(X, (3, 2))
    assert [a.shape for a in checked(x).values()] == [
        (3, 3),
        (3, 2),
        (2, 3),
        (2, 2),
        (2, 3),
        (2, 2),
    ]
    np.testing.assert_array_equal(x.repartition((2, 5)).numpy(), X)
    rows = x.transform(tra.einsum("ij->i", reduce="max")).aggregate((0,), "max")
    np.testing.assert_array_equal(rows.numpy(), X.max(axis=1))
    np.testing.assert_array_equal(tra.scan(X, cuts=[(0, 1, 7), (0, 5)]).numpy(), X)


def test_results_are_new_and_parts_of_inputs_read_only() -> None:
    whole = tra.scan(X)
    assert not np.may_share_memory(whole.numpy(), X)
    assert not whole.tile(0, 2).blocks()[0, 0, 1].flags.writeable
    assert np.may_share_memory(whole.blocks()[0, 0], X)
    assert X.flags.writeable


def test_a_dual_rekey_closes_holes() -> None:
    kept = A.filter(lambda a, b: a == 1)
    assert kept.schema.bounds == (2, 2)
    np.testing.assert_array_equal(kept.rekey(lambda a, b: (0, b)).numpy(), U[2:])


def test_joins_and_groups_take_the_keys_there_are() -> None:
    left = A.filter(lambda a, b: a == b)
    joined = left.join(A, (1,), (0,), tra.matmul)
    assert list(checked(joined)) == [(0, 0, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)]
    checked(joined.aggregate((0, 2)))
    # Blocks of three sizes, of which only those that fit each other are left.
    rows = tra.scan(np.ones((6, 2)), cuts=[(0, 1, 3, 6), (0, 2)]).rekey(lambda a, b: a)
    columns = tra.scan(np.ones((2, 8)), cuts=[(0, 2), (0, 3, 5, 8)]).rekey(lambda a, b: b)
    last = rows.filter(lambda a: a > 0).join(columns, (0,), (0,), tra.einsum("id,di->i"))
    assert {k: a.shape for k, a in checked(last).items()} == {(1,): (2,), (2,): (3,)}


# ---- functions in Python

NUMBERS = np.array([-7, -3, -1, 0, 2, 9])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + 1,
        lambda x: 3 - x,
        lambda x: -abs(x),
        lambda x: x // 2,
        lambda x: x // -3,
        lambda x: x % 4,
        lambda x: x % -4,
        lambda x: 12 // (x * x + 1),
        lambda x: x / 4,
        lambda x: np.maximum(x, 2) & 6,
        lambda x: ~x | 8,
        lambda x: (x > 0) & ~(x == 2) | (x <= -3),
        lambda x: np.int64(2) * x >= np.sign(x),
        lambda x: np.float64(0.5) + x,
        lambda x: (x * 0.5) ** 2 != 1,
    ],
)
def test_traced_functions_compute_as_numpy_does(function: Callable[..., object]) -> None:
    relation = tra.scan(NUMBERS, (2,)).transform(tra.map(function))
    checked(relation)
    np.testing.assert_array_equal(relation.numpy(), np.asarray(function(NUMBERS)))


def test_key_functions_round_as_python_does() -> None:
    x = tra.scan(np.arange(6.0), (6,))
    assert list(checked(x.rekey(lambda a: (a // 4 + (a - 5) // 2 + 3, a % 4, (a - 5) % 3)))) == [
        (n // 4 + (n - 5) // 2 + 3, n % 4, (n - 5) % 3) for n in (0, 1, 2, 3, 4, 5)
    ]
    assert list(checked(x.filter(lambda a: (a % 2 == 0) | (a > 3)))) == [(0,), (2,), (4,), (5,)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int32])
def test_numbers_adapt_to_what_they_meet(dtype: type) -> None:
    array: np.ndarray = np.array([1, 2, 3], dtype)
    got = tra.scan(array).transform(tra.map(lambda x: x * 2)).numpy()
    wanted = np.float32 if dtype is np.float16 else dtype
    assert got.dtype == wanted
    np.testing.assert_array_equal(got, array * 2)
    assert tra.scan(array, (3,)).aggregate((), "add").blocks()[()].dtype == dtype
    assert tra.scan(np.ones(2, np.float32)).transform(lambda x: x * 1e300).schema.dtype.is_float


def test_any_combination_and_reduction_make_a_kernel() -> None:
    far = tra.einsum("id,jd->ij", combine=lambda x, y: abs(x - y), reduce="max")
    x, y = tra.scan(X, (3, 1)), tra.scan(Y.T, (2, 1))
    result = x.join(y, (1,), (1,), far).aggregate((0, 2), "max")
    checked(result)
    np.testing.assert_array_equal(result.numpy(), np.abs(X[:, None] - Y.T[None]).max(axis=2))
    chosen = tra.einsum("i,i,i->i", combine="if")
    kinds = (DType.BOOLEAN, DType.DOUBLE, DType.DOUBLE)
    kernel = chosen.template([Tile(1, kind) for kind in kinds])
    assert kernel.schema.dtype("val") is DType.DOUBLE


# ---- laws

cut = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(
    lambda blocks: tuple(int(n) for n in np.cumsum([0, *blocks]))
)
cuts = st.lists(cut, min_size=1, max_size=3)


def numbered(cut_at: list[tuple[int, ...]]) -> tra.Relation:
    shape = [c[-1] for c in cut_at]
    return tra.scan(np.arange(float(prod(shape))).reshape(shape) / 4, cuts=cut_at)


def assert_same(a: tra.Relation, b: tra.Relation) -> None:
    assert listed(a) == listed(b)


@given(cuts, st.data())
@settings(max_examples=sample(10, 60))
def test_stack_undoes_tile(cut_at: list[tuple[int, ...]], draw: st.DataObject) -> None:
    x = numbered(cut_at)
    dim = draw.draw(st.integers(0, len(cut_at) - 1))
    try:
        tiled = x.tile(dim, draw.draw(st.integers(1, 4)))
    except ProgrammingError:  # blocks of several sizes leave tiles no one key tells apart
        assert len(set(sizes(cut_at[dim]))) > 1
        return
    checked(tiled)
    assert_same(tiled.stack(len(cut_at), dim), x)


@given(cuts, st.data())
@settings(max_examples=sample(10, 60))
def test_repartition_forgets_the_cut_before(
    cut_at: list[tuple[int, ...]], draw: st.DataObject
) -> None:
    x = numbered(cut_at)
    once, twice = (
        tuple(draw.draw(st.integers(1, c[-1])) for c in cut_at) for _ in ("once", "twice")
    )
    assert_same(x.repartition(once).repartition(twice), x.repartition(twice))
    np.testing.assert_array_equal(x.repartition(once).numpy(), x.numpy())
    again = x.repartition(once).repartition(once)
    assert sum(isinstance(n, Repartition) for n in walk(again.plan)) <= 1


@given(
    st.tuples(*[st.integers(1, 3)] * 3),
    st.sampled_from(["add", "mul", "min", "max"]),
    st.permutations([0, 1, 2]),
    st.integers(0, 2),
    st.integers(0, 2),
)
@settings(max_examples=sample(15, 40))
def test_aggregation_in_two_phases(
    parts: tuple[int, int, int], op: str, order: list[int], first: int, last: int
) -> None:
    x = tra.scan(np.arange(216.0).reshape(6, 6, 6) % 5 / 2, parts)
    kept, few = order[: 1 + first], order[: min(last, 1 + first)]
    two = x.aggregate(kept, op).aggregate([kept.index(k) for k in few], op)
    assert_same(two, x.aggregate(few, op))


CONDITIONS: list[Callable[..., object]] = [
    lambda a, b: a == b,
    lambda a, b: a + b < 3,
    lambda a, b: (a % 2 == 0) | (b > 0),
    lambda a, b: ~(a > b),
]
RENAMINGS: list[Callable[..., tuple[object, object]]] = [
    lambda a, b: (b, a),
    lambda a, b: (a, b + 2),
    lambda a, b: (a + 3 * b, a),
    lambda a, b: (5 - a, b),
]


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("rename", RENAMINGS)
def test_filter_commutes_with_rekey(
    condition: Callable[..., object], rename: Callable[..., tuple[object, object]]
) -> None:
    x = tra.scan(np.arange(49.0).reshape(7, 7), (3, 3))
    before = x.filter(lambda a, b: condition(*rename(a, b))).rekey(rename)
    assert_same(x.rekey(rename).filter(condition), before)


def test_filters_of_joined_keys_go_to_both_sides() -> None:
    y = tra.scan(U.T.copy(), (2, 2))
    joined = A.join(y, (1,), (0,), tra.matmul).filter(lambda a, b, c: b == 1)
    pushed = A.filter(lambda a, b: b == 1).join(
        y.filter(lambda a, b: a == 1), (1,), (0,), tra.matmul
    )
    assert_same(joined, pushed)


def _attempt(x: tra.Relation, y: tra.Relation, op: str, pick: Random) -> tra.Relation:
    """A random operation; many are mistakes."""
    keys, rank = len(x.schema.bounds), len(x.schema.dims)
    some = [k for k in range(keys) if pick.random() < 0.6]
    pick.shuffle(some)
    n, m = pick.randrange(3), pick.randrange(3)
    if op == "join":
        others = pick.sample(range(len(y.schema.bounds)), min(len(some), len(y.schema.bounds)))
        letters = "ijk"[:rank], "".join(pick.choice("ijkl") for _ in y.schema.dims)
        out = "".join(c for c in sorted({*letters[0], *letters[1]}) if pick.random() < 0.5)
        kernel = tra.einsum(f"{letters[0]},{letters[1]}->{out}", "add", "max")
        return x.join(y, some[: len(others)], others, kernel)
    if op == "aggregate":
        return x.aggregate(some, pick.choice(["add", "min", "max"]))
    if op == "rekey":
        return x.rekey(lambda *k: tuple(k[s] * (n + 1) + m for s in some))
    if op == "filter":
        return x.filter(lambda *k: sum(k) % (n + 1) <= m)
    if op == "transform":
        return x.transform(
            pick.choice([tra.diag, tra.einsum("...i->..."), tra.map(lambda v: v + 1)])
        )
    if op == "tile":
        return x.tile(n, m + 1)
    if op == "stack":
        return x.stack(n, m)
    return x.repartition([pick.randint(1, 3) for _ in range(rank)])


OPERATIONS = ["join", "aggregate", "rekey", "filter", "transform", "tile", "stack", "repartition"]


def test_random_plans_mean_what_the_reference_says() -> None:
    done: Counter[str] = Counter()
    for seed in range(sample(150, 400)):
        pick = Random(seed)
        made = [numbered([_random_cut(pick) for _ in range(pick.randint(1, 3))]) for _ in "ab"]
        for _ in range(5):
            op = pick.choice(OPERATIONS)
            try:
                made.append(_attempt(made[-1], pick.choice(made), op, pick))
            except (ProgrammingError, IntegrityError):
                continue
            done[op] += 1
        if made[-1].schema.count <= 200:
            checked(made[-1])
    assert all(done[op] > sample(10, 40) for op in OPERATIONS), done


def _random_cut(pick: Random) -> tuple[int, ...]:
    blocks = [pick.choice((1, 2, 2, 3)) for _ in range(pick.randint(1, 3))]
    if pick.random() < 0.5:
        blocks = blocks[:1] * len(blocks)
    return tuple(int(n) for n in np.cumsum([0, *blocks]))


# ---- the face

PLAN = """\
r0<3, 2>[3|2|2, 3|2] DOUBLE
  scan         x[d0:7, d1:5]
r1<2, 1>[3|2, 3] DOUBLE
  scan         x_1[d0:5, d1:3]
r2<3, 2, 1>[3|2|2, 3] DOUBLE
  join         r0<0, 1>, r1<1, 2>
    kernel     x0[i, j], x1[j, k] -> [i, k] SUM((x0.val * x1.val))
r3<3, 1>[3|2|2, 3] DOUBLE
  aggregate    SUM(r2) BY <0, 2>
r4<3, 1>[3|2|2, 3] DOUBLE, 2 keys
  filter       r3 ((k0 % 2) = 0)
r5<2>[3|2, 3] DOUBLE
  rekey        r4 <(k0 // 2)>
r6<2, 2>[3|2, 2|1] DOUBLE
  tile         r5 dimension 1 by 2
r7<2>[3|2, 3] DOUBLE
  stack        r6 key 1 along dimension 1
r8<2>[3|2, 3] DOUBLE
  transform    r7
    kernel     x0[.0, .1] -> [.0, .1] EXP(NEG(x0.val))"""


def test_plans_print_what_they_do() -> None:
    product = tra.scan(X, (3, 2)).join(tra.scan(Y, (2, 1)), (1,), (0,), tra.matmul)
    relation = product.aggregate((0, 2)).filter(lambda i, k: i % 2 == 0)
    relation = relation.rekey(lambda i, k: i // 2).tile(1, 2).stack(1, 1)
    relation = relation.transform(tra.map(lambda x: np.exp(-x)))
    assert str(relation) == PLAN
    moved = tra.scan(X, (1, 2)).repartition((7, 1)).rekey(lambda i, j: (j, i))
    assert str(moved).splitlines()[2:5] == [
        "r1<7, 1>[1, 5] DOUBLE",
        "  repartition  r0",
        "r2<1, 7>[1, 5] DOUBLE",
    ]
    turned = tra.scan(X, (3, 1)).rekey(lambda i, j: (j, i))
    assert "r1<1, 3>[3|2|2@1, 5] DOUBLE" in str(turned)


def test_importing_einsql_does_not_pay_for_plans() -> None:
    script = """
import sys, einsql
assert "einsql.tra" not in sys.modules and "einsql.ir.tra.plan" not in sys.modules
assert einsql.tra.scan([1.0, 2.0], (2,)).aggregate(()).blocks()[()].tolist() == [3.0]
assert not hasattr(einsql, "tensor_relational")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
