"""The page of a run: everything on it comes from the run's JSON and the experiments' files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.evaluation import claims, statistics
from benchmarks.evaluation.contents import PARTS
from benchmarks.evaluation.experiment import EINSQL, Experiment
from benchmarks.evaluation.run import complete
from benchmarks.evaluation.statistics import Verdict
from benchmarks.evaluation.worker import experiment
from benchmarks.measure import Estimate
from benchmarks.report import BAR, duration, ratio_text, write_between
from einsql.core.units import data_size

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "evaluation.md"
FOLDER = DOCUMENT.with_suffix("")
"""The pictures' directory."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
NO_REASON = "No reason is recorded."

Json = Mapping[str, Any]


def write() -> Path:
    """Writes the newest complete run into the page, and draws its pictures."""
    from benchmarks.evaluation import pictures  # matplotlib is needed for this alone

    content = json.loads(complete()[-1].read_text(encoding="utf-8"))
    write_between(DOCUMENT, "results", text(content))
    write_between(claims.README, "claims", claims.text(content))
    pictures.write(content, FOLDER)
    return DOCUMENT


def text(content: Json, named: Sequence[str] = ()) -> str:
    """The results of a run, or of some of its experiments, in Markdown."""
    parts = [*_head(content), *([] if named else _summary(content))]
    for part, names in PARTS.items():
        there = [n for n in names if n in content["experiments"] and (not named or n in named)]
        if there:
            parts.append(f"## {part}")
        for name in there:
            parts += _experiment(name, content["experiments"][name])
    return "\n\n".join(parts)


def _head(content: Json) -> Iterator[str]:
    machine = content["machine"]
    seconds = content.get("seconds")
    took = f", in {duration(seconds)}" if seconds else ""
    yield (
        f"Measured on {content['date'][:10]} at commit `{content['commit']}`{took}: "
        f"{content['rounds']} rounds of each case."
    )
    lines = [
        *machine["lines"],
        f"{data_size(machine['memory_bytes'])} of memory, Linux {machine['kernel']}",
        f"load average {machine['load']:.1f} before the run",
    ]
    shares = [e["busy_before"] for e in content["experiments"].values() if "busy_before" in e]
    if shares:
        lines.append(
            f"other processes took {median(shares):.0%} of the processors' time before the median "
            f"experiment, {max(shares):.0%} before the worst"
        )
    yield "\n".join(f"- {line}" for line in lines)


# What is compared ------------------------------------------------------------------------------


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


def _table_words(table: Json) -> list[str]:
    """The word of each row of a computed table: "won", "tie", "lost" or nothing."""
    return [_row_word(table, row) for row in table["rows"]]


def _row_word(table: Json, row: Sequence[Any]) -> str:
    values = _competing(table, row)
    if table["ours"] not in values or len(values) < 2:
        return ""
    best = statistics.least(values)
    if table["ours"] not in best:
        return "lost"
    return "won" if len(best) == 1 else "tie"


def _competing(table: Json, row: Sequence[Any]) -> dict[str, float]:
    """The numbers of a row that are compared, by column."""
    cells = dict(zip(table["columns"], row, strict=True))
    return {c: cells[c] for c in table["compete"] if isinstance(cells[c], int | float)}


def words(found: Json) -> list[str]:
    """The words of all comparisons of an experiment."""
    of_cases = [v.word for v in verdicts(found).values()]
    of_rows = [word for table in found["tables"] for word in _table_words(table)]
    return [word for word in (*of_cases, *of_rows) if word not in ("", "alone")]


# Tables ----------------------------------------------------------------------------------------


def _summary(content: Json) -> Iterator[str]:
    rows = []
    for names in PARTS.values():
        for name in names:
            if name not in content["experiments"]:
                continue
            title = experiment(name).title
            counted = words(content["experiments"][name])
            anchor = title.lower().replace(" ", "-")
            anchor = "".join(c for c in anchor if c.isalnum() or c in "-_")
            counts = [str(counted.count(w)) for w in ("won", "tie", "lost")]
            rows.append([f"[{title}](#{anchor})", *counts])
    yield _markdown(["experiment", "einsql wins", "ties", "einsql does not win"], rows)
    yield "![The other system's time over einsql's time](evaluation/times.svg)"


def _experiment(name: str, found: Json) -> Iterator[str]:
    of = experiment(name)
    yield f"### {of.title}"
    yield f"{of.about} Source: {of.source}."
    for what, sql in of.sql.items():
        yield f"{what}:\n\n```sql\n{sql.strip()}\n```"
    if found["cases"]:
        yield from _times(found)
        yield from _scaling(of, found)
        yield from _resources(found)
        yield from _absent(found)
        yield from _losses(of, found)
    for number, table in enumerate(found["tables"]):
        yield from _computed(of, table)
        if table["plotted"]:
            yield f"![{table['name']}](evaluation/{name}-{number}.svg)"


def _times(found: Json) -> Iterator[str]:
    """Medians of all contestants, and who won."""
    judged = verdicts(found)
    if not judged:
        return
    columns = _columns([found["cases"][case] for case in judged])
    rows = []
    for case, verdict in judged.items():
        told = found["cases"][case]
        cells = [_time(name, told, verdict) for name in columns]
        rows.append([case, *cells, _winner(verdict)])
    yield _markdown(["", *columns, "fastest"], rows)


