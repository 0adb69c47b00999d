"""The thesis: attention of a transformer split as Megatron does, beside PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

KEYS = {
    "x": ("b", "s", "e"), "wq": ("e", "h", "d"), "wk": ("e", "h", "d"), "wv": ("e", "h", "d"),
    "wo": ("h", "d", "e"),
}  # fmt: skip
ATTENTION = """
WITH q AS (SELECT b, h, s, d, SUM(x.val * wq.val) AS val FROM x JOIN wq USING (e) GROUP BY b, h, s, d),
k AS (SELECT b, h, s AS t, d, SUM(x.val * wk.val) AS val FROM x JOIN wk USING (e) GROUP BY b, h, s, d),
v AS (SELECT b, h, s AS t, d, SUM(x.val * wv.val) AS val FROM x JOIN wv USING (e) GROUP BY b, h, s, d),
score AS (SELECT b, h, s, t, SUM(q.val * k.val) / 8 AS val FROM q JOIN k USING (b, h, d)
          GROUP BY b, h, s, t),
o AS (SELECT p.b, p.h, p.s, v.d, SUM(p.val * v.val) AS val
      FROM softmax(score, t) AS p JOIN v USING (b, h, t) GROUP BY p.b, p.h, p.s, v.d)
SELECT b, s, e, SUM(o.val * wo.val) AS val FROM o JOIN wo USING (h, d) GROUP BY b, s, e
"""  # noqa: E501 - a line of SQL for each step


def cases(full: bool) -> list[Case]:
    """The thesis has a batch of 8; within the hour it is 2."""
    sizes = {"b": 8 if full else 2, "s": 512, "e": 1024, "h": 16, "d": 64}
    what = f"B={sizes['b']}, S=512, E=1024, H=16"
    return [
        Case(f"{what}, {f'{ranks} ranks' if ranks else 'one process'}", sizes, ranks, ranks < 3,
             ("einsql", "einsql, megatron", "PyTorch, Megatron by hand",
              *["PyTorch, batch by hand"] * (sizes["b"] % ranks == 0)) if ranks else
             ("einsql", "PyTorch", "JAX"))
        for ranks in (0, 2, 4)
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """The sequence and the weights of all heads."""
    of, chance = case.sizes, np.random.default_rng(0)
    arrays = {
        name: chance.standard_normal([of[k] for k in axes], dtype=np.float32)
        for name, axes in KEYS.items()
    }
    return {name: a if name == "x" else a / np.float32(32) for name, a in arrays.items()}


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's."""
    x, wq, wk, wv, wo = (given[name].astype(np.float64) for name in KEYS)
    q, k, v = (np.einsum("bse,ehd->bhsd", x, w, optimize=True) for w in (wq, wk, wv))
    score = q @ k.transpose(0, 1, 3, 2) / 8
    p = np.exp(score - score.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    found: Array = np.einsum("bhsd,hde->bse", p @ v, wo, optimize=True)
    return found


def by_einsql(strategy: str = "") -> Callable[[Task], Prepared]:
    """einsql, with its own choice of the cut or with a strategy."""

    def prepare(task: Task) -> Prepared:
        from benchmarks.evaluation.on_ranks import connected, sent_bytes

        con = connected(task, KEYS, **({"strategy": strategy} if strategy else {}))
        ranks = task.case.ranks
        return Prepared(
            lambda: con.execute(ATTENTION) if ranks else con.execute(ATTENTION).fetch_numpy(),
            lambda result: result.fetch_numpy() if ranks else result,
            details=lambda: {"sent_bytes": sent_bytes(con, ATTENTION)} if ranks else {},
        )

    return prepare


def by_torch(task: Task) -> Prepared:
    """PyTorch's fused attention; with ranks some heads at each, and one all-reduce at the end."""
    import torch.distributed as dist

    heads = task.size["h"]
    part = slice(heads * task.world.rank // task.ranks, heads * (task.world.rank + 1) // task.ranks)
    own = of_heads(task, part, slice(None))

    def run() -> Any:
        result = own()
        if task.case.ranks > 1:
            dist.all_reduce(result)
        return result

    return Prepared(run, lambda result: result.numpy())


def by_batch(task: Task) -> Prepared:
    """PyTorch's fused attention of a part of the batch at each rank."""
    import torch
    import torch.distributed as dist

    own = task.size["b"] // task.ranks
    run = of_heads(task, slice(None), slice(own * task.world.rank, own * (task.world.rank + 1)))

    def answer(result: Any) -> Array:
        parts = [torch.empty_like(result) for _ in range(task.ranks)]
        dist.all_gather(parts, result)
        whole: Array = torch.cat(parts).numpy()
        return whole

    return Prepared(run, answer)


def of_heads(task: Task, part: slice, batch: slice) -> Callable[[], Any]:
    """The attention of some heads to a part of the batch."""
    import torch

    of = task.size
    x = torch.from_numpy(task.load("x", batch))
    qkv = [torch.from_numpy(task.load(w, slice(None), part)).flatten(1) for w in ("wq", "wk", "wv")]
    packed = torch.cat(qkv, 1)
    wo = torch.from_numpy(task.load("wo", part)).flatten(0, 1)
    shape = (len(x), of["s"], 3, -1, of["d"])

    def run() -> Any:
        with torch.inference_mode():
            q, k, v = (x @ packed).view(shape).permute(2, 0, 3, 1, 4)
            heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return heads.transpose(1, 2).flatten(2) @ wo

    return run


def by_jax(task: Task) -> Prepared:
    """JAX, compiled."""
    import jax
    import jax.numpy as jnp

    arrays = [jnp.asarray(task.load(name)) for name in KEYS]

    def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q, k, v = (jnp.einsum("bse,ehd->bshd", x, w) for w in (wq, wk, wv))
        return jnp.einsum("bshd,hde->bse", jax.nn.dot_product_attention(q, k, v), wo)

    compiled = jax.jit(attention)
    return Prepared(lambda: compiled(*arrays).block_until_ready(), np.asarray)


EXPERIMENT = Experiment(
    title="Thesis: attention split by heads",
    source="the thesis, Megatron attention",
    about="Projections, attention and the output's projection in FLOAT. The scores are divided by "
    "the square root of the head's width. `PyTorch, Megatron by hand` has a part of the heads at "
    "each process and one all-reduce at the end, and `einsql, megatron` the same cut. `PyTorch, "
    "batch by hand` has a part of the batch and all weights at each process, where the batch "
    "divides among them. `einsql` has its own choice. einsql's inputs keep the placements of the "
    "previous run, so their movement is not counted. PyTorch runs in eager mode.",
    sql={"The statement": ATTENTION},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql()),
        Contestant("einsql, megatron", prepare=by_einsql("megatron")),
        Contestant("PyTorch", "torch", by_torch),
        Contestant("PyTorch, Megatron by hand", "torch", by_torch, launch="torchrun"),
        Contestant("PyTorch, batch by hand", "torch", by_batch, launch="torchrun"),
        Contestant("JAX", "jax", by_jax),
    ),
    inputs=inputs,
    reference=reference,
)
