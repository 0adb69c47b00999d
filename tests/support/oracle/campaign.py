"""Many random databases and queries, what became of them, and small witnesses."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.oracle.changes import stored
from tests.support.oracle.choices import Choices, shrink
from tests.support.oracle.coverage import missed, table
from tests.support.oracle.data import Database, random_database
from tests.support.oracle.generate import Generator, Query
from tests.support.oracle.oracle import INTERPRETED, Outcome, Pair, repro

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster

QUERIES_PER_DATABASE = 12
BAD = frozenset({"differ", "crash", "invalid"})


@dataclass
class Finding:
    """A query on which the two sides differ."""

    outcome: Outcome
    script: str
    seed: int
    times: int = 1


@dataclass
class Report:
    """What a campaign found.

    Attributes:
        expected: Queries that should run without DuckDB.
        in_fragment: Those of them that did.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    lowered: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    empty: int = 0
    expected: int = 0
    in_fragment: int = 0

    @property
    def queries(self) -> int:
        """How many queries were run."""
        return sum(self.verdicts.values())

    def add(self, other: Report) -> None:
        """Takes in another process's report."""
        self.verdicts += other.verdicts
        self.hits += other.hits
        self.outside += other.outside
        self.lowered += other.lowered
        self.empty += other.empty
        self.expected += other.expected
        self.in_fragment += other.in_fragment
        for key, finding in other.findings.items():
            if key in self.findings:
                self.findings[key].times += finding.times
            else:
                self.findings[key] = finding

    def note(self, query: Query, outcome: Outcome) -> None:
        """Counts one query."""
        self.verdicts[outcome.verdict] += 1
        self.hits.update(query.tags)
        self.empty += outcome.verdict == "agree" and outcome.rows == 0
        self.expected += query.in_fragment
        if outcome.outside:
            self.outside[re.sub(r'"[^"]*"|\d+', "…", outcome.outside)[:100]] += 1
        elif query.in_fragment:
            self.in_fragment += 1

    def text(self) -> str:
        """The report for people."""
        n = max(1, self.queries)
        lines = []
        for finding in self.findings.values():
            lines += [
                f"--- {finding.outcome.verdict}, {finding.times} times (seed {finding.seed})",
                finding.outcome.detail,
                finding.script,
                "",
            ]
        bad = sum(self.verdicts[v] for v in BAD)
        lines += [
            f"{self.queries} queries: {self.verdicts['agree']} agree, "
            f"{self.verdicts['refused']} refused by both ({self.verdicts['refused'] / n:.1%}), "
            f"{self.empty} empty ({self.empty / n:.1%})",
            f"{self.verdicts['unsupported']} unsupported, "
            f"{self.verdicts['differ']} differences, {self.verdicts['crash']} exceptions that are "
            f"no einsql.Error, {self.verdicts['invalid']} that DuckDB alone refuses; "
            f"{len(self.findings)} kinds in all" + ("" if bad else ", nothing to report"),
            f"in the fragment (fallback = off): {self.in_fragment / max(1, self.expected):.1%} "
            f"of {self.expected} that should be",
        ]
        if self.lowered:
            done, all_ = self.lowered["lowered"], self.lowered.total()
            lines.append(f"run as blocks: {done} of {all_} plans ({done / all_:.1%})")
            lines += [f"  not lowered {n:>4}  {why}" for why, n in self.lowered.most_common()[1:]]
        lines += [f"  outside {count:>6}  {why}" for why, count in self.outside.most_common(20)]
        lines += ["hits of the lines of the semantics table:", table(self.hits)]
        if missed(self.hits):
            lines.append(f"not hit: {', '.join(missed(self.hits))}")
        return "\n".join(lines)


