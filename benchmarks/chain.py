"""(A·B) + (C·(D·E)) as one SQL statement, beside NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

from benchmarks.evaluation.experiments.chains import PAIRWISE, THREE_WAY
from benchmarks.matrices import check, connected, pytorch, random
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, factor, times

S = 2048
THIN, WIDE = S // 10, 10 * S
AIM = 0.97

SHAPES = {
    "square": ((S, S), (S, S), (S, S), (S, S), (S, S)),
    "skewed": ((S, THIN), (THIN, S), (S, THIN), (THIN, WIDE), (WIDE, S)),
}


def chains() -> Section:
    """Square and skewed, products nested by the text or ordered by the optimizer."""
    torch = pytorch()
    return Section(
        f"(A·B) + (C·(D·E)) in one statement, s = {S}, float32: the other's time / einsql's time",
        tuple(f for name in SHAPES for f in _chain(name, torch)),
        "" if torch else "PyTorch, which is not installed",
    )


def _by_operators(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return a @ b + c @ (d @ e)


def _chain(name: str, torch: Any) -> list[Finding]:
    matrices = [random(*shape, seed=n) for n, shape in enumerate(SHAPES[name])]
    con = connected(dict(zip("abcde", matrices, strict=True)))
    for text in (PAIRWISE, THREE_WAY):
        check(con.execute(text).fetch_numpy(), _by_operators(*matrices))
    contestants: dict[str, Run] = {
        "einsql": lambda: con.execute(PAIRWISE).fetch_numpy(),
        "einsql, three-way join": lambda: con.execute(THREE_WAY).fetch_numpy(),
        "numpy": lambda: _by_operators(*matrices),
    }
    if torch is not None:
        tensors = [torch.from_numpy(m) for m in matrices]
        contestants["torch"] = lambda: _by_operators(*tensors)
    taken = measure(contestants, rounds=15, seconds=12.0)
    rivals = [x for x in ("numpy", "torch") if x in contestants]
    best = min(rivals, key=taken.median)
    findings = []
    for rival in rivals:
        found = taken.ratio(rival, "einsql")
        counts = rival == best
        findings.append(
            Finding(
                f"{name} vs {rival}{', the best' if counts else ''}",
                factor(found),
                f"≥ {AIM}×" if counts else "",
                found.value >= AIM if counts else None,
                times({x: taken.median(x) for x in ("einsql", rival)}),
            )
        )
    three_way = taken.ratio(best, "einsql, three-way join")
    findings.append(
        Finding(
            f"{name}, C·D·E as a three-way join, vs {best}",
            factor(three_way),
            times=times({"einsql": taken.median("einsql, three-way join")}),
        )
    )
    return findings