def _columns(cases: Sequence[Json]) -> list[str]:
    """All contestants of some cases, einsql first."""
    return list(dict.fromkeys([EINSQL, *(n for c in cases for n in c["contestants"])]))


def _time(name: str, case: Json, verdict: Verdict) -> str:
    entry = case["contestants"].get(name, {})
    if not entry.get("seconds"):
        return ""
    cell = duration(median(entry["seconds"]))
    if name in verdict.ratios:
        r = verdict.ratios[name]
        cell += f", {_interval(r)}"
    elif name in case["bounds"]:
        r = statistics.ratio(entry["seconds"], case["contestants"][EINSQL]["seconds"])
        cell += f", {ratio_text(r.value)}×, a bound"
    return cell


def _interval(of: Estimate) -> str:
    return f"{ratio_text(of.value)}× [{ratio_text(of.low)}, {ratio_text(of.high)}]"


def _winner(verdict: Verdict) -> str:
    if verdict.word == "alone":
        return ""
    return " and ".join(verdict.tied) + (", a tie" if len(verdict.tied) > 1 else "")


def _scaling(of: Experiment, found: Json) -> Iterator[str]:
    """The time of one case over another's, of each contestant that has both."""
    cases = {line: [found["cases"].get(c) for c in (line.slow, line.fast)] for line in of.scaling}
    there = {line: pair for line, pair in cases.items() if None not in pair}
    if not there:
        return
    columns = _columns([case for pair in there.values() for case in pair])
    rows = []
    for line, pair in there.items():
        cells = []
        for name in columns:
            seconds = [case["contestants"].get(name, {}).get("seconds") for case in pair]
            if not all(seconds):
                cells.append("")
                continue
            r = statistics.ratio(*seconds)
            cells.append(_interval(r))
        rows.append([line.name, *cells])
    yield f"The time of {of.scaling[0].slow} over that of:"
    yield _markdown(["", *columns], rows)


def _resources(found: Json) -> Iterator[str]:
    """Bytes sent and memory of cases with ranks, and memory where nothing else is compared."""
    cases = {
        c: told for c, told in found["cases"].items() if told["ranks"] > 1 or not told["timed"]
    }
    if not cases:
        return
    columns = _columns(list(cases.values()))
    columns = [c for c in columns if not all(c in told["bounds"] for told in cases.values())]
    rows = []
    for case, told in cases.items():
        cells = []
        for name in columns:
            entry = told["contestants"].get(name, {})
            if "memory" not in entry:
                cells.append("")
                continue
            sent = entry.get("sent_bytes")
            parts = ["" if sent is None else f"{data_size(sent)} sent",
                     f"{data_size(entry['memory']['peak'])} peak"]  # fmt: skip
            cells.append(", ".join(p for p in parts if p))
        rows.append([case, *cells])
    yield (
        "Bytes that one computation sends between processes, and the sum of the processes' peaks "
        "of resident memory, inputs and libraries included. Bytes are empty for a system that "
        "neither counts them nor sends them through the loopback interface."
    )
    yield _markdown(["", *columns], rows)


def _absent(found: Json) -> Iterator[str]:
    """Why cells are empty."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for case, told in found["cases"].items():
        for name, entry in told["contestants"].items():
            if "absent" in entry:
                reasons.setdefault((name, entry["absent"]), []).append(case)
    if reasons:
        yield "\n".join(
            f"- {name} is empty for {', '.join(cases)}: {reason}".rstrip(".") + "."
            for (name, reason), cases in reasons.items()
        )


def _losses(of: Experiment, found: Json) -> Iterator[str]:
    """Where einsql does not win, and why."""
    lines = []
    for case, verdict in verdicts(found).items():
        if verdict.word == "lost":
            r = verdict.ratios[verdict.fastest]
            why = of.reasons.get(case) or of.reasons.get("") or NO_REASON
            lines.append(f"- {case}: {verdict.fastest} takes {r.value:.3g} of einsql's time. {why}")
    if lines:
        yield "Where einsql does not win:\n\n" + "\n".join(lines)


def _computed(of: Experiment, table: Json) -> Iterator[str]:
    yield f"#### {table['name']}"
    judged = _table_words(table)
    rows = []
    for row, word in zip(table["rows"], judged, strict=True):
        cells = [
            cell(value, table["units"].get(column, ""))
            for column, value in zip(table["columns"], row, strict=True)
        ]
        if table["compete"]:
            best = statistics.least(_competing(table, row)) if word else ()
            cells.append(" and ".join(best) + (", a tie" if len(best) > 1 else ""))
        rows.append(cells)
    yield _markdown([*table["columns"], *(["least"] if table["compete"] else [])], rows)
    if table["note"]:
        yield table["note"]
    if "lost" in judged:
        why = of.reasons.get(table["name"]) or of.reasons.get("") or NO_REASON
        yield f"Where {table['ours']} is not the least: {why}"


def cell(value: Any, unit: str) -> str:
    """A cell of a computed table."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if unit == "s":
        return duration(value)
    if unit == "B":
        return data_size(int(value))
    if unit == "%":
        return f"{value:.1%}"
    number = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return number + (unit if unit == "×" else f" {unit}" if unit else "")


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(c.replace('|', BAR) for c in line)} |" for line in lines)
