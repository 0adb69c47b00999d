"""Einstein sums beside numpy.einsum, opt_einsum and torch.einsum.

`python -m benchmarks contractions` says what all expressions come to;
`python -m benchmarks.contractions [--only TEXT] [--dtype float64] [--seconds 0.3]` prints a
line for each of them, or of those with TEXT in their name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, fsum, log
from time import perf_counter
from typing import Any

import numpy as np

import einsql
from benchmarks.expressions import EXPRESSIONS, Expression
from benchmarks.measure import QUIET, Run, measure
from benchmarks.report import Finding, Section, duration

AIM, WORST = 1.0, 0.8
SHOWN = 6
"""The weakest expressions, which are named."""
HOPELESS = 6.0
"""A peer that takes so many times longer has two turns only."""
CALLS = 3
"""Calls in one turn that count, after one that wakes what went to sleep."""
TYPES = ("float32", "float64")

Array = np.ndarray


@dataclass(frozen=True)
class Line:
    """What was found for an expression.

    Attributes:
        what: The expression.
        seconds: Median time of each contestant.
        ratios: Each peer's time over einsql's, the median of the rounds.
    """

    what: Expression
    seconds: dict[str, float]
    ratios: dict[str, float]

    @property
    def worst(self) -> float:
        """The ratio to the best peer."""
        return min(self.ratios.values(), default=1.0)

    def __str__(self) -> str:
        ratios = "  ".join(f"{name} {r:6.2f}×" for name, r in self.ratios.items())
        return f"{self.worst:6.2f}×  {duration(self.seconds['einsql']):>8}  {ratios}  {self.what}"


def contractions() -> Section:
    """All expressions in both types."""
    findings: list[Finding] = []
    for dtype in TYPES:
        lines = [_line(e, dtype, 0.2) for e in EXPRESSIONS]
        for peer in lines[0].ratios:
            found = _mean([x.ratios[peer] for x in lines])
            findings.append(
                Finding(
                    f"{len(lines)} expressions, {dtype}, vs {peer}",
                    f"{found:.2f}× (geometric mean)",
                    f"≥ {AIM}×",
                    found >= AIM,
                )
            )
        worst, *weak = sorted(lines, key=lambda x: x.worst)[:SHOWN]
        findings.append(
            Finding(
                f"the worst in {dtype}, vs its best peer",
                f"{worst.worst:.2f}×",
                f"≥ {WORST}×",
                worst.worst >= WORST,
                str(worst.what),
            )
        )
        findings += [Finding("the next", f"{x.worst:.2f}×", times=str(x.what)) for x in weak]
    return Section(
        "Einstein sums: the other's time / einsql's time",
        tuple(findings),
        "" if len(_peers()) == 3 else "peers that are not installed",
    )


def _peers() -> dict[str, Callable[[str, Sequence[Array]], Run]]:
    """What prepares a run of an expression over arrays, by the peer's name."""
    found: dict[str, Callable[[str, Sequence[Array]], Run]] = {"numpy": _numpy}
    for name, prepare in (("opt_einsum", _opt_einsum), ("torch", _torch)):
        try:
            __import__(name)
        except ImportError:
            continue
        found[name] = prepare
    return found


def _numpy(spec: str, arrays: Sequence[Array]) -> Run:
    return lambda: np.einsum(spec, *arrays, optimize=True)


def _opt_einsum(spec: str, arrays: Sequence[Array]) -> Run:
    import opt_einsum

    expression: Any = opt_einsum.contract_expression(spec, *[a.shape for a in arrays])
    return lambda: expression(*arrays)


def _torch(spec: str, arrays: Sequence[Array]) -> Run:
    import torch

    tensors = [torch.from_numpy(a) for a in arrays]
    return lambda: torch.einsum(spec, *tensors)


def _line(e: Expression, dtype: str, seconds: float) -> Line:
    chance = np.random.default_rng(len(e.spec))
    arrays = [chance.standard_normal(s, np.float32).astype(dtype) for s in e.shapes]
    ours = partial(einsql.einsum, e.spec, *arrays)
    peers = {name: prepare(e.spec, arrays) for name, prepare in _peers().items()}
    _check(ours(), np.asarray(peers["torch" if "torch" in peers else "numpy"]()), e)
    limit = HOPELESS * max(_once(ours), 1e-3)
    slow = {name for name, run in peers.items() if _once(run) > limit}
    taken: dict[str, Run] = {"einsql": ours}
    ratios: dict[str, float] = {}
    quick = taken | {n: r for n, r in peers.items() if n not in slow}
    calls = dict.fromkeys(("einsql", *peers), CALLS)
    found = measure(quick, rounds=5, seconds=seconds, calls=calls, pause=QUIET)
    medians = {name: found.median(name) for name in found.seconds}
    for name in peers:
        times = found
        if name in slow:
            times = measure(
                {"einsql": ours, name: peers[name]}, rounds=2, seconds=0.0, calls=calls, pause=QUIET
            )
            medians[name] = times.median(name)
        ratios[name] = times.ratio(name, "einsql").value
    return Line(e, medians, ratios)


def _once(run: Run) -> float:
    run()
    start = perf_counter()
    run()
    return perf_counter() - start


def _check(found: Array, expected: Array, e: Expression) -> None:
    error = np.max(np.abs(found - expected), initial=0.0) / np.max(np.abs(expected), initial=1e-30)
    if found.shape != expected.shape or not error <= 1e-3:
        raise AssertionError(f"{e}: einsql and its peers differ by {error}")


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(fsum(map(log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contractions")
    parser.add_argument("--only", default="", help="part of the names of the expressions wanted")
    parser.add_argument("--dtype", default="float32", choices=TYPES)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each expression")
    options = parser.parse_args()
    lines = []
    for e in EXPRESSIONS:
        if options.only in str(e):
            lines.append(_line(e, options.dtype, options.seconds))
            print(lines[-1], flush=True)
    for peer in lines[0].ratios:
        print(f"{peer}: {_mean([x.ratios[peer] for x in lines]):.2f}× over {len(lines)}")
    print(f"worst: {min(lines, key=lambda x: x.worst)}")


if __name__ == "__main__":
    main()
