"""Products of two operands in every pattern of labels: each batch, M, N, K or summed alone."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import einsql
from einsql.core.schema import DType, Field, Key, Schema
from einsql.ir.einsum.graph import TRUE, Axis, Call, EinSum, Input, Operand, Output, Value
from einsql.kernels.matmul.contraction import CONTRACTION
from einsql.kernels.matmul.layout import Labels, lay_out
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.matmul.pieces import cut
from tests.kernels.nodes import no_tick
from tests.support.samples import combinations

EXTENTS = {"i": 2, "j": 3, "k": 4, "l": 5}
SINGLE = {"i": 1, "j": 3, "k": 1, "l": 5}
ROLES = [(sides, kept) for sides in ("a", "b", "ab") for kept in (True, False)]


def _operand(name: str, labels: tuple[str, ...], extents: dict[str, int]) -> Operand:
    keys = tuple(Key(x, 0, extents[x]) for x in labels)
    return Operand(Input(name, Schema(keys, (Field("v", DType.DOUBLE),))), labels)


@pytest.mark.parametrize(("extents", "count"), combinations([EXTENTS, SINGLE], [1, 2, 3, 4]))
def test_every_pattern_gives_what_einsum_gives(count: int, extents: dict[str, int]) -> None:
    chance = np.random.default_rng(count)
    labels = "ijkl"[:count]
    args = tuple(Value(n, "v", DType.DOUBLE) for n in (0, 1))
    output = Output("s", (Call("mul", args, DType.DOUBLE),), DType.DOUBLE, "sum")
    axes = tuple(Axis(x, 0, extents[x]) for x in labels)
    for roles in product(ROLES, repeat=count):
        in_a = [x for x, (sides, _) in zip(labels, roles, strict=True) if "a" in sides]
        in_b = [x for x, (sides, _) in zip(labels, roles, strict=True) if "b" in sides]
        kept = [x for x, (_, keep) in zip(labels, roles, strict=True) if keep]
        orders = list(permutations(kept))
        keys = orders[chance.integers(len(orders))]
        a, b = (
            chance.integers(-4, 5, [extents[x] for x in order]).astype(float)
            for order in (in_a, in_b)
        )
        operands = (_operand("a", tuple(in_a), extents), _operand("b", tuple(in_b), extents))
        runner = CONTRACTION.match(EinSum(axes, operands, TRUE, keys, (output,)))
        assert runner is not None
        spec = f"{''.join(in_a)},{''.join(in_b)}->{''.join(keys)}"
        got = runner(({"v": a}, {"v": b}), no_tick)["s"]
        wanted = np.einsum(spec, a, b)
        assert got.shape == wanted.shape, spec
        np.testing.assert_array_equal(got, wanted, err_msg=spec)


def test_a_sum_over_a_label_with_one_value_is_a_new_array() -> None:
    value = Value(0, "v", DType.DOUBLE)
    node = EinSum(
        (Axis("i", 0, 1), Axis("j", 0, 3)), (_operand("a", ("i", "j"), SINGLE),), TRUE, ("j",),
        (Output("s", (value,), DType.DOUBLE, "sum"),),
    )  # fmt: skip
    a = np.array([[-0.0, 1.0, 2.0]])
    runner = CONTRACTION.match(node)
    assert runner is not None
    found = runner(({"v": a},), no_tick)["s"]
    assert not np.shares_memory(found, a)
    assert not np.signbit(found[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_that_is_not_aligned_is_copied_for_itself_alone(dtype: type[np.floating]) -> None:
    whole = np.random.default_rng(0).integers(-9, 10, (900, 900))  # sums are exact in FLOAT
    aligned: np.ndarray = whole.astype(dtype)
    odd: np.ndarray = (
        np.frombuffer(b"\0" + aligned.tobytes(), np.uint8)[1:].view(dtype).reshape(900, 900)
    )
    assert not odd.flags.aligned
    wanted = whole @ whole
    for a, b in ((odd, aligned), (aligned, aligned), (aligned, odd), (odd, odd)):
        found = einsql.einsum("ij,jk->ik", a, b)
        np.testing.assert_array_equal(found, wanted)


PARTS = {"batch": ("ab", True), "m": ("a", True), "n": ("b", True), "k": ("ab", False)}


@pytest.mark.parametrize(("own", "work"), [("int8", "float32"), ("int32", "float64"),
                                           ("float32", "float64"), (">f8", "float64")])  # fmt: skip
def test_operands_of_another_type_are_converted_before_they_are_multiplied(
    own: str, work: str
) -> None:
    """Products of the operands' own type would wrap or be rounded, also of single elements."""
    factor = {"int8": 100, "int32": 100_000}.get(own, 1.1)
    for roles in product(PARTS.values(), repeat=2):
        for extents in product((1, 3), repeat=2):
            size = dict(zip("ij", extents, strict=True))
            of = [tuple(x for x, (sides, _) in zip("ij", roles, strict=True) if side in sides)
                  for side in "ab"]  # fmt: skip
            keys = tuple(x for x, (_, kept) in zip("ij", roles, strict=True) if kept)
            a, b = (np.full([size[x] for x in labels], factor).astype(own) for labels in of)
            multiply = Multiplied(Labels(of[0], of[1], keys, size), np.dtype(work))
            spec = f"{''.join(of[0])},{''.join(of[1])}->{''.join(keys)}"
            expected = np.einsum(spec, a.astype(work), b.astype(work))
            np.testing.assert_allclose(multiply(a, b, no_tick), expected, rtol=1e-15, err_msg=spec)


