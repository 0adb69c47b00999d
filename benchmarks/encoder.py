"""A sentence encoder of six layers in SQL, beside PyTorch and onnxruntime on as many threads.

`python -m benchmarks encoder` measures it; `python -m benchmarks.encoder [--only 1x6]
[--json PATH]` prints a line for each batch. The weights are random. The network is BERT's:
embeddings, then per layer attention, a sum with its input, a layer norm, two products with GELU
between, a sum, a layer norm; at the end the mean of the positions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import einsql
from benchmarks.matrices import Array, pytorch, random
from benchmarks.measure import QUIET, Run, Times, measure
from benchmarks.report import Finding, Section, factor, times
from einsql.kernels.runtime import thread_pool

LAYERS, WIDTH, HEADS, DEPTH, HIDDEN, WORDS, LENGTH = 6, 384, 12, 32, 1536, 30_522, 512
EPSILON = 1e-5
BATCHES = ((1, 6), (1, 32), (1, 128), (8, 32), (32, 32), (32, 128))
"""Sentences × tokens."""
WITHIN = 1.2
"""einsql's time is at most so many times the faster peer's."""
ROUNDS, SECONDS = 9, 3.0
TOLERANCE = 1e-4
"""Largest difference, as a share of the largest element."""

SHAPES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    **{f"{w}{x}": s for x in "qkv" for w, s in (
        ("w", (("h", "d", "i"), (HEADS, DEPTH, WIDTH))), ("b", (("h", "d"), (HEADS, DEPTH))))},
    "wo": (("o", "h", "d"), (WIDTH, HEADS, DEPTH)),
    "w1": (("f", "i"), (HIDDEN, WIDTH)),
    "b1": (("f",), (HIDDEN,)),
    "w2": (("o", "f"), (WIDTH, HIDDEN)),
    **dict.fromkeys(("bo", "b2", "g1", "c1", "g2", "c2"), (("i",), (WIDTH,))),
}  # fmt: skip
"""Keys and extents of a layer's weights; g and c are the gains and the constants of its norms."""

EMBEDDED = """
e AS (SELECT k.b, k.t, w.i, w.val + p.val AS val
  FROM tokens AS k JOIN word AS w ON w.v = k.val
  JOIN position AS p ON p.t = k.t AND p.i = w.i),
x0 AS (SELECT n.b, n.t, n.i, n.val * g.val + c.val AS val
  FROM layer_norm(e, i) AS n JOIN g USING (i) JOIN c USING (i))"""
