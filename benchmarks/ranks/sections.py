"""What the runs have shown, as tables."""

from __future__ import annotations

from benchmarks.measure import Times
from benchmarks.ranks.harness import Job
from benchmarks.ranks.peers import BOUND, EINSQL
from benchmarks.ranks.workloads import WORKLOADS
from benchmarks.report import Finding, Section, duration, factor, times

SPEEDUP = 1.7
LESS_TRAFFIC = 1.5


def beside_each_other(
    workload: str, ranks: int, jobs: dict[str, Job], taken: Times, absent: list[str]
) -> Section:
    """Every system's time over einsql's, and the share of the bound that it reaches."""
    shape = WORKLOADS[workload]
    others = [n for n in taken.seconds if n != EINSQL]
    findings = [_beside(n, workload, jobs[n], taken) for n in sorted(others, key=taken.median)]
    if EINSQL in taken.seconds:
        findings.append(Finding("einsql", "", times=_time(EINSQL, workload, jobs[EINSQL], taken)))
    title = f"{workload} chain" if "c" in shape.shapes else workload
    return Section(
        f"{title}, {shape.formula}, {ranks} ranks: the other's time / einsql's time",
        tuple(findings),
        "; ".join(absent),
    )


def _beside(name: str, workload: str, job: Job, taken: Times) -> Finding:
    stands = _time(name, workload, job, taken)
    if EINSQL not in taken.seconds:
        return Finding(name, "", times=stands)
    ratio = taken.ratio(name, EINSQL)
    if name == BOUND:
        return Finding("the multiplications alone", factor(ratio), times=stands)
    return Finding(name, factor(ratio), "> 1×", ratio.value > 1, stands)


def _time(name: str, workload: str, job: Job, taken: Times) -> str:
    """Time and rate of a system, the share of the bound, and which way it took."""
    seconds = taken.median(name)
    parts = [duration(seconds), f"{WORKLOADS[workload].flops / seconds / 1e9:.0f} GFLOP/s"]
    if BOUND in taken.seconds and name != BOUND:
        parts.append(f"{taken.ratio(BOUND, name).value:.0%} of the bound")
    return ", ".join(parts) + (f" (as {job.option})" if job.option else "")


def speedup(
    workload: str, names: dict[str, tuple[str, str]], taken: Times, absent: list[str]
) -> Section:
    """How much faster two ranks are than one.

    Args:
        workload: What was computed.
        names: For each system, what its times on one and on two ranks go by.
        taken: The times.
        absent: What could not be measured, and why.
    """
    findings = []
    for name, (one, two) in names.items():
        if not {one, two} <= set(taken.seconds):
            continue
        ratio = taken.ratio(one, two)
        counts = name == EINSQL
        findings.append(
            Finding(
                "the multiplications alone" if name == BOUND else name,
                factor(ratio),
                f"≥ {SPEEDUP}×" if counts else "",
                ratio.value >= SPEEDUP if counts else None,
                times({"1 rank": taken.median(one), "2 ranks": taken.median(two)}),
            )
        )
    size = WORKLOADS[workload].shapes["a"][0]
    return Section(
        f"{size}² product, one thread a rank: time on 1 rank / time on 2 ranks",
        tuple(findings),
        "; ".join(absent),
    )


def traffic(sites: int, sent: dict[str, dict[str, int]]) -> Section:
    """Bytes that `equal` and `eindecomp` send.

    Args:
        sites: How many there are.
        sent: Bytes by how the inputs lie and by strategy.
    """
    findings = []
    for layout, of in sent.items():
        ratio = of["equal"] / of["eindecomp"]
        figures = ", ".join(f"{name} {n / 1e6:.1f} MB" for name, n in of.items())
        met = ratio >= LESS_TRAFFIC
        findings.append(
            Finding(f"inputs by {layout}", f"{ratio:.2f}×", f"≥ {LESS_TRAFFIC}×", met, figures)
        )
    title = (
        f"skewed chain, {sites} sites, one copy of each input: bytes of `equal` / of `eindecomp`"
    )
    return Section(title, tuple(findings))