@pytest.mark.parametrize("terms", [1, 4])
def test_casts_are_exact_in_sums_of_one_term(terms: int) -> None:
    con = einsql.connect()
    for name in "xy":
        con.register(name, np.full((3, terms), 100_000, np.int32), dims=("b", "k"))
    sql = "SELECT b, SUM(x.val::DOUBLE * y.val) AS s FROM x JOIN y USING (b, k)"
    assert con.execute(f"{sql} WHERE k < 1 GROUP BY b").fetch_numpy().tolist() == [1e10] * 3
    assert con.execute(f"{sql} GROUP BY b").fetch_numpy().tolist() == [terms * 1e10] * 3


def test_rows_are_cut_first_and_copies_are_few() -> None:
    assert cut((700, 800), 0, 2, [(0, 700), (1, 800)]) == (2, 1)
    assert cut((100, 800), 0, 2, [(0, 100), (1, 800)]) == (1, 2)
    assert cut((40, 100), 0, 2, [(0, 40), (1, 100)]) == (1, 2)  # 20 rows are too few
    labels = Labels(
        ("a", "b", "c", "d"), ("d", "b", "e"), ("a", "c", "e"), dict.fromkeys("abcde", 9)
    )
    left, right = {"a": 729, "b": 81, "c": 9, "d": 1}, {"d": 81, "b": 9, "e": 1}
    layout = lay_out(labels, left, right)
    assert layout.k == ("d", "b")
    assert layout.left.copied
    assert not layout.right.copied


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_rows_by_columns_that_are_contiguous(dtype: str) -> None:
    """Queries of a few heads and the keys of all positions, cut out of a longer cache."""
    cache: npt.NDArray[Any] = np.arange(2 * 700 * 64).reshape(2, 700, 64).astype(dtype) % 7
    queries: npt.NDArray[Any] = np.arange(2 * 3 * 64).reshape(2, 3, 64).astype(dtype) % 5
    keys = cache[:, :600]
    scores = Multiplied(
        Labels(tuple("grd"), tuple("gtd"), tuple("grt"), {"g": 2, "r": 3, "t": 600, "d": 64}),
        np.dtype(dtype),
    )
    expected = np.einsum("grd,gtd->grt", queries, keys)
    for _ in range(2):
        found = scores(queries, keys, lambda _: None)
        assert found.dtype == dtype
        assert np.array_equal(found, expected)
    other = Multiplied(
        Labels(tuple("grd"), tuple("gtd"), tuple("tgr"), {"g": 2, "r": 3, "t": 600, "d": 64}),
        np.dtype(dtype),
    )
    assert np.array_equal(other(queries, keys, lambda _: None), expected.transpose(2, 0, 1))
