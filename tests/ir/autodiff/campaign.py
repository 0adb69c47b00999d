"""Gradients of random losses against central differences, and against torch.autograd.

    python -m tests.ir.autodiff.campaign --losses 5000 [--seed 1] [--torch 200] [--processes 2]

Both are of the loss's change along random directions, in DOUBLE. A direction along which
the loss has a kink or a jump within the step is left out: differences of two step sizes
then disagree.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import einsql
from tests.ir.autodiff.differences import connected, gradient, loss
from tests.ir.autodiff.random_losses import Generator, Loss

STEP = 2e-5
DIRECTIONS = 2


@dataclass
class Report:
    """What a campaign has seen."""

    losses: int = 0
    second: int = 0
    directions: int = 0
    kinks: int = 0
    worst: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Adds what another one has seen."""
        self.losses += other.losses
        self.second += other.second
        self.directions += other.directions
        self.kinks += other.kinks
        self.worst = max(self.worst, other.worst)
        self.kinds += other.kinds
        self.findings += other.findings

    def text(self) -> str:
        """The figures."""
        kinds = ", ".join(f"{k} {n}" for k, n in sorted(self.kinds.items()))
        return "\n".join([
            *self.findings,
            f"{self.losses} losses, {self.second} of them of gradients; {self.directions} "
            f"directions, {self.kinks} with a kink; largest relative error {self.worst:.1e}",
            kinds, f"{len(self.findings)} differences",
        ])  # fmt: skip


def query_of(made: Loss, source: str, second: bool) -> str:
    """The loss, or one of its gradient by a tensor."""
    if not second:
        return made.sql
    first = made.sql.replace("loss AS", "once AS")
    return f"{first},\nloss AS (SELECT SUM(sin(val)) AS val FROM GRADIENT(once, {source}))"


@dataclass(frozen=True)
class Case:
    """A random loss, and what its gradient is by.

    Attributes:
        made: The loss, or what it is a gradient of.
        second: Whether the loss is of a gradient.
        query: A WITH clause that defines `loss`.
    """

    seed: int
    made: Loss
    source: str
    second: bool
    query: str
    random: np.random.Generator


Comparison = Callable[[Case, einsql.Connection, Report], None]


def compare(seed: int, report: Report, how: Comparison, stops: bool) -> None:
    """Compares one random loss's gradient; whatever is wrong is a finding, with its seed."""
    made = Generator(seed, stops=stops).loss()
    random = np.random.default_rng(seed)
    source = made.sources[int(random.integers(len(made.sources)))]
    second = bool(random.random() < 0.25)
    query = query_of(made, source, second)
    report.losses += 1
    report.second += second
    report.kinds.update(set(made.kinds))
    con = connected(made.arrays)
    try:
        how(Case(seed, made, source, second, query, random), con, report)
    except Exception as error:
        report.findings.append(f"seed {seed}, {source}: {type(error).__name__} {error}\n{query}")
    finally:
        con.close()


def difference(case: Case, con: einsql.Connection, report: Report) -> None:
    """Compares a gradient with differences along random directions."""
    query, array = case.query, case.made.arrays[case.source][1]
    got = gradient(con, query, case.source)
    kept = array.copy()

    def at(step: float, along: np.ndarray) -> float:
        array[...] = kept + step * along
        return loss(con, query)

    for _ in range(DIRECTIONS):
        along = case.random.normal(size=array.shape)
        slopes = [(at(h, along) - at(-h, along)) / (2 * h) for h in (STEP, STEP / 2)]
        array[...] = kept
        wanted = (4 * slopes[1] - slopes[0]) / 3
        scale = max(1.0, abs(wanted), float(np.abs(got * along).sum()))
        report.directions += 1
        if abs(slopes[0] - slopes[1]) > 1e-6 * scale:
            report.kinks += 1
            continue
        error = abs(float((got * along).sum()) - wanted) / scale
        report.worst = max(report.worst, error)
        if not error < 1e-6:
            report.findings.append(f"seed {case.seed}: {error:.1e} from {wanted}\n{query}")


def autograd(case: Case, con: einsql.Connection, report: Report) -> None:
    """Compares a loss and its gradient with those of torch."""
    import torch  # what needs it says so

    tensors = {n: torch.tensor(a) for n, (_, a) in case.made.arrays.items()}
    leaf = tensors[case.source].requires_grad_()
    value = case.made.run(torch, tensors)
    (wanted,) = torch.autograd.grad(value, leaf, create_graph=case.second, materialize_grads=True)
    if case.second:
        value = torch.sin(wanted).sum()
        wanted = torch.zeros_like(leaf)
        if value.requires_grad:
            (wanted,) = torch.autograd.grad(value, leaf, materialize_grads=True)
    values = loss(con, case.query), float(value.detach())
    got = gradient(con, case.query, case.source)
    scale = max(1.0, float(wanted.detach().abs().max()))
    error = float(np.abs(got - wanted.detach().numpy()).max()) / scale
    report.worst = max(report.worst, error)
    if not (error < 1e-9 and abs(values[0] - values[1]) < 1e-9 * max(1.0, abs(values[1]))):
        report.findings.append(f"seed {case.seed}: {error:.1e}, losses {values}\n{case.query}")


def campaign(count: int, seed: int, against_torch: bool = False) -> Report:
    """Compares as many losses."""
    report = Report()
    for n in range(count):
        compare(seed * 1_000_000 + n, report, autograd if against_torch else difference,
                stops=against_torch)  # fmt: skip
    return report


def main() -> int:
    """Runs the campaign and prints its report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", type=int, default=5000)
    parser.add_argument("--torch", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    start, failed = time.monotonic(), False
    for count, against_torch in ((args.losses, False), (args.torch, True)):
        if against_torch and importlib.util.find_spec("torch") is None:
            print("torch.autograd is left out: there is no torch")
            continue
        share = -(-count // args.processes)
        jobs = [(share, args.seed * 100 + n, against_torch) for n in range(args.processes)]
        total = Report()
        with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
            for report in pool.starmap(campaign, jobs, chunksize=1):
                total.add(report)
        print("torch.autograd" if against_torch else "central differences")
        print(total.text())
        failed |= bool(total.findings)
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
