"""Float sums keep the error that docs/reference/semantics.md promises, in every kernel that sums.

Each form is a node whose results are one sum times powers of two, so that an exact reference
needs one sum in extended precision. The data are those whose rounding errors add up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log2

import numpy as np
import pytest

import einsql
from einsql.core.schema import DType
from einsql.core.sparse.compressed import Compressed
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Operand,
    Output,
    Value,
)
from einsql.ir.einsum.partial_merge import Total
from einsql.kernels.kernel import Runner
from einsql.kernels.registry import KERNELS, compile_node
from einsql.kernels.sparse.multiply import multiply_rows, multiply_tiles
from einsql.kernels.sparse.stored import collapsed
from einsql.kernels.sparse.tiles import TILE
from tests.kernels.compiling import cache_directory
from tests.kernels.nodes import no_tick
from tests.kernels.patterns import tensor
from tests.support.samples import spread

__all__ = ["cache_directory"]  # its fixture serves every test here

F, D, I64 = DType.FLOAT, DType.DOUBLE, DType.BIGINT
MORE = int(os.environ.get("EINSQL_ACCURACY", "1"))
"""How many times as many terms as usual there are."""
MOST = 1024
"""Errors in units of eps · Σ |terms| that a sum may have, beside log₂ of the number of terms."""

Array = np.ndarray


def patterns(n: int, dtype: DType) -> dict[str, tuple[Array, Array]]:
    """Left and right factors of n terms whose rounding errors add up, by what they are."""
    k, one, tiny = np.arange(n), np.ones(n), 0.49 * float(np.finfo(dtype.numpy).eps)
    factors = {
        "constant": (np.full(n, 0.1), np.full(n, 0.1)),
        "cancelling": (np.where(k % 2, -1e4, 1e4 + 0.1), one),
        "growing": (2.0 ** (k * 40 / n), np.full(n, 0.1)),
        "tiny after huge": (np.where(k, tiny, 1), one),
    }
    return {
        name: (left.astype(dtype.numpy), right.astype(dtype.numpy))
        for name, (left, right) in factors.items()
    }


def worst(got: Array, scale: Array, left: Array, right: Array) -> float:
    """The largest error of sums, in units of what docs/reference/semantics.md allows."""
    terms = left.astype(np.longdouble) * right.astype(np.longdouble)
    exact, size = np.add.reduce(terms), np.add.reduce(np.abs(terms))
    errors = np.abs(got / scale.astype(np.longdouble) - exact)
    allowed = (MOST + log2(len(left))) * float(np.finfo(got.dtype).eps) * size
    return float(errors.max() / allowed)


@dataclass(frozen=True)
class Case:
    """A node whose one output is `s`, what its operands hold, and powers of two."""

    node: EinSum
    fields: tuple[Mapping[str, Array], ...]
    scale: Array


@dataclass(frozen=True)
class Form:
    """How n terms are summed.

    Attributes:
        keys: Labels of the result.
        operands: Labels of each operand, from the slowest in memory. The first holds the left
            factors along `k`, and along `c` where that is there; the second the right ones.
        terms: How many terms there are.
        extents: Values of each label but `k`.
        term: What is summed, of the operands' values; their product if it is None.
        kernels: Those that are tried; all if there is none.
    """

    keys: str
    operands: tuple[str, ...]
    terms: int
    extents: Mapping[str, int]
    term: Callable[[DType], Expr] | None = None
    kernels: frozenset[str] = frozenset()

    def __call__(self, left: Array, right: Array, dtype: DType) -> Case:
        """The node over some factors."""
        sizes = {**self.extents}
        sizes["k"] = len(left) // sizes.get("c", 1)
        scales = {x: 2.0 ** (np.arange(n) * 7 % 5 - 2) for x, n in sizes.items() if x not in "kc"}
        operands, fields, seen = [], [], set("kc")
        for number, labels in enumerate(self.operands):
            shape = [sizes[x] for x in labels]
            array = np.ones(shape)
            if number < 2 and "k" in labels:
                long = [sizes[x] if x in "kc" else 1 for x in labels]
                array = array * (left, right)[number].reshape(long)
            for n, x in enumerate(labels):
                if x not in seen:
                    array = array * scales[x].reshape(
                        [-1 if m == n else 1 for m in range(len(labels))]
                    )
            seen |= set(labels)
            source, held = tensor("abc"[number], array, dtype)
            operands.append(Operand(source, tuple(labels)))
            fields.append(held)
        values = [Value(n, "val", dtype) for n in range(len(operands))]
        term: Expr = values[0] if len(values) < 2 else Call("mul", (values[0], values[1]), dtype)
        scale = np.ones([sizes[x] for x in self.keys])
        for n, x in enumerate(self.keys):
            scale = scale * scales[x].reshape([-1 if m == n else 1 for m in range(len(self.keys))])
        axes = tuple(Axis(x, 0, n) for x, n in sizes.items())
        output = Output("s", (self.term(dtype) if self.term else term,), dtype, "sum")
        node = EinSum(axes, tuple(operands), TRUE, tuple(self.keys), (output,))
        return Case(node, tuple(fields), scale)


def _plus_nothing(dtype: DType) -> Expr:
    """A term that is neither a value nor a product."""
    before = Call("lt", (Label("k"), Const(-1, I64)), DType.BOOLEAN)
    return Call("if", (before, Const(0.0, dtype), Value(0, "val", dtype)), dtype)


def _limited(dtype: DType) -> Expr:
    """A term of both sides that is no product."""
    product = Call("mul", (Value(0, "val", dtype), Value(1, "val", dtype)), dtype)
    return Call("greatest", (product, Const(-1e30, dtype)), dtype)


def by_key(segments: int, features: int) -> Callable[[Array, Array, DType], Case]:
    """Rows added by a key found in data, here always 0."""

    def case(left: Array, right: Array, dtype: DType) -> Case:
        n = len(left)
        numbers, held = tensor("n", np.zeros(n), I64)
        rows, values = tensor("a", np.repeat(left[:, None], features, 1), dtype)
        axes = (
            Axis("k", 0, n),
            Axis("f", 0, features),
            Axis("s", 0, segments, Value(0, "val", I64)),
        )
        output = Output("s", (Value(1, "val", dtype),), dtype, "sum")
        operands = (Operand(numbers, ("k",)), Operand(rows, ("k", "f")))
        node = EinSum(axes, operands, TRUE, ("s", "f"), (output,))
        scale = np.full((segments, features), np.nan)
        scale[0] = 1
        return Case(node, (held, values), scale)

    return case


def windows(left: Array, right: Array, dtype: DType) -> Case:
    """Products of filters with windows of what holds the same value everywhere."""
    n, scale = len(left), 2.0 ** np.arange(4)
    line, held = tensor("x", np.full(n + 3, right[0]), dtype)
    filters, values = tensor("w", scale[:, None] * left, dtype)
    place = Call("add", (Label("p"), Label("k")), I64)
    axes = (Axis("o", 0, 4), Axis("p", 0, 4), Axis("k", 0, n), Axis("h", 0, n + 3, place))
    term = Call("mul", (Value(0, "val", dtype), Value(1, "val", dtype)), dtype)
    operands = (Operand(line, ("h",)), Operand(filters, ("o", "k")))
    node = EinSum(axes, operands, TRUE, ("o", "p"), (Output("s", (term,), dtype, "sum"),))
    return Case(node, (held, values), np.repeat(scale[:, None], 4, 1))


SHORT, LONG = 2**13, 2**19
"""Terms that show a sum that is one chain, and one of chains side by side."""
BLAS, PACKED, BOTH = frozenset({"blas"}), frozenset({"packed"}), (F, D)
FORMS: dict[str, tuple[Form, tuple[DType, ...]]] = {
    "dot": (Form("", ("k", "k"), LONG, {}), BOTH),
    "rows times vector": (Form("i", ("ik", "k"), LONG, {"i": 2}, None, BLAS), BOTH),
    "columns times vector": (Form("i", ("ki", "k"), SHORT, {"i": 600}, None, BLAS), BOTH),
    "small": (Form("ij", ("ik", "kj"), LONG, {"i": 3, "j": 2}, None, BLAS), BOTH),
    "short": (Form("ij", ("ik", "kj"), 4096, {"i": 8, "j": 8}, None, BLAS), BOTH),
    "wide": (Form("ij", ("ik", "kj"), SHORT, {"i": 40, "j": 40}, None, BLAS), BOTH),
    "outer": (Form("ij", ("ki", "kj"), SHORT, {"i": 4, "j": 4}), (D,)),
    "stack": (Form("sij", ("sik", "skj"), SHORT, {"s": 70, "i": 3, "j": 2}, None, BLAS), BOTH),
    "stack of vectors": (Form("s", ("sk", "sk"), 2**16, {"s": 7}, None, BLAS), BOTH),
    "vectors side by side": (Form("s", ("ks", "ks"), SHORT, {"s": 70}), BOTH),
    "all": (Form("", ("k",), LONG, {}), (D,)),
    "rows": (Form("i", ("ik",), LONG, {"i": 2}), (D,)),
    "columns": (Form("i", ("ki",), SHORT, {"i": 160}), (D,)),
    "few columns": (Form("i", ("ki",), SHORT, {"i": 3}), BOTH),
    "planes": (Form("ij", ("ikj",), SHORT, {"i": 3, "j": 50}), (D,)),
    "around": (Form("i", ("kic",), SHORT, {"i": 4, "c": 2}), (D,)),
    "expression": (Form("", ("k",), SHORT, {}, _plus_nothing), (D,)),
    "expression by columns": (Form("i", ("ki",), SHORT, {"i": 40}, _plus_nothing), (D,)),
    "two sides": (Form("ij", ("ik", "jk"), SHORT, {"i": 32, "j": 32}, _limited, PACKED), (F,)),
}
INDEXED: dict[str, tuple[Callable[[Array, Array, DType], Case], int, DType]] = {
    "few segments": (by_key(3, 1), SHORT, D),
    "many segments": (by_key(40_000, 2), SHORT, D),
    "windows": (windows, SHORT, F),
}
NO_SUMS = {"view", "sort"}
"""Kernels that only move elements, or compute each by itself."""


def runs(node: EinSum, kernels: frozenset[str]) -> Iterator[tuple[str, Runner]]:
    """Every way to run a node: what is chosen with and without compilation, and each kernel."""
    for jit in ("auto", "never"):
        compiled = compile_node(node, jit)
        name, chosen = compiled.kernel, compiled.run
        yield f"{jit}: {name}", chosen
    for kernel in KERNELS:
        if kernel.name not in NO_SUMS and (not kernels or kernel.name in kernels):
            runner = kernel.match(node)
            if runner is not None:
                yield kernel.name, runner


def errors(
    make: Callable[[Array, Array, DType], Case], terms: int, dtype: DType,
    kernels: frozenset[str] = frozenset(), single: bool = False,
) -> dict[str, float]:  # fmt: skip
    """The largest errors of a form by what runs it, in units of what is allowed."""
    found: dict[str, float] = {}
    for left, right in patterns(terms, dtype).values():
        factor = np.ones_like(left) if single else right
        case = make(left, factor, dtype)
        for name, runner in runs(case.node, kernels):
            got = runner(case.fields, no_tick)["s"]
            seen = ~np.isnan(case.scale)
            error = worst(got[seen], case.scale[seen], left, factor)
            found[name] = max(found.get(name, 0), error)
    return found


TYPES = pytest.mark.parametrize("dtype", [F, D], ids=str)


@pytest.mark.parametrize(
    ("name", "dtype"), spread([(n, t) for n, (_, of) in FORMS.items() for t in of], 12)
)
def test_sums_of_every_form(name: str, dtype: DType) -> None:
    form, _ = FORMS[name]
    found = errors(form, form.terms * MORE, dtype, form.kernels, len(form.operands) == 1)
    assert all(error <= 1 for error in found.values()), found
    assert form.kernels <= set(found)


@pytest.mark.parametrize("name", INDEXED)
def test_sums_over_computed_labels(name: str) -> None:
    make, terms, dtype = INDEXED[name]
    kernels = frozenset({"segments", "windows", "vector"})
    found = errors(make, terms * MORE, dtype, kernels, make is not windows)
    assert all(error <= 1 for error in found.values()), found
    assert "windows" in found or "segments" in found


def test_every_kernel_that_sums_has_a_form() -> None:
    kernels = {kernel.name for kernel in KERNELS} - NO_SUMS
    assert kernels == {
        "running", "sparse", "blas", "windows", "segments", "packed", "vector", "loops"
    }  # fmt: skip


@TYPES
def test_running_sums(dtype: DType) -> None:
    for left, _ in patterns(SHORT * MORE, dtype).values():
        n = len(left)
        source, fields = tensor("a", left, dtype)
        guard = Call("le", (Label("k"), Label("i")), DType.BOOLEAN)
        output = Output("s", (Value(0, "val", dtype),), dtype, "sum")
        space = (Axis("k", 0, n), Axis("i", 0, n))
        node = EinSum(space, (Operand(source, ("k",)),), guard, ("i",), (output,))
        compiled = compile_node(node)
        assert compiled.kernel == "running"
        sums = compiled.run([fields], no_tick)["s"]
        for i in {0, 255, 256, n // 3, n - 2, n - 1}:
            added = left[: i + 1]
            assert worst(sums[i : i + 1], np.ones(1), added, np.ones_like(added)) <= 1


@TYPES
def test_rows_and_columns_of_stored_elements(dtype: DType) -> None:
    for left, right in patterns(SHORT * MORE, dtype).values():
        n = len(left)
        columns, starts = np.arange(n), np.array([0, 0, n, n])
        matrix = Compressed((3, n), starts, columns, left)
        product = multiply_rows(matrix, np.repeat(right[:, None], 2, 1), no_tick)
        assert worst(product[1], np.ones(2), left, right) <= 1
        assert not product[0].any()
        assert not product[2].any()
        column = Compressed((n, 1), np.arange(n + 1), np.zeros(n, np.int64), left)
        assert worst(collapsed(column).values, np.ones(1), left, np.ones_like(left)) <= 1


@TYPES
def test_tiles_of_which_every_second_is_absent(dtype: DType) -> None:
    for left, right in patterns(2**16 * MORE, dtype).values():
        tiles = len(left) // TILE
        a, b = (np.zeros((2 * tiles, TILE), dtype.numpy) for _ in range(2))
        a[::2], b[::2] = left.reshape(tiles, TILE), right.reshape(tiles, TILE)
        some = (np.arange(2 * tiles) % 2 == 0)[None]
        rows, columns = np.repeat(a.reshape(1, -1), 4, 0), np.repeat(b.reshape(-1, 1), 4, 1)
        whole = multiply_tiles(rows, some, columns, some.T, no_tick)
        assert worst(whole, np.ones((4, 4)), left, right) <= 1


def test_partial_sums_that_are_merged() -> None:
    output = Output("s", (Value(0, "val", D),), D, "sum")
    source, _ = tensor("a", np.zeros(1), D)
    node = EinSum((Axis("k", 0, 1),), (Operand(source, ("k",)),), TRUE, (), (output,))
    for left, right in patterns(8192 * MORE, D).values():
        total = Total(node)
        for term in left * right:
            total.add({"s": np.asarray(term)})
        assert worst(total.result()["s"], np.ones(()), left * right, np.ones_like(left)) <= 1


def test_the_sum_of_squares_of_many_floats() -> None:
    con = einsql.connect()
    con.register("x", np.full(2**22 * MORE, 0.1, np.float32), dims=("i",))
    (found,) = con.execute("SELECT SUM(val * val) AS s FROM x").fetchall()[0]
    exact = 2**22 * MORE * float(np.float32(0.1)) ** 2
    assert abs(found - exact) <= 64 * np.finfo(np.float32).eps * exact
