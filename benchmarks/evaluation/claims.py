"""The README's claims, with figures from a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.evaluation import statistics
from benchmarks.evaluation.experiment import EINSQL
from benchmarks.measure import Estimate
from benchmarks.report import duration
from einsql.core.units import data_size

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
COMMAND = "python -m benchmarks.evaluation"

Json = Mapping[str, Any]


def text(content: Json) -> str:
    """The claims that a run supports, each with the command that measures it again."""
    claims = (_rows, _training, _memory)
    lines = [
        f"- {sentence} `{COMMAND} {name}`"
        for claim in claims
        for name, sentence in claim(content["experiments"])
    ]
    return "\n".join(lines)


def _rows(experiments: Json) -> Iterator[tuple[str, str]]:
    """The same text over arrays and over rows."""
    cases = experiments.get("chains_in_sql", {"cases": {}})["cases"]
    for case, told in cases.items():
        entries = told["contestants"]
        if all(entries.get(n, {}).get("seconds") for n in (EINSQL, "DuckDB", "PostgreSQL")):
            duckdb, postgresql = (
                statistics.ratio(entries[n]["seconds"], entries[EINSQL]["seconds"])
                for n in ("DuckDB", "PostgreSQL")
            )
            if min(duckdb.low, postgresql.low) > 1:
                yield (
                    "chains_in_sql",
                    f"A chain of matrix products ({case}) as SQL takes DuckDB {_times(duckdb)} "
                    f"and PostgreSQL {_times(postgresql)} times einsql's time on the same text.",
                )
            return


def _times(ratio: Estimate) -> str:
    """The interval of a ratio of times."""
    return f"{ratio.low:,.0f} to {ratio.high:,.0f}"


def _training(experiments: Json) -> Iterator[tuple[str, str]]:
    """Bytes of a training step beside data parallel training."""
    cases = experiments.get("training", {"cases": {}})["cases"]
    found: list[tuple[bool, float, str, str]] = []
    for case, told in cases.items():
        ours, theirs = (told["contestants"].get(n, {}) for n in (EINSQL, "PyTorch DDP"))
        if not all(e.get("seconds") and "sent_bytes" in e for e in (ours, theirs)):
            continue
        apart = theirs["sent_bytes"] / max(ours["sent_bytes"], 1)
        if apart > 1:
            not_slower = statistics.ratio(theirs["seconds"], ours["seconds"]).high >= 1
            found.append((not_slower, apart, case, _step(case, ours, theirs)))
    if found:
        *_, case, sentence = max(found)
        yield "training", " ".join([sentence, *_on_more_ranks(cases, case)])


def _on_more_ranks(cases: Json, case: str) -> Iterator[str]:
    """The bytes of a training step's other cases: the same network on other ranks."""
    network = case.rpartition(", ")[0]
    for other, told in cases.items():
        ours, theirs = (told["contestants"].get(n, {}) for n in (EINSQL, "PyTorch DDP"))
        if other != case and other.startswith(f"{network}, ") and "sent_bytes" in theirs:
            yield (
                f"On {other.rpartition(', ')[2]} it sends {data_size(ours['sent_bytes'])} "
                f"beside {data_size(theirs['sent_bytes'])}."
            )


def _step(case: str, ours: Json, theirs: Json) -> str:
    """The bytes and the times of a training step."""
    return (
        f"A training step ({case}) sends {data_size(ours['sent_bytes'])} between processes as "
        f"einsql cuts it, and takes {duration(median(ours['seconds']))}. With PyTorch's DDP it "
        f"sends {data_size(theirs['sent_bytes'])} and takes {duration(median(theirs['seconds']))}."
    )


def _memory(experiments: Json) -> Iterator[tuple[str, str]]:
    """The least limit of memory beside the largest one."""
    cases = experiments.get("memory", {"cases": {}})["cases"]
    seconds = {
        case: told["contestants"][EINSQL]["seconds"]
        for case, told in cases.items()
        if told["contestants"].get(EINSQL, {}).get("seconds")
    }
    if len(seconds) > 1:
        names = list(seconds)
        slower = median(seconds[names[-1]]) / median(seconds[names[0]])
        yield (
            "memory",
            f"A chain of products under a limit of {names[-1]}, takes {slower:.2g} times as long "
            f"as under {names[0]}. The limit counts neither the mapped inputs nor the result that "
            "is fetched.",
        )
