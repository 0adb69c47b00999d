"""The page of a run: everything on it comes from the run's JSON and the experiments' files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.evaluation import claims, statistics
from benchmarks.evaluation.comparisons import (
    WORDS,
    judged,
    other_verdicts,
    rounds_of,
    verdicts,
    words_of_strategies,
    words_of_systems,
)
from benchmarks.evaluation.contents import PARTS
from benchmarks.evaluation.experiment import EINSQL, Experiment
from benchmarks.evaluation.run import complete
from benchmarks.evaluation.statistics import Verdict
from benchmarks.evaluation.trial import COUNTERS, LOOPBACK
from benchmarks.evaluation.worker import experiment
from benchmarks.measure import Estimate
from benchmarks.report import BAR, duration, ratio_text, write_between
from einsql.core.units import data_size

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "evaluation.md"
FOLDER = DOCUMENT.with_suffix("")
"""The pictures' directory."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
NO_REASON = "No reason is recorded."
RESIDENT = "the sum of the processes' peaks of resident memory, inputs and libraries included"
"""What the memory of runs is that do not say so."""
SENT_BY = {
    COUNTERS: "payload, by the system's own counters or computed from the sizes",
    LOOPBACK: "all bytes through the loopback interface, with headers and control messages",
}

Json = Mapping[str, Any]


def write() -> Path:
    """Writes the newest complete run into the page, and draws its pictures."""
    from benchmarks.evaluation import pictures  # matplotlib is needed for this alone

    content, previous = newest()
    write_between(DOCUMENT, "results", text(content, previous))
    write_between(claims.README, "claims", claims.text(content))
    pictures.write(content, FOLDER)
    return DOCUMENT


def newest() -> tuple[Json, Json | None]:
    """The newest complete run and the one before, if there is one."""
    runs = [json.loads(p.read_text(encoding="utf-8")) for p in complete()[-2:]]
    return runs[-1], runs[0] if len(runs) > 1 else None


def text(content: Json, previous: Json | None = None, named: Sequence[str] = ()) -> str:
    """The results of a run, or of some of its experiments, in Markdown.

    Args:
        content: The run.
        previous: The run before, with which verdicts are compared.
        named: The experiments; empty for all.
    """
    parts = [_head(content), *([] if named else _summary(content, previous))]
    for part, names in PARTS.items():
        there = [n for n in names if n in content["experiments"] and (not named or n in named)]
        if there:
            parts.append(f"## {part}")
        for name in there:
            memory = content.get("memory", RESIDENT)
            parts += _experiment(name, content["experiments"][name], memory)
    return "\n\n".join(parts)


def _head(content: Json) -> str:
    machine = content["machine"]
    seconds = content.get("seconds")
    took = f", in {duration(seconds)}" if seconds else ""
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
    lines += [f"environment `{peer}`: {packages}" for peer, packages in _packages(content)]
    intervals = [
        f"{rounds} rounds ({statistics.coverage(rounds):.1%})" for rounds in rounds_of(content)
    ]
    if intervals:
        lines.append(
            "probability that an interval contains the median that it estimates, if rounds are "
            "independent: " + ", ".join(intervals)
        )
    passes = content.get("passes", 1)
    apart = f" in {passes} passes over all experiments" if passes > 1 else ""
    return (
        f"Measured on {content['date'][:10]} at commit `{content['commit']}`{took}: "
        f"{content['rounds']} rounds of each case{apart}.\n\n"
        + "\n".join(f"- {line}" for line in lines)
    )


def _packages(content: Json) -> Iterator[tuple[str, str]]:
    """The packages that contestants loaded, with versions, by environment."""
    found: dict[str, dict[str, str]] = {}
    for name, measured in content["experiments"].items():
        peers = {c.name: c.peer for c in experiment(name).contestants}
        for told in measured["cases"].values():
            for contestant, entry in told["contestants"].items():
                if contestant in peers and "versions" in entry:
                    found.setdefault(peers[contestant], {}).update(entry["versions"])
    for peer in sorted(found, key=lambda peer: (peer != EINSQL, peer)):
        yield peer, ", ".join(f"{p} {v}" for p, v in sorted(found[peer].items()))


# Tables ----------------------------------------------------------------------------------------


