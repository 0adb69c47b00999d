"""Tensor networks of einsum_benchmark's generators, beside opt_einsum and cotengra."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.evaluation import peers
from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment, Prepared, Task

INSTANCES = (
    "matrix chain, 10 of 10–1000", "lattice of 5 × 5, 4 each", "lattice of 3 × 3 × 3, 2 each",
    "tree of 60", "matrix product states, 60 sites", "random network of 30",
    "random hypernetwork of 20", "language model, 100 windows",
)  # fmt: skip


def cases(full: bool) -> list[Case]:
    """The instances."""
    return [Case(name) for name in INSTANCES]


def write(case: Case, folder: Path) -> list[float]:
    """Lets the environment of the generators write the operands."""
    from benchmarks.evaluation.processes import Failed, Missing

    if lacking := peers.missing("contraction"):
        raise Missing(f"the generators are missing: {lacking}")
    command = [str(peers.python("contraction")), "-m", "benchmarks.evaluation.instances"]
    ran = subprocess.run(
        [*command, case.name, str(folder)],
        env=peers.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise Failed(f"the generators fail: {ran.stderr.strip().splitlines()[-1]}")
    expected: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return expected


def network(task: Task) -> tuple[str, Sequence[Array]]:
    """The format and the operands."""
    form = (task.folder / "format.txt").read_text(encoding="utf-8")
    return form, [task.load(str(n)) for n in range(form.partition("->")[0].count(",") + 1)]


def by_einsql(task: Task) -> Prepared:
    """einsql.einsum: the same engine without a text of SQL."""
    import einsql

    form, operands = network(task)
    if not form.isascii():  # a label of several letters for each sign beyond the alphabet's
        form = " ".join(c if c in ",->" else f"x{ord(c)}" for c in form).replace("- >", "->")
    return Prepared(lambda: einsql.einsum(form, *operands), np.asarray)


def by_opt_einsum(task: Task) -> Prepared:
    """opt_einsum over NumPy, whose path is found before."""
    import opt_einsum

    form, operands = network(task)
    contract = opt_einsum.contract_expression(
        form, *(o.shape for o in operands), optimize="auto-hq"
    )
    return Prepared(lambda: contract(*operands), np.asarray)


def by_cotengra(task: Task) -> Prepared:
    """Cotengra over NumPy, whose tree is found before, in as many attempts as its default."""
    import cotengra

    form, operands = network(task)
    contract = cotengra.einsum_expression(
        form, *(o.shape for o in operands),
        optimize=cotengra.HyperOptimizer(methods=["greedy", "labels"], parallel=False, max_time=10),
    )  # fmt: skip
    return Prepared(lambda: contract(*operands), np.asarray)


EXPERIMENT = Experiment(
    title="Tensor networks of einsum_benchmark",
    source="instances of einsum_benchmark's generators",
    about="Networks in FLOAT of each family that the package generates. The order of contractions "
    "is found before anything is timed: opt_einsum's `auto-hq`, ten seconds of cotengra's "
    "HyperOptimizer, and einsql's plan, which is cached after the first call. The "
    "reference is opt_einsum's answer in double precision.",
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("opt_einsum", "contraction", by_opt_einsum),
        Contestant("cotengra", "contraction", by_cotengra),
    ),
    write=write,
    reasons={
        "matrix chain, 10 of 10–1000": "Products by BLAS in place of loops, exact orders of parts "
        "of the tree, and plans that are found by shapes took it from 9.4 to 4.0 ms. "
        "The rest is within the spread between runs.",
    },
    tolerance=1e-3,
)
