"""The examples of the sharding note: their collectives, and runs on virtual sites and on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

import einsql
from benchmarks.evaluation.experiment import Array, Cell, Experiment, Table

SHAPES = {
    "x": ("bsd", (4, 8, 16)), "w": ("de", (16, 64)), "u": ("de", (16, 64)), "v": ("ed", (64, 16)),
    "p": ("d", (64,)), "q": ("d", (64,)), "m": ("de", (16, 32)), "y": ("e", (32,)),
    "qs": ("sd", (32, 16)), "ks": ("td", (32, 16)), "vs": ("tc", (32, 16)),
}  # fmt: skip
SITES = 4


@dataclass(frozen=True)
class Example:
    """An example of the note.

    Attributes:
        name: What the note calls it.
        mesh: The axes of the mesh of sites.
        sql: The statement.
        expected: The answer by NumPy in double precision.
    """

    name: str
    mesh: str
    sql: str
    expected: Callable[[Mapping[str, Array]], Array]


def einsum(notation: str, *tensors: str) -> str:
    """EINSUM in the sharded notation."""
    return f"SELECT * FROM EINSUM('{notation}', {', '.join(tensors)}, sharded := true)"


def perceptron(x: str, hidden: str, z: str, gate: str = "") -> str:
    """A perceptron, with a gate in its hidden layer for SwiGLU."""
    e = hidden.split()[-1]
    up = f"SELECT b, s, e, val FROM EINSUM('{x}, d {e} -> {hidden}', x, {{}}, sharded := true)"
    act = "SELECT b, s, e, GREATEST(val, 0) AS val FROM h0"
    if gate:
        act = (
            "SELECT b, s, e, sigmoid(h0.val) * h0.val * g.val AS val FROM h0 JOIN g USING (b, s, e)"
        )
    gates = f"g AS ({up.format(gate)}), " if gate else ""
    return (
        f"WITH h0 AS ({up.format('w')}), {gates}h AS ({act}) SELECT b, s, d, val "
        f"FROM EINSUM('{hidden}, {e} d -> {z}', h, v, sharded := true)"
    )


def relu(given: Mapping[str, Array]) -> Array:
    """The perceptron by NumPy."""
    found: Array = np.maximum(given["x"] @ given["w"], 0) @ given["v"]
    return found


def swiglu(given: Mapping[str, Array]) -> Array:
    """The perceptron with a gate by NumPy."""
    hidden = given["x"] @ given["w"]
    found: Array = (hidden / (1 + np.exp(-hidden)) * (given["x"] @ given["u"])) @ given["v"]
    return found


def attention(given: Mapping[str, Array]) -> Array:
    """Attention of one head by NumPy."""
    scores = given["qs"] @ given["ks"].T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    found: Array = weights / weights.sum(1, keepdims=True) @ given["vs"]
    return found


def plain(notation: str, *tensors: str) -> Callable[[Mapping[str, Array]], Array]:
    """NumPy's einsum of single letters."""
    return lambda given: np.asarray(np.einsum(notation, *(given[t] for t in tensors)))


RING = f"""
WITH c AS (SELECT s, t, SUM(qs.val * ks.val) AS val FROM qs JOIN ks USING (d) GROUP BY s, t),
e AS (SELECT s, t, EXP(val - MAX(val) OVER (PARTITION BY s)) AS val FROM c),
z AS (SELECT s, SUM(val) AS val FROM e GROUP BY s)
SELECT /*+ RING(e.t={SITES}) */ e.s, vs.c, SUM(e.val / z.val * vs.val) AS val
FROM e JOIN z USING (s) JOIN vs USING (t) GROUP BY e.s, vs.c
"""
PARTIAL = """
WITH z AS (SELECT * FROM EINSUM('d_r e, d_r e -> e _r', m, m, sharded := true))
SELECT * FROM EINSUM('e _r -> e_r', z, sharded := true)
"""