def _summary(content: Json, previous: Json | None) -> Iterator[str]:
    """The counts of comparisons, with other systems and among einsql's strategies."""
    experiments = content["experiments"]
    names = [name for part in PARTS.values() for name in part if name in experiments]
    systems = {n: c for n in names if (c := words_of_systems(experiments[n]))}
    strategies = {n: c for n in names if (c := words_of_strategies(experiments[n]))}
    yield "### einsql beside other systems"
    yield (
        "These comparisons are measured. Variants of einsql, such as `einsql, data parallel`, are "
        "not counted."
    )
    yield _counts(["experiment", "einsql wins", "ties", "another is faster"], systems)
    if previous is not None:
        yield _agreement(content, previous)
    yield "![The other system's time over einsql's time](evaluation/times.svg)"
    if strategies:
        yield "### eindecomp among einsql's strategies"
        yield (
            "These comparisons are predictions of einsql's model, not measurements. `eindecomp` "
            "also considers the plans of the other strategies, so in bytes and in seconds it can "
            "hardly lose."
        )
        columns = ["experiment", "eindecomp is the least", "ties", "another is less"]
        yield _counts(columns, strategies)
    if others := [_link(n) for n in names if n not in systems and n not in strategies]:
        yield f"Not counted, because nothing competes: {', '.join(others)}."


def _counts(head: Sequence[str], words: Mapping[str, Sequence[str]]) -> str:
    return _markdown(
        head, [[_link(n), *(str(of.count(w)) for w in WORDS)] for n, of in words.items()]
    )


def _agreement(content: Json, previous: Json) -> str:
    """The comparisons that have another verdict in the run before."""
    compared, changes = other_verdicts(previous, content)
    lines = [
        f"- {_link(c.experiment)}, {c.case}: {c.before.word}, now {c.now.word}" for c in changes
    ]
    reversed_ones = sum(c.is_reversed for c in changes)
    return "\n".join([
        f"Of {compared} cases {len(changes)} have another verdict in the run before, of "
        f"{previous['date'][:16].replace('T', ' ')} at commit `{previous['commit']}`. Where "
        "neither run calls a tie, the other run has another fastest system in "
        f"{reversed_ones or 'none'} of them.\n",
        *lines,
    ])  # fmt: skip


def _link(name: str) -> str:
    """A link to an experiment's heading."""
    title = experiment(name).title
    anchor = title.lower().replace(" ", "-")
    return f"[{title}](#{''.join(c for c in anchor if c.isalnum() or c in '-_')})"


def _experiment(name: str, found: Json, memory: str) -> Iterator[str]:
    of = experiment(name)
    yield f"### {of.title}"
    yield f"{of.about} Source: {of.source}."
    for what, sql in of.sql.items():
        yield f"{what}:\n\n```sql\n{sql.strip()}\n```"
    if found["cases"]:
        yield from _times(found)
        yield from _scaling(of, found)
        yield from _resources(found, memory)
        yield from _absent(found)
        yield from _losses(of, found)
    for number, table in enumerate(found["tables"]):
        yield from _computed(of, table)
        if table["plotted"]:
            yield f"![{table['name']}](evaluation/{name}-{number}.svg)"


def _times(found: Json) -> Iterator[str]:
    """Medians of all contestants, and who won."""
    timed_cases = verdicts(found)
    if not timed_cases:
        return
    columns = _columns([found["cases"][case] for case in timed_cases])
    rows = []
    for case, verdict in timed_cases.items():
        told = found["cases"][case]
        cells = [_time(name, told, verdict) for name in columns]
        rows.append([case, *cells, _winner(verdict)])
    yield _markdown(["", *columns, "fastest"], rows)
    yield from _not_run({case: found["cases"][case] for case in timed_cases}, columns)
    yield from _faster_variants(timed_cases)


def _columns(cases: Sequence[Json]) -> list[str]:
    """All contestants of some cases, einsql first."""
    return list(dict.fromkeys([EINSQL, *(n for c in cases for n in c["contestants"])]))


def _time(name: str, case: Json, verdict: Verdict) -> str:
    entry = case["contestants"].get(name, {})
    if not entry.get("seconds"):
        return ""
    cell = duration(median(entry["seconds"]))
    if r := verdict.ratios.get(name) or verdict.own.get(name):
        cell += f", {_interval(r)}"
    elif name in case["bounds"]:
        r = statistics.ratio(entry["seconds"], case["contestants"][EINSQL]["seconds"])
        cell += f", {ratio_text(r.value)}×, a bound"
    return cell


