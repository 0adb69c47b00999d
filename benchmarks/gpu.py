"""Figures of a GPU: `python -m benchmarks.gpu` on a machine that has one (`make gpu`).

Operands are stored tensors, so they are on the device after the first run, as PyTorch's are;
every turn ends when the device is done, and results stay there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import einsql
from benchmarks import report
from benchmarks.matrices import MATMUL
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, factor, times
from einsql.errors import OperationalError
from einsql.kernels.cuda import device
from einsql.kernels.cuda.device import simulated

PRODUCT, MINPLUS, LAYER = 8192, 4096, 4096
HEADS, WIDTH, HIDDEN, HEAD = 32, 4096, 11008, 128
"""A layer of LLaMA-7B."""


def lack() -> str:
    """Why nothing can be measured, or nothing."""
    if simulated():
        return "the simulator is chosen; its times mean nothing"
    try:
        import torch
    except ImportError:
        return "PyTorch, the peer, is not installed"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    try:
        device()
    except OperationalError as error:
        return error.reason
    return ""


def figures() -> Section:
    """The four figures, beside PyTorch on the same GPU."""
    findings = [
        _product("float32", 0.95), _product("float16", 0.95), _minplus(), _layer(), _chain(),
    ]  # fmt: skip
    return Section(f"{device().name}: PyTorch's time / einsql's time", tuple(findings))


def _connected(arrays: dict[str, tuple[np.ndarray, str]]) -> einsql.Connection:
    """A session with stored tensors; keys are single letters."""
    con = einsql.connect(config={"device": "cuda"})
    for name, (array, keys) in arrays.items():
        con.register(f"given_{name}", array, dims=tuple(keys))
        con.execute(
            f"CREATE TENSOR {name} AS SELECT {', '.join(keys)}, val FROM given_{name}"
        )  # fmt: skip
        con.unregister(f"given_{name}")
    return con


def _ran(con: einsql.Connection, sql: str) -> Callable[[], object]:
    def run() -> object:
        cursor = con.execute(sql)
        device().wait()
        return cursor

    return run


def _waited(run: Callable[[], Any]) -> Callable[[], object]:
    import torch

    def turn() -> object:
        made = run()
        torch.cuda.synchronize()
        return made

    return turn


def _random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    made: np.ndarray = np.random.default_rng(seed).random(shape, np.float32) - 0.5
    return made.astype(dtype)


def _product(dtype: str, aim: float) -> Finding:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (_random(PRODUCT, PRODUCT, seed=n, dtype=dtype) for n in (0, 1))
    con = _connected({"a": (a, "ij"), "b": (b, "ij")})
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    taken = measure(
        {"einsql": _ran(con, MATMUL), "torch": _waited(lambda: x @ y)}, rounds=15, seconds=5
    )
    ratio = taken.ratio("torch", "einsql")
    return Finding(
        f"{PRODUCT}² {dtype} vs torch.matmul", factor(ratio), f"≥ {aim}×", ratio.value >= aim,
        times({n: taken.median(n) for n in taken.seconds}),
    )  # fmt: skip


def _minplus() -> Finding:
    """Its rate beside that of FLOAT products in the same run, 2·n³ operations each."""
    a, b = (_random(MINPLUS, MINPLUS, seed=n) for n in (0, 1))
    con = _connected({"a": (a, "ij"), "b": (b, "ij")})
    minplus = MATMUL.replace("SUM(a.val * b.val)", "MIN(a.val + b.val)")
    assert minplus != MATMUL
    taken = measure(
        {"min-plus": _ran(con, minplus), "product": _ran(con, MATMUL)}, rounds=9, seconds=5
    )
    ratio = taken.ratio("product", "min-plus")
    return Finding(
        f"min-plus {MINPLUS}³ vs the float32 product's rate", factor(ratio), "≥ 0.5×",
        ratio.value >= 0.5, times({n: taken.median(n) for n in taken.seconds}),
    )  # fmt: skip


ATTENTION = """
WITH q AS (SELECT t, h, d, SUM(x.val * wq.val) AS val FROM x JOIN wq USING (e) GROUP BY t, h, d),
 k AS (SELECT t, h, d, SUM(x.val * wk.val) AS val FROM x JOIN wk USING (e) GROUP BY t, h, d),
 v AS (SELECT t, h, d, SUM(x.val * wv.val) AS val FROM x JOIN wv USING (e) GROUP BY t, h, d),
 s AS (SELECT q.h, q.t, k.t AS u, SUM(q.val * k.val) * 0.08838835 AS val
       FROM q JOIN k ON q.h = k.h AND q.d = k.d GROUP BY q.h, q.t, k.t),
 m AS (SELECT h, t, MAX(val) AS val FROM s GROUP BY h, t),
 p AS (SELECT h, t, u, EXP(s.val - m.val) AS val FROM s JOIN m USING (h, t)),
 z AS (SELECT h, t, SUM(val) AS val FROM p GROUP BY h, t),
 o AS (SELECT p.h, p.t, v.d, SUM(p.val * v.val) AS val
       FROM p JOIN v ON p.h = v.h AND p.u = v.t GROUP BY p.h, p.t, v.d),
 n AS (SELECT h, t, d, o.val / z.val AS val FROM o JOIN z USING (h, t)),
 a AS (SELECT t, e, SUM(n.val * wo.val) AS val FROM n JOIN wo USING (h, d) GROUP BY t, e),
 y AS (SELECT t, e, x.val + a.val AS val FROM x JOIN a USING (t, e)),
 g AS (SELECT t, f, SUM(y.val * wg.val) AS val FROM y JOIN wg USING (e) GROUP BY t, f),
 b AS (SELECT t, f, SUM(y.val * wu.val) AS val FROM y JOIN wu USING (e) GROUP BY t, f),
 w AS (SELECT t, f, g.val / (1 + EXP(-g.val)) * b.val AS val FROM g JOIN b USING (t, f)),
 r AS (SELECT t, e, SUM(w.val * wd.val) AS val FROM w JOIN wd USING (f) GROUP BY t, e)
