"""Which rank ended first, and how, from reports of the kernel, the ranks and their launcher.

When one rank ends, its launcher kills the others, so soon all of them have ended. The first
one is known from, in this order:

- its own last message;
- a launcher that has been killed itself, which takes all of them with it;
- an MPI that says which rank asked it to end all of them;
- the order in which the kernel closed the lines, if all are sockets of this machine (a rank
  holds its line so that the kernel closes it before anything that a launcher may notice:
  see `rendezvous.reach`; lines over a network have no such order);
- the launcher's report, if it names a rank that it cannot have killed itself;
- the others, if they go on.

Else all that have ended are named.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from einsql.engine.ranks.messages import Started


@dataclass(frozen=True, slots=True)
class Report:
    """A message of a launcher or MPI about a rank.

    Attributes:
        rank: Its number, or None.
        pid: Its process, if the message has no number of a rank.
        how: How it ended.
        culprit: Whether it is one that the launcher has not ended itself.
        aborted: Whether it asked MPI to end all ranks.
    """

    rank: int | None
    pid: int | None
    how: str
    culprit: bool = True
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that has ended, or may have.

    Attributes:
        number: Its number, if it is known.
        started: Its process.
        words: The reason that it sent.
    """

    number: int | None
    started: Started
    words: BaseException | None = None

    def __str__(self) -> str:
        return f"rank {'?' if self.number is None else self.number} ({self.started})"


@dataclass(frozen=True, slots=True)
class Loss:
    """Why ranks have ended.

    Attributes:
        who: The rank that ended first, or all candidates, in words.
        how: How it ended, as a clause.
        one: Whether it is certain which one it was.
        words: The reason that it sent.
    """

    who: str
    how: str
    one: bool = True
    words: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.who[:1].upper()}{self.who[1:]} {self.how}"


def loss(
    ended: Sequence[Ended],
    left: Sequence[Ended],
    ordered: bool,
    reports: Sequence[Report] = (),
    launcher: Loss | None = None,
) -> Loss:
    """Says which rank ended first, or all that may have been it.

    Args:
        ended: The ranks that have ended, at least one.
        left: The others, which may be ending.
        ordered: Whether that is the order in which they ended.
        reports: Messages about them.
        launcher: How the launcher ended, if it was killed.
    """
    if spoken := [e for e in ended if e.words is not None]:
        return Loss(str(spoken[0]), f"has failed: {_brief(spoken[0].words)}", True, spoken[0].words)
    if launcher is not None and not left:
        return launcher
    for report in reports:
        if report.aborted and (rank := _meant(report, [*ended, *left])) is not None:
            return Loss(str(rank), report.how)  # which may be the last to end
    certain = [(r, e) for r in reports if (e := _meant(r, ended)) is not None]
    first = ended[0] if ordered or len(ended) == 1 else None
    if first is None:
        first = next((e for r, e in certain if r.culprit), None)
    if first is not None:
        return Loss(str(first), next((r.how for r, e in certain if e is first), "has ended"))
    which = "which of them was the first is not known"
    return Loss(listed(ended), f"have ended ({which})", False)


def each(ended: Sequence[Ended]) -> Loss:
    """The loss of ranks that ended each for itself."""
    if len(ended) == 1:
        return loss(ended, (), True)
    return Loss(listed(ended), "have ended", False)


def listed(ranks: Sequence[Ended]) -> str:
    """Ranks in words, in the order of their numbers."""
    named = [str(e) for e in sorted(ranks, key=lambda e: -1 if e.number is None else e.number)]
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def reports(text: str) -> list[Report]:
    """Messages of launchers, the most reliable first: those about ranks that ended all others."""
    aborts = (m for pattern in _ABORTS for m in pattern.finditer(text))
    matches = [
        Report(
            rank=int(m["rank"]),
            pid=None,
            how="has made MPI end all ranks",
            culprit=True,
            aborted=True,
        )
        for m in aborts
    ]
    matches += [
        Report(int(m["rank"]), None, _by(int(m["signal"]))) for m in _OPEN_MPI_SIGNAL.finditer(text)
    ]
    matches += [
        Report(int(m["rank"]), None, f"has ended with status {m['status']}")
        for m in _OPEN_MPI_STATUS.finditer(text)
    ]
    for match in _MPICH.finditer(text):
        pid, status, by_signal = int(match["pid"]), int(match["status"]), match["string"]
        number = status & 127
        if by_signal and number in _SIGNALS:
            # Others are killed with SIGKILL, and their status may be printed for the first.
            matches.append(
                Report(rank=None, pid=pid, how=_by(number), culprit=number != signal.SIGKILL)
            )
        elif status:
            matches.append(Report(None, pid, f"has ended with status {status}"))
    return matches


_ABORTS = (
    re.compile(r"^Abort\(-?\d+\)[^\n]*? on node (?P<rank>\d+)", re.M),  # MPICH
    re.compile(r"^MPI_ABORT was invoked on rank (?P<rank>\d+)", re.M),  # Open MPI
)
_OPEN_MPI_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on\s+signal (?P<signal>\d+)"
)
_OPEN_MPI_STATUS = re.compile(
    r"Process name: \[\S+,(?P<rank>\d+)\]\s+Exit code:\s+(?P<status>[1-9]\d*)"
)
_MPICH = re.compile(
    r"PID (?P<pid>\d+) RUNNING AT.*?EXIT CODE: (?P<status>\d+)(?P<string>.*?EXIT STRING: )?", re.S
)
_SIGNALS = {s.value for s in signal.Signals if s > signal.SIGQUIT}
"""Statuses that are no signals end here: 1, 2 and 3 are what programs end with."""


def _by(number: int) -> str:
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"was ended by signal {number}"


def _meant(report: Report, ended: Sequence[Ended]) -> Ended | None:
    """The rank that a report is about, if that is certain."""
    if report.rank is not None:
        candidates = [e for e in ended if e.number == report.rank]
    else:
        candidates = [e for e in ended if e.started.pid == report.pid]
    return candidates[0] if len(candidates) == 1 else None


def _brief(error: BaseException | None) -> str:
    """The last line of an error's text, which says most."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
