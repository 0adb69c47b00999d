"""The same statements in every order of their GROUP BY and SELECT keys, and in usual layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

import einsql
from benchmarks.matrices import check, fetched, pytorch, random
from benchmarks.measure import Times, estimate, measure
from benchmarks.report import Finding, Section, factor, times

SOFTMAX = """m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
e AS (SELECT {keys}, EXP(x.val - m.val) AS val FROM x JOIN m USING (h, s)),
z AS (SELECT h, s, SUM(val) AS val FROM e GROUP BY h, s),
p AS (SELECT {keys}, e.val / z.val AS val FROM e JOIN z USING (h, s))
"""
NORM = """WITH mu AS (SELECT h, s, AVG(val) AS val FROM x GROUP BY h, s),
va AS (SELECT h, s, AVG((x.val - mu.val) * (x.val - mu.val)) AS val
       FROM x JOIN mu USING (h, s) GROUP BY h, s)
SELECT {keys}, (x.val - mu.val) / SQRT(va.val + 1e-5::FLOAT) AS val
FROM x JOIN mu USING (h, s) JOIN va USING (h, s)"""
SCORES = "x AS (SELECT {keys}, SUM(a.val * b.val) AS val FROM a JOIN b USING (d) GROUP BY {keys})"
STATEMENTS = {
    "attention": "WITH x AS (SELECT {keys}, SUM(q.val * k.val) / 8 AS val "
    f"FROM q JOIN k USING (h, d) GROUP BY {{keys}}),{SOFTMAX}"
    "SELECT h, s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY h, s, d",
    "softmax": f"WITH {SOFTMAX}SELECT {{keys}}, val FROM p",
    "layer norm": NORM,
    "cross entropy": f"""WITH {SCORES},
m AS (SELECT s, MAX(val) AS val FROM x GROUP BY s),
z AS (SELECT s, SUM(EXP(x.val - m.val)) AS val FROM x JOIN m USING (s) GROUP BY s)
SELECT s, LN(z.val) + m.val AS val FROM z JOIN m USING (s)""",
    "cosine": f"""WITH {SCORES},
n AS (SELECT s, SQRT(SUM(val * val)) AS val FROM a GROUP BY s),
o AS (SELECT t, SQRT(SUM(val * val)) AS val FROM b GROUP BY t)
SELECT {{keys}}, x.val / (n.val * o.val) AS val FROM x JOIN n USING (s) JOIN o USING (t)""",
    "k-means": """WITH x AS (SELECT {keys}, SUM((a.val - b.val) * (a.val - b.val)) AS val
FROM a JOIN b USING (d) GROUP BY {keys})
SELECT s, MIN(val) AS val FROM x GROUP BY s""",
}
SLOWEST, AGAINST_TORCH = 1.5, 0.95


@dataclass(frozen=True)
class Case:
    """A statement with the dims of its operands, and of its result where it has no `keys`."""

    name: str
    extents: dict[str, int]
    layouts: dict[str, str]
    keys: str
    result: str = ""


def orders() -> Section:
    """Six statements in all orders of their keys."""
    torch = pytorch()
    title = "Orders of keys, float32"
    if torch is None:
        return Section(title, (), "PyTorch is not installed")
    heads, norm = {"h": 8, "s": 1024, "t": 1024, "d": 64}, {"h": 8, "s": 512, "t": 1024}
    wide, points = {"s": 1024, "t": 8192, "d": 128}, {"s": 16384, "t": 64, "d": 32}
    cases = [
        *(
            Case("attention", heads, {"q": q, "k": k, "v": k}, "hst", "hsd")
            for q, k in (("hsd", "htd"), ("shd", "thd"), ("hds", "hdt"))
        ),
        *(
            Case(name, norm, {"x": "".join(x)}, "hst")
            for name in ("softmax", "layer norm")
            for x in permutations("hst")
        ),
        *(
            Case(name, extents, {"a": a, "b": b}, "st", result)
            for name, extents, result in (
                ("cross entropy", wide, "s"),
                ("cosine", heads, ""),
                ("k-means", points, "s"),
            )
            for a, b in (("sd", "td"), ("sd", "dt"), ("ds", "dt"))
        ),
    ]
    return Section(title, tuple(f for case in cases for f in _findings(torch, case)))


def _findings(torch: Any, case: Case) -> list[Finding]:
    con = einsql.connect(config={"jit": "wait"})
    arrays = {}
    for n, (name, dims) in enumerate(case.layouts.items()):
        arrays[name] = random(*(case.extents[d] for d in dims), seed=n)
        con.register(name, arrays[name], dims=tuple(dims))
    peer, axes = _peer(torch, case, arrays)
    spellings: dict[str, Callable[[], np.ndarray]] = {}
    for order in permutations(case.keys):
        keys = ", ".join(order)
        sql = STATEMENTS[case.name].format(keys=keys)
        spellings[f"by {keys}"] = partial(fetched, con, sql)
        result = case.result or "".join(order)
        expected = peer().numpy().transpose([axes.index(k) for k in result])
        check(fetched(con, sql), expected)
    taken = measure({**spellings, "torch": peer}, rounds=9, seconds=1.0)
    layout = " ".join("".join(d) for d in case.layouts.values())
    return _judged(f"{case.name}, {layout}", taken, list(spellings))


def _judged(what: str, taken: Times, spellings: Sequence[str]) -> list[Finding]:
    """The slowest order against the fastest one and against PyTorch."""
    by_speed = sorted(spellings, key=taken.median)
    best, worst = by_speed[0], by_speed[-1]
    medians = times({name: taken.median(name) for name in (best, worst, "torch")})
    apart = taken.ratio(worst, best)
    peer = estimate(
        [a / b for a, b in zip(taken.seconds["torch"], taken.seconds[worst], strict=True)]
    )
    return [
        Finding(f"{what}: slowest / fastest order", factor(apart), f"≤ {SLOWEST}×",
                apart.value <= SLOWEST, medians),
        Finding(f"{what}: torch / slowest order", factor(peer), f"≥ {AGAINST_TORCH}×",
                peer.value >= AGAINST_TORCH, medians),
    ]  # fmt: skip


def _peer(torch: Any, case: Case, arrays: dict[str, np.ndarray]) -> tuple[Callable[[], Any], str]:
    """PyTorch's function of the same tensors, and the axes of its result."""

    def seen(name: str, dims: str) -> Any:
        turn = [case.layouts[name].index(d) for d in dims]
        return torch.from_numpy(arrays[name]).permute(turn)

    functional = torch.nn.functional
    if case.name == "attention":
        q, k, v = seen("q", "hsd")[None], seen("k", "htd")[None], seen("v", "htd")[None]
        return lambda: functional.scaled_dot_product_attention(q, k, v)[0], "hsd"
    if case.name in ("softmax", "layer norm"):
        x, width = seen("x", "hst"), (case.extents["t"],)
        if case.name == "softmax":
            return lambda: torch.softmax(x, 2), "hst"
        return lambda: functional.layer_norm(x, width), "hst"
    a, b = seen("a", "sd"), seen("b", "td")
    if case.name == "cross entropy":
        return lambda: torch.logsumexp(a @ b.T, 1), "s"
    if case.name == "cosine":
        return lambda: functional.normalize(a, dim=1) @ functional.normalize(b, dim=1).T, "st"
    return lambda: (torch.cdist(a, b) ** 2).min(1).values, "s"