LAYER = """,
q{n} AS (SELECT x.b, w.h, x.t, w.d, SUM(x.val * w.val) + MAX(c.val) AS val
  FROM x{n} AS x JOIN wq{n} AS w USING (i) JOIN bq{n} AS c USING (h, d)
  GROUP BY x.b, w.h, x.t, w.d),
k{n} AS (SELECT x.b, w.h, x.t AS u, w.d, SUM(x.val * w.val) + MAX(c.val) AS val
  FROM x{n} AS x JOIN wk{n} AS w USING (i) JOIN bk{n} AS c USING (h, d)
  GROUP BY x.b, w.h, x.t, w.d),
v{n} AS (SELECT x.b, w.h, x.t AS u, w.d, SUM(x.val * w.val) + MAX(c.val) AS val
  FROM x{n} AS x JOIN wv{n} AS w USING (i) JOIN bv{n} AS c USING (h, d)
  GROUP BY x.b, w.h, x.t, w.d),
s{n} AS (SELECT b, h, t, u, SUM(q.val * k.val) / SQRT({depth}::FLOAT) AS val
  FROM q{n} AS q JOIN k{n} AS k USING (b, h, d) GROUP BY b, h, t, u),
p{n} AS (SELECT * FROM softmax(s{n}, u)),
a{n} AS (SELECT b, h, t, d, SUM(p.val * v.val) AS val
  FROM p{n} AS p JOIN v{n} AS v USING (b, h, u) GROUP BY b, h, t, d),
o{n} AS (SELECT b, t, o AS i, SUM(a.val * w.val) AS val
  FROM a{n} AS a JOIN wo{n} AS w USING (h, d) GROUP BY b, t, o),
r{n} AS (SELECT b, t, i, o.val + c.val + x.val AS val
  FROM o{n} AS o JOIN x{n} AS x USING (b, t, i) JOIN bo{n} AS c USING (i)),
y{n} AS (SELECT m.b, m.t, i, m.val * g.val + c.val AS val
  FROM layer_norm(r{n}, i) AS m JOIN g1{n} AS g USING (i) JOIN c1{n} AS c USING (i)),
f{n} AS (SELECT b, t, f, SUM(y.val * w.val) AS val
  FROM y{n} AS y JOIN w1{n} AS w USING (i) GROUP BY b, t, f),
h{n} AS (SELECT b, t, f, gelu(z.val + c.val) AS val FROM f{n} AS z JOIN b1{n} AS c USING (f)),
z{n} AS (SELECT b, t, o AS i, SUM(h.val * w.val) AS val
  FROM h{n} AS h JOIN w2{n} AS w USING (f) GROUP BY b, t, o),
l{n} AS (SELECT b, t, i, z.val + c.val + y.val AS val
  FROM z{n} AS z JOIN y{n} AS y USING (b, t, i) JOIN b2{n} AS c USING (i)),
x{m} AS (SELECT m.b, m.t, i, m.val * g.val + c.val AS val
  FROM layer_norm(l{n}, i) AS m JOIN g2{n} AS g USING (i) JOIN c2{n} AS c USING (i))"""


def text(layers: int = LAYERS) -> str:
    """The encoder as one statement."""
    parts = [LAYER.format(n=n, m=n + 1, depth=DEPTH) for n in range(layers)]
    last = f"\nSELECT b, i, AVG(val) AS val FROM x{layers} GROUP BY b, i"
    return f"WITH {EMBEDDED.strip()}{''.join(parts)}{last}"


def weights(layers: int = LAYERS) -> dict[str, Array]:
    """Random weights by name; a layer's number follows the name."""
    found = {
        "word": random(WORDS, WIDTH),
        "position": random(LENGTH, WIDTH, seed=1),
        "g": 1 + random(WIDTH, seed=2) / 10,
        "c": random(WIDTH, seed=3) / 10,
    }
    for layer in range(layers):
        for number, (name, (_, shape)) in enumerate(SHAPES.items()):
            scale = (1 / np.sqrt(np.prod(shape[1:]))) if name[0] == "w" else 0.1
            if name in ("wq", "wk", "wv"):
                scale = 1 / np.sqrt(WIDTH)
            array = random(*shape, seed=100 * (layer + 1) + number) * np.float32(scale)
            found[f"{name}{layer}"] = array + np.float32(name[0] == "g")
    return found


def connected(of: dict[str, Array], tokens: Array, layers: int = LAYERS) -> einsql.Connection:
    """A connection that knows the weights and the tokens."""
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    con.register("tokens", tokens, dims=("b", "t"))
    con.register("word", of["word"], dims=("v", "i"))
    con.register("position", of["position"][: tokens.shape[1]], dims=("t", "i"))
    for name in "gc":
        con.register(name, of[name], dims=("i",))
    for layer in range(layers):
        for name, (keys, _) in SHAPES.items():
            con.register(f"{name}{layer}", of[f"{name}{layer}"], dims=keys)
    return con