def _not_run(cases: Mapping[str, Json], columns: Sequence[str]) -> Iterator[str]:
    """The contestants whose cells are empty because a case leaves them out."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for case, told in cases.items():
        if names := tuple(n for n in columns if n not in told["contestants"]):
            lacking.setdefault(names, []).append(case)
    if lacking:
        parts = [f"{_names(names)} ({'; '.join(of)})" for names, of in lacking.items()]
        yield f"Not run at this size or in this form: {'; '.join(parts)}."


def _faster_variants(of_cases: Mapping[str, Verdict]) -> Iterator[str]:
    """The variants of einsql that are faster than its own choice."""
    faster = [
        f"`{name}` takes {r.value:.3g} of einsql's time ({case})"
        for case, verdict in of_cases.items()
        for name, r in verdict.own.items()
        if r.high < 1
    ]
    if faster:
        yield f"A variant is faster than einsql's own choice: {'; '.join(faster)}."


def _names(names: Sequence[str]) -> str:
    """Names in a sentence; some have commas."""
    return ", ".join(f"`{name}`" for name in names)


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
            r = statistics.unpaired_ratio(*seconds)
            cells.append(_interval(r))
        rows.append([line.name, *cells])
    yield (
        f"The median time of {of.scaling[0].slow} over that of the following cases. Cases do not "
        "share rounds, so the bounds are ratios of the bounds of both medians' intervals."
    )
    yield _markdown(["", *columns], rows)


def _resources(found: Json, memory: str) -> Iterator[str]:
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
    yield f"Bytes that one computation sends between processes, and memory: {memory}."
    yield _markdown(["", *columns], rows)
    yield from _not_run(cases, columns)
    yield from _counted(cases, columns)


def _counted(cases: Mapping[str, Json], columns: Sequence[str]) -> Iterator[str]:
    """How the bytes of each column are counted."""
    names: dict[str, list[str]] = {}
    for name in columns:
        entries = [told["contestants"].get(name, {}) for told in cases.values()]
        sources = {e["sent_by"] for e in entries if "sent_by" in e}
        for source in sources:
            names.setdefault(SENT_BY[source], []).append(name)
        if not sources and any("memory" in e for e in entries):
            names.setdefault("", []).append(name)
    neither = names.pop("", [])
    parts = [f"{_names(of)}: {what}" for what, of in sorted(names.items())]
    if parts and neither:
        parts.append(
            f"{_names(neither)}: no figure. The system has no counter, and sent at most 64 KiB "
            "through the loopback interface; processes of one machine may use shared memory"
        )
    if parts:
        yield "How the bytes of each system are counted:\n\n" + "\n".join(f"- {p}." for p in parts)


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
    """Where einsql does not have the least figure, and why."""
    lines = []
    for case, verdict in verdicts(found).items():
        if verdict.word == "lost":
            r = verdict.ratios[verdict.fastest]
            why = of.reasons.get(case) or of.reasons.get("") or NO_REASON
            lines.append(f"- {case}: {verdict.fastest} takes {r.value:.3g} of einsql's time. {why}")
    if lines:
        yield "Where another system or strategy is faster or less:\n\n" + "\n".join(lines)


def _computed(of: Experiment, table: Json) -> Iterator[str]:
    yield f"#### {table['name']}"
    compared = judged(table)
    rows = []
    for row, of_row in zip(table["rows"], compared, strict=True):
        cells = [
            cell(value, table["units"].get(column, ""))
            for column, value in zip(table["columns"], row, strict=True)
        ]
        for column, r in (of_row.ratios or {}).items():
            cells[table["columns"].index(column)] += f", {_interval(r)}"
        if table["compete"]:
            cells.append(" and ".join(of_row.best) + (", a tie" if len(of_row.best) > 1 else ""))
        rows.append(cells)
    yield _markdown([*table["columns"], *(["least"] if table["compete"] else [])], rows)
    if table["note"]:
        yield table["note"]
    if any(of_row.word == "lost" for of_row in compared):
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
