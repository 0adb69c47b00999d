"""The first answer of a statement in a new process, beside NumPy's process."""

from __future__ import annotations

from benchmarks.evaluation.experiment import Experiment, Table

EVERY, ROUNDS = 8, 6
"""One of so many statements is measured within the hour, and its rounds."""


def computed(full: bool) -> list[Table]:
    """Whole processes."""
    from benchmarks.first import line
    from benchmarks.statements import STATEMENTS

    numbers = range(0, len(STATEMENTS), 1 if full else EVERY)
    lines = [line(number, rounds=ROUNDS) for number in numbers]
    rows = [(x.name, x.numpy, x.empty, x.warm, x.start) for x in lines]
    columns = ("statement", "NumPy", "einsql, empty cache", "einsql", "einsql without a statement")
    rounds = [{"NumPy": x.rounds["numpy"], "einsql": x.rounds["warm"]} for x in lines]
    note = (
        f"{len(lines)} of {len(STATEMENTS)} statements; seconds of whole processes from start to "
        f"end, medians of {ROUNDS} rounds. The cache has compiled kernels."
    )
    units = dict.fromkeys(columns[1:], "s")
    compete = ("NumPy", "einsql")
    return [Table("First answers", columns, rows, units, compete, "einsql", "", rounds, note)]


EXPERIMENT = Experiment(
    title="First answers",
    source="benchmarks/first.py",
    about="A process that loads arrays, runs one statement and ends.",
    computed=computed,
    reasons={"": "The process also imports einsql, parses the text and plans it: the last column "
             "is what a process takes that ends before its statement, which bounds what planning "
             "and kernels can add."},
)  # fmt: skip