def campaign(
    queries: int,
    seed: int,
    minutes: float | None = None,
    with_einsql: bool = True,
    settings: Mapping[str, str] = INTERPRETED,
    repros: int = 20,
    cluster: Cluster | None = None,
) -> Report:
    """Runs random queries, and prints a first report of each new kind of finding to stderr.

    Args:
        queries: How many.
        seed: The same seed gives the same queries.
        minutes: Stops earlier when they are over.
        with_einsql: False runs DuckDB alone.
        settings: einsql's settings.
        repros: How many kinds of findings are made minimal.
        cluster: Ranks to run on, where the tensors are stored by statements.
    """
    report = Report()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    number = 0
    while report.queries < queries and (deadline is None or time.monotonic() < deadline):
        number += 1
        case = seed * 1_000_000 + number
        data = Choices(random.Random(case))
        pair = Pair(_database(data, settings, cluster), with_einsql, settings, cluster)
        for n in range(min(QUERIES_PER_DATABASE, queries - report.queries)):
            asked, query = _query(pair, case * 100 + n)
            outcome = pair.check(query)
            report.note(query, outcome)
            if outcome.verdict in BAD:
                key = signature(outcome)
                if key in report.findings:
                    report.findings[key].times += 1
                else:
                    small = len(report.findings) < repros
                    kind = f"{report.queries} queries; {outcome.verdict}: {outcome.detail}"
                    print(kind, query.sql, sep="\n", file=sys.stderr, flush=True)
                    report.findings[key] = _finding(
                        data.made, asked.made, outcome, case * 100 + n, with_einsql, settings,
                        small, cluster,
                    )  # fmt: skip
        report.lowered += pair.lowered
        pair.close()
    return report


def _database(data: Choices, settings: Mapping[str, str], cluster: Cluster | None) -> Database:
    # Several sites visit every key of a sparse tensor, so its bounds are small.
    is_alone = cluster is None and settings.get("sites", "1") == "1"
    made = random_database(data, may_be_wide=is_alone)
    return made if cluster is None else stored(made, data, cluster.ranks)


def _query(pair: Pair, seed: int) -> tuple[Choices, Query]:
    """A random query, with a second and third attempt where the answer would be empty."""
    for attempt in range(3):
        asked = Choices(random.Random(seed * 10 + attempt))
        query = Generator(asked, pair.db).query()
        if attempt == 2 or pair.oracle.answers(query.sql):
            break
    query.tags |= pair.db.tags
    return asked, query


def signature(outcome: Outcome) -> str:
    """Groups findings that look like one cause."""
    text = re.sub(r"\([^()]*\)|\[[^\]]*\]|'[^']*'|\"[^\"]*\"|-?\d+(\.\d+)?(e[+-]?\d+)?", "…",
                  outcome.detail.split("\n")[0])  # fmt: skip
    return f"{outcome.verdict}: {text[:90]}"


def _finding(
    data: list[int],
    asked: list[int],
    outcome: Outcome,
    seed: int,
    with_einsql: bool,
    settings: Mapping[str, str],
    small: bool,
    cluster: Cluster | None,
) -> Finding:
    """Makes a finding's database and query as small as they can be."""
    wanted = signature(outcome)

    def replayed(choices: list[int], cut: int) -> tuple[Database, Query, Outcome]:
        db = _database(Choices(None, choices[:cut]), settings, cluster)
        query = Generator(Choices(None, choices[cut:]), db).query()
        pair = Pair(db, with_einsql, settings, cluster)
        try:
            return db, query, pair.check(query)
        finally:
            pair.close()

    def still(db_choices: list[int], query_choices: list[int]) -> bool:
        try:
            _, _, seen = replayed(db_choices + query_choices, len(db_choices))
        except Exception:  # a replay that makes no sense is not a smaller witness
            return False
        return signature(seen) == wanted

    if small:
        asked = shrink(asked, lambda q: still(data, q), 15)
        data = shrink(data, lambda d: still(d, asked), 15)
        asked = shrink(asked, lambda q: still(data, q), 10)
    db, query, seen = replayed(data + asked, len(data))
    script = repro(db, query, None if cluster is None else cluster.ranks)
    return Finding(seen if signature(seen) == wanted else outcome, script, seed)
