"""E2 and T3: a training step of a feed-forward network, beside PyTorch and its DDP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

RATE = 1.0
STEP = """
WITH a AS (SELECT n, h, relu(SUM(x.val * w1.val)) AS val FROM x JOIN w1 USING (d) GROUP BY n, h),
z AS (SELECT n, l, SUM(a.val * w2.val) AS val FROM a JOIN w2 USING (h) GROUP BY n, l),
loss AS (SELECT AVG(-s.val) AS val FROM log_softmax(z, l) AS s JOIN y ON y.n = s.n AND y.val = s.l),
s1 AS (UPDATE w1 SET val = w1.val - 1.0 * g.val
       FROM GRADIENT(loss, w1) AS g WHERE g.d = w1.d AND g.h = w1.h),
s2 AS (UPDATE w2 SET val = w2.val - 1.0 * g.val
       FROM GRADIENT(loss, w2) AS g WHERE g.h = w2.h AND g.l = w2.l)
SELECT val FROM loss
"""
SHAPES = {
    "speech": {"n": 1024, "d": 1600, "h": 2048, "l": 10},
    "AmazonCat / 32": {"n": 128, "d": 18673, "h": 256, "l": 456},
    "AmazonCat / 32, batch 512": {"n": 512, "d": 18673, "h": 256, "l": 456},
}
FULL = {"AmazonCat / 8": {"n": 128, "d": 74693, "h": 1024, "l": 1824}}
"""Points, features, hidden units and labels; AmazonCat-14K has 597,540 × 8,192 × 14,588."""
KEYS = {"x": ("n", "d"), "w1": ("d", "h"), "w2": ("h", "l"), "y": ("n",)}


def cases(full: bool) -> list[Case]:
    """One process on all cores, and ranks."""
    return [
        Case(f"{name}, {f'{ranks} ranks' if ranks else 'one process'}", sizes, ranks, ranks < 3,
             ("einsql", "PyTorch") if not ranks else
             ("einsql", "einsql, data parallel", "einsql, model parallel", "PyTorch DDP"))
        for name, sizes in {**SHAPES, **(FULL if full else {})}.items()
        for ranks in (0, 2, 4)
    ]  # fmt: skip


def inputs(case: Case) -> dict[str, Array]:
    """Points, labels and weights."""
    of, chance = case.sizes, np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        drawn: Array = chance.standard_normal(shape, dtype=np.float32)
        return drawn

    scale = [np.float32(2 / of[k] ** 0.5) for k in "dh"]
    return {
        "x": normal(of["n"], of["d"]),
        "w1": normal(of["d"], of["h"]) * scale[0],
        "w2": normal(of["h"], of["l"]) * scale[1],
        "y": np.arange(of["n"]) % of["l"],
    }


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """The changes of both weights, by NumPy."""
    x, w1, w2 = (given[k].astype(np.float64) for k in ("x", "w1", "w2"))
    rows = np.arange(len(x))
    pre = x @ w1
    a = np.maximum(pre, 0)
    z = a @ w2
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[rows, given["y"]] -= 1
    p /= len(x)
    second = a.T @ p
    first = x.T @ ((p @ w2.T) * (pre > 0))
    return np.concatenate([first.reshape(-1), second.reshape(-1)]) * -RATE


def changes(task: Task, first: Array, second: Array) -> Array:
    """How both weights differ from where they began."""
    return np.concatenate([(first - task.load("w1")).reshape(-1),
                           (second - task.load("w2")).reshape(-1)])  # fmt: skip


def by_einsql(strategy: str = "") -> Callable[[Task], Prepared]:
    """einsql, with its own choice of the cut or with a strategy."""

    def prepare(task: Task) -> Prepared:
        from benchmarks.evaluation.on_ranks import connected, sent_bytes

        con = connected(task, KEYS, **({"strategy": strategy} if strategy else {}))
        for w, keys in (("w1", "d, h"), ("w2", "h, l")):
            con.execute(f"CREATE TENSOR {w}_begin AS SELECT {keys}, val FROM {w}")

        def between() -> None:
            for w, (i, j) in (("w1", "dh"), ("w2", "hl")):
                con.execute(f"UPDATE {w} SET val = b.val FROM {w}_begin AS b "
                            f"WHERE b.{i} = {w}.{i} AND b.{j} = {w}.{j}")  # fmt: skip

        def answer(_: Any) -> Array:
            first = con.execute("SELECT d, h, val FROM w1").fetch_numpy()
            return changes(task, first, con.execute("SELECT h, l, val FROM w2").fetch_numpy())

        return Prepared(
            lambda: con.execute(STEP).fetchall(),
            answer,
            between,
            lambda: {"sent_bytes": sent_bytes(con, STEP)} if task.case.ranks else {},
        )

    return prepare


def by_torch(task: Task) -> Prepared:
    """PyTorch in eager mode; with ranks its DDP over gloo, and a part of the batch each."""
    import torch

    me, ranks, n = task.world.rank, task.ranks, task.size["n"]
    part = slice(n * me // ranks, n * (me + 1) // ranks)
    x, y = (torch.from_numpy(task.load(name, part)) for name in "xy")
    sizes = task.size
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(sizes["d"], sizes["h"], bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(sizes["h"], sizes["l"], bias=False),
    )
    layers = model[0], model[2]
    begin = [torch.from_numpy(np.ascontiguousarray(task.load(w).T)) for w in ("w1", "w2")]
    if task.case.ranks:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    descent = torch.optim.SGD(model.parameters(), lr=RATE)

    def between() -> None:
        with torch.no_grad():
            for layer, weights in zip(layers, begin, strict=True):
                layer.weight.copy_(weights)

    def run() -> float:
        descent.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        descent.step()
        return float(loss.item())

    def answer(_: Any) -> Array:
        return changes(task, *(layer.weight.detach().numpy().T for layer in layers))

    return Prepared(run, answer, between)


EXPERIMENT = Experiment(
    title="E2 and T3: a training step of a feed-forward network",
    source="EinDecomp §9, experiment 2; TRA, FFNN",
    about="Forward pass, cross entropy, backward pass and descent in one statement. The speech "
    "data has few labels, AmazonCat many features and labels; its shapes are divided by 32. "
    "PyTorch runs in eager mode, on ranks with DistributedDataParallel over gloo. Weights are set "
    "back before each step, outside of its time. einsql's inputs keep the placements of the "
    "previous run, so their movement is not counted.",
    sql={"The step": STEP},
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql()),
        Contestant("einsql, data parallel", prepare=by_einsql("data:n")),
        Contestant("einsql, model parallel", prepare=by_einsql("data:h")),
        Contestant("PyTorch", "torch", by_torch),
        Contestant("PyTorch DDP", "torch", by_torch, launch="torchrun"),
    ),
    inputs=inputs,
    reference=reference,
    reasons={
        "speech, one process": "Products of matrices take most of the step on both sides, by "
        "libraries of about the same speed. Four runs on one day had einsql at 92 to 103 ms "
        "and PyTorch at 87 to 114 ms, and each was the faster one in some of them.",
    },
    tolerance=1e-3,
)
