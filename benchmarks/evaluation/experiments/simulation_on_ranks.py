"""The simulation's seconds beside those of runs on one rank and on two."""

from __future__ import annotations

import os
from statistics import median

import einsql
from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.simulated_ranks import RUNS, cases, compared

RANKS = (1, 2)
"""As many as there are cores."""


def computed(full: bool) -> list[Table]:
    """Seconds and bytes of each statement."""
    os.environ["OMP_NUM_THREADS"] = "1"  # the ranks inherit it
    rows: list[list[Cell]] = []
    for ranks in RANKS:
        with einsql.connect(config={"mpi": ranks}) as con:
            con.execute("CALIBRATE")
            for case in cases():
                found = compared(con, case)
                measured = median(found.measured)
                rows.append([
                    case.what, ranks, found.simulated, measured, found.simulated / measured,
                    found.moved, "as predicted" if found.exact else "not as predicted",
                ])  # fmt: skip
    return [
        Table(
            "Simulated and measured",
            (
                "",
                "ranks",
                "simulated",
                "measured",
                "simulated / measured",
                "sent",
                "bytes of ranks",
            ),
            rows,
            {"simulated": "s", "measured": "s", "simulated / measured": "×", "sent": "B"},
            note=f"After CALIBRATE. Medians of {RUNS} runs, a thread for each rank.",
        )
    ]


EXPERIMENT = Experiment(
    title="Simulation beside runs",
    source="beyond the papers",
    about="Plans are simulated at the rates that CALIBRATE measures, and run. The bytes that each "
    "rank sends and receives are compared with those of the plan. A program that disturbs "
    "CALIBRATE makes all simulated seconds of these ranks wrong by one factor; "
    "docs/explanation/simulation.md has a record without a disturbance.",
    computed=computed,
)