SELECT t, e, y.val + r.val AS val FROM y JOIN r USING (t, e)"""


def _layer() -> Finding:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    shapes = {"x": (LAYER, WIDTH)} | dict.fromkeys(("wq", "wk", "wv"), (WIDTH, HEADS, HEAD))
    shapes |= {"wo": (HEADS, HEAD, WIDTH), "wg": (WIDTH, HIDDEN), "wu": (WIDTH, HIDDEN)}
    shapes["wd"] = (HIDDEN, WIDTH)
    keys = {"x": "te", "wo": "hde", "wg": "ef", "wu": "ef", "wd": "fe"}
    arrays = {
        name: (_random(*shape, seed=n) / 64, keys.get(name, "ehd"))
        for n, (name, shape) in enumerate(shapes.items())
    }
    con = _connected(arrays)
    t = {name: torch.from_numpy(a).cuda() for name, (a, _) in arrays.items()}

    def eager() -> Any:
        q, k, v = (torch.einsum("te,ehd->htd", t["x"], t[w]) for w in ("wq", "wk", "wv"))
        p = torch.softmax(q @ k.transpose(1, 2) * 0.08838835, -1)
        y = t["x"] + torch.einsum("htd,hde->te", p @ v, t["wo"])
        return y + (torch.nn.functional.silu(y @ t["wg"]) * (y @ t["wu"])) @ t["wd"]

    got = con.execute(ATTENTION).fetch_numpy()
    np.testing.assert_allclose(got, eager().cpu().numpy(), rtol=1e-3, atol=1e-3)
    taken = measure({"einsql": _ran(con, ATTENTION), "torch": _waited(eager)}, rounds=9, seconds=9)
    ratio = taken.ratio("torch", "einsql")
    return Finding(
        f"LLaMA-7B's layer, {LAYER} tokens, float32, vs eager torch", factor(ratio), "≥ 0.9×",
        ratio.value >= 0.9, times({n: taken.median(n) for n in taken.seconds}),
    )  # fmt: skip


def _chain() -> Finding:
    """A chain whose operands take twice what the session is allowed on the device."""
    n = 8192
    count = 8
    each = n * n * 4
    con = _connected({f"m{k}": (_random(n, n, seed=k), "ij") for k in range(count)})
    con.execute(f"SET device_memory = '{count * each // 2}B'")
    parts = ["WITH c0 AS (SELECT i, j, val FROM m0)"]
    parts += [
        f"c{k} AS (SELECT a.i, b.j, SUM(a.val * b.val) / 64 AS val FROM c{k - 1} a "
        f"JOIN m{k} b ON a.j = b.i GROUP BY a.i, b.j)"
        for k in range(1, count)
    ]
    sql = f"{', '.join(parts)} SELECT i, j, val FROM c{count - 1}"
    taken = measure({"einsql": _ran(con, sql)}, rounds=3, seconds=1)
    finite = bool(np.isfinite(con.execute(sql).fetch_numpy()).all())
    return Finding(
        f"{count} matrices of {each >> 20} MiB in {count * each // 2 >> 20} MiB",
        "completes", "completes", finite, times({"einsql": taken.median("einsql")}),
    )  # fmt: skip


def main() -> int:
    reason = lack()
    if reason:
        print(f"No GPU is measured: {reason}")
        return 0
    print("\n".join(report.machine()), end="\n\n")
    print(report.as_text([figures()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
