"""The programs of the thesis on partitioning by work, and others, as NumPy runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.engine.executor import Program
from tests.support.plans import cached

Array = Any


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(fn: Callable[..., Any], *arrays: Any, **options: Any) -> einsql.Traced:
    """Traces a function, runs it, and compares with itself on NumPy."""
    traced = einsql.trace(fn, *arrays, **options)
    np.testing.assert_allclose(traced(*arrays), fn(*arrays), rtol=2e-5, atol=2e-5)
    return traced


def kernels(traced: einsql.Traced) -> list[str]:
    plan = str(traced.explain())
    steps = plan.partition("-- steps\n")[2].splitlines()
    return [line.split()[1] for line in steps if not line.startswith(" ")]  # without reasons


def matmul(x: Array, w: Array) -> Array:
    return x @ w


def softmax(x: Array) -> Array:
    rowmax = np.maximum.reduce(x, axis=-1, keepdims=True)
    exp_arr = np.exp(x - rowmax)
    rowsum = np.add.reduce(exp_arr, axis=-1, keepdims=True)
    return exp_arr / rowsum


def attention(q: Array, k: Array, v: Array) -> Array:
    scores = softmax(np.einsum("bhik,bhjk->bhij", q, k) / np.float32(8))
    return np.einsum("bhij,bhjk->bhik", scores, v)


def megatron(x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array) -> Array:
    q, k, v = (np.einsum("bik,khj->bhij", x, w) for w in (w_q, w_k, w_v))
    values = np.einsum("bhse->bshe", attention(q, k, v))
    return np.einsum("bik,kj->bij", values.reshape(x.shape), w_o.reshape(-1, w_o.shape[-1]))


def fused(x: Array, w_qkv: Array, w_o: Array, heads: int) -> Array:
    """Attention whose head axis is implicit: one projection, split afterwards."""
    b, s, e = x.shape

    def split(y: Array) -> Array:
        return y.reshape(b, s, heads, e // heads).transpose(0, 2, 1, 3)

    q, k, v = map(split, np.split(x @ w_qkv, 3, axis=-1))
    return attention(q, k, v).transpose(0, 2, 1, 3).reshape(b, s, e) @ w_o


def layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * gain + bias


def training_step(weights: dict[str, Array], x: Array, y: Array) -> tuple[dict[str, Array], Array]:
    """Forward, backward and SGD of a network of two layers."""
    h = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    away = h @ weights["w2"] - y
    loss = np.mean(away**2)
    g = away * (2 / away.size)
    dh = np.where(h > 0, g @ weights["w2"].T, 0)
    new = {
        "w1": weights["w1"] - 0.1 * (x.T @ dh),
        "b1": weights["b1"] - 0.1 * dh.sum(axis=0),
        "w2": weights["w2"] - 0.1 * (h.T @ g),
    }
    return new, loss


def test_a_product() -> None:
    traced = same(matmul, normal(40, 50), normal(50, 60, seed=1))
    assert traced.sql == (
        "SELECT i, j, SUM(x.val * w.val) AS val\nFROM x\nJOIN w USING (k)\nGROUP BY i, j"
    )
    assert traced.dims == {"x": ("i", "k"), "w": ("k", "j")}
    assert "blas" in kernels(traced)


def test_a_sparse_matrix_times_a_vector() -> None:
    a = sparse.random_array((300, 200), density=0.05, rng=np.random.default_rng(0), format="csr")
    x = normal(200, dtype=np.float64)
    traced = einsql.trace(matmul, a, x)
    np.testing.assert_allclose(traced(a, x), a @ x)
    assert "sparse" in kernels(same_large_sparse())


def same_large_sparse() -> einsql.Traced:
    a = sparse.random_array((3000, 2000), density=0.01, rng=np.random.default_rng(0), format="csr")
    x = normal(2000, dtype=np.float64)
    traced = einsql.trace(matmul, a, x)
    np.testing.assert_allclose(traced(a, x), a @ x)
    return traced


def test_softmax_runs_as_one() -> None:
    traced = same(softmax, normal(4, 8, 128, 128))
    assert kernels(traced) == ["group"]
    assert "rowmax AS (" in traced.sql
    assert "exp_arr AS (" in traced.sql


def test_attention_split_by_heads() -> None:
    b, s, e, h = 2, 32, 64, 4
    weights = [normal(e, h, e // h, seed=n) / 8 for n in range(1, 4)]
    x, w_o = normal(b, s, e), normal(h, e // h, e, seed=9)
    dims = {"x": "b s e", "w_q": "e h d", "w_k": "e h d", "w_v": "e h d", "w_o": "h d f"}
    traced = same(megatron, x, *weights, w_o, dims=dims)
    plan = traced.explain(sites=2)
    assert "h" in str(plan)


def test_naive_attention_streams() -> None:
    q, k, v = (normal(2, 4, 256, 32, seed=n) for n in range(3))
    traced = same(attention, q, k, v)
    assert kernels(traced)[0] == "group"
    (statement,) = traced.statements
    program = cached(traced.connection, statement)
    assert isinstance(program.program, Program)
    assert "parts of" in str(traced.explain()) or "blocks of" in str(traced.explain())


def test_fused_projections_with_an_implicit_head_axis() -> None:
    x, w_qkv, w_o = normal(2, 256, 64), normal(64, 192, seed=1) / 8, normal(64, 64, seed=2)
    traced = same(fused, x, w_qkv, w_o, 4)
    assert set(kernels(traced)) == {"blas", "group", "view"}


def test_layer_norm_runs_as_one() -> None:
    traced = same(layer_norm, normal(2048, 256), normal(256, seed=1), normal(256, seed=2))
    assert kernels(traced) == ["group"]


def test_a_training_step_gives_every_result() -> None:
    weights = {"w1": normal(20, 30), "b1": normal(30, seed=1), "w2": normal(30, 5, seed=2)}
    x, y = normal(16, 20, seed=3), normal(16, 5, seed=4)
    traced = einsql.trace(training_step, weights, x, y)
    assert list(traced.tensors) == ["w1", "b1", "w2", "x", "y"]
    new, loss = traced(weights, x, y)
    expected, expected_loss = training_step(weights, x, y)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-4, atol=1e-6)


def test_the_sql_runs_in_a_session_of_the_users() -> None:
    con = einsql.connect()
    x, w = normal(4, 5), normal(5, 6, seed=1)
    traced = einsql.trace(matmul, x, w, dims={"x": "row inner"})
    traced.register(con)
    assert con.execute("DESCRIBE x").fetchall()[0][0] == "row"
    np.testing.assert_allclose(con.execute(traced.sql).fetch_numpy(), x @ w, rtol=1e-5)


def test_other_sites_give_the_same() -> None:
    con = einsql.connect(config={"sites": 3})
    q, k, v = (normal(2, 4, 12, 8, seed=n) for n in range(3))
    same(attention, q, k, v, connection=con)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_follow_numpy(dtype: Any) -> None:
    x = normal(3, 4, dtype=dtype)
    for fn in (
        lambda x: x / np.sqrt(64),
        lambda x: x * 2.5,
        lambda x: x + np.arange(4),
        lambda x: (x > 0).sum(0),
        lambda x: np.where(x > 0, 1, 0) / 2,
        lambda x: x.astype(np.int32) // 2,
    ):
        found, expected = einsql.trace(fn, x)(x), fn(x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_several_results_are_one_program() -> None:
    """The product that both results read is computed once."""

    def program(x: Array, w: Array) -> tuple[Array, Array, Array]:
        y = x @ w
        return y, y.sum(axis=0), np.tanh(y)

    x, w = normal(30, 40), normal(40, 20, seed=1)
    traced = einsql.trace(program, x, w)
    for found, expected in zip(traced(x, w), program(x, w), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    together: Any = traced.connection.context.plans.get(("together", tuple(traced.statements)))
    first: Any = together.plans[0].program
    assert [s.points for s in first.steps].count(30 * 40 * 20) == 1
    planned = traced.connection.planner_calls
    traced(x, w)
    assert traced.connection.planner_calls == planned
    traced.connection.execute("SET sites = 2")
    np.testing.assert_allclose(traced(x, w)[1], program(x, w)[1], rtol=1e-4, atol=1e-4)


def test_derivatives_are_those_written_by_hand() -> None:
    def loss(weights: dict[str, Array], x: Array, y: Array) -> Array:
        h = np.maximum(x @ weights["w1"] + weights["b1"], 0)
        return np.mean((h @ weights["w2"] - y) ** 2)

    weights = {"w1": normal(20, 30), "b1": normal(30, seed=1), "w2": normal(30, 5, seed=2)}
    x, y = normal(16, 20, seed=3), normal(16, 5, seed=4)
    traced = einsql.trace(loss, weights, x, y)
    found, by = traced.gradient("w1", "b1", "w2")(weights, x, y)
    new, expected = training_step(weights, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, value in new.items():
        np.testing.assert_allclose(weights[name] - 0.1 * by[name], value, rtol=1e-4, atol=1e-6)
    with pytest.raises(einsql.InterfaceError, match="w3"):
        traced.gradient("w3")
    with pytest.raises(einsql.ProgrammingError):
        einsql.trace(matmul, x, weights["w1"]).gradient("w")


def test_programs_in_one_session_keep_their_own_arrays() -> None:
    con = einsql.connect()
    programs = []
    for seed in range(2):
        weights = normal(4, 3, seed=seed)
        programs.append(
            (weights, einsql.trace(lambda x, w=weights: x @ w, normal(2, 4), connection=con))
        )
    for weights, traced in programs:
        np.testing.assert_allclose(traced(normal(2, 4)), normal(2, 4) @ weights, rtol=1e-5)


def test_axes_may_be_called_as_tensors_are() -> None:
    x, w = normal(3, 4), normal(4, 4, seed=1)
    same(lambda x, w: (x @ w) * x.sum(), x, w, dims={"x": "w x", "w": "x w"})


def test_containers_of_numbers_are_part_of_the_program() -> None:
    def framed(x: Array, size: Any, options: Any) -> Array:
        return x.reshape(size) * options["by"][0] + options["and"]

    x, options = normal(6), {"by": [2, (3, "a")], "and": float("nan")}
    traced = einsql.trace(framed, x, (2, 3), options)
    again = {"and": float("nan"), "by": [2, (3, "a")]}
    assert traced(x, (2, 3), again).shape == (2, 3)
    for other in ((x, (3, 2), options), (x, (2, 3), {**options, "by": [2, (3, "b")]})):
        with pytest.raises(einsql.InterfaceError, match="with other arguments"):
            traced(*other)


def test_arrays_in_a_dict_are_found_by_their_keys() -> None:
    def affine(p: dict[str, Array]) -> Array:
        return p["w"] - 2 * p["b"]

    w, b = normal(3), normal(3, seed=1)
    traced = einsql.trace(affine, {"w": w, "b": b})
    np.testing.assert_array_equal(traced({"b": b, "w": w}), w - 2 * b)
    for other in ({"w": w}, {"w": w, "c": b}, {"w": w, "b": [b]}, [w, b]):
        with pytest.raises(einsql.InterfaceError, match="with other arguments"):
            traced(other)
