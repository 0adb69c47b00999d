"""What the page compares: the cases of an experiment, and the rows of its computed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.evaluation import statistics
from benchmarks.evaluation.experiment import EINSQL
from benchmarks.evaluation.statistics import Verdict
from benchmarks.measure import Estimate

Json = Mapping[str, Any]

WORDS = ("won", "tie", "lost")


def verdicts(found: Json) -> dict[str, Verdict]:
    """The verdict of each case of an experiment whose times are compared."""
    made = {}
    for case, told in found["cases"].items():
        seconds = timed(told)
        if told["timed"] and EINSQL in seconds:
            made[case] = statistics.verdict(seconds)
    return made


def timed(case: Json) -> dict[str, list[float]]:
    """Seconds of the contestants that are compared, by name."""
    return {
        name: entry["seconds"]
        for name, entry in case["contestants"].items()
        if entry.get("seconds") and name not in case["bounds"]
    }


@dataclass(frozen=True)
class Row:
    """The comparison of the numbers of a row.

    Attributes:
        word: "won", "tie" or "lost"; nothing if nothing is compared.
        best: The columns of the least number.
        ratios: Ratios to the number of einsql's column, where there are rounds.
    """

    word: str = ""
    best: tuple[str, ...] = ()
    ratios: Mapping[str, Estimate] | None = None


def judged(table: Json) -> list[Row]:
    """The comparison of each row of a computed table."""
    rounds = table.get("rounds")
    if rounds:
        return [_by_rounds(statistics.verdict(of)) for of in rounds]
    return [_by_numbers(table, row) for row in table["rows"]]


def _by_rounds(verdict: Verdict) -> Row:
    return Row(verdict.word, verdict.tied, verdict.ratios)


def _by_numbers(table: Json, row: Sequence[Any]) -> Row:
    cells = dict(zip(table["columns"], row, strict=True))
    values = {c: cells[c] for c in table["compete"] if isinstance(cells[c], int | float)}
    if table["ours"] not in values or len(values) < 2:
        return Row()
    best = statistics.least(values)
    if table["ours"] not in best:
        return Row("lost", best)
    return Row("won" if len(best) == 1 else "tie", best)


def words_of_systems(found: Json) -> list[str]:
    """The words of an experiment's comparisons of einsql with other systems."""
    rows = [row.word for table in _tables(found, own=False) for row in judged(table)]
    words = [*(v.word for v in verdicts(found).values()), *rows]
    return [word for word in words if word in WORDS]


def words_of_strategies(found: Json) -> list[str]:
    """The words of an experiment's comparisons of einsql's strategies with each other."""
    rows = [row.word for table in _tables(found, own=True) for row in judged(table)]
    return [word for word in rows if word in WORDS]


def _tables(found: Json, own: bool) -> list[Json]:
    return [t for t in found["tables"] if t["compete"] and (t["ours"] != EINSQL) == own]


@dataclass(frozen=True)
class Change:
    """A case with another verdict in another run.

    Attributes:
        experiment: The experiment.
        case: The case.
        before: The verdict of the other run.
        now: The verdict.
    """

    experiment: str
    case: str
    before: Verdict
    now: Verdict

    @property
    def is_reversed(self) -> bool:
        """Whether both verdicts name a single fastest system, and not the same."""
        single = len(self.before.tied) == len(self.now.tied) == 1
        return single and self.before.fastest != self.now.fastest


def other_verdicts(before: Json, now: Json) -> tuple[int, list[Change]]:
    """The number of cases of both runs, and those with different verdicts."""
    compared, changes = 0, list[Change]()
    for name in now["experiments"]:
        if name not in before["experiments"]:
            continue
        old, new = (verdicts(run["experiments"][name]) for run in (before, now))
        common = [case for case in new if case in old]
        compared += len(common)
        changes += [
            change
            for case in common
            if (change := Change(name, case, old[case], new[case])).is_reversed
            or old[case].word != new[case].word
        ]
    return compared, changes


def rounds_of(content: Json) -> list[int]:
    """The numbers of rounds behind the intervals of a run, the commonest first."""
    counts: dict[int, int] = {}
    for found in content["experiments"].values():
        cases = [timed(told) for told in found["cases"].values() if told["timed"]]
        rows = [row for table in found["tables"] for row in table.get("rounds") or ()]
        for seconds in (*cases, *rows):
            for taken in seconds.values():
                counts[len(taken)] = counts.get(len(taken), 0) + 1
    return sorted(counts, key=lambda n: -counts[n])
