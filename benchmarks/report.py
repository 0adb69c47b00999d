"""Findings beside their targets: a table on the terminal and in docs/explanation/benchmarks.md."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from benchmarks.measure import Estimate, Times
from einsql.kernels.runtime import blas

DOCUMENT = Path(__file__).parent.parent / "docs" / "explanation" / "benchmarks.md"
_PACKAGES = ("numpy", "torch", "duckdb", "pyarrow", "sqlglot", "numba", "scipy")


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        what: What was compared.
        figure: What was found, with its confidence interval.
        target: What is aimed for, or nothing for a line that only informs.
        met: Whether the target is met; None for a line without one.
        times: Median times behind the figure.
    """

    what: str
    figure: str
    target: str = ""
    met: bool | None = None
    times: str = ""

    def cells(self) -> tuple[str, ...]:
        """The line's cells."""
        verdict = "" if self.met is None else "met" if self.met else "MISSED"
        return self.what, self.figure, self.target, verdict, self.times


@dataclass(frozen=True)
class Section:
    """The findings of one benchmark, and what was left out for which reason."""

    title: str
    findings: tuple[Finding, ...]
    skipped: str = ""


BAR = r"\|"
"""How a cell of a Markdown table has a bar in it."""

HEAD = ("", "found [95 % interval]", "target", "", "medians")


def factor(e: Estimate, digits: int = 3) -> str:
    """A ratio with its interval."""
    return f"{e.value:.{digits}f}× [{e.low:.{digits}f}, {e.high:.{digits}f}]"


def microseconds(e: Estimate) -> str:
    """A difference of times with its interval."""
    return f"{e.value * 1e6:+.0f} µs [{e.low * 1e6:+.0f}, {e.high * 1e6:+.0f}]"


def duration(seconds: float) -> str:
    """A time in a unit that suits it."""
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def ratio_text(value: float) -> str:
    """A ratio with three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(of: dict[str, float]) -> str:
    """Medians by contestant."""
    return ", ".join(f"{name} {duration(t)}" for name, t in of.items())


def against(
    what: str,
    taken: Times,
    peer: str,
    aim: float | None = None,
    *,
    digits: int = 2,
    medians: str | None = None,
) -> Finding:
    """How many times longer a peer takes than einsql.

    Args:
        what: What was compared, with the peer's name.
        taken: Times of "einsql" and of the peer.
        peer: Its name there.
        aim: The least ratio that is aimed for; None for a line that only informs.
        digits: Decimals of the ratio.
        medians: What is told of the times; without it the medians of all contestants.
    """
    ratio = taken.ratio(peer, "einsql")
    if medians is None:
        medians = times({name: taken.median(name) for name in taken.seconds})
    target = "" if aim is None else f"≥ {aim}×"
    met = None if aim is None else ratio.value >= aim
    return Finding(what, factor(ratio, digits), target, met, medians)


def as_text(sections: Iterable[Section]) -> str:
    """The sections as aligned columns."""
    sections = list(sections)
    rows = [HEAD, *(f.cells() for s in sections for f in s.findings)]
    widths = [max(len(r[n]) for r in rows) for n in range(len(HEAD))]

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()

    parts = [line(HEAD)]
    for s in sections:
        parts += ["", s.title, *(line(f.cells()) for f in s.findings)]
        if s.skipped:
            parts.append(f"skipped: {s.skipped}")
    return "\n".join(parts)


def as_markdown(sections: Iterable[Section]) -> str:
    """The sections as Markdown tables under the date and the machine."""
    parts = [
        f"Measured on {datetime.date.today().isoformat()}.",
        "",
        *(f"- {m}" for m in machine()),
    ]
    for s in sections:
        parts += ["", f"### {s.title}", ""]
        if s.skipped:
            parts += [f"Skipped: {s.skipped}.", ""]
        parts += [_row(HEAD), _row(("---",) * len(HEAD))]
        parts += [_row(f.cells()) for f in s.findings]
    return "\n".join(parts)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(c.replace('|', BAR) for c in cells)} |"


def record(sections: Iterable[Section], mark: str = "results") -> Path:
    """Writes the results into the document, between the two marks of that name."""
    write_between(DOCUMENT, mark, as_markdown(sections))
    return DOCUMENT


def write_between(document: Path, mark: str, text: str) -> None:
    """Replaces what stands in a document between the two marks of a name."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def machine() -> list[str]:
    """What the figures were measured on, a line for each aspect."""
    numpys = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    other = blas.library()
    return [
        f"CPU: {_cpu()}, {len(os.sched_getaffinity(0))} cores",
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; {_load()}",
        ", ".join(f"{p} {v}" for p in _PACKAGES if (v := _version(p))),
        f"NumPy's BLAS: {numpys['name']} {numpys['version']}"
        + ("" if other is None or blas.is_numpys() else f"; einsql's: {other.name}"),
    ]


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown"


def _load() -> str:
    return f"load average {os.getloadavg()[0]:.1f} at the end of the run"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