def in_torch(torch: Any, of: dict[str, Array], layers: int = LAYERS) -> Callable[[Any], Any]:
    """The encoder as PyTorch's functions."""
    w = {name: torch.from_numpy(array) for name, array in of.items()}
    flat = {n: w[n].reshape(WIDTH, -1) for n in w if n[:2] in ("wq", "wk", "wv", "wo")}
    functional = torch.nn.functional

    def norm(x: Any, gain: str, constant: str) -> Any:
        return functional.layer_norm(x, (WIDTH,), w[gain], w[constant], EPSILON)

    def run(tokens: Any) -> Any:
        b, t = tokens.shape
        x = norm(w["word"][tokens] + w["position"][:t], "g", "c")
        for n in range(layers):
            q, k, v = (
                functional.linear(x, flat[f"w{p}{n}"], w[f"b{p}{n}"].reshape(-1))
                .view(b, t, HEADS, DEPTH)
                .transpose(1, 2)
                for p in "qkv"
            )
            a = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            o = functional.linear(a.reshape(b, t, WIDTH), flat[f"wo{n}"], w[f"bo{n}"])
            y = norm(o + x, f"g1{n}", f"c1{n}")
            h = functional.gelu(functional.linear(y, w[f"w1{n}"], w[f"b1{n}"]))
            x = norm(functional.linear(h, w[f"w2{n}"], w[f"b2{n}"]) + y, f"g2{n}", f"c2{n}")
        return x.mean(1)

    def without_gradients(tokens: Any) -> Any:
        with torch.inference_mode():
            return run(tokens)

    return without_gradients


def encoder() -> Section:
    """All batches."""
    return Section(
        "A sentence encoder of six layers, sentences × tokens, float32: the faster peer's time / "
        "einsql's time",
        tuple(_finding(batch, measured(*batch)) for batch in BATCHES),
    )


def _finding(batch: tuple[int, int], taken: Times) -> Finding:
    medians = {name: taken.median(name) for name in taken.seconds}
    peers = {name: seconds for name, seconds in medians.items() if name != "einsql"}
    what = f"{batch[0]} × {batch[1]}"
    if not peers:
        return Finding(what, "no peer is installed", times=times(medians))
    ratio = taken.ratio(min(peers, key=peers.__getitem__), "einsql")
    met = ratio.value >= 1 / WITHIN
    return Finding(what, factor(ratio, 2), f"≥ {1 / WITHIN:.2f}×", met, times(medians))


def measured(sentences: int, tokens: int, rounds: int = ROUNDS, layers: int = LAYERS) -> Times:
    """Compares the answers, and lets the contestants take turns.

    Raises:
        AssertionError: Two answers differ.
    """
    of = weights(layers)
    ids = np.random.default_rng((sentences, tokens)).integers(0, WORDS, (sentences, tokens))
    con, sql = connected(of, ids, layers), text(layers)
    contestants: dict[str, Run] = {"einsql": lambda: con.execute(sql).fetch_numpy()}
    torch = pytorch()
    if torch is not None:
        model, seen = in_torch(torch, of, layers), torch.from_numpy(ids)
        contestants["torch"] = lambda: model(seen)
    session = _onnx_session(of, layers)
    if session is not None:
        contestants["onnxruntime"] = lambda: session.run(None, {"tokens": ids})[0]
    found = {name: np.asarray(run()) for name, run in contestants.items()}
    for name, answer in found.items():
        error = np.abs(answer - found["einsql"]).max() / np.abs(answer).max()
        if not error <= TOLERANCE:
            raise AssertionError(f"einsql and {name} differ by {error} of the largest element")
    return measure(contestants, rounds=rounds, seconds=SECONDS if rounds > 1 else 0, pause=QUIET)


def _onnx_session(of: dict[str, Array], layers: int) -> Any:
    """The encoder in onnxruntime, or None where it is not installed."""
    try:
        import onnxruntime

        from benchmarks.encoder_onnx import model
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_pool.threads()
    content = model(of, layers).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoder", description=__doc__)
    parser.add_argument("--only", default="", metavar="BATCH")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    entries = []
    for batch in BATCHES:
        name = f"{batch[0]}x{batch[1]}"
        if options.only in name:
            taken = measured(*batch)
            print("  ".join(_finding(batch, taken).cells()), flush=True)
            entries.append({"batch": name, **{n: taken.median(n) for n in taken.seconds}})
    if options.json:
        options.json.write_text(json.dumps(entries, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
