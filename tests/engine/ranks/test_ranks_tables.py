"""Systems on ranks side by side: ratios, verdicts, and those that are missing or fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.evaluation.processes import Failed
from benchmarks.measure import Times
from benchmarks.ranks import harness, workloads
from benchmarks.ranks.harness import Job
from benchmarks.ranks.peers import BOUND, EINSQL, PEERS, SUMMA
from benchmarks.ranks.sections import beside_each_other, speedup, traffic
from benchmarks.ranks.workloads import Workload


def _jobs(*names: str) -> dict[str, Job]:
    return {name: Job(PEERS[name], "square", 2, "way") for name in names}


def test_ratios_are_of_rounds_and_name_who_is_first() -> None:
    taken = Times({EINSQL: [2.0, 4.0, 2.0], SUMMA: [3.0, 5.0, 1.0], BOUND: [1.0, 2.0, 1.0]})
    section = beside_each_other("square", 2, _jobs(*taken.seconds), taken, ["Dask, for want of it"])
    bound, summa, einsql = section.findings
    assert bound.figure.startswith("0.500×")
    assert bound.met is None
    # Ratios 1.5, 1.25 and 0.5 of the rounds; the medians' would be 3 / 2.
    assert summa.figure.startswith("1.250×")
    assert summa.met
    assert einsql.times == "2 s, 192 GFLOP/s, 50% of the bound (as way)"
    assert section.skipped == "Dask, for want of it"
    slower = Times({EINSQL: [2.0], SUMMA: [1.9]})
    assert beside_each_other("square", 2, _jobs(EINSQL, SUMMA), slower, []).findings[0].met is False


def test_speedup_and_traffic_are_held_against_their_aims() -> None:
    names = {EINSQL: ("1", "2"), SUMMA: ("s1", "s2")}
    (finding,) = speedup("matmul", names, Times({"1": [1.6], "2": [1.0], "s1": [1.0]}), []).findings
    assert finding.met is False
    (less,) = traffic(8, {"rows": {"equal": 30, "eindecomp": 10}}).findings
    assert (less.figure, less.met) == ("3.00×", True)


def test_who_is_missing_or_fails_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(PEERS[SUMMA], missing=lambda: "it: install it")
    there = replace(PEERS[EINSQL], missing=lambda: "")
    jobs, reasons = harness.ready({SUMMA: absent, EINSQL: there}, lambda _: _jobs(EINSQL)[EINSQL])
    assert list(jobs) == [EINSQL]
    assert reasons == [f"{SUMMA}, for want of it: install it"]

    def run(job: Job, *_: object) -> dict[str, Any]:
        if job.peer.name == SUMMA:
            raise Failed("long story\nwrong answer")
        return {"seconds": [3.0, 1.0, 2.0]}

    monkeypatch.setattr(harness, "run", run)
    taken, failures = harness.in_turns(_jobs(EINSQL, SUMMA), 2, 3, Path())
    assert taken.seconds == {EINSQL: [2.0, 2.0]}
    assert failures == [f"{SUMMA}, which fails: wrong answer"]


def test_the_checksum_is_that_of_the_result(tmp_path: Path) -> None:
    chain: Workload = workloads.chain_of(40, 4, 400)
    expected = workloads.write(chain, tmp_path)
    m = {n: np.load(tmp_path / f"{n}.npy") for n in chain.shapes}
    left, right = (np.load(tmp_path / f"{side}.npy") for side in ("left", "right"))
    result = m["a"] @ m["b"] + m["c"] @ (m["d"] @ m["e"])
    assert workloads.right(chain, float(left @ result @ right), expected)
    result[:20, :20] = result[20:, 20:]
    assert not workloads.right(chain, float(left @ result @ right), expected)
