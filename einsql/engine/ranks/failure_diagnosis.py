"""Which rank ended first, and how, from reports of the kernel, the ranks and their launcher.

When one rank ends, its launcher kills the others, so all ranks end within a short time. The
evidence for the first one, in order of precedence:

- the last message of the rank;
- the death of the launcher, which ends all ranks;
- a report of MPI about the rank that asked it to abort all ranks;
- the order in which the kernel closed the connections, if all are local sockets (a rank's
  connection is closed before any file that the launcher may notice: see `rendezvous.reach`;
  network connections have no such order);
- a report of the launcher about a rank that it cannot have killed itself;
- the fact that the other ranks continue.

Without evidence the diagnosis names all ranks that have ended.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from einsql.core.records import dataclass
from einsql.engine.ranks.messages import Started


@dataclass(frozen=True, slots=True)
class Report:
    """A message of a launcher or MPI about a rank.

    Attributes:
        rank: The rank's number, or None.
        pid: The process ID, if the message has no rank number.
        how: The cause of its end.
        culprit: Whether the launcher did not end this rank itself.
        aborted: Whether the rank asked MPI to abort all ranks.
    """

    rank: int | None
    pid: int | None
    how: str
    culprit: bool = True
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that has ended, or may have ended.

    Attributes:
        number: The rank's number, if known.
        started: The rank's process.
        words: The reason that the rank sent.
    """

    number: int | None
    started: Started
    words: BaseException | None = None

    def __str__(self) -> str:
        return f"rank {'?' if self.number is None else self.number} ({self.started})"


@dataclass(frozen=True, slots=True)
class Loss:
    """The cause of an end of ranks.

    Attributes:
        who: Text that names the rank that ended first, or all candidates.
        how: The cause of its end, as a clause.
        one: Whether the rank is certain.
        words: The reason that the rank sent.
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
    """Determines which rank ended first, or all candidates.

    Args:
        ended: The ranks that have ended, at least one.
        left: The other ranks, which may be ending.
        ordered: Whether `ended` is in the order of the ends.
        reports: Messages about the ranks.
        launcher: The cause of the launcher's end, if it was killed.
    """
    if spoken := [e for e in ended if e.words is not None]:
        return Loss(str(spoken[0]), f"has failed: {_brief(spoken[0].words)}", True, spoken[0].words)
    if launcher is not None and not left:
        return launcher
    for report in reports:
        if report.aborted and (rank := _meant(report, [*ended, *left])) is not None:
            return Loss(str(rank), report.how)  # it may have been the last to end
    certain = [(r, e) for r in reports if (e := _meant(r, ended)) is not None]
    first = ended[0] if ordered or len(ended) == 1 else None
    if first is None:
        first = next((e for r, e in certain if r.culprit), None)
    if first is not None:
        return Loss(str(first), next((r.how for r, e in certain if e is first), "has ended"))
    which = "which of them was the first is not known"
    return Loss(listed(ended), f"have ended ({which})", False)


def each(ended: Sequence[Ended]) -> Loss:
    """Returns the loss of ranks that ended independently of each other."""
    if len(ended) == 1:
        return loss(ended, (), True)
    return Loss(listed(ended), "have ended", False)


def listed(ranks: Sequence[Ended]) -> str:
    """Returns text that lists ranks in the order of their numbers."""
    named = [str(e) for e in sorted(ranks, key=lambda e: -1 if e.number is None else e.number)]
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def reports(text: str) -> list[Report]:
    """Parses messages of launchers. Reports of ranks that aborted all others come first."""
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
            # The launcher kills the others by SIGKILL, and may print their status for the first.
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
"""Signals above SIGQUIT: the statuses 1, 2 and 3 are common exit codes of programs."""


def _by(number: int) -> str:
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"was ended by signal {number}"


def _meant(report: Report, ended: Sequence[Ended]) -> Ended | None:
    """Returns the rank that a report is about, or None if that is uncertain."""
    if report.rank is not None:
        candidates = [e for e in ended if e.number == report.rank]
    else:
        candidates = [e for e in ended if e.started.pid == report.pid]
    return candidates[0] if len(candidates) == 1 else None


def _brief(error: BaseException | None) -> str:
    """Returns the last line of an error's text, the most specific one."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