EXAMPLES = (
    Example("Distributed data parallel", "r=4", einsum("b_r s d, d e -> b_r s e", "x", "w"),
            plain("bsd,de->bse", "x", "w")),
    Example("All-reduce", "r=4", einsum("d_r, d_r ->", "p", "q"), plain("d,d->", "p", "q")),
    Example("All-reduce of a product", "r=4", einsum("d e_r, e_r -> d", "m", "y"),
            plain("de,e->d", "m", "y")),
    Example("Reduce-scatter", "r=4", einsum("d e_r, e_r -> d_r", "m", "y"),
            plain("de,e->d", "m", "y")),
    Example("All-gather", "r=4", einsum("d_r -> d", "p"), lambda given: given["p"]),
    Example("Tensor-parallel", "tp=4", perceptron("b s d", "b s e_tp", "b s d"), relu),
    Example("Tensor-parallel SwiGLU", "tp=4", perceptron("b s d", "b s e_tp", "b s d", "u"),
            swiglu),
    Example("FSDP + TP activations", "fsdp=2, tp=2",
            einsum("b_fsdp s d, d_fsdp e_tp -> b_fsdp s e_tp", "x", "w"),
            plain("bsd,de->bse", "x", "w")),
    Example("(Replicate, Replicate)", "a=2, b=2", einsum("d e -> d e", "m"), plain("de->de", "m")),
    Example("(Shard(1), Replicate)", "a=2, b=2", einsum("d e -> d e_a", "m"), plain("de->de", "m")),
    Example("(Shard(0), Shard(1))", "a=2, b=2", einsum("d e -> d_a e_b", "m"),
            plain("de->de", "m")),
    Example("Partial, then Shard", "r=4", PARTIAL, plain("de,de->e", "m", "m")),
    Example("Sequence-parallel", "tp=4", perceptron("b s_tp d", "b s e_tp", "b s_tp d"), relu),
    Example("Ring attention", "r=4", RING, attention),
)  # fmt: skip


def computed(full: bool) -> list[Table]:
    """The notation and collectives of each example, and its answers."""
    chance = np.random.default_rng(0)
    arrays = {
        name: chance.standard_normal(shape, np.float32) for name, (_, shape) in SHAPES.items()
    }
    exact = {name: array.astype(np.float64) for name, array in arrays.items()}
    found: dict[str, list[Cell]] = {}
    for config in ({"sites": SITES}, {"mpi": SITES}):
        with einsql.connect(config=config) as con:
            for name, array in arrays.items():
                con.register(name, array, dims=tuple(SHAPES[name][0]))
            for example in EXAMPLES:
                con.execute(f"SET mesh = '{example.mesh}'")
                apart, told = run(con, example, example.expected(exact))
                found.setdefault(example.name, [example.name, *told]).append(apart)
    return [
        Table(
            "The sharding note's examples",
            ("", "derived", "collectives", "bytes sent", "on virtual sites", "on ranks"),
            list(found.values()), {"bytes sent": "B"},
            note=f"{SITES} sites. The last columns are the largest difference from NumPy, as a "
            "share of the answer's largest element. A subscript is the mesh axis that shards a "
            "label; a subscript alone is a sum that is kept in parts.",
        )
    ]  # fmt: skip


def run(con: einsql.Connection, example: Example, expected: Array) -> tuple[float, list[Cell]]:
    """The difference from NumPy, and what the plan and the run tell."""
    answer = con.execute(example.sql).fetch_numpy()
    plan = con.explain(example.sql, analyze=True).to_dict()
    lines = [line for node in plan["nodes"] for line in node.get("notation", ())]
    moves = [c["collective"] for line in lines for c in line["collectives"]]
    if not moves:
        moves = [n["collective"] for n in plan["nodes"] if n["bytes_sent"]]
    texts = list(dict.fromkeys(line["text"] for line in lines))
    complete = [text for text in texts if "(" not in text and not text.startswith("->")]
    changes = [text for text in complete if not is_same(text)] or complete[-1:]
    sent = sum(site["bytes_sent"] for site in plan["per_site"])
    apart = float(np.abs(np.squeeze(answer) - expected).max() / np.abs(expected).max())
    shown = "; ".join(f"`{text}`" for text in changes)
    counts = [f"{moves.count(m)} × {m}" for m in dict.fromkeys(moves)]
    return apart, [shown, ", ".join(counts) or "none", sent]


def is_same(text: str) -> bool:
    """Whether a line of the notation has one term, which stays where it is."""
    before, _, after = text.partition(" -> ")
    return before == after


EXPERIMENT = Experiment(
    title="The sharding note's examples",
    source="Einsum notation for sharding",
    about="Each example of the note is a statement: EINSUM with `sharded := true` takes the note's "
    "notation, and the collectives follow. `EXPLAIN` derives the notation of every operation from "
    "the plan's placements. Ring attention is plain SQL with a hint.",
    sql={"Ring attention": RING},
    computed=computed,
)
